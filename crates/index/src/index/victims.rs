//! Eviction: which chunks are evicted, and what becomes of a victim.
//!
//! A victim counts in `used` until the medium has deleted it (`finish_evict`): the space is not given
//! to a save while the bytes are still there. Victims are misses from the moment they are chosen. A
//! tier that fails to delete one calls `abort_evict`, and the chunk is present again.

use kvtier_key::Digest;

use crate::index::RemovalCause;
use crate::slab::SlotState;
use crate::{Chunk, Index, IndexEntry, RemoveOutcome, VICTIMS_MAX};

impl Index {
    /// The chunks to evict so that `used`, `reserved` and `need_bytes` together stay below the high
    /// mark. At most one batch; empty if nothing must be evicted or everything is held. Call it
    /// with 0 after a commit.
    ///
    /// Victims are misses but still counted. Call [`finish_evict`](Self::finish_evict) or
    /// [`abort_evict`](Self::abort_evict) for each, whatever the deletion returned; otherwise their
    /// space is lost.
    pub fn victims(&mut self, now_ms: u64, need_bytes: u64) -> Vec<IndexEntry> {
        // Chunks that will remain once the current victims are deleted. Victims that others already
        // chose are not chosen twice.
        let staying =
            (self.totals.used - self.totals.evicting).saturating_add(self.totals.reserved);
        let over = staying.saturating_add(need_bytes).saturating_sub(self.marks.high);
        // One batch at a time: a long list of victims would keep the lock, and most of them may be
        // used again before they are needed.
        self.evict_bytes(now_ms, over.min(self.marks.batch.max(need_bytes)))
    }

    /// Victims of at least `wanted` bytes, whatever the marks allow: the medium itself is short of
    /// space.
    pub fn evict_bytes(&mut self, now_ms: u64, wanted: u64) -> Vec<IndexEntry> {
        self.expire_holds(now_ms);
        self.policy.set_time(now_ms);
        let mut victims = Vec::new();
        let mut freed = 0;
        // Each chosen slot becomes a victim at once, so the policy never offers it again in this
        // loop.
        while freed < wanted && victims.len() < VICTIMS_MAX {
            let Some(slot) = self.preferred_victim().or_else(|| self.policy.victim()) else {
                break;
            };
            let victim = self.start_evicting(slot);
            freed += victim.chunk.bytes;
            victims.push(victim);
        }
        victims
    }

    /// Removes a chunk in two steps: it becomes a victim, a miss that still counts, until
    /// [`finish_evict`](Self::finish_evict) or [`abort_evict`](Self::abort_evict) is called.
    pub fn begin_evict(&mut self, digest: &Digest) -> RemoveOutcome {
        match self.removable(digest) {
            Ok(slot) => RemoveOutcome::Gone(self.start_evicting(slot)),
            Err(not) => not,
        }
    }

    /// The victim is deleted. `false` if it is no victim: saved again meanwhile, or forgotten.
    pub fn finish_evict(&mut self, digest: &Digest) -> bool {
        self.leaving(digest).map(|slot| self.drop_entry(slot, RemovalCause::Evicted)).is_some()
    }

    /// The victim could not be deleted. It is present again, as the most recent, so that others are
    /// tried first. `false` if it is no victim.
    pub fn abort_evict(&mut self, digest: &Digest) -> bool {
        let back = self.leaving(digest);
        if let Some(slot) = back {
            self.stop_evicting(slot);
            // As the most recent. A chunk whose file cannot be deleted would otherwise be chosen
            // again by the next save, and by the one after it.
            self.notify_policy(slot);
        }
        back.is_some()
    }

    /// The chunk, if it is a victim that is not deleted yet.
    pub fn victim(&self, digest: &Digest) -> Option<Chunk> {
        self.leaving(digest).map(|slot| self.slab.chunk(slot))
    }

    /// Whether the chunk is a victim that is not deleted yet.
    pub fn is_evicting(&self, digest: &Digest) -> bool {
        self.leaving(digest).is_some()
    }

    /// The victim that comes before the policy's own choice: a leftover of a set, or, if the policy
    /// would evict from a tenant within its share while others exceed theirs, a chunk of the one
    /// with the largest excess.
    pub(crate) fn preferred_victim(&mut self) -> Option<u32> {
        if let Some(slot) = self.leftover() {
            return Some(slot);
        }
        let above = &self.quotas.over_quota;
        if above.of.is_empty() {
            return None;
        }
        let stands = |slot: u32| above.of.contains_key(&self.slab.tenant(&self.slab[slot]));
        // The policy would evict from a tenant above its share anyway. Its own choice is better
        // than any by tenant, so it is kept.
        if self.policy.victim().is_some_and(stands) {
            return None;
        }
        let slab = &self.slab;
        let policy = &mut self.policy;
        above
            .by_excess
            .iter()
            .rev()
            .find_map(|(_, tenant)| policy.tenant_victim(slab.number_of(*tenant)?))
    }

    /// Makes a present entry a victim.
    pub(crate) fn start_evicting(&mut self, slot: u32) -> IndexEntry {
        // From here on lookups miss it, and no other save chooses it.
        self.slab[slot].state = SlotState::Evicting;
        let entry = self.slab.entry(slot);
        // It still counts in `used`, and now also in `evicting`: see the module `reserve`.
        self.count_evicting(entry.chunk.tenant, entry.chunk.bytes);
        self.policy.begin_evict(slot);
        self.sets.left(&entry.chunk.digest, entry.chunk.tenant);
        entry
    }

    /// Makes a victim a present entry again.
    pub(crate) fn stop_evicting(&mut self, slot: u32) {
        // Of a set that was hidden by it alone, all members are hits again.
        self.slab[slot].state = SlotState::Present;
        let Chunk { digest, bytes, tenant, .. } = self.slab.chunk(slot);
        self.uncount_evicting(tenant, bytes);
        self.policy.unpin(slot);
        self.sets.returned(&digest, tenant);
    }

    fn leaving(&self, digest: &Digest) -> Option<u32> {
        self.find(digest).filter(|slot| self.slab[*slot].state == SlotState::Evicting)
    }
}

#[cfg(test)]
mod tests {
    use kvtier_evict::PolicyKind;

    use super::*;
    use crate::{IndexConfig, Reserve, ReserveRequest, TenantId};

    fn index() -> (Index, Vec<Digest>) {
        let config = IndexConfig::new(5000).with_high_mark(1.0);
        let mut index = Index::new(config, PolicyKind::Lru.build()).unwrap();
        let keys = (0..2000u32).map(|n| Digest::derive("test", &n.to_le_bytes()));
        let keys: Vec<Digest> = keys.collect();
        for digest in &keys {
            let _ = index.insert(Chunk::new(*digest, 1, 1).with_tenant(TenantId(1)));
        }
        (index, keys)
    }

    #[test]
    fn one_batch_has_at_most_the_most_victims() {
        let (mut index, _) = index();
        assert_eq!([(); 3].map(|()| index.evict_bytes(0, 5000).len()), [VICTIMS_MAX, 976, 0]);
    }

    #[test]
    fn one_batch_of_a_quota_has_at_most_the_most_victims() {
        let (mut index, _) = index();
        index.set_quota(TenantId(1), Some(1500));
        let want = ReserveRequest::new(1500).with_tenant(TenantId(1));
        let mut batch = || match index.reserve_for(0, &want) {
            Reserve::Evict(victims) => victims.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!([batch(), batch()], [VICTIMS_MAX, 976]);
    }

    #[test]
    fn only_a_victim_that_is_not_deleted_yet_is_evicting() {
        let (mut index, keys) = index();
        let evicting = |index: &Index| [0, 1].map(|at: usize| index.is_evicting(&keys[at]));
        assert_eq!(evicting(&index), [false, false]);
        let _ = index.begin_evict(&keys[0]);
        assert_eq!(evicting(&index), [true, false]);
        assert!(index.finish_evict(&keys[0]));
        assert_eq!(evicting(&index), [false, false]);
    }
}
