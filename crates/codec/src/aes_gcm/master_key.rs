//! A key as an operator makes it: tenants' keys are derived from it, and it counts what it encrypts.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::hkdf::{HKDF_SHA256, Prk, Salt};
use zeroize::Zeroizing;

use super::cipher::{self, Cipher, KeyLen};
use crate::{Error, ErrorKind};

/// The least bytes of a master key's secret.
pub const SECRET_LEN_MIN: usize = 32;

/// How many chunks one key may encrypt: with more random nonces of 96 bits the chance that two are
/// equal would exceed 2^-32.
pub const CHUNKS_PER_KEY_MAX: u64 = 1 << 32;

/// What separates our derived keys from those of other uses of the same secret.
const SALT: &[u8] = b"kvtier aes-256-gcm v1";

/// A master key and its id. The secret is overwritten when the key is dropped, and never printed.
pub struct MasterKey {
    id: u32,
    secret: Prk,
    encrypted: AtomicU64,
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MasterKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl MasterKey {
    /// The key with this id, which is stored with each chunk and is not 0.
    ///
    /// # Errors
    /// `Invalid`: id 0, or a secret of less than `SECRET_LEN_MIN` bytes.
    pub fn new(id: u32, secret: &[u8]) -> Result<Self, Error> {
        if id == 0 {
            return Err(Error::invalid("a key has id 0, which means none: give it another id"));
        }
        if secret.len() < SECRET_LEN_MIN {
            let has = secret.len();
            let why = format!("key {id} has {has} bytes: make one of {SECRET_LEN_MIN} or more");
            return Err(Error::invalid(why));
        }
        let secret = Salt::new(HKDF_SHA256, SALT).extract(secret);
        Ok(MasterKey { id, secret, encrypted: AtomicU64::new(0) })
    }

    /// A secret of `SECRET_LEN_MIN` random bytes for a new key.
    ///
    /// # Errors
    /// `Invalid`: the system makes no random numbers.
    pub fn random_secret() -> Result<Zeroizing<[u8; SECRET_LEN_MIN]>, Error> {
        let mut secret = Zeroizing::new([0; SECRET_LEN_MIN]);
        let filled = aws_lc_rs::rand::fill(&mut *secret);
        filled.map_err(|_| cipher::library_failed("make a random number"))?;
        Ok(secret)
    }

    /// Continues a count of encrypted chunks from an earlier process.
    pub fn with_encrypted_chunks(self, chunks: u64) -> Self {
        self.encrypted.store(chunks, Ordering::Relaxed);
        self
    }

    /// Its id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// How many chunks it encrypted, for all tenants together.
    pub fn encrypted_chunks(&self) -> u64 {
        self.encrypted.load(Ordering::Relaxed)
    }

    /// The key of one tenant.
    pub(super) fn derive(&self, tenant: &[u8]) -> Result<Cipher, Error> {
        Cipher::derive(&self.secret, &[b"tenant ", tenant], KeyLen(32))
    }

    /// Counts one more chunk.
    ///
    /// # Errors
    /// `KeyExhausted`: it encrypted as many as it may.
    pub(super) fn count_chunk(&self) -> Result<(), Error> {
        count_chunk(&self.encrypted).map_err(|()| {
            let why = format!(
                "key {} encrypted {CHUNKS_PER_KEY_MAX} chunks, as many as it may: add a key with \
                 another id and encrypt with that one",
                self.id
            );
            Error::new(ErrorKind::KeyExhausted, why)
        })
    }
}

/// Adds one to a key's count, unless it is at its limit.
pub(super) fn count_chunk(count: &AtomicU64) -> Result<(), ()> {
    let one_more = |count| (count < CHUNKS_PER_KEY_MAX).then(|| count + 1);
    let counted = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
    counted.map(|_| ()).map_err(|_| ())
}
