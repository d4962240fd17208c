use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result};
use kvtier::core::{Digest, Key, Namespace};
use kvtier::file::inspect::{ChunkName, Directory, LastUses, Source};

use crate::chunk_info::ChunkInfo;

/// Reads what a directory says of its chunks besides their names: one file's footer or facts a
/// chunk.
pub struct InfoReader<'a> {
    dir: &'a Directory,
    uses: LastUses,
    /// Stands for the namespace of chunks without facts.
    unknown: Arc<Namespace>,
}

impl<'a> InfoReader<'a> {
    /// Reads all but the last uses.
    pub fn new(dir: &'a Directory) -> Self {
        InfoReader {
            dir,
            uses: LastUses::default(),
            unknown: Arc::new(Namespace::new("", Digest::default())),
        }
    }

    /// Reads the last uses too, which are in snapshot and journals.
    pub fn with_uses(dir: &'a Directory, path: &Path) -> Result<Self> {
        let uses = dir
            .last_uses()
            .with_context(|| format!("cannot read the order of use of {}", path.display()))?;
        Ok(InfoReader { uses, ..InfoReader::new(dir) })
    }

    /// What is known of one chunk; of one that is gone meanwhile nothing.
    pub fn read(&self, chunk: &ChunkName) -> Result<ChunkInfo> {
        let (digest, info) = if chunk.name.is_none() {
            // A file without a name that spells its key has the key in its footer.
            let footer = if_there(self.dir.footer(chunk), chunk)?.and_then(Result::ok);
            let info = footer.map(|(facts, canonical)| ChunkInfo {
                namespace: Some(facts.namespace),
                ..ChunkInfo::of_canonical(&canonical)
            });
            (chunk.digest, info.unwrap_or_default())
        } else {
            match if_there(self.dir.key_of(chunk, &self.unknown), chunk)? {
                Some(Source::Key(key)) => (*key.digest(), ChunkInfo::of_key(&key)),
                // Without facts the namespace is only assumed, so it is not shown.
                Some(Source::Unverified(key)) => (*key.digest(), unproven(&key)),
                _ => (chunk.digest, ChunkInfo::default()),
            }
        };
        let form = if_there(self.dir.stored_form(chunk), chunk)?.and_then(Result::ok);
        Ok(ChunkInfo {
            form: form.map(Into::into).unwrap_or_default(),
            written_s: written_s(self.dir, chunk),
            ..info.with_use(self.uses.get(&digest))
        })
    }
}

/// What is known of a chunk without facts: its namespace is not.
fn unproven(key: &Key) -> ChunkInfo {
    ChunkInfo { namespace: None, ..ChunkInfo::of_key(key) }
}

/// What was read, if the file is still there.
fn if_there<T>(read: std::io::Result<T>, chunk: &ChunkName) -> Result<Option<T>> {
    match read {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        other => {
            other.map(Some).with_context(|| format!("cannot read the file of {}", chunk.label()))
        }
    }
}

/// When a chunk's file was written, in seconds since 1970; `None` for one that is gone.
pub fn written_s(dir: &Directory, chunk: &ChunkName) -> Option<i64> {
    // A clock that was wrong may have written a time before 1970.
    let since = dir.written(chunk).ok()?.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_secs()).ok()
}
