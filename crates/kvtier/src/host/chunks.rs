use std::collections::HashMap;
use std::sync::Arc;

use kvtier_core::{Event, Listeners, OTHER_TENANTS, Spilled};
use kvtier_evict::EvictionHint;
use kvtier_index::{
    ChainPlace, Chunk, Index, IndexEntry, InsertOutcome, Quotas, Reservation, Reserve,
    ReserveRequest, TenantId,
};
use kvtier_key::{BlockSums, Digest, Key};
use kvtier_mem::View;

use super::tenants::Tenants;

/// What a chunk costs: whole pages.
pub const PAGE: u64 = 4096;

/// What went for something else: how many, and their bytes.
#[derive(Debug, Default)]
pub struct Gone {
    pub count: u64,
    pub chunks: Vec<Spilled>,
}

/// Which chunks there are and where their bytes lie: kept in step, so that every entry of the index
/// has bytes.
#[derive(Debug)]
pub struct Chunks {
    pub index: Index,
    bytes: HashMap<Digest, Stored>,
    tenants: Tenants,
    /// Told by who has let go of these.
    listeners: Arc<Listeners>,
}

/// A chunk's bytes and what proves them.
#[derive(Clone, Debug)]
pub struct Stored {
    pub key: Key,
    pub bytes: View,
    pub sums: BlockSums,
}

impl Chunks {
    pub fn new(index: Index, listeners: Arc<Listeners>) -> Self {
        Chunks { index, bytes: HashMap::new(), tenants: Tenants::default(), listeners }
    }

    /// Limits what tenants may have.
    pub fn limit(&mut self, quotas: &Quotas) {
        self.index.set_fair_sharing(quotas.fair);
        self.index.set_quota_of_others(quotas.others);
        quotas.by_tenant.iter().for_each(|(name, bytes)| self.limit_one(name, Some(*bytes)));
    }

    /// Limits what one tenant may have, or all others.
    pub fn limit_one(&mut self, name: &str, bytes: Option<u64>) {
        if name == OTHER_TENANTS {
            return self.index.set_quota_of_others(bytes);
        }
        let tenant = self.tenant(name);
        self.tenants.keep(tenant, bytes.is_some());
        self.index.set_quota(tenant, bytes);
    }

    /// The chunk.
    pub fn find(&self, digest: &Digest) -> Option<Stored> {
        self.index.get(digest)?;
        self.bytes.get(digest).cloned()
    }

    /// Whether the chunk is here with this length.
    pub fn is_present(&self, digest: &Digest, len: u64) -> bool {
        self.index.get(digest).is_some_and(|entry| entry.chunk.len == len)
    }

    /// Notes that a request used these chunks, in the order of its chain, and what its caller
    /// expects of them.
    pub fn used(&mut self, now_ms: u64, chain: &[Digest], hint: &kvtier_core::Hint) {
        self.index.touch_batch(chain);
        if let Some(hint) = hint_of(hint) {
            self.index.hint_batch(now_ms, chain, &hint);
        }
    }

    /// Enters a chunk into the room that was claimed for it; `false` if the index has no slot left.
    pub fn enter(&mut self, room: Reservation, place: ChainPlace, stored: Stored) -> bool {
        let (digest, len) = (*stored.key.digest(), stored.sums.len());
        let tenant = self.tenant(stored.key.namespace().tenant());
        let chunk = Chunk::new(digest, len, room.bytes()).with_tenant(tenant).with_place(place);
        let entered = !matches!(self.index.commit(room, chunk), InsertOutcome::Refused(_));
        if entered {
            self.bytes.insert(digest, stored);
            self.listeners.push(Event::Stored { key: digest, len });
        }
        entered
    }

    /// Room for a chunk of `bytes` at this place of its chain, and what had to go for it.
    pub fn reserve(
        &mut self,
        now_ms: u64,
        (key, bytes): (&Key, u64),
        place: ChainPlace,
    ) -> (Reserve, Gone) {
        let tenant = self.tenant(key.namespace().tenant());
        let want = ReserveRequest::new(bytes)
            .with_place(place)
            .with_tenant(tenant)
            .with_digest(key.digest());
        let mut gone = Gone::default();
        loop {
            match self.index.reserve_for(now_ms, &want) {
                Reserve::Evict(victims) => self.drop_all(&victims, &mut gone),
                other => return (other, gone),
            }
        }
    }

    /// Drops what is above the high mark, one batch at a time, and what goes by LMCache's rules.
    pub fn below_mark(&mut self, now_ms: u64) -> Gone {
        let (mut victims, mut gone) = (self.index.victims(now_ms, 0), Gone::default());
        victims.extend(self.index.compat_victims(now_ms));
        while !victims.is_empty() {
            self.drop_all(&victims, &mut gone);
            victims = self.index.compat_victims(now_ms);
        }
        gone
    }

    /// Drops about `bytes` of the least recent chunks although the cap allows them: the arena is in
    /// pieces.
    pub fn make_space(&mut self, now_ms: u64, bytes: u64) -> Gone {
        let usage = self.index.usage();
        let below_cap = usage.capacity.saturating_sub(usage.used + usage.reserved);
        let (victims, mut gone) =
            (self.index.victims(now_ms, below_cap.saturating_add(bytes)), Gone::default());
        self.drop_all(&victims, &mut gone);
        gone
    }

    /// Drops victims of the index.
    pub fn drop_all(&mut self, victims: &[IndexEntry], gone: &mut Gone) {
        for victim in victims {
            let stored = self.bytes.remove(&victim.chunk.digest);
            // The set that it is in now, which may have been declared after it was saved.
            let set = self.index.set_of(&victim.chunk.digest);
            self.index.finish_evict(&victim.chunk.digest);
            self.listeners.push(Event::Gone { key: victim.chunk.digest, len: victim.chunk.len });
            gone.count += 1;
            gone.chunks.extend(
                stored.map(|stored| Spilled::new(stored.key, stored.bytes).with_atomic_set(set)),
            );
        }
    }

    /// Drops a chunk whose bytes are wrong, even if it is held.
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

/// A caller's hint in the policies' words; `None` for one that says nothing.
fn hint_of(told: &kvtier_core::Hint) -> Option<EvictionHint> {
    if *told == kvtier_core::Hint::default() {
        return None;
    }
    let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let mut hint = EvictionHint::new().with_priority(told.priority);
    hint.session_ended = told.session_ended;
    (hint.expected_return_ms, hint.retention_ms) =
        (told.expected_return.map(ms), told.retention.map(ms));
    Some(hint)
}
