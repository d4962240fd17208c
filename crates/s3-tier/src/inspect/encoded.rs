//! Decodes objects of a bucket, and encodes and re-encodes chunks for it, without a tier.

use kvtier_codec::{ErrorKind as CodecErrorKind, TierEncoding, Undecoded};
use kvtier_core::{Error, ErrorKind, Key};
use kvtier_key::{BlockSums, Facts};
use kvtier_s3::Object;

use super::{Damage, proven};
use crate::ops::metadata::facts_text;

/// How far an object was verified.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Verified {
    /// Its raw bytes are those that were saved.
    Raw,
    /// Its stored bytes match their checksums. They were not decoded.
    Stored(Undecoded),
}

/// An object that was read.
#[derive(Clone, Copy, Debug)]
pub struct StoredObject<'a> {
    /// Its name behind the prefix.
    pub rest: &'a str,
    /// Its head.
    pub object: &'a Object,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// An object to be written.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NewObject {
    /// Its facts.
    pub facts: Facts,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// The raw bytes of an object, whose name behind the prefix is `rest`, once its stored bytes were
/// verified.
///
/// # Errors
/// What is wrong with it; `Ok(Err(..))` where a stage or key is missing here.
pub fn decode(
    rest: &str,
    object: &Object,
    bytes: &[u8],
    encoding: &TierEncoding,
) -> Result<Result<Vec<u8>, Undecoded>, Damage> {
    let facts = proven(rest, facts_text(|name| object.header(name)).as_deref(), bytes)?;
    if facts.is_plain() {
        return Ok(Ok(bytes.to_vec()));
    }
    encoding.decode_whole(&facts, bytes).map_err(|_| Damage::Encoding)
}

/// The object of a chunk as a tier of layout `kvtier` with this encoding saves it.
///
/// # Errors
/// As of a save: `Denied` if a required encryption has no key, or one that must be rotated;
/// `Invalid` for a chunk that is too long.
pub fn encode(key: &Key, raw: Vec<u8>, encoding: &TierEncoding) -> Result<NewObject, Error> {
    let failed = |e: kvtier_codec::Error| {
        let kind = match e.kind() {
            CodecErrorKind::KeyMissing | CodecErrorKind::KeyExhausted => ErrorKind::Denied,
            _ => ErrorKind::Invalid,
        };
        let what = "the chunk cannot be encoded; check the encodings and their keys";
        Error::new(kind, what).with_key(*key.digest()).with_source(e)
    };
    let namespace = key.namespace().digest();
    if encoding.is_on() {
        let mut bytes = vec![0; encoding.bound(raw.len()).map_err(failed)?];
        if let Some((payload, len)) = encoding.encode(key, &[&raw], &mut bytes).map_err(failed)? {
            bytes.truncate(len);
            let sums = BlockSums::from_bytes(&bytes);
            let facts = Facts::encoded(*key.digest(), namespace, payload, sums);
            return Ok(NewObject { facts, bytes });
        }
    }
    let facts = Facts::plain(*key.digest(), namespace, BlockSums::from_bytes(&raw));
    Ok(NewObject { facts, bytes: raw })
}

/// Encodes an object anew: `old` has what it may be encoded with now, `new` what it is to be
/// encoded with. `Ok(Ok(None))` if it is so already. A conditional PUT on the version that was read
/// keeps what another process saves meanwhile.
///
/// # Errors
/// What is wrong with the object; `Ok(Err(..))` where a stage or key is missing here, or where it
/// cannot be encoded.
pub fn reencode(
    stored: StoredObject<'_>,
    key: &Key,
    old: &TierEncoding,
    new: &TierEncoding,
) -> Result<Result<Option<NewObject>, Error>, Damage> {
    let StoredObject { rest, object, bytes } = stored;
    let facts = proven(rest, facts_text(|name| object.header(name)).as_deref(), bytes)?;
    if facts.key != *key.digest() || facts.namespace != key.namespace().digest() {
        return Err(Damage::Facts);
    }
    let raw = match decode(rest, object, bytes, old)? {
        Ok(raw) => raw,
        Err(undecoded) => {
            let e = Error::new(ErrorKind::Unsupported, undecoded.reason).with_key(*key.digest());
            return Ok(Err(e));
        }
    };
    let same = |new: &NewObject| (new.facts.codec, new.facts.key_id) == (facts.codec, facts.key_id);
    Ok(encode(key, raw, new).map(|new| Some(new).filter(|new| !same(new))))
}
