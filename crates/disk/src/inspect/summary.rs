//! The contents of a directory, counted.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;

use super::{ChunkName, Directory};
use crate::chunk_file_name;
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
    /// Bytes of payload as stored: less than `payload_bytes` where chunks are encoded.
    pub stored_bytes: u64,
    /// How many chunks went through which stages, such as `zstd+aes-256-gcm`, without those that are
    /// stored as they are.
    pub codecs: BTreeMap<String, u64>,
    /// How many chunks are encrypted with which key.
    pub key_ids: BTreeMap<u32, u64>,
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

impl Directory {
    /// Counts everything.
    pub fn summary(&self) -> io::Result<Summary> {
        let mut sum = Summary::default();
        self.walk(|path, meta, named| match named {
            Some(chunk) => {
                sum.chunks += 1;
                let bytes = self.file_len(&chunk);
                sum.bytes += bytes;
                sum.payload_bytes += chunk.len;
                let stored = self.count_encoded(&chunk, bytes, &mut sum);
                sum.stored_bytes += stored.unwrap_or(chunk.len);
            }
            None => sum.unknown.push((path.to_owned(), meta.map_or(0, |m| m.len()))),
        })?;
        sum.layout = self.layout;
        if !self.own().exists() {
            return Ok(sum);
        }
        let tmp = self.own().join("tmp");
        let alive = live_names(&tmp)?;
        for staging in fs::read_dir(&tmp)? {
            let staging = staging?;
            let name = staging.file_name().to_string_lossy().into_owned();
            let drafts = fs::read_dir(staging.path()).into_iter().flatten().flatten();
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

    /// Counts the stages and the key of an encoded chunk whose file has `bytes`. Returns its stored
    /// length; nothing for a chunk that is stored as it is, or whose footer cannot be read now.
    fn count_encoded(&self, chunk: &ChunkName, bytes: u64, sum: &mut Summary) -> Option<u64> {
        if !self.has_encoded || bytes == chunk_file_name::file_len(chunk.len) {
            return None;
        }
        let (facts, _) = self.footer(chunk).ok()?.ok()?;
        let codec = kvtier_codec::stage_names(facts.codec).join("+");
        *sum.codecs.entry(codec).or_default() += 1;
        if facts.key_id != 0 {
            *sum.key_ids.entry(facts.key_id).or_default() += 1;
        }
        Some(facts.stored_len())
    }

    /// All bytes that a ledger counts.
    pub(super) fn count(&self) -> io::Result<u64> {
        let mut bytes = quarantine::list(&self.own())?.iter().map(|kept| kept.bytes).sum();
        data_dir::usage_scan::drafts(&self.own().join("tmp"), &mut |_, claimed| bytes += claimed)?;
        self.walk(|_, _, named| bytes += named.map_or(0, |chunk| self.file_len(&chunk)))?;
        Ok(bytes)
    }
}
