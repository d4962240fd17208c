//! The contents of a directory, counted.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use super::{Directory, StoredForm};
use crate::data_dir::{self, live_names, quarantine};
use crate::layout::Layout;
use crate::ledger::Ledger;

/// The contents of a directory, counted.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Summary {
    /// The layout of the files.
    pub layout: Layout,
    /// Chunks.
    pub chunks: u64,
    /// Bytes of their files.
    pub bytes: u64,
    /// Bytes of payload.
    pub payload_bytes: u64,
    /// The chunks that went through the same stages, by their names, such as `zstd+aes-256-gcm`;
    /// without those that are stored as they are.
    pub codecs: BTreeMap<String, ChunkTotals>,
    /// The chunks that are encrypted with one key, by its id.
    pub key_ids: BTreeMap<u32, ChunkTotals>,
    /// Chunks that went through a lossy stage: they decode to other bytes than were saved.
    pub lossy: u64,
    /// Chunks whose footer cannot be read. How they are stored is not known.
    pub unreadable: u64,
    /// Bytes of payload of these, by their names.
    pub unreadable_raw_bytes: u64,
    /// The ledger's total of stored and reserved bytes; `None` where it is missing or damaged.
    pub ledger_bytes: Option<u64>,
    /// Files in the shards that are no chunks: name and length.
    pub unknown: Vec<(PathBuf, u64)>,
    /// Files that failed a check: name and length.
    pub quarantine: Vec<(String, u64)>,
    /// Bytes of these files.
    pub quarantine_bytes: u64,
    /// The cap of the process that opened the directory last; `None` where none is noted.
    pub capacity_bytes: Option<u64>,
    /// Unfinished files.
    pub unfinished: u64,
    /// Processes that have the directory open, as host.pid.start.n.
    pub living: Vec<String>,
    /// Processes that ended without removing their staging directories; the next start does.
    pub dead: Vec<String>,
    /// Whether a snapshot of the order of use is there.
    pub snapshot: bool,
}

/// Chunks that are stored in the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkTotals {
    /// How many.
    pub chunks: u64,
    /// Bytes of their payload.
    pub raw_bytes: u64,
    /// Bytes of their payload as stored.
    pub stored_bytes: u64,
}

impl ChunkTotals {
    fn add(&mut self, form: &StoredForm) {
        self.chunks += 1;
        self.raw_bytes += form.raw_bytes;
        self.stored_bytes += form.stored_bytes;
    }
}

impl Summary {
    /// The chunks that are stored as they are.
    pub fn plain(&self) -> ChunkTotals {
        let encoded = self.encoded();
        let raw_bytes = self.payload_bytes - encoded.raw_bytes - self.unreadable_raw_bytes;
        let chunks = self.chunks - encoded.chunks - self.unreadable;
        ChunkTotals { chunks, raw_bytes, stored_bytes: raw_bytes }
    }

    /// Bytes of payload as stored; `None` where some footers cannot be read.
    pub fn stored_bytes(&self) -> Option<u64> {
        (self.unreadable == 0).then(|| self.plain().stored_bytes + self.encoded().stored_bytes)
    }

    fn encoded(&self) -> ChunkTotals {
        let mut all = ChunkTotals::default();
        for one in self.codecs.values() {
            all.chunks += one.chunks;
            all.raw_bytes += one.raw_bytes;
            all.stored_bytes += one.stored_bytes;
        }
        all
    }

    fn add_encoded(&mut self, form: &StoredForm) {
        if form.is_plain() {
            return;
        }
        self.lossy += u64::from(kvtier_codec::is_lossy(form.codec));
        self.codecs.entry(form.codec_name()).or_default().add(form);
        if form.key_id != 0 {
            self.key_ids.entry(form.key_id).or_default().add(form);
        }
    }
}

impl Directory {
    /// Counts everything.
    pub fn summary(&self) -> io::Result<Summary> {
        let mut sum = Summary::default();
        self.walk(|path, meta, named| match named {
            Some(chunk) => {
                match self.stored_form(&chunk) {
                    Ok(Ok(form)) => sum.add_encoded(&form),
                    // Deleted since it was listed.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => return,
                    Ok(Err(_)) | Err(_) => {
                        sum.unreadable += 1;
                        sum.unreadable_raw_bytes += chunk.len;
                    }
                }
                sum.chunks += 1;
                sum.bytes += self.file_len(&chunk);
                sum.payload_bytes += chunk.len;
            }
            None => sum.unknown.push((path.to_owned(), meta.map_or(0, |m| m.len()))),
        })?;
        sum.layout = self.layout;
        if !self.own().exists() {
            return Ok(sum);
        }
        let tmp = self.own().join("tmp");
        let alive = live_names(&tmp)?;
        for staging in kvtier_os::read_dir(&tmp)? {
            let staging = staging?;
            let name = staging.file_name().to_string_lossy().into_owned();
            let drafts = kvtier_os::read_dir(staging.path()).into_iter().flatten().flatten();
            sum.unfinished += drafts.filter(|file| file.file_name() != "alive").count() as u64;
            if alive.contains(&name) { sum.living.push(name) } else { sum.dead.push(name) }
        }
        for kept in quarantine::list(&self.own())? {
            sum.quarantine_bytes += kept.bytes;
            sum.quarantine.push((
                kept.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                kept.bytes,
            ));
        }
        sum.capacity_bytes = self.capacity_bytes;
        sum.ledger_bytes = Ledger::peek(&self.own())?;
        sum.snapshot = self.own().join("snapshot").exists();
        Ok(sum)
    }

    /// All bytes that a ledger counts.
    pub(super) fn count(&self) -> io::Result<u64> {
        let mut bytes = quarantine::list(&self.own())?.iter().map(|kept| kept.bytes).sum();
        data_dir::usage_scan::drafts(&self.own().join("tmp"), &mut |claimed, _| bytes += claimed)?;
        self.walk(|_, _, named| bytes += named.map_or(0, |chunk| self.file_len(&chunk)))?;
        Ok(bytes)
    }
}
