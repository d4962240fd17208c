//! What the fleet must serve: the bytes of each key, and which keys are removed for certain.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Key, Namespace};
use kvtier_key::names::NameForm;
use kvtier_key::{ChunkHash, Digest, KeyId, KvRank, ObjectKey};

use super::KEYS;

/// The beginning of all names in the bucket.
pub const PREFIX: &str = "kv";
/// For how long the write of a save that failed may still arrive at the bucket.
const LATE_WRITE_MAX: Duration = Duration::from_secs(10);

/// The keys, and what is certain about them.
#[derive(Debug)]
pub struct Model {
    keys: Vec<Chunk>,
    /// Objects have the names that LMCache gives them.
    has_lmcache_names: bool,
    /// For how long after a remove lookups of other processes may find the chunk.
    stale_hit_max: Duration,
}

/// One key.
#[derive(Debug)]
struct Chunk {
    key: Key,
    /// Saves in flight.
    saving: u32,
    /// Until when a write of a save that ended may arrive.
    late_write_until: Duration,
    /// How many saves have begun.
    saves: u64,
    /// The number of saves when it was removed, if none was in flight.
    removed: Option<u64>,
    /// The process that removed it.
    removed_by: Option<String>,
    /// When its remove had ended.
    removed_at: Duration,
}

/// What was certain when a remove began.
#[derive(Clone, Copy, Debug)]
pub struct RemoveBegun {
    is_quiet: bool,
    saves: u64,
}

impl Model {
    pub fn new() -> Self {
        Model::with_ids(|n| {
            let hash = Digest::derive("kvtier faultsim chunk", &n.to_le_bytes());
            let hash = ChunkHash::new(hash.as_bytes());
            ObjectKey::new("model", KvRank(0), 0, hash, "").expect("a valid key").into()
        })
    }

    /// The same with keys of another form.
    pub fn with_ids(id: impl Fn(u64) -> KeyId) -> Self {
        let namespace = namespace();
        let keys = (0..KEYS).map(|n| Chunk {
            key: Key::new(Arc::clone(&namespace), id(n)),
            saving: 0,
            late_write_until: Duration::ZERO,
            saves: 0,
            removed: None,
            removed_by: None,
            removed_at: Duration::ZERO,
        });
        Model { keys: keys.collect(), has_lmcache_names: false, stale_hit_max: Duration::MAX }
    }

    /// The same, and the key with this number is in that namespace.
    pub fn in_namespaces(mut self, of: impl Fn(u64) -> Arc<Namespace>) -> Self {
        for (n, chunk) in (0..).zip(&mut self.keys) {
            chunk.key = Key::new(of(n), chunk.key.id().clone());
        }
        self
    }

    /// The same, with LMCache's names of objects.
    pub fn with_lmcache_names(self) -> Self {
        Model { has_lmcache_names: true, ..self }
    }

    /// The same, and lookups of other processes find a removed chunk for this time at most.
    pub fn with_stale_hit_max(self, stale_hit_max: Duration) -> Self {
        Model { stale_hit_max, ..self }
    }

    pub fn has_lmcache_names(&self) -> bool {
        self.has_lmcache_names
    }

    pub fn key(&self, n: u64) -> Key {
        self.keys[n as usize].key.clone()
    }

    /// The name of the chunk's object in the bucket.
    pub fn object(&self, n: u64) -> String {
        let key = self.key(n);
        if self.has_lmcache_names {
            let name = NameForm::MpNative.format(key.id()).expect("a name for a valid key");
            return format!("{PREFIX}/{name}");
        }
        let hex = key.digest().to_hex();
        format!("{PREFIX}/{}/{hex}", &hex[..2])
    }

    /// The chunk's file, below the root of a directory.
    pub fn file(&self, n: u64) -> PathBuf {
        let hex = self.key(n).digest().to_hex();
        format!("{}/{hex}-{:x}", &hex[..2], len(n)).into()
    }

    pub fn save_begins(&mut self, n: u64) {
        let chunk = &mut self.keys[n as usize];
        chunk.saving += 1;
        chunk.saves += 1;
        chunk.removed = None;
    }

    pub fn save_ended(&mut self, n: u64, now: Duration) {
        let chunk = &mut self.keys[n as usize];
        chunk.saving -= 1;
        chunk.late_write_until = now + LATE_WRITE_MAX;
    }

    /// A save ended without an error, in a tier that writes nothing after that.
    pub fn save_ended_well(&mut self, n: u64) {
        self.keys[n as usize].saving -= 1;
    }

    pub fn remove_begins(&self, n: u64, now: Duration) -> RemoveBegun {
        let chunk = &self.keys[n as usize];
        let is_quiet = chunk.saving == 0 && now >= chunk.late_write_until;
        RemoveBegun { is_quiet, saves: chunk.saves }
    }

    /// A remove succeeded, and no hold kept the chunk.
    fn removed(&mut self, n: u64, begun: RemoveBegun) {
        let chunk = &mut self.keys[n as usize];
        let is_certain = begun.is_quiet && begun.saves == chunk.saves;
        chunk.removed = is_certain.then_some(chunk.saves);
        chunk.removed_by = None;
    }

    /// The same, by this process: its lookups miss the chunk, too. Those of others may have an older
    /// answer for a time.
    pub fn removed_by(&mut self, n: u64, begun: RemoveBegun, process: &str, now: Duration) {
        self.removed(n, begun);
        let chunk = &mut self.keys[n as usize];
        (chunk.removed_by, chunk.removed_at) = (Some(process.to_owned()), now);
    }

    /// The machine crashed: names of files that were deleted may be back.
    pub fn forget_removed(&mut self) {
        self.keys.iter_mut().for_each(|chunk| chunk.removed = None);
    }

    /// The number of saves so far, if the key is removed for certain.
    pub fn is_removed(&self, n: u64) -> Option<u64> {
        let chunk = &self.keys[n as usize];
        chunk.removed.filter(|saves| *saves == chunk.saves)
    }

    /// The same, if this process removed it.
    pub fn is_removed_by(&self, n: u64, process: &str) -> Option<u64> {
        let chunk = &self.keys[n as usize];
        self.is_removed(n).filter(|_| chunk.removed_by.as_deref() == Some(process))
    }

    /// The same, or if another one removed it so long ago that no lookup may find it any more.
    pub fn is_removed_for_lookups(&self, n: u64, process: &str, now: Duration) -> Option<u64> {
        let since = self.keys[n as usize].removed_at;
        let is_long_ago = now.saturating_sub(since) > self.stale_hit_max;
        if is_long_ago { self.is_removed(n) } else { self.is_removed_by(n, process) }
    }
}

/// The namespace of all keys.
pub fn namespace() -> Arc<Namespace> {
    Arc::new(Namespace::new("fleet", Digest::default()))
}

/// The lengths of the shortest and the longest chunk.
const SHORTEST_BYTES: u64 = 1024;
pub const LONGEST_BYTES: u64 = SHORTEST_BYTES + 6000;

/// The length of the chunk with this number.
pub fn len(n: u64) -> usize {
    (SHORTEST_BYTES + (n.wrapping_mul(0x9E37_79B9) >> 7) % 7 * 1000) as usize
}

/// Its bytes.
pub fn bytes(n: u64) -> Vec<u8> {
    let mut bytes = vec![0; len(n)];
    fastrand::Rng::with_seed(n).fill(&mut bytes);
    bytes
}
