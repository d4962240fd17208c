//! Who gives when room is short, where tenants have limits.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use crate::{Index, TenantId};

/// Tenants that have more than their part, by how much more.
#[derive(Debug, Default)]
pub(crate) struct OverQuota {
    by_excess: BTreeSet<(u64, TenantId)>,
    of: HashMap<TenantId, u64>,
}

impl OverQuota {
    /// A tenant has so many bytes more than its part now.
    pub fn set_excess(&mut self, tenant: TenantId, excess: u64) {
        let before =
            if excess > 0 { self.of.insert(tenant, excess) } else { self.of.remove(&tenant) };
        if let Some(before) = before {
            self.by_excess.remove(&(before, tenant));
        }
        if excess > 0 {
            self.by_excess.insert((excess, tenant));
        }
    }
}

impl Index {
    /// Whether limits are also what tenants are sure of, from now on. The part of each tenant that
    /// has a limit of its own is that limit, or less where all of them together are more than
    /// there is room for; of the others it is nothing. When room is short, chunks of a tenant that
    /// has no more than its part stay while anybody has more and can give.
    pub fn set_fair_sharing(&mut self, fair: bool) {
        self.quotas.fair = fair.then_some(self.marks.high);
        self.update_all_quotas();
    }

    /// What goes before anything that the policy says when room is short: what is left of sets; and
    /// where the policy's choice is a chunk of a tenant that has no more than its part while
    /// others have more, a chunk of the one that has the most more.
    pub(crate) fn preferred_victim(&mut self) -> Option<u32> {
        if let Some(slot) = self.leftover() {
            return Some(slot);
        }
        let above = &self.quotas.over_quota;
        if above.of.is_empty() {
            return None;
        }
        let stands = |slot: u32| above.of.contains_key(&self.slab.tenant(&self.slab[slot]));
        if self.policy.victim().is_some_and(stands) {
            return None;
        }
        let (slab, policy) = (&self.slab, &mut self.policy);
        above
            .by_excess
            .iter()
            .rev()
            .find_map(|(_, tenant)| policy.tenant_victim(slab.number_of(*tenant)?))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kvtier_evict::PolicyKind;
    use kvtier_key::Digest;
    use proptest::prelude::*;

    use crate::slab::State;
    use crate::{Chunk, Index, IndexConfig, Reserve, ReserveRequest, TenantId};

    /// What every tenant has more than its part, counted anew.
    fn counted(index: &Index, quotas: &BTreeMap<u128, u64>, fair: bool) -> Vec<(u64, TenantId)> {
        let sum = quotas.values().sum::<u64>().max(100);
        let part = |tenant| match quotas.get(&tenant) {
            Some(bytes) if fair => bytes * 100 / sum,
            Some(bytes) => *bytes,
            None => {
                if fair && !quotas.is_empty() {
                    0
                } else {
                    u64::MAX
                }
            }
        };
        let excess = |tenant: u128| {
            let lines = (0..index.slab.end()).map(|slot| &index.slab[slot]);
            let staying = lines.filter(|line| {
                line.state == State::Present && index.slab.tenant(line) == TenantId(tenant)
            });
            let bytes = staying.map(|line| line.bytes()).sum::<u64>()
                + index.tenant_reserved(TenantId(tenant));
            (bytes.saturating_sub(part(tenant)), TenantId(tenant))
        };
        let mut all: Vec<_> = (0..3).map(excess).filter(|(excess, _)| *excess > 0).collect();
        all.sort_unstable();
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn who_has_more_than_its_part_is_known_however_chunks_and_quotas_change(
            fair: bool,
            ops in prop::collection::vec((0..9u8, 0..6u8, 0..3u128, 1..40u64), 1..120),
        ) {
            let config = IndexConfig::new(100).with_high_mark(1.0);
            let mut index = Index::new(config, PolicyKind::Lru.build()).unwrap();
            index.set_fair_sharing(fair);
            let (mut quotas, mut rooms) = (BTreeMap::new(), Vec::new());
            for (op, key, tenant, bytes) in ops {
                let (digest, id) = (Digest([key; 32]), TenantId(tenant));
                let chunk = Chunk::new(digest, 1, bytes).with_tenant(id);
                match op {
                    0 | 1 => if let Reserve::Granted(room) = index.reserve_for(0, &ReserveRequest::new(bytes).with_tenant(id)) {
                        rooms.push(room);
                    }
                    2 => if let Some(room) = rooms.pop() { let _ = index.commit(room, chunk); }
                    3 => if let Some(room) = rooms.pop() { index.cancel(room) }
                    4 => { let _ = index.insert(chunk); }
                    5 => { let _ = (index.begin_evict(&digest), index.resize(&digest, 1, bytes)); }
                    6 => { let _ = if bytes < 20 { index.finish_evict(&digest) } else { index.abort_evict(&digest) }; }
                    7 => { index.forget(&digest); }
                    _ => {
                        let bytes = Some(4 * bytes).filter(|_| key > 1);
                        index.set_quota(id, bytes);
                        if let Some(bytes) = bytes { quotas.insert(tenant, bytes); } else { quotas.remove(&tenant); }
                    }
                }
                // Room that was claimed while nobody had a limit is on nobody's account.
                let above: Vec<_> = index.quotas.over_quota.by_excess.iter().copied().collect();
                prop_assert_eq!(above, counted(&index, &quotas, fair));
            }
        }
    }
}
