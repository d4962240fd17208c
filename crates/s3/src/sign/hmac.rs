//! HMAC-SHA256 without an allocation.

use sha2::{Digest, Sha256};

const BLOCK: usize = 64;

/// A running HMAC-SHA256.
pub struct Hmac {
    inner: Sha256,
    outer: Sha256,
}

impl Hmac {
    /// With a key of at most one block, as all keys of SigV4 but the first are; longer ones are
    /// hashed first.
    pub fn new(key: &[u8]) -> Self {
        let mut block = zeroize::Zeroizing::new([0; BLOCK]);
        match key.len() {
            0..=BLOCK => block[..key.len()].copy_from_slice(key),
            _ => block[..32].copy_from_slice(&Sha256::digest(key)),
        }
        let mut hmac = Hmac { inner: Sha256::new(), outer: Sha256::new() };
        block.iter_mut().for_each(|byte| *byte ^= 0x36);
        hmac.inner.update(*block);
        block.iter_mut().for_each(|byte| *byte ^= 0x36 ^ 0x5c);
        hmac.outer.update(*block);
        hmac
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.inner.update(bytes);
    }

    pub fn finish(mut self) -> [u8; 32] {
        self.outer.update(self.inner.finalize());
        self.outer.finalize().into()
    }
}

/// HMAC-SHA256 of one message.
pub fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut hmac = Hmac::new(key);
    hmac.update(message);
    hmac.finish()
}
