//! Writes chunks into a directory whose keys are known only by their digests.

use std::fs;
use std::io::{self, ErrorKind as Io, Write};

use kvtier_index::Chunk;
use kvtier_index::journal::Record;
use kvtier_key::{BlockSums, Facts};

use super::ledger_updates::Accounting;
use super::{ChunkName, Directory, quarantine};
use crate::chunk_file_name;
use crate::data_dir::{self, StagingDir};
use crate::direct_io::PAGE;
use crate::ledger::Claimed;
use crate::{Layout, footer};

/// Writes chunks into a directory of layout `kvtier` as a tier does, from what a file there needs
/// of a key: its digest, and its canonical form where that is known. A tier can write only chunks
/// whose key it is given, and the medium has salts only as digests.
#[derive(Debug)]
pub struct Writer {
    directory: Directory,
    staging: StagingDir,
    accounting: Accounting,
}

/// A chunk to be written.
#[derive(Clone, Copy, Debug)]
pub struct NewChunk<'a> {
    /// Digests of its key and of its namespace, its length and checksums.
    pub facts: &'a Facts,
    /// The key's canonical form; empty where it is not known.
    pub canonical: &'a [u8],
    /// Its bytes.
    pub payload: &'a [u8],
}

impl Directory {
    /// A writer for this directory, which must have been opened by a tier once.
    ///
    /// # Errors
    /// `Unsupported` for a directory of another layout; else the medium's.
    pub fn writer(&self) -> io::Result<Writer> {
        if self.layout() != Layout::Kvtier {
            let what =
                format!("layout {} names chunks by their keys; use layout kvtier", self.layout());
            return Err(io::Error::new(Io::Unsupported, what));
        }
        let own = self.own();
        let staging = data_dir::register(&own)?;
        let accounting = Accounting::open_to_count(&own, || self.count())?;
        Ok(Writer { directory: self.clone(), staging, accounting })
    }
}

impl Writer {
    /// Writes one chunk. `false` where it is stored already; one that is stored in clear is replaced
    /// by one that is encrypted. [Finish](Self::finish) after the last call.
    ///
    /// # Errors
    /// The chunk is not stored then.
    /// `InvalidInput` for bytes that are not those of the facts and for a key too long for a file;
    /// `StorageFull` where the directory's cap leaves no space; else those of the file system.
    pub fn write(&self, chunk: &NewChunk<'_>) -> io::Result<bool> {
        let NewChunk { facts, canonical, payload } = *chunk;
        let invalid = |what: &str| io::Error::new(Io::InvalidInput, what.to_owned());
        if facts.sums != BlockSums::from_bytes(payload)
            || (facts.is_plain() && facts.raw_len != payload.len() as u64)
            || payload.is_empty()
        {
            return Err(invalid("the bytes are not those that the facts describe"));
        }
        let page = footer::encode_parts(facts, canonical)
            .map_err(|_| invalid("the key is too long for a footer"))?;
        let len = facts.raw_len;
        let bytes = footer::file_len_of(facts);
        if !facts.is_plain() {
            self.begin_to_encode()?;
        }
        let path = chunk_file_name::path(&self.directory.root, &facts.key, len);
        if path.exists() {
            let named = ChunkName { digest: facts.key, name: None, len };
            let is_in_clear = || -> io::Result<bool> {
                let form = self.directory.form_of_file(&named)?;
                Ok(form.is_ok_and(|form| form.key_id == 0))
            };
            if facts.key_id == 0 || !is_in_clear()? {
                return Ok(false);
            }
            // A process that is killed now has lost a chunk of a cache, which is copied again.
            self.directory.remove(&named)?;
        }
        let draft = self.staging.path().join(data_dir::draft_name(self.staging.number(), bytes));
        let mut made = None;
        let mut make = || made.insert(fs::File::create_new(&draft)).is_ok();
        let claimed = self.accounting.claim(
            bytes,
            self.directory.capacity_bytes.unwrap_or(u64::MAX),
            &mut make,
        );
        let file = made.transpose()?;
        let (Ok(Claimed::Granted), Some(file)) = (&claimed, file) else {
            let _ = kvtier_os::remove_file(&draft);
            let damaged =
                "the ledger was damaged meanwhile; a tier that opens the directory recounts it";
            return Err(match claimed? {
                Claimed::Damaged => io::Error::new(Io::InvalidData, damaged),
                Claimed::Unavailable => io::Error::new(
                    Io::WouldBlock,
                    "another process keeps the lock of the directory's ledger; try again later",
                ),
                _ => io::Error::new(Io::StorageFull, "the directory's cap leaves no space"),
            });
        };
        let since = self.accounting.generation();
        let written = Ok(file).and_then(|mut file| {
            let padding = vec![0; (bytes - PAGE) as usize - payload.len()];
            [payload, &padding, &page].iter().try_for_each(|part| file.write_all(part))
        });
        let is_named = written.and_then(|()| {
            if let Some(shard) = path.parent() {
                kvtier_os::create_dir_all(shard)?;
            }
            Ok(quarantine::move_to_free(&draft, &path))
        });
        if matches!(is_named, Ok(true)) {
            self.accounting.append(Record::Insert(Chunk::new(facts.key, len, bytes)));
        } else {
            let _ = kvtier_os::remove_file(&draft);
            self.accounting.release(bytes, since);
        }
        is_named
    }

    /// Notes that the directory may have encoded chunks, before the first one is written.
    fn begin_to_encode(&self) -> io::Result<()> {
        let own = self.directory.own();
        data_dir::begin_to_encode(&self.directory.root, &own).map_err(io::Error::other)
    }

    /// Writes into the ledger and the change log what could not be written with the chunks. Where
    /// that fails, this leaves its staging directory behind as a killed process does, and open
    /// tiers find the chunks by a listing.
    ///
    /// # Errors
    /// Those of the file system, with the file that could not be written. The chunks are stored.
    pub fn finish(&self) -> io::Result<()> {
        self.directory.finish()?;
        self.accounting.finish()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.accounting.has_pending() {
            self.staging.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kvtier_key::{CodecId, Digest, EncodedPayload, Key};

    use super::*;
    use crate::DiskConfig;
    use crate::data_dir::DataDir;
    use crate::inspect::ChunkName;
    use crate::ledger::Ledger;

    fn directory(root: &Path) -> Directory {
        drop(DataDir::open(&DiskConfig::new(root, 1 << 20).path, None).unwrap());
        Directory::open(root).unwrap()
    }

    #[test]
    fn a_chunk_is_written_once_and_verified_and_wrong_bytes_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let directory = directory(dir.path());
        let writer = directory.writer().unwrap();
        for (canonical, len) in [(&b"canonical"[..], 5000), (b"", 4096)] {
            let payload = vec![7; len];
            let namespace = Digest::default();
            let key = Key::digest_of(&namespace, canonical);
            let facts = Facts::plain(key, namespace, BlockSums::from_bytes(&payload));
            let chunk = NewChunk { facts: &facts, canonical, payload: &payload };
            assert!(writer.write(&chunk).unwrap() && !writer.write(&chunk).unwrap());
            let named = ChunkName { digest: key, name: None, len: len as u64 };
            assert_eq!(directory.verify(&named).unwrap(), Ok(()));
            assert_eq!(directory.footer(&named).unwrap().unwrap().1, canonical);
            let wrong = NewChunk { payload: &vec![8; len], ..chunk };
            assert_eq!(writer.write(&wrong).unwrap_err().kind(), Io::InvalidInput);
        }
        assert_eq!(Ledger::peek(&dir.path().join(".kvtier")).unwrap(), Some(12288 + 8192));
        drop(writer);
        assert_eq!(fs::read_dir(dir.path().join(".kvtier/tmp")).unwrap().count(), 0);
    }

    #[test]
    fn an_encrypted_chunk_replaces_one_in_clear() {
        let dir = tempfile::tempdir().unwrap();
        let directory = directory(dir.path());
        let writer = directory.writer().unwrap();
        let (clear, hidden) = ([7; 5000], [8; 100]);
        let (key, namespace) = (Digest([1; 32]), Digest::default());
        let plain = Facts::plain(key, namespace, BlockSums::from_bytes(&clear));
        let payload = EncodedPayload { codec: CodecId(4), key_id: 1, raw_len: 5000, raw_crc: None };
        let encrypted = Facts::encoded(key, namespace, payload, BlockSums::from_bytes(&hidden));
        let plain = NewChunk { facts: &plain, canonical: b"", payload: &clear };
        let encrypted = NewChunk { facts: &encrypted, canonical: b"", payload: &hidden };
        assert!(writer.write(&plain).unwrap());
        assert!(writer.write(&encrypted).unwrap());
        assert!(!writer.write(&encrypted).unwrap() && !writer.write(&plain).unwrap());
        writer.finish().unwrap();
        let sum = Directory::open(dir.path()).unwrap().summary().unwrap();
        assert_eq!((sum.chunks, sum.key_ids[&1].chunks), (1, 1));
        assert_eq!(Ledger::peek(&dir.path().join(".kvtier")).unwrap(), Some(sum.bytes));
    }

    #[test]
    fn the_cap_holds() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory { capacity_bytes: Some(10_000), ..directory(dir.path()) };
        let writer = directory.writer().unwrap();
        let mut written = 0;
        for n in 0..3 {
            let payload = [n; 100];
            let facts =
                Facts::plain(Digest([n; 32]), Digest::default(), BlockSums::from_bytes(&payload));
            match writer.write(&NewChunk { facts: &facts, canonical: b"", payload: &payload }) {
                Ok(true) => written += 1,
                other => assert_eq!(other.unwrap_err().kind(), Io::StorageFull),
            }
        }
        assert_eq!((written, directory.chunks().unwrap().len()), (1, 1));
    }
}
