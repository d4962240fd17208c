//! AES-GCM by the library: from the caller's memory into the caller's memory.

use std::fmt;

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{KeyType, Prk};
use zeroize::Zeroizing;

use crate::pieces::{copy_from_pieces, scatter, total_len};
use crate::{Error, ErrorKind};

pub(super) const TAG_LEN: usize = 16;

/// What one nonce may encrypt, by the definition of GCM.
pub(super) const PLAINTEXT_LEN_MAX: u64 = (1 << 36) - 32;

/// A key of AES. The library overwrites it when it is dropped.
pub(super) struct Cipher(LessSafeKey);

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cipher(..)")
    }
}

/// The length of a derived key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyLen(pub(super) usize);

impl KeyType for KeyLen {
    fn len(&self) -> usize {
        self.0
    }
}

/// Where a frame's parts go or come from.
#[derive(Debug)]
pub(super) struct Sealed<'a> {
    pub(super) nonce: &'a [u8; NONCE_LEN],
    pub(super) ciphertext: &'a [u8],
    pub(super) tag: &'a [u8; TAG_LEN],
}

impl Cipher {
    /// The key that HKDF derives from `secret` for `info`: 16 bytes for AES-128, 32 for AES-256.
    pub(super) fn derive(secret: &Prk, info: &[&[u8]], len: KeyLen) -> Result<Self, Error> {
        let mut bytes = Zeroizing::new([0; 32]);
        let bytes = &mut bytes[..len.0];
        let derived = secret.expand(info, len).and_then(|key| key.fill(bytes));
        derived.map_err(|_| library_failed("derive a key"))?;
        let algorithm = if len.0 == 16 { &AES_128_GCM } else { &AES_256_GCM };
        let key = UnboundKey::new(algorithm, bytes).map_err(|_| library_failed("take a key"))?;
        Ok(Cipher(LessSafeKey::new(key)))
    }

    /// Encrypts the pieces of `raw` into `ciphertext`, which has as many bytes, and returns the tag.
    pub(super) fn seal(
        &self,
        nonce: [u8; NONCE_LEN],
        associated_data: &[u8],
        raw: &[&[u8]],
        ciphertext: &mut [u8],
    ) -> Result<[u8; TAG_LEN], Error> {
        debug_assert_eq!(total_len(raw), ciphertext.len());
        let (nonce, aad) = (Nonce::assume_unique_for_key(nonce), Aad::from(associated_data));
        let mut tag = [0; TAG_LEN];
        let sealed = match raw {
            [raw] => self.0.seal_out_of_place_scatter(nonce, aad, raw, ciphertext, &[], &mut tag),
            // The library takes one piece: they come together where the ciphertext will be.
            _ => {
                copy_from_pieces(raw, ciphertext);
                let in_place = self.0.seal_in_place_separate_tag(nonce, aad, ciphertext);
                in_place.map(|sealed| tag.copy_from_slice(sealed.as_ref()))
            }
        };
        sealed.map_err(|_| library_failed("encrypt"))?;
        Ok(tag)
    }

    /// Decrypts into all pieces of `raw`, whose bytes are as many as those of the ciphertext.
    ///
    /// # Errors
    /// `Corrupt`: the tag does not match. `raw` then holds nothing of the plaintext.
    pub(super) fn open(
        &self,
        sealed: &Sealed<'_>,
        associated_data: &[u8],
        raw: &mut [&mut [u8]],
        spare: &mut Vec<u8>,
    ) -> Result<(), Error> {
        scatter(raw, spare, |raw| {
            let nonce = Nonce::assume_unique_for_key(*sealed.nonce);
            let aad = Aad::from(associated_data);
            let opened =
                self.0.open_separate_gather(nonce, aad, sealed.ciphertext, sealed.tag, raw);
            opened.map_err(|_| {
                Error::corrupt(
                    "the tag of an encrypted chunk does not match: it was changed, belongs to \
                     another chunk or tenant, or was encrypted with another key",
                )
            })
        })
    }
}

/// A nonce that no other chunk has.
pub(super) fn random_nonce() -> Result<[u8; NONCE_LEN], Error> {
    let mut nonce = [0; NONCE_LEN];
    aws_lc_rs::rand::fill(&mut nonce).map_err(|_| library_failed("make a random number"))?;
    Ok(nonce)
}

pub(super) fn library_failed(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("the AES library cannot {what}"))
}
