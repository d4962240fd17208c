//! Which tenants are over their share, and by how much.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use crate::{Index, TenantId};

/// Tenants over their share, by the excess.
#[derive(Debug, Default)]
pub(crate) struct OverQuota {
    pub by_excess: BTreeSet<(u64, TenantId)>,
    pub of: HashMap<TenantId, u64>,
}

impl OverQuota {
    /// The excess of a tenant, in bytes; 0 removes it.
    pub fn set_excess(&mut self, tenant: TenantId, excess: u64) {
        let before =
            if excess > 0 { self.of.insert(tenant, excess) } else { self.of.remove(&tenant) };
        // The set is ordered by the excess, so a changed excess is a removal and an insert. `of`
        // holds the old value, which the removal needs.
        if let Some(before) = before {
            self.by_excess.remove(&(before, tenant));
        }
        if excess > 0 {
            self.by_excess.insert((excess, tenant));
        }
    }
}

impl Index {
    /// Whether quotas are also guaranteed. If so, a tenant without a quota has a share of 0, and if
    /// all quotas together exceed the high mark, shares are scaled down in proportion. While some
    /// tenants are over their share, only their chunks are evicted, of the largest excess first.
    pub fn set_fair_sharing(&mut self, fair: bool) {
        self.quotas.fair = fair.then_some(self.marks.high);
        self.update_all_quotas();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kvtier_evict::PolicyKind;
    use kvtier_key::Digest;
    use proptest::prelude::*;

    use crate::slab::SlotState;
    use crate::{Chunk, Index, IndexConfig, Reserve, ReserveRequest, TenantId};

    /// Every tenant's excess, counted anew.
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
            let rows = (0..index.slab.end()).map(|slot| &index.slab[slot]);
            let staying = rows.filter(|row| {
                row.state == SlotState::Present && index.slab.tenant(row) == TenantId(tenant)
            });
            let bytes = staying.map(|row| row.bytes()).sum::<u64>()
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
        fn the_excess_of_each_tenant_is_right_after_any_change(
            fair: bool,
            ops in prop::collection::vec((0..9u8, 0..6u8, 0..3u128, 1..40u64), 1..120),
        ) {
            let config = IndexConfig::new(100).with_high_mark(1.0);
            let mut index = Index::new(config, PolicyKind::Lru.build()).unwrap();
            index.set_fair_sharing(fair);
            let mut quotas = BTreeMap::new();
            let mut reservations = Vec::new();
            for (op, key, tenant, bytes) in ops {
                let digest = Digest([key; 32]);
                let id = TenantId(tenant);
                let chunk = Chunk::new(digest, 1, bytes).with_tenant(id);
                match op {
                    0 | 1 => if let Reserve::Granted(reservation) = index.reserve_for(0, &ReserveRequest::new(bytes).with_tenant(id)) {
                        reservations.push(reservation);
                    }
                    2 => if let Some(reservation) = reservations.pop() { let _ = index.commit(reservation, chunk); }
                    3 => if let Some(reservation) = reservations.pop() { index.cancel(reservation) }
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
                // Space claimed before the first quota is charged to no tenant.
                let above: Vec<_> = index.quotas.over_quota.by_excess.iter().copied().collect();
                prop_assert_eq!(above, counted(&index, &quotas, fair));
            }
        }
    }
}
