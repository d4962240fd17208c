//! The frame of LMCache 0.5.6's `aesgcm` serde: version 1, the nonce, the ciphertext and the tag,
//! without associated data; keys by HKDF from a master key and the `cache_salt`.

use std::fmt;
use std::sync::atomic::AtomicU64;

use aws_lc_rs::aead::NONCE_LEN;
use aws_lc_rs::hkdf::{HKDF_SHA256, Prk, Salt};

use super::cipher::{self, Cipher, KeyLen, PLAINTEXT_LEN_MAX, Sealed, TAG_LEN};
use super::master_key::{CHUNKS_PER_KEY_MAX, count_chunk};
use crate::pieces::{total_len, total_len_mut};
use crate::{Error, ErrorKind, Scratch};

/// What a frame is longer than its plaintext.
pub const LMCACHE_AES_OVERHEAD: usize = 1 + NONCE_LEN + TAG_LEN;

const VERSION: u8 = 1;

const INFO_PREFIX: &[u8] = b"lmcache-l2-aesgcm-v1";

/// The master key of LMCache's `aesgcm` serde: the bytes of its file. They are overwritten when it
/// is dropped, and never printed.
pub struct LmcacheAesKey {
    secret: Prk,
    len: KeyLen,
}

impl fmt::Debug for LmcacheAesKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LmcacheAesKey").field("bits", &(8 * self.len.0)).finish_non_exhaustive()
    }
}

impl LmcacheAesKey {
    /// The key of a file's bytes, for LMCache's setting `aes_bits`.
    ///
    /// # Errors
    /// `Invalid`: no bytes, or neither 128 nor 256 bits.
    pub fn new(master_key: &[u8], aes_bits: u32) -> Result<Self, Error> {
        if master_key.is_empty() {
            return Err(Error::invalid("the master key of LMCache's aesgcm serde is empty"));
        }
        if ![128, 256].contains(&aes_bits) {
            return Err(Error::invalid(format!("aes_bits is {aes_bits}: set 128 or 256")));
        }
        let secret = Salt::new(HKDF_SHA256, &[]).extract(master_key);
        Ok(LmcacheAesKey { secret, len: KeyLen(aes_bits as usize / 8) })
    }

    /// What encrypts and decrypts the chunks of one `cache_salt`.
    ///
    /// # Errors
    /// `Invalid`: the library fails.
    pub fn for_cache_salt(&self, cache_salt: &str) -> Result<LmcacheAesGcm, Error> {
        let info = [INFO_PREFIX, cache_salt.as_bytes()];
        let cipher = Cipher::derive(&self.secret, &info, self.len)?;
        Ok(LmcacheAesGcm { cipher, encrypted: AtomicU64::new(0) })
    }
}

/// Writes and reads the frames of one `cache_salt`.
///
/// The tag proves the bytes, but not which chunk they belong to: LMCache binds no key to a frame, so
/// a frame of another chunk of the same `cache_salt` decrypts as well. The caller's digest has to
/// prove that.
#[derive(Debug)]
pub struct LmcacheAesGcm {
    cipher: Cipher,
    pub(super) encrypted: AtomicU64,
}

impl LmcacheAesGcm {
    /// Encrypts the pieces of `raw` into the front of `out`, and returns the frame's bytes.
    ///
    /// # Errors
    /// `Invalid`: `out` has less than `LMCACHE_AES_OVERHEAD` bytes more than `raw`. `KeyExhausted`:
    /// 2^32 chunks were encrypted.
    pub fn encode(&self, raw: &[&[u8]], out: &mut [u8]) -> Result<usize, Error> {
        self.encode_with_nonce(cipher::random_nonce()?, raw, out)
    }

    pub(super) fn encode_with_nonce(
        &self,
        nonce: [u8; NONCE_LEN],
        raw: &[&[u8]],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let (raw_len, space) = (total_len(raw), out.len());
        let len = raw_len.checked_add(LMCACHE_AES_OVERHEAD);
        let frame = len.and_then(|len| out.get_mut(..len)).and_then(|frame| {
            let (version, frame) = frame.split_first_mut()?;
            let (nonce, frame) = frame.split_first_chunk_mut::<NONCE_LEN>()?;
            let (ciphertext, tag) = frame.split_last_chunk_mut::<TAG_LEN>()?;
            Some((version, nonce, ciphertext, tag))
        });
        let Some((version, to_nonce, ciphertext, tag)) =
            frame.filter(|_| raw_len as u64 <= PLAINTEXT_LEN_MAX)
        else {
            return Err(Error::invalid(format!(
                "a buffer of {space} bytes for {raw_len} raw ones"
            )));
        };
        count_chunk(&self.encrypted).map_err(|()| {
            let why = format!("a key encrypted {CHUNKS_PER_KEY_MAX} chunks, as many as it may");
            Error::new(ErrorKind::KeyExhausted, why)
        })?;
        (*version, *to_nonce) = (VERSION, nonce);
        *tag = self.cipher.seal(nonce, &[], raw, ciphertext)?;
        Ok(raw_len + LMCACHE_AES_OVERHEAD)
    }

    /// Decrypts the frame at the front of `stored` into all pieces of `raw`. As LMCache does, it
    /// ignores bytes after the frame.
    ///
    /// # Errors
    /// `Corrupt`: no frame of that many bytes, or the tag does not match. `Unsupported`: another
    /// version.
    pub fn decode(
        &self,
        stored: &[u8],
        raw: &mut [&mut [u8]],
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        let raw_len = total_len_mut(raw);
        let parts = stored.split_first().and_then(|(version, frame)| {
            let (nonce, frame) = frame.split_first_chunk::<NONCE_LEN>()?;
            let (ciphertext, frame) = frame.split_at_checked(raw_len)?;
            Some((*version, Sealed { nonce, ciphertext, tag: frame.first_chunk()? }))
        });
        match parts {
            None => Err(Error::corrupt(format!("no aesgcm frame of {raw_len} bytes: too short"))),
            Some((VERSION, sealed)) => self.cipher.open(&sealed, &[], raw, &mut scratch.spare),
            Some((version, _)) => {
                Err(Error::unsupported(format!("an aesgcm frame of version {version}")))
            }
        }
    }
}
