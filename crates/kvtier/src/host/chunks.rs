use std::collections::HashMap;

use kvtier_core::Event;
use kvtier_index::{Chunk, Entry, Index, Inserted, Reservation, Reserve, TenantId};
use kvtier_key::{BlockSums, Digest, Key};
use kvtier_mem::View;

/// What a chunk costs: whole pages.
pub const PAGE: u64 = 4096;

/// Which chunks there are and where their bytes lie: kept in step, so that every entry of the index has bytes.
#[derive(Debug)]
pub struct Chunks {
    pub index: Index,
    bytes: HashMap<Digest, Stored>,
    tenants: Vec<String>,
}

/// A chunk's bytes and what proves them.
#[derive(Clone, Debug)]
pub struct Stored {
    pub bytes: View,
    pub sums: BlockSums,
}

impl Chunks {
    pub fn new(index: Index) -> Self {
        Chunks { index, bytes: HashMap::new(), tenants: Vec::new() }
    }

    /// The chunk, which becomes the most recent.
    pub fn take_up(&mut self, digest: &Digest) -> Option<Stored> {
        self.index.get(digest)?;
        self.index.touch_batch(&[*digest]);
        self.bytes.get(digest).cloned()
    }

    /// Whether the chunk is here with this length; then it becomes the most recent.
    pub fn is_present(&mut self, digest: &Digest, len: u64) -> bool {
        let here = self.index.get(digest).is_some_and(|entry| entry.chunk.len == len);
        if here {
            self.index.touch_batch(&[*digest]);
        }
        here
    }

    /// Enters a chunk into the room that was claimed for it; `false` if the index has no slot left.
    pub fn enter(&mut self, room: Reservation, key: &Key, stored: Stored) -> bool {
        let (digest, len) = (*key.digest(), stored.sums.len());
        let chunk = Chunk::new(digest, len, room.bytes()).with_tenant(self.tenant(key.namespace().tenant()));
        let entered = !matches!(self.index.commit(room, chunk), Inserted::Refused(_));
        if entered {
            self.bytes.insert(digest, stored);
        }
        entered
    }

    /// Room for `bytes`, and what had to go for it.
    pub fn reserve(&mut self, now_ms: u64, bytes: u64) -> (Reserve, Vec<Event>) {
        let mut gone = Vec::new();
        loop {
            match self.index.reserve(now_ms, bytes) {
                Reserve::Evict(victims) => gone.extend(self.drop_all(&victims)),
                other => return (other, gone),
            }
        }
    }

    /// Drops what is above the high mark, one batch at a time.
    pub fn below_mark(&mut self, now_ms: u64) -> Vec<Event> {
        let victims = self.index.victims(now_ms, 0);
        self.drop_all(&victims)
    }

    /// Drops about `bytes` of the least recent chunks although the cap allows them: the arena is in pieces.
    pub fn make_space(&mut self, now_ms: u64, bytes: u64) -> Vec<Event> {
        let usage = self.index.usage();
        let below_cap = usage.capacity.saturating_sub(usage.used + usage.reserved);
        let victims = self.index.victims(now_ms, below_cap.saturating_add(bytes));
        self.drop_all(&victims)
    }

    /// Drops victims of the index.
    pub fn drop_all(&mut self, victims: &[Entry]) -> Vec<Event> {
        let gone = |victim: &Entry| {
            self.bytes.remove(&victim.chunk.digest);
            self.index.evicted(&victim.chunk.digest);
            Event::Gone { key: victim.chunk.digest, len: victim.chunk.len }
        };
        victims.iter().map(gone).collect()
    }

    /// Drops a chunk whose bytes are wrong, even if it is held.
    pub fn forget(&mut self, digest: &Digest) -> Option<Event> {
        self.bytes.remove(digest);
        let entry = self.index.forget(digest)?;
        Some(Event::Gone { key: *digest, len: entry.chunk.len })
    }

    pub fn tenant_name(&self, id: TenantId) -> String {
        self.tenants.get(id.0 as usize).cloned().unwrap_or_default()
    }

    fn tenant(&mut self, name: &str) -> TenantId {
        let at = self.tenants.iter().position(|t| t == name).unwrap_or_else(|| {
            self.tenants.push(name.into());
            self.tenants.len() - 1
        });
        TenantId(at as u32)
    }
}
