//! `aes-256-gcm`: the stage and its frame.
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 16 | header, with the id of the key |
//! | 16 | 12 | nonce |
//! | 28 | raw length | ciphertext |
//! | at the end | 16 | tag |
//!
//! The tag covers the header without the number of zeros behind the frame, the codec id of the stages before this one (2 bytes, little-endian),
//! the caller's associated data and the ciphertext. Without that id, a chunk whose facts were changed
//! to other stages would decrypt, and those stages would make other bytes of it.

use std::sync::Arc;

use aws_lc_rs::aead::NONCE_LEN;

use super::cipher::{self, PLAINTEXT_LEN_MAX, Sealed, TAG_LEN};
use super::keyring::Keyring;
use crate::frame_header::{FrameHeader, HEADER_LEN};
use crate::pieces::{total_len, total_len_mut};
use crate::{Chunk, Error, Scratch, Stage, StageId, StageKind};

const VERSION: u8 = 1;

/// What a frame is longer than its plaintext.
pub const AES_256_GCM_OVERHEAD: usize = HEADER_LEN + NONCE_LEN + TAG_LEN;

/// Authenticated encryption with AES-256 in Galois/Counter Mode. Each tenant has a key of its own,
/// derived from the key with the id that the frame names, and each chunk a random nonce.
///
/// A frame decrypts to exactly the bytes that were encrypted, for the same tenant, the same
/// associated data and the same stages before it, or to an error: it needs no other digest.
#[derive(Clone, Debug)]
pub struct Aes256Gcm {
    keys: Arc<Keyring>,
    key_id: u32,
    #[cfg(feature = "simulate")]
    nonces: Option<fn() -> [u8; NONCE_LEN]>,
}

impl Aes256Gcm {
    /// Encrypts with the key `key_id` of `keys`, and decrypts with any of them.
    pub fn new(keys: Arc<Keyring>, key_id: u32) -> Self {
        Aes256Gcm {
            keys,
            key_id,
            #[cfg(feature = "simulate")]
            nonces: None,
        }
    }

    /// The same with nonces of a simulation. They protect nothing.
    #[cfg(feature = "simulate")]
    #[must_use]
    pub fn with_simulated_nonces(mut self, nonces: fn() -> [u8; NONCE_LEN]) -> Self {
        self.nonces = Some(nonces);
        self
    }

    fn nonce(&self) -> Result<[u8; NONCE_LEN], Error> {
        #[cfg(feature = "simulate")]
        if let Some(nonces) = self.nonces {
            return Ok(nonces());
        }
        cipher::random_nonce()
    }
}

impl Stage for Aes256Gcm {
    fn id(&self) -> StageId {
        StageId::AES_256_GCM
    }

    fn kind(&self) -> StageKind {
        StageKind::Encryption
    }

    fn key_id(&self) -> u32 {
        self.key_id
    }

    fn has_key(&self, key_id: u32) -> bool {
        self.keys.get(key_id).is_some()
    }

    fn stored_key_id(&self, stored: &[u8]) -> Result<u32, Error> {
        Ok(FrameHeader::read(stored, self.id(), VERSION)?.0.key_id)
    }

    fn bound(&self, raw_len: usize) -> Result<usize, Error> {
        let bound = raw_len.checked_add(AES_256_GCM_OVERHEAD);
        bound.filter(|_| raw_len as u64 <= PLAINTEXT_LEN_MAX).ok_or_else(|| {
            Error::invalid(format!("{raw_len} bytes are more than AES-GCM encrypts at once"))
        })
    }

    fn encode(
        &self,
        chunk: &Chunk<'_>,
        raw: &[&[u8]],
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<Option<usize>, Error> {
        let raw_len = total_len(raw);
        let (len, space) = (self.bound(raw_len)?, out.len());
        let frame = out.get_mut(..len).and_then(|frame| {
            let (header, frame) = frame.split_first_chunk_mut::<HEADER_LEN>()?;
            let (nonce, frame) = frame.split_first_chunk_mut::<NONCE_LEN>()?;
            let (ciphertext, tag) = frame.split_last_chunk_mut::<TAG_LEN>()?;
            Some((header, nonce, ciphertext, tag))
        });
        let Some((header, nonce, ciphertext, tag)) = frame else {
            return Err(Error::invalid(format!("a buffer of {space} bytes, not {len}")));
        };
        let key = self.keys.tenant_key(self.key_id, chunk.tenant)?;
        key.master.count_chunk()?;
        let key_id = self.key_id;
        *header =
            FrameHeader { key_id, ..FrameHeader::new(self.id(), VERSION, raw_len) }.to_bytes();
        *nonce = self.nonce()?;
        let associated_data = join(header, chunk, &mut scratch.associated_data);
        *tag = key.cipher.seal(*nonce, associated_data, raw, ciphertext)?;
        Ok(Some(len))
    }

    fn raw_len(&self, stored: &[u8]) -> Result<usize, Error> {
        Ok(FrameHeader::read(stored, self.id(), VERSION)?.0.raw_len)
    }

    fn decode(
        &self,
        chunk: &Chunk<'_>,
        stored: &[u8],
        raw: &mut [&mut [u8]],
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        let (header, payload) = FrameHeader::read(stored, self.id(), VERSION)?;
        header.expect_raw_len(total_len_mut(raw))?;
        let parts = payload.split_first_chunk::<NONCE_LEN>().and_then(|(nonce, payload)| {
            let (ciphertext, tag) = payload.split_last_chunk::<TAG_LEN>()?;
            // No key has id 0.
            let is_whole = ciphertext.len() == header.raw_len && header.key_id != 0;
            is_whole.then_some(Sealed { nonce, ciphertext, tag })
        });
        let Some(sealed) = parts else {
            let why = format!(
                "an encrypted frame of {} bytes is cut, too long or names no key",
                stored.len()
            );
            return Err(Error::corrupt(why));
        };
        let key = self.keys.tenant_key(header.key_id, chunk.tenant)?;
        let associated_data = join(&header.to_bytes(), chunk, &mut scratch.associated_data);
        key.cipher.open(&sealed, associated_data, raw, &mut scratch.spare)
    }
}

/// What the tag covers besides the ciphertext.
fn join<'a>(header: &[u8], chunk: &Chunk<'_>, space: &'a mut Vec<u8>) -> &'a [u8] {
    space.clear();
    space.extend_from_slice(header);
    space.extend_from_slice(&chunk.earlier_stages.0.to_le_bytes());
    space.extend_from_slice(chunk.associated_data);
    space
}
