//! One file with chunks in it: what `kvtier export` writes and `kvtier import` reads.
//! docs/FORMAT.md has the bytes.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use kvtier::key::{BlockSums, Facts};

use super::chunk::{ChunkIdentity, ChunkRead, Location, SourceChunk};
use super::{CopyOutcome, Sink};
use crate::BadInput;

const MAGIC: [u8; 8] = *b"KVTARC01";
/// The head of a record is never longer.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Length and checksum before each head.
const LEAD_BYTES: u64 = 8;

/// The head of a record: the facts, and the key's canonical form where it is known.
fn head(facts: &Facts, canonical: &[u8]) -> Vec<u8> {
    let facts = facts.encode();
    [
        &(facts.len() as u32).to_le_bytes()[..],
        &facts,
        &(canonical.len() as u32).to_le_bytes(),
        canonical,
    ]
    .concat()
}

fn lead(head: &[u8]) -> [u8; LEAD_BYTES as usize] {
    let mut lead = [0; LEAD_BYTES as usize];
    lead[..4].copy_from_slice(&(head.len() as u32).to_le_bytes());
    // The length and the checksum come before the head, so a reader can trust a length only after
    // the sum fits.
    lead[4..].copy_from_slice(&BlockSums::from_bytes(head).whole().to_le_bytes());
    lead
}

/// The facts and the key's canonical form in a head.
fn parse(head: &[u8]) -> Option<(Facts, &[u8])> {
    let field = |bytes: &'_ [u8]| -> Option<usize> {
        Some(u32::from_le_bytes(*bytes.first_chunk()?) as usize)
    };
    let facts = head.get(4..)?.get(..field(head)?)?;
    let rest = &head[4 + facts.len()..];
    let key = rest.get(4..)?;
    (key.len() == field(rest)?).then_some((Facts::decode(facts).ok()?, key))
}

/// Writes an archive beside its place, and puts it there when it is whole.
pub struct ArchiveWriter {
    path: PathBuf,
    file: Mutex<(tempfile::NamedTempFile, u64)>,
}

impl ArchiveWriter {
    pub fn create(path: &Path) -> Result<Self> {
        // An archive may be the only copy of chunks. It is never written over.
        if path.exists() {
            return Err(
                BadInput(format!("{} is there already; name a new file", path.display())).into()
            );
        }
        let folder =
            path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = tempfile::Builder::new().prefix(".kvtier-export-").tempfile_in(folder);
        let mut file =
            file.map_err(|e| BadInput(format!("cannot write to {}: {e}", folder.display())))?;
        file.write_all(&MAGIC).context("cannot write the archive")?;
        Ok(ArchiveWriter { path: path.to_owned(), file: Mutex::new((file, 0)) })
    }
}

impl Sink for ArchiveWriter {
    fn put(&self, one: &SourceChunk, payload: Vec<u8>) -> Result<CopyOutcome> {
        let facts = Facts::plain(
            one.identity.digest,
            one.identity.namespace,
            BlockSums::from_bytes(&payload),
        );
        let head = head(&facts, one.identity.canonical.as_deref().unwrap_or_default());
        // Workers read in parallel; records are written one after the other, each in one piece.
        let mut guard = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, count) = &mut *guard;
        for part in [&lead(&head)[..], &head, &payload] {
            file.write_all(part).context("cannot write the archive")?;
        }
        *count += 1;
        Ok(CopyOutcome::Stored)
    }

    fn finish(&self) -> Result<()> {
        let mut guard = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, count) = &mut *guard;
        let end = count.to_le_bytes();
        // A head of no length: the end, and how many there were.
        file.write_all(
            &[&lead(&[])[..], &end, &BlockSums::from_bytes(&end).whole().to_le_bytes()].concat(),
        )
        // Before the name appears: after a power failure the name has either all records or does
        // not exist.
        .and_then(|()| file.as_file().sync_all())
        .context("cannot write the archive")?;
        // A link, unlike a rename, fails if a file of this name has appeared meanwhile.
        std::fs::hard_link(file.path(), &self.path)
            .with_context(|| format!("cannot make {}", self.path.display()))
    }
}

/// Reads an archive.
pub struct ArchiveReader {
    path: PathBuf,
    file: File,
}

impl ArchiveReader {
    pub fn open(path: &Path) -> Result<Self> {
        let bad = |what: String| BadInput(format!("{}: {what}", path.display()));
        let file =
            File::open(path).map_err(|e| bad(format!("cannot be read: {e}; check the path")))?;
        let mut magic = [0; MAGIC.len()];
        // The first bytes have the version too: other formats are refused here.
        if file.read_exact_at(&mut magic, 0).is_err() || magic != MAGIC {
            return Err(bad("is no file that `kvtier export` of this build wrote".into()).into());
        }
        Ok(ArchiveReader { path: path.to_owned(), file })
    }

    /// All chunks, by their heads. An archive that is cut or changed is bad input: export writes
    /// none.
    pub fn wanted(&self) -> Result<Vec<SourceChunk>> {
        let mut found = Vec::new();
        let mut at = MAGIC.len() as u64;
        while let Some((head, next)) = self.head(at, found.len())? {
            let (facts, key) = parse(&head).ok_or_else(|| self.damaged(found.len()))?;
            let canonical = (!key.is_empty()).then(|| key.to_vec());
            let identity =
                ChunkIdentity::of(&facts, canonical, "the archive has only the digest of its key");
            let label = facts.key.to_hex();
            let len = facts.raw_len;
            found.push(SourceChunk {
                label,
                at: Location::Record(at),
                identity,
                len,
                proven: true,
            });
            // The length is from the file and may be anything.
            at = next.checked_add(len).ok_or_else(|| self.damaged(found.len()))?;
        }
        Ok(found)
    }

    /// The head at this place, and where its payload begins; `None` at the end.
    fn head(&self, at: u64, count: usize) -> Result<Option<(Vec<u8>, u64)>> {
        let damaged = |_| self.damaged(count);
        let mut lead_there = [0; LEAD_BYTES as usize];
        self.file.read_exact_at(&mut lead_there, at).map_err(damaged)?;
        let len = u32::from_le_bytes([lead_there[0], lead_there[1], lead_there[2], lead_there[3]])
            as usize;
        // Before the buffer is allocated.
        if len > HEAD_BYTES_MAX {
            return Err(self.damaged(count).into());
        }
        // The end record has 8 bytes of count and 4 of checksum.
        let mut head = vec![0; if len == 0 { 12 } else { len }];
        self.file.read_exact_at(&mut head, at + LEAD_BYTES).map_err(damaged)?;
        if len == 0 {
            let end = (count as u64).to_le_bytes();
            // The count shows an archive from which whole records were cut out.
            let whole = lead_there == lead(&[])
                && head[..8] == end
                && head[8..] == BlockSums::from_bytes(&end).whole().to_le_bytes();
            return if whole { Ok(None) } else { Err(self.damaged(count).into()) };
        }
        if lead_there != lead(&head) {
            return Err(self.damaged(count).into());
        }
        Ok(Some((head, at + LEAD_BYTES + len as u64)))
    }

    /// Reads a payload and checks it.
    pub fn read(&self, at: u64, one: &SourceChunk) -> Result<ChunkRead> {
        let Some((head, start)) = self.head(at, 0)? else { return Ok(ChunkRead::Gone) };
        let mut payload = vec![0; usize::try_from(one.len)?];
        self.file
            .read_exact_at(&mut payload, start)
            .with_context(|| format!("cannot read {}", self.path.display()))?;
        match parse(&head) {
            Some((facts, _)) if facts.sums == BlockSums::from_bytes(&payload) => {
                Ok(ChunkRead::Payload(payload, true))
            }
            _ => Ok(ChunkRead::Damaged),
        }
    }

    fn damaged(&self, count: usize) -> BadInput {
        BadInput(format!(
            "{} is cut or damaged behind {count} chunks; export it again",
            self.path.display()
        ))
    }
}
