//! One record of TLS 1.3, sealed or opened straight from one memory into another.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, UnboundKey,
};
use rustls::crypto::cipher::{self, Iv};
use rustls::{ConnectionTrafficSecrets, Error, InvalidMessage, PeerMisbehaved};

/// Type, version and length.
pub const HEADER_BYTES: usize = 5;
/// The most that a record carries.
pub const PLAIN_BYTES_MAX: usize = 16 * 1024;
/// What sealing adds behind the payload: its type and the tag.
pub const MORE_BYTES: usize = 1 + TAG_BYTES;
const TAG_BYTES: usize = 16;

/// The types of records.
pub const CHANGE_CIPHER_SPEC: u8 = 20;
pub const ALERT: u8 = 21;
pub const HANDSHAKE: u8 = 22;
pub const APPLICATION_DATA: u8 = 23;

/// The keys of one direction.
pub struct RecordKeys {
    key: LessSafeKey,
    iv: Iv,
    /// The number of the next record.
    pub number: u64,
}

/// The length of the first record's sealed part, if it is there whole. Every record is application
/// data from without, once the handshake is over.
pub fn first(bytes: &[u8]) -> Result<Option<usize>, Error> {
    let [kind, _, _, high, low, ..] = *bytes else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes([high, low]));
    match (kind, len) {
        // Checked before the record is whole: a wrong length must not make us wait for it.
        (APPLICATION_DATA, MORE_BYTES..) if len <= PLAIN_BYTES_MAX + MORE_BYTES => {
            Ok((bytes.len() >= HEADER_BYTES + len).then_some(len))
        }
        (APPLICATION_DATA, MORE_BYTES..) => Err(Error::PeerSentOversizedRecord),
        (APPLICATION_DATA, _) => Err(Error::DecryptError),
        (CHANGE_CIPHER_SPEC, _) => Err(PeerMisbehaved::IllegalMiddleboxChangeCipherSpec.into()),
        _ => Err(InvalidMessage::InvalidContentType.into()),
    }
}

impl RecordKeys {
    /// From what a handshake or a key update left. Errors with `General` when the cipher is not one
    /// that we know.
    pub fn new(number: u64, secrets: ConnectionTrafficSecrets) -> Result<Self, Error> {
        let (algorithm, key, iv): (&Algorithm, _, _) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(Error::General("a cipher that cannot be gone around".into())),
        };
        // The buffers of the secrets have the length of the longest key.
        let key = key
            .as_ref()
            .get(..algorithm.key_len())
            .and_then(|key| UnboundKey::new(algorithm, key).ok());
        let key = key.ok_or_else(|| Error::General("a key of a wrong length".into()))?;
        Ok(RecordKeys { key: LessSafeKey::new(key), iv, number })
    }

    /// Opens `sealed` into `out`, which is as long as that without the tag: the payload's type and
    /// length. `out` holds nothing that counts after an error.
    pub fn open_into(
        &mut self,
        header: &[u8],
        sealed: &[u8],
        out: &mut [u8],
    ) -> Result<(u8, usize), Error> {
        // The header is authenticated with the record, so a changed length shows in the tag.
        let (sealed, tag) = sealed.split_at_checked(out.len()).ok_or(Error::DecryptError)?;
        let nonce = self.nonce(Error::DecryptError)?;
        let opened = self.key.open_separate_gather(nonce, Aad::from(header), sealed, tag, out);
        opened.map_err(|_| Error::DecryptError)?;
        payload(out)
    }

    /// Opens `sealed` in place. Returns the payload's type and the payload.
    pub fn open_in_place<'a>(
        &mut self,
        header: &[u8],
        sealed: &'a mut [u8],
    ) -> Result<(u8, &'a [u8]), Error> {
        let nonce = self.nonce(Error::DecryptError)?;
        let opened = self
            .key
            .open_in_place(nonce, Aad::from(header), sealed)
            .map_err(|_| Error::DecryptError)?;
        let (kind, len) = payload(opened)?;
        Ok((kind, &opened[..len]))
    }

    /// Seals `plain`, at most [`PLAIN_BYTES_MAX`] bytes, into `out`: how long the record is.
    pub fn seal(&mut self, kind: u8, plain: &[u8], out: &mut [u8]) -> Result<usize, Error> {
        let sealed = u16::try_from(plain.len() + MORE_BYTES).map_err(|_| Error::EncryptError)?;
        let [high, low] = sealed.to_be_bytes();
        // The version is always that of TLS 1.2, as the standard wants it for old middleboxes.
        let header = [APPLICATION_DATA, 3, 3, high, low];
        let (head, out) = out.split_at_mut_checked(HEADER_BYTES).ok_or(Error::EncryptError)?;
        let (body, more) = out.split_at_mut_checked(plain.len()).ok_or(Error::EncryptError)?;
        let more = more.get_mut(..MORE_BYTES).ok_or(Error::EncryptError)?;
        head.copy_from_slice(&header);
        let nonce = self.nonce(Error::EncryptError)?;
        let sealed = self.key.seal_out_of_place_scatter(
            nonce,
            Aad::from(header),
            plain,
            body,
            &[kind],
            more,
        );
        sealed.map_err(|_| Error::EncryptError)?;
        Ok(HEADER_BYTES + plain.len() + MORE_BYTES)
    }

    /// That of the next record. No number is used twice.
    fn nonce(&mut self, spent: Error) -> Result<aws_lc_rs::aead::Nonce, Error> {
        // Records arrive in order, so the number needs no place in them.
        let nonce = cipher::Nonce::new(&self.iv, self.number).0;
        // A nonce that is used twice gives the key away.
        self.number = self.number.checked_add(1).ok_or(spent)?;
        Ok(aws_lc_rs::aead::Nonce::assume_unique_for_key(nonce))
    }
}

/// The type and the length of the payload: behind it come its type and padding of zeros.
fn payload(opened: &[u8]) -> Result<(u8, usize), Error> {
    match opened.iter().rposition(|byte| *byte != 0) {
        Some(len) => Ok((opened[len], len)),
        None => Err(PeerMisbehaved::IllegalTlsInnerPlaintext.into()),
    }
}
