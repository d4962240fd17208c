//! The chunks of a host tier: the index and the bytes.
//!
//! Both are behind one mutex, so that every entry of the index has bytes. Events are queued under
//! the lock and delivered after it is released.

use std::collections::HashMap;
use std::sync::Arc;

use kvtier_core::{Event, Listeners, OTHER_TENANTS, Spilled};
use kvtier_index::{
    ChainPlace, Chunk, Index, IndexEntry, InsertOutcome, Quotas, Reservation, Reserve,
    ReserveRequest, TenantId,
};
use kvtier_key::{BlockSums, Digest, Key};
use kvtier_mem::View;

use super::tenant_ids::TenantIds;

/// A chunk is charged in whole pages.
pub const PAGE: u64 = 4096;

/// Evicted chunks: their number, and those whose bytes may be spilled.
#[derive(Debug, Default)]
pub struct Evicted {
    pub count: u64,
    pub chunks: Vec<Spilled>,
}

/// The index and the bytes of its chunks.
#[derive(Debug)]
pub struct HostChunks {
    pub index: Index,
    bytes: HashMap<Digest, StoredChunk>,
    tenants: TenantIds,
    /// Get an event for each chunk stored, touched or gone.
    listeners: Arc<Listeners>,
}

/// A chunk's bytes and their checksums.
#[derive(Clone, Debug)]
pub struct StoredChunk {
    pub key: Key,
    pub bytes: View,
    pub sums: BlockSums,
}

impl HostChunks {
    pub fn new(index: Index, listeners: Arc<Listeners>) -> Self {
        HostChunks { index, bytes: HashMap::new(), tenants: TenantIds::default(), listeners }
    }

    /// Sets the quotas of tenants.
    pub fn limit(&mut self, quotas: &Quotas) {
        self.index.set_fair_sharing(quotas.fair);
        self.index.set_quota_of_others(quotas.others);
        quotas.by_tenant.iter().for_each(|(name, bytes)| self.limit_one(name, Some(*bytes)));
    }

    /// Sets the quota of one tenant, or of all others.
    pub fn limit_one(&mut self, name: &str, bytes: Option<u64>) {
        if name == OTHER_TENANTS {
            return self.index.set_quota_of_others(bytes);
        }
        let tenant = self.tenant(name);
        // A tenant with a quota keeps its number even without chunks, or a new number would be
        // without the quota.
        self.tenants.keep(tenant, bytes.is_some());
        self.index.set_quota(tenant, bytes);
    }

    /// The chunk.
    pub fn find(&self, digest: &Digest) -> Option<StoredChunk> {
        // The index decides what is a hit: a chunk of an incomplete atomic set has bytes here and
        // is none.
        self.index.get(digest)?;
        self.bytes.get(digest).cloned()
    }

    /// Whether the chunk is present with this length.
    pub fn is_present(&self, digest: &Digest, len: u64) -> bool {
        self.index.get(digest).is_some_and(|entry| entry.chunk.len == len)
    }

    /// Inserts a chunk into its reservation; `false` if the index has no free slot.
    pub fn insert(
        &mut self,
        reservation: Reservation,
        place: ChainPlace,
        stored: StoredChunk,
    ) -> bool {
        let digest = *stored.key.digest();
        let len = stored.sums.len();
        let tenant = self.tenant(stored.key.namespace().tenant());
        let chunk =
            Chunk::new(digest, len, reservation.bytes()).with_tenant(tenant).with_place(place);
        let inserted = !matches!(self.index.commit(reservation, chunk), InsertOutcome::Refused(_));
        if inserted {
            self.bytes.insert(digest, stored);
            // Under the lock that orders the changes. Listeners are called later, without it.
            self.listeners.push(Event::Stored { key: digest, len });
        }
        inserted
    }

    /// Reserves space for a chunk of `bytes` at this place of its chain, and returns what was evicted
    /// for it.
    pub fn reserve(
        &mut self,
        now_ms: u64,
        key: &Key,
        bytes: u64,
        place: ChainPlace,
    ) -> (Reserve, Evicted) {
        let tenant = self.tenant(key.namespace().tenant());
        let want = ReserveRequest::new(bytes)
            .with_place(place)
            .with_tenant(tenant)
            .with_digest(key.digest());
        let mut evicted = Evicted::default();
        loop {
            // Each round names the next victims. It ends, because every round evicts at least one
            // or answers.
            match self.index.reserve_for(now_ms, &want) {
                Reserve::Evict(victims) => self.drop_all(&victims, &mut evicted),
                other => return (other, evicted),
            }
        }
    }

    /// Evicts what is above the high mark, and what LMCache's rules evict.
    pub fn evict_above_mark(&mut self, now_ms: u64) -> Evicted {
        // Two reasons to evict in the background: the high mark, and LMCache's eviction once a
        // second where that is emulated.
        let mut victims = self.index.victims(now_ms, 0);
        let mut evicted = Evicted::default();
        victims.extend(self.index.compat_victims(now_ms));
        while !victims.is_empty() {
            self.drop_all(&victims, &mut evicted);
            victims = self.index.compat_victims(now_ms);
        }
        evicted
    }

    /// Evicts about `bytes` although the cap allows them, because the arena is fragmented.
    pub fn defragment(&mut self, now_ms: u64, bytes: u64) -> Evicted {
        let usage = self.index.usage();
        // The index evicts only above the cap. To get more space than that, the free part is asked
        // for too.
        let below_cap = usage.capacity.saturating_sub(usage.used + usage.reserved);
        let victims = self.index.victims(now_ms, below_cap.saturating_add(bytes));
        let mut evicted = Evicted::default();
        self.drop_all(&victims, &mut evicted);
        evicted
    }

    /// Evicts these entries of the index.
    pub fn drop_all(&mut self, victims: &[IndexEntry], evicted: &mut Evicted) {
        for victim in victims {
            let stored = self.bytes.remove(&victim.chunk.digest);
            // Its current set, which may have been declared after it was saved.
            let set = self.index.set_of(&victim.chunk.digest);
            // After the set was read: the index forgets it with the entry.
            self.index.finish_evict(&victim.chunk.digest);
            self.listeners.push(Event::Gone { key: victim.chunk.digest, len: victim.chunk.len });
            evicted.count += 1;
            evicted.chunks.extend(
                stored.map(|stored| Spilled::new(stored.key, stored.bytes).with_atomic_set(set)),
            );
        }
    }

    /// Drops a corrupt chunk, even if it is held.
    pub fn forget(&mut self, digest: &Digest) {
        self.bytes.remove(digest);
        if let Some(entry) = self.index.forget(digest) {
            self.listeners.push(Event::Gone { key: *digest, len: entry.chunk.len });
        }
    }

    pub fn tenant_name(&self, id: TenantId) -> String {
        self.tenants.name(id)
    }

    fn tenant(&mut self, name: &str) -> TenantId {
        let index = &self.index;
        self.tenants.id(name, |id| index.tenant_usage(id).entries > 0)
    }
}
