//! Writes chunks into a directory whose keys are known only by their digests.

use std::fs;
use std::io::{self, ErrorKind as Io, Write};
use std::path::{Path, PathBuf};

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

/// An unfinished file.
struct ClaimedDraft {
    path: PathBuf,
    /// What the ledger counts for it.
    bytes: u64,
    file: fs::File,
}

/// What became of the name of a finished file.
enum Named {
    /// It has it. The bytes of a file that had it and is gone now.
    Given { replaced: Option<u64> },
    /// Another file has it.
    Taken,
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
        let staging = data_dir::register_to_write(&own)?;
        let accounting = Accounting::open_to_count(&own, || self.count())?;
        Ok(Writer { directory: self.clone(), staging, accounting })
    }
}

impl Writer {
    /// Writes one chunk. `false` where it is stored already; one that is stored in clear is replaced
    /// by one that is encrypted, and stays until that is whole. [Finish](Self::finish) after the last
    /// call.
    ///
    /// # Errors
    /// The chunk is not stored then, and one in clear is still there.
    /// `InvalidInput` for bytes that are not those of the facts and for a key too long for a file;
    /// `StorageFull` where the directory's cap leaves no space, which a chunk that is replaced needs
    /// too; else those of the file system.
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
        if !facts.is_plain() {
            self.begin_to_encode()?;
        }
        let path = chunk_file_name::path(&self.directory.root, &facts.key, facts.raw_len);
        let replaces = path.exists();
        if replaces && !self.encrypts_what_is_in_clear(facts)? {
            return Ok(false);
        }
        let draft = self.claim_draft(footer::file_len_of(facts))?;
        let since = self.accounting.generation();
        let padding = vec![0; (draft.bytes - PAGE) as usize - payload.len()];
        let parts = [payload, &padding, &page];
        let written = parts.iter().try_for_each(|part| (&draft.file).write_all(part));
        let named = written.and_then(|()| self.name(&draft.path, &path, replaces));
        match &named {
            Ok(Named::Given { replaced }) => {
                // What went is uncounted only now: both files had their bytes until then.
                replaced.iter().for_each(|bytes| self.accounting.release(*bytes, since));
                if replaces {
                    self.accounting.append(Record::Remove(facts.key));
                }
                let chunk = Chunk::new(facts.key, facts.raw_len, draft.bytes);
                self.accounting.append(Record::Insert(chunk));
            }
            Ok(Named::Taken) | Err(_) => {
                let _ = kvtier_os::remove_file(&draft.path);
                self.accounting.release(draft.bytes, since);
            }
        }
        named.map(|named| matches!(named, Named::Given { .. }))
    }

    /// Whether a chunk is encrypted, and stored in clear.
    fn encrypts_what_is_in_clear(&self, facts: &Facts) -> io::Result<bool> {
        let named = ChunkName { digest: facts.key, name: None, len: facts.raw_len };
        let is_in_clear = || -> io::Result<bool> {
            let form = self.directory.form_of_file(&named)?;
            Ok(form.is_ok_and(|form| form.key_id == 0))
        };
        Ok(facts.key_id != 0 && is_in_clear()?)
    }

    /// An unfinished file whose bytes are counted.
    fn claim_draft(&self, bytes: u64) -> io::Result<ClaimedDraft> {
        let path = self.staging.path().join(data_dir::draft_name(self.staging.number(), bytes));
        let mut made = None;
        let mut make = || made.insert(fs::File::create_new(&path)).is_ok();
        let capacity = self.directory.capacity_bytes.unwrap_or(u64::MAX);
        let claimed = self.accounting.claim(bytes, capacity, &mut make);
        let file = made.transpose()?;
        if let (Ok(Claimed::Granted), Some(file)) = (&claimed, file) {
            return Ok(ClaimedDraft { path, bytes, file });
        }
        let _ = kvtier_os::remove_file(&path);
        let damaged =
            "the ledger was damaged meanwhile; a tier that opens the directory recounts it";
        Err(match claimed? {
            Claimed::Damaged => io::Error::new(Io::InvalidData, damaged),
            Claimed::Unavailable => io::Error::new(
                Io::WouldBlock,
                "another process keeps the lock of the directory's ledger; try again later",
            ),
            _ => io::Error::new(Io::StorageFull, "the directory's cap leaves no space"),
        })
    }

    /// Gives a finished file the name of its chunk.
    fn name(&self, draft: &Path, path: &Path, replaces: bool) -> io::Result<Named> {
        if replaces {
            return quarantine::replace(draft, path).map(|replaced| Named::Given { replaced });
        }
        if let Some(shard) = path.parent() {
            kvtier_os::create_dir_all(shard)?;
        }
        Ok(match quarantine::move_to_free(draft, path) {
            true => Named::Given { replaced: None },
            false => Named::Taken,
        })
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

    /// A chunk in clear and the same one encrypted, for a test.
    struct BothForms {
        clear: Facts,
        hidden: Facts,
    }

    const CLEAR: [u8; 5000] = [7; 5000];
    const HIDDEN: [u8; 9000] = [8; 9000];

    fn both_forms() -> BothForms {
        let (key, namespace) = (Digest([1; 32]), Digest::default());
        let payload = EncodedPayload { codec: CodecId(4), key_id: 1, raw_len: 5000, raw_crc: None };
        BothForms {
            clear: Facts::plain(key, namespace, BlockSums::from_bytes(&CLEAR)),
            hidden: Facts::encoded(key, namespace, payload, BlockSums::from_bytes(&HIDDEN)),
        }
    }

    #[test]
    fn without_space_for_the_encrypted_chunk_the_one_in_clear_stays() {
        let dir = tempfile::tempdir().unwrap();
        let BothForms { clear, hidden } = both_forms();
        let plain = NewChunk { facts: &clear, canonical: b"", payload: &CLEAR };
        let encrypted = NewChunk { facts: &hidden, canonical: b"", payload: &HIDDEN };
        let of = ChunkName { digest: clear.key, name: None, len: 5000 };
        let ledger = || Ledger::peek(&dir.path().join(".kvtier")).unwrap();
        let directory = directory(dir.path());
        let capped = |cap| Directory { capacity_bytes: Some(cap), ..directory.clone() };
        assert!(capped(12_288).writer().unwrap().write(&plain).unwrap());
        // One more byte than both need, and one less.
        let writer = capped(12_288 + 16_384 - 1).writer().unwrap();
        assert_eq!(writer.write(&encrypted).unwrap_err().kind(), Io::StorageFull);
        assert_eq!(directory.verify(&of).unwrap(), Ok(()), "the chunk in clear is gone");
        assert_eq!(ledger(), Some(12_288));
        drop(writer);
        assert!(capped(12_288 + 16_384).writer().unwrap().write(&encrypted).unwrap());
        assert_eq!(directory.form_of_file(&of).unwrap().unwrap().key_id, 1);
        assert_eq!(ledger(), Some(16_384));
        assert_eq!(fs::read_dir(dir.path().join(".kvtier/tmp")).unwrap().count(), 0);
    }

    #[test]
    fn a_device_that_fills_while_the_encrypted_chunk_is_written_keeps_the_one_in_clear() {
        let dir = tempfile::tempdir().unwrap();
        let BothForms { clear, hidden } = both_forms();
        let plain = NewChunk { facts: &clear, canonical: b"", payload: &CLEAR };
        let encrypted = NewChunk { facts: &hidden, canonical: b"", payload: &HIDDEN };
        let of = ChunkName { digest: clear.key, name: None, len: 5000 };
        let directory = directory(dir.path());
        let writer = directory.writer().unwrap();
        assert!(writer.write(&plain).unwrap());
        // A file with the draft's name cannot be made anew: as a device without space for it.
        let name = data_dir::draft_name(writer.staging.number() + 1, 16_384);
        fs::write(writer.staging.path().join(name), b"").unwrap();
        assert!(writer.write(&encrypted).is_err());
        assert_eq!(directory.verify(&of).unwrap(), Ok(()), "the chunk in clear is gone");
        assert_eq!(Ledger::peek(&dir.path().join(".kvtier")).unwrap(), Some(12_288));
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
