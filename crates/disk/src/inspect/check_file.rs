//! Reads a chunk's whole file, and checks what a load checks.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use kvtier_codec::{TierEncoding, Undecoded};
use kvtier_key::{Facts, Key, PieceSums};

use super::ChunkName;
use crate::chunk_file_name::file_len;
use crate::data_dir::FileId;
use crate::direct_io::PAGE;
use crate::footer;
use crate::load::may_be_encoded;

/// How many bytes of a file are read at a time.
pub const PIECE: usize = 1 << 20;

/// What is wrong with a chunk's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// Its length differs from its name.
    Length,
    /// Its footer cannot be read.
    Footer,
    /// Its footer belongs to another chunk.
    Swapped,
    /// The bytes do not match their checksums, or the padding is not zero.
    Bytes,
    /// It is not a regular file.
    Kind,
    /// Its headers differ from each other or from the file, or are missing.
    Header,
    /// It is intact, and encoded in a way that is not decoded here, or by a key that is not loaded.
    NotDecoded,
    /// No visible damage: another program wrote the file, without facts to check it by.
    Unverified,
}

/// How far a chunk's file was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verified {
    /// Its raw bytes are those that were saved.
    Raw,
    /// Its stored bytes match their checksums. They were not decoded.
    Stored(Undecoded),
}

/// Opens a regular file, without waiting for the other end of a pipe. Returns the id of anything
/// else.
pub fn regular(path: &Path) -> io::Result<Result<File, FileId>> {
    use std::os::unix::fs::OpenOptionsExt;
    let there = fs::symlink_metadata(path)?;
    if !there.is_file() {
        return Ok(Err(FileId::of(&there)));
    }
    // Another file may have got the name since.
    let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOFOLLOW;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    Ok(if meta.is_file() { Ok(file) } else { Err(FileId::of(&meta)) })
}

pub type Footer = (Facts, Vec<u8>);

/// Reads the footer of a chunk's file. `Length` where the file's length is not the one that name and
/// footer imply.
pub fn read_footer(file: &File, chunk: &ChunkName) -> io::Result<Result<Footer, Damage>> {
    let bytes = file.metadata()?.len();
    let by_name = bytes == file_len(chunk.len);
    if !by_name && !may_be_encoded(chunk.len, bytes) {
        return Ok(Err(Damage::Length));
    }
    let mut page = [0; PAGE as usize];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut page, bytes - PAGE)?;
    // A file of another length without a footer was cut or extended.
    let no_footer = if by_name { Damage::Footer } else { Damage::Length };
    let Ok((facts, key)) = footer::decode(&page) else { return Ok(Err(no_footer)) };
    // The checksum of the facts does not cover the key's canonical form, whose digest does: else
    // its bytes would be taken for another key's.
    if !key.is_empty() && Key::digest_of(&facts.namespace, key) != facts.key {
        return Ok(Err(Damage::Footer));
    }
    if facts.is_plain() != by_name || (!by_name && footer::file_len_of(&facts) != bytes) {
        return Ok(Err(if by_name { Damage::Bytes } else { Damage::Length }));
    }
    Ok(Ok((facts, key.to_vec())))
}

/// Checks the stored bytes of a file, encoded or not, and calls `each` with them. Returns the facts.
pub fn read_and_check(
    file: &mut File,
    chunk: &ChunkName,
    each: &mut dyn FnMut(&[u8]),
) -> io::Result<Result<Facts, Damage>> {
    let facts = match read_footer(file, chunk)? {
        Ok((facts, _)) => facts,
        Err(damage) => return Ok(Err(damage)),
    };
    if facts.key != chunk.digest || facts.raw_len != chunk.len {
        return Ok(Err(Damage::Swapped));
    }
    let len = facts.stored_len();
    if len != facts.raw_len && facts.is_plain() {
        return Ok(Err(Damage::Bytes));
    }
    let mut sums = PieceSums::new(len);
    let mut at = 0;
    let mut piece = vec![0; PIECE];
    while at < len {
        let n = (len - at).min(PIECE as u64) as usize;
        file.read_exact(&mut piece[..n])?;
        sums.piece(at, &piece[..n]);
        each(&piece[..n]);
        at += n as u64;
    }
    let padding = (footer::file_len_of(&facts) - PAGE - len) as usize;
    file.read_exact(&mut piece[..padding])?;
    let right = sums.finish().is_some_and(|found| found == facts.sums)
        && piece[..padding].iter().all(|b| *b == 0);
    Ok(if right { Ok(facts) } else { Err(Damage::Bytes) })
}

/// Checks the stored bytes of a file, and decodes them by `encoding` where they are encoded.
pub fn check_and_decode(
    file: &mut File,
    chunk: &ChunkName,
    encoding: &TierEncoding,
) -> io::Result<Result<Verified, Damage>> {
    let mut stored = Vec::new();
    // An encoded chunk's file never has the length of its name.
    let is_plain = file.metadata()?.len() == file_len(chunk.len);
    let mut keep = |piece: &[u8]| stored.extend_from_slice(if is_plain { &[] } else { piece });
    Ok(match read_and_check(file, chunk, &mut keep)? {
        Ok(facts) if !facts.is_plain() => match encoding.decode_whole(&facts, &stored) {
            Ok(Ok(_)) => Ok(Verified::Raw),
            Ok(Err(undecoded)) => Ok(Verified::Stored(undecoded)),
            Err(_) => Err(Damage::Bytes),
        },
        Ok(_) => Ok(Verified::Raw),
        Err(damage) => Err(damage),
    })
}

#[cfg(test)]
mod tests {
    use kvtier_key::{BlockSums, CodecId, EncodedPayload};

    use super::*;
    use crate::disk::tests::key;

    fn facts(payload: &[u8]) -> Facts {
        let key = key(1);
        Facts::plain(*key.digest(), key.namespace().digest(), BlockSums::from_bytes(payload))
    }

    fn encoded(raw_len: u64, stored: &[u8]) -> Facts {
        let payload = EncodedPayload { codec: CodecId(2), key_id: 0, raw_len, raw_crc: Some(7) };
        let plain = facts(stored);
        Facts::encoded(plain.key, plain.namespace, payload, plain.sums)
    }

    /// The file of a chunk with these facts, which has `bytes` bytes.
    fn file(facts: &Facts, stored: &[u8], bytes: u64) -> Vec<u8> {
        let mut file = stored.to_vec();
        file.resize((bytes - PAGE) as usize, 0);
        file.extend(footer::encode(facts, &key(1)).unwrap());
        file
    }

    /// What is found in a file that is named for `len` bytes.
    fn checked(bytes: &[u8], len: u64, n: u8) -> Result<(), Damage> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, bytes).unwrap();
        let chunk = ChunkName { digest: *key(n).digest(), name: None, len };
        let mut read = Vec::new();
        let mut opened = regular(&path).unwrap().unwrap();
        let found = read_and_check(&mut opened, &chunk, &mut |piece| read.extend_from_slice(piece))
            .unwrap();
        let facts = found?;
        assert_eq!(facts.sums, BlockSums::from_bytes(&read));
        Ok(())
    }

    #[test]
    fn a_file_is_of_the_chunk_that_its_name_says_or_swapped() {
        let payload = [7; 5000];
        let good = file(&facts(&payload), &payload, file_len(5000));
        assert_eq!(checked(&good, 5000, 1), Ok(()));
        assert_eq!(checked(&good, 5000, 2), Err(Damage::Swapped), "another key");
        assert_eq!(checked(&good, 5001, 1), Err(Damage::Swapped), "another length");
        assert_eq!(checked(&good, 50_000, 1), Err(Damage::Length));
        for at in [0, 4999, 5000, good.len() - PAGE as usize - 1] {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            assert_eq!(checked(&bytes, 5000, 1), Err(Damage::Bytes), "byte {at}");
        }
    }

    #[test]
    fn a_file_longer_than_a_piece_is_read_to_its_end() {
        let payload: Vec<u8> = (0..2 * PIECE + 100).map(|n| (n / 99) as u8).collect();
        let len = payload.len() as u64;
        assert_eq!(checked(&file(&facts(&payload), &payload, file_len(len)), len, 1), Ok(()));
    }

    #[test]
    fn the_length_of_a_file_is_that_of_its_facts() {
        let (raw_len, stored) = (50_000, [7; 9000]);
        let encoded = encoded(raw_len, &stored);
        let bytes = footer::file_len_of(&encoded);
        assert_eq!(checked(&file(&encoded, &stored, bytes), raw_len, 1), Ok(()));
        let longer = file(&encoded, &stored, bytes + PAGE);
        assert_eq!(checked(&longer, raw_len, 1), Err(Damage::Length));
        let as_raw = file(&encoded, &stored, file_len(raw_len));
        assert_eq!(checked(&as_raw, raw_len, 1), Err(Damage::Bytes), "encoded, by its facts");
        let plain = file(&facts(&stored), &stored, bytes);
        assert_eq!(checked(&plain, raw_len, 1), Err(Damage::Length), "not encoded, by its facts");
    }

    #[test]
    fn what_is_no_file_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert!(regular(&link).unwrap().is_err());
        assert!(regular(dir.path()).unwrap().is_err());
        assert_eq!(regular(&dir.path().join("x")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
