//! Decodes whole chunks for tools, and says what is missing where that cannot be done.

use std::fmt;

use kvtier_key::{CodecId, Facts};

use crate::{Error, ErrorKind, TierEncoding};

/// The most raw bytes of a chunk that tools decode: what facts say is not proven before.
const RAW_BYTES_MAX: u64 = 1 << 30;

/// An encoded chunk that cannot be decoded here, and that is not known to be damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Undecoded {
    /// Its codec.
    pub codec: CodecId,
    /// The id of the key that encrypted it; 0 for none.
    pub key_id: u32,
    /// What is missing.
    pub cause: UndecodedCause,
    /// The same in words.
    pub reason: String,
}

/// Why a chunk cannot be decoded here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum UndecodedCause {
    /// Its key is not loaded.
    KeyMissing,
    /// The loaded key of that id is another one.
    WrongKey,
    /// This build lacks one of its stages, or the chunk is too long for tools.
    Unsupported,
}

impl fmt::Display for UndecodedCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UndecodedCause::KeyMissing => "key missing",
            UndecodedCause::WrongKey => "wrong key",
            UndecodedCause::Unsupported => "unsupported",
        })
    }
}

impl TierEncoding {
    /// The raw bytes of an encoded chunk whose stored bytes match the checksums of its facts, in
    /// memory of their own. `Ok(Err(..))` where something is missing here.
    ///
    /// # Errors
    /// `Corrupt`: not the bytes that were encoded.
    pub fn decode_whole(
        &self,
        facts: &Facts,
        stored: &[u8],
    ) -> Result<Result<Vec<u8>, Undecoded>, Error> {
        let undecoded = |cause, reason: String| {
            let (codec, key_id) = (facts.codec, facts.key_id);
            Ok(Err(Undecoded { codec, key_id, cause, reason }))
        };
        let failed = |e: Error, of_key| match e.kind() {
            ErrorKind::Corrupt => Err(e),
            ErrorKind::KeyMissing => undecoded(of_key, e.to_string()),
            _ => undecoded(UndecodedCause::Unsupported, e.to_string()),
        };
        // First what needs no memory.
        if let Err(e) = self.check(facts) {
            return failed(e, UndecodedCause::KeyMissing);
        }
        let too_long =
            || format!("it has {} raw bytes; tools decode at most {RAW_BYTES_MAX}", facts.raw_len);
        if facts.raw_len > RAW_BYTES_MAX {
            return undecoded(UndecodedCause::Unsupported, too_long());
        }
        let mut raw = vec![0; facts.raw_len as usize];
        match self.decode(facts, stored, &mut [&mut raw]) {
            Ok(()) => Ok(Ok(raw)),
            // The key is there: `check` has found it.
            Err(e) => failed(e, UndecodedCause::WrongKey),
        }
    }
}
