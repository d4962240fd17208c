//! Finds chunks that the index lacks, or whose length it lacks, by their files.

use std::io;
use std::path::Path;

use kvtier_index::Chunk;
use kvtier_key::{GdsHeader, Key};

use super::headers::{self, payload_of};
use super::lengths::payload_len;
use super::xattr_facts::{FactsOwner, Known, owner_of};
use super::{Foreign, Verify};
use crate::data_dir::FileId;
use crate::mover::Mover;
use crate::shared::Shared;

/// A chunk's file, as found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundChunk {
    /// Payload length; `None` when a load would not accept the bytes.
    pub len: Option<u64>,
    /// Bytes of the file and its sidecar.
    pub bytes: u64,
}

impl<M: Mover> Shared<M> {
    /// Reads the state of a key's file in a foreign layout, and updates the index. Returns the
    /// payload's length if a load is expected to hit. The caller notifies the listeners.
    pub fn find_foreign(&self, foreign: &Foreign, key: &Key) -> Option<u64> {
        self.try_find_foreign(foreign, key).unwrap_or_else(|e| {
            self.fault(format!("cannot read the file of {}: {e}", key.digest()));
            None
        })
    }

    /// The same.
    ///
    /// # Errors
    /// What the file system answers: whether the key has a file is unknown then.
    pub fn try_find_foreign(&self, foreign: &Foreign, key: &Key) -> io::Result<Option<u64>> {
        let _one = self.name(key.digest());
        if self.is_still_suspect(foreign, key) {
            return Ok(None);
        }
        let Some(found) = self.inspect_file(foreign, key)? else {
            self.forget(key.digest(), false);
            return Ok(None);
        };
        self.found(key, found);
        // A chunk of an incomplete atomic set is stored, and still a miss.
        Ok(found.len.filter(|_| !self.index().is_hidden(key.digest())))
    }

    /// Whether the key is a miss because its file failed the checks. A file that another program wrote
    /// since clears that. The caller holds the key's [name](Shared::name).
    pub fn is_still_suspect(&self, foreign: &Foreign, key: &Key) -> bool {
        if !self.index().is_suspect(key.digest()) {
            return false;
        }
        foreign.learn(key);
        if let Ok(Some(file)) = self.data_dir.find(key.digest(), 0) {
            self.clear_corrupt_if_replaced(key.digest(), file);
        }
        self.index().is_suspect(key.digest())
    }

    /// The state of the key's file; `None` where it is missing or no chunk.
    pub fn inspect_file(&self, foreign: &Foreign, key: &Key) -> io::Result<Option<FoundChunk>> {
        // A key that the layout cannot name has no file.
        let Ok(name) = foreign.layout.file_name(key.id()) else { return Ok(None) };
        let path = self.data_dir.root().join(name);
        let bytes = match std::fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_file() && meta.len() > 0 => meta.len(),
            Ok(_) => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        if foreign.layout.has_headers() {
            return inspect_headers(foreign, key, &path, bytes);
        }
        let len = match Known::at(&path) {
            Ok(Known::Unverified) => {
                (foreign.verify == Verify::Lenient).then(|| payload_len(key, bytes))
            }
            // Damaged: the load that follows quarantines it.
            Ok(Known::Junk) => Some(bytes),
            Ok(Known::Facts(facts)) => {
                (owner_of(&facts, key) != FactsOwner::AnotherNamespace).then_some(bytes)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        Ok(Some(FoundChunk { len, bytes }))
    }

    /// Updates the index from a found file. A length of 0 stands for an unknown one. The caller holds
    /// the key's [name](Shared::name), and notifies the listeners after releasing it.
    pub fn found(&self, key: &Key, found: FoundChunk) {
        let foreign = self.data_dir.foreign();
        foreign.into_iter().for_each(|foreign| foreign.learn(key));
        let mut index = self.index();
        // The file is about to be deleted: an entry made now would outlive it.
        if index.is_evicting(key.digest()) {
            return;
        }
        let len = found.len.unwrap_or(0);
        match index.known(key.digest()) {
            Some(known) if (known.chunk.len, known.chunk.bytes) == (len, found.bytes) => {}
            Some(known) => {
                // Those that a listing entered have no length before the first scan, which counts them.
                let is_listed =
                    |foreign: &&Foreign| known.chunk.bytes == 0 && !foreign.is_scanned();
                if found.bytes > known.chunk.bytes
                    && let Some(foreign) = foreign.filter(|foreign| !is_listed(foreign))
                {
                    foreign.note_uncounted(key.digest());
                }
                let _ = index.resize(key.digest(), len, found.bytes);
            }
            None => {
                let tenant = self.tenants.id(key.namespace().tenant());
                let _ =
                    index.insert(Chunk::new(*key.digest(), len, found.bytes).with_tenant(tenant));
                // Another program may have written it, or a peer of ours, which counted it. The
                // next scan recounts.
                foreign.into_iter().for_each(|foreign| foreign.note_uncounted(key.digest()));
                let reported =
                    Chunk::new(*key.digest(), found.len.unwrap_or(found.bytes), found.bytes);
                self.report_stored(&index, &reported);
            }
        }
    }

    /// Updates the index from the open file `seen`, where the index has something else.
    pub fn found_open(&self, key: &Key, seen: FileId, found: FoundChunk) {
        let known = self.index().get(key.digest()).map(|entry| entry.chunk);
        if known.is_some_and(|known| (Some(known.len), known.bytes) == (found.len, found.bytes)) {
            return;
        }
        let name = self.name(key.digest());
        // Removed, quarantined or replaced since it was opened: the entry would outlive the file.
        if self.still_means(key, seen) {
            self.found(key, found);
        }
        drop(name);
        self.listeners.notify();
    }

    /// Makes the chunk's length unknown: a load of this key does not accept the file `seen`, while another
    /// may. The file stays, and stays counted.
    pub fn invalidate(&self, key: &Key, seen: FileId, bytes: u64) {
        let _one = self.name(key.digest());
        if !self.still_means(key, seen) {
            return;
        }
        let mut index = self.index();
        if let Some(foreign) = self.data_dir.foreign()
            && index.known(key.digest()).is_some_and(|known| bytes > known.chunk.bytes)
        {
            foreign.note_uncounted(key.digest());
        }
        let _ = index.resize(key.digest(), 0, bytes);
    }

    /// Whether the key's name in a foreign layout still means this file, unchanged. The caller holds the
    /// key's [name](Shared::name).
    pub fn still_means(&self, key: &Key, seen: FileId) -> bool {
        self.data_dir.foreign().into_iter().for_each(|foreign| foreign.learn(key));
        self.is_still(key.digest(), 0, seen)
    }
}

/// The state of a file with a header, of `bytes` bytes. Without a sidecar, LMCache has no such chunk
/// until the next save writes one: the file is counted, and a load is not expected to hit.
fn inspect_headers(
    foreign: &Foreign,
    key: &Key,
    path: &Path,
    bytes: u64,
) -> io::Result<Option<FoundChunk>> {
    let known = match Known::at(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let header = headers::read_sidecar(path)?.and_then(|beside| GdsHeader::decode(&beside).ok());
    let header = header.filter(GdsHeader::is_current);
    if payload_of_some(header.as_ref(), bytes).is_some() {
        foreign.learn_shape(key.id(), || header.clone());
    }
    let payload = bytes.saturating_sub(foreign.layout.head_bytes());
    let len = match known {
        Known::Unverified if foreign.verify == Verify::Strict => None,
        Known::Unverified => payload_of_some(header.as_ref(), bytes),
        Known::Facts(facts) if owner_of(&facts, key) == FactsOwner::AnotherNamespace => None,
        // Perhaps damaged: the load that follows quarantines it.
        Known::Junk | Known::Facts(_) => header.map(|_| payload).filter(|len| *len > 0),
    };
    Ok(Some(FoundChunk { len, bytes: foreign.layout.counted_bytes(bytes) }))
}

fn payload_of_some(header: Option<&GdsHeader>, file_bytes: u64) -> Option<u64> {
    header.and_then(|header| payload_of(header, file_bytes))
}
