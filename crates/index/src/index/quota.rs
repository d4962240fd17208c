//! Quotas in an index: what a write may need, whose chunks it evicts, and the counting of bytes by tenant.

use kvtier_evict::{PerTenant, PolicyKind};

use crate::slab::SlotState;
use crate::{Chunk, Index, IndexEntry, Refusal, Reserve, ReserveRequest, TenantId, VICTIMS_MAX};

impl Index {
    /// Sets or ends (`None`) the quota of one tenant, in bytes. Bytes above it are evicted with the
    /// tenant's next write: its least recently used chunks, or those that the policy chooses if it
    /// divides by tenant. With a policy that never evicts, writes above the quota are refused.
    pub fn set_quota(&mut self, tenant: TenantId, bytes: Option<u64>) {
        if bytes.is_some() {
            // Before the quota is set: it counts what was not counted while there was none.
            self.begin_limits();
        }
        self.quotas.set(tenant, bytes);
        match self.quotas.fair {
            // All shares have changed.
            Some(_) => self.update_all_quotas(),
            None => self.update_quota(tenant),
        }
    }

    /// Sets or ends (`None`) the quota, in bytes, of each tenant that has none of its own, except
    /// tenant 0.
    pub fn set_quota_of_others(&mut self, bytes: Option<u64>) {
        if bytes.is_some() {
            self.begin_limits();
        }
        self.quotas.set_default(bytes);
        self.update_all_quotas();
    }

    /// Recomputes all tenants after a change of the quotas.
    pub(crate) fn update_all_quotas(&mut self) {
        self.quotas.clear_marks();
        if self.quotas.are_set() {
            // Tenants without chunks may have writes in flight, and those count too.
            let there = self.tenants().map(|(tenant, _)| tenant);
            let tenants: Vec<TenantId> = there.chain(self.quotas.reserving_tenants()).collect();
            tenants.into_iter().for_each(|tenant| self.update_quota(tenant));
        }
    }

    /// Recomputes whether a tenant's quota is full, and by how much it is over its share.
    pub(crate) fn update_quota(&mut self, tenant: TenantId) {
        let bytes = self.tenant_usage(tenant).bytes;
        self.quotas.update(tenant, bytes);
    }

    /// This many bytes of a tenant became victims.
    pub(crate) fn count_evicting(&mut self, tenant: TenantId, bytes: u64) {
        self.totals.evicting += bytes;
        if self.quotas.are_set() {
            self.quotas.add_evicting(tenant, bytes);
            self.update_quota(tenant);
        }
    }

    /// This many bytes of a tenant are no longer victims.
    pub(crate) fn uncount_evicting(&mut self, tenant: TenantId, bytes: u64) {
        self.totals.evicting -= bytes;
        if self.quotas.are_set() {
            self.quotas.sub_evicting(tenant, bytes);
            self.update_quota(tenant);
        }
    }

    /// A chunk is present.
    pub(crate) fn count(&mut self, chunk: &Chunk) {
        self.totals.add(chunk);
        if self.quotas.are_set() {
            self.update_quota(chunk.tenant);
        }
    }

    /// A chunk is gone.
    pub(crate) fn uncount(&mut self, chunk: &Chunk) {
        self.totals.sub(chunk);
        if self.quotas.are_set() {
            self.update_quota(chunk.tenant);
        }
    }

    /// The tenants with less than a fiftieth of their quota free, in no order, each as a request
    /// for that space.
    pub fn full_tenants(&self) -> Vec<ReserveRequest> {
        self.quotas.full_tenants()
    }

    /// Before the first quota: makes the policy divide by tenant, and counts the victims. Without
    /// quotas neither costs anything.
    fn begin_limits(&mut self) {
        if !self.quotas.are_set() {
            self.quotas.clear_victims();
            // There are no victims, mostly: then skip the scan.
            let end = if self.totals.evicting == 0 { 0 } else { self.slab.end() };
            for row in
                (0..end).map(|slot| &self.slab[slot]).filter(|row| row.state == SlotState::Evicting)
            {
                self.quotas.add_evicting(self.slab.tenant(row), row.bytes());
            }
        }
        // An earlier quota has wrapped the policy already, or it divides by itself.
        if self.policy.tracks_tenants() {
            return;
        }
        // The wrapper takes the policy by value; a policy without slots stands in for a moment.
        let policy = std::mem::replace(&mut self.policy, PolicyKind::Noop.build());
        let slab = &self.slab;
        let is_pinned = |slot: u32| slab[slot].holds > 0 || slab[slot].state == SlotState::Evicting;
        self.policy =
            // It learns the slots there are, and which of them cannot be evicted now.
            Box::new(PerTenant::around(policy, |slot| slab[slot].tenant_number(), is_pinned));
    }

    /// Bytes of a tenant's writes in flight.
    pub fn tenant_reserved(&self, tenant: TenantId) -> u64 {
        self.quotas.reserved(tenant)
    }

    /// Whether a write needs more space than its tenant's quota leaves. Victims still occupy some.
    pub fn is_above_quota(&self, request: &ReserveRequest) -> bool {
        self.quotas.limit(request.tenant).is_some_and(|limit| self.had_with(request) > limit)
    }

    /// The tenant's bytes if the write goes through now.
    fn had_with(&self, request: &ReserveRequest) -> u64 {
        let there = self.tenant_usage(request.tenant).bytes;
        there.saturating_add(self.tenant_reserved(request.tenant)).saturating_add(request.bytes)
    }

    /// What its tenant's quota requires of a write that fits into the capacity. Victims are the
    /// tenant's own.
    pub(crate) fn above_quota(&mut self, request: &ReserveRequest) -> Option<Reserve> {
        let limit = self.quotas.limit(request.tenant)?;
        let tenant = request.tenant;
        if request.bytes > limit {
            return Some(Reserve::Full(Refusal::Quota { bytes_max: limit }));
        }
        // Victims count here until they are deleted. A tenant is never above its quota on the
        // medium, not even for a moment.
        if self.had_with(request) <= limit {
            return None;
        }
        let over = self.quota_excess(request);
        // The victims that are being deleted make enough space for this write too.
        if over == 0 {
            return Some(Reserve::Busy);
        }
        match self.victims_of(tenant, over) {
            victims if !victims.is_empty() => Some(Reserve::Evict(victims)),
            // All other chunks of the tenant are held. Those being deleted may still make space for
            // a smaller write.
            _ if self.quotas.has_victims(tenant) => Some(Reserve::Busy),
            _ => Some(Reserve::Full(Refusal::Held)),
        }
    }

    /// How many bytes of its tenant must be evicted for a write, besides its victims.
    pub(crate) fn quota_excess(&self, request: &ReserveRequest) -> u64 {
        let Some(limit) = self.quotas.limit(request.tenant) else { return 0 };
        // Here victims do not count, or every waiting write would choose further ones for the same
        // excess.
        let leaving = self.quotas.evicting(request.tenant);
        self.had_with(request).saturating_sub(leaving).saturating_sub(limit)
    }

    /// The chunks of its tenant to evict so that a write stays below the tenant's quota: at most
    /// one batch, empty if the rest is held or already being evicted. Treat them like
    /// [`victims`](Self::victims).
    pub fn victims_of_quota(&mut self, now_ms: u64, request: &ReserveRequest) -> Vec<IndexEntry> {
        self.expire_holds(now_ms);
        match self.above_quota(request) {
            Some(Reserve::Evict(victims)) => victims,
            _ => Vec::new(),
        }
    }

    fn victims_of(&mut self, tenant: TenantId, wanted: u64) -> Vec<IndexEntry> {
        let mut victims = Vec::new();
        let mut freed = 0;
        // Each victim leaves the policy's lists as it is chosen, so the loop ends.
        while freed < wanted && victims.len() < VICTIMS_MAX {
            // SetLeftovers of sets are misses anyway: to evict one costs no hit.
            let Some(slot) = self.leftover_of(tenant).or_else(|| self.tenant_victim(tenant)) else {
                break;
            };
            let victim = self.start_evicting(slot);
            freed += victim.chunk.bytes;
            victims.push(victim);
        }
        victims
    }
}

#[cfg(test)]
mod tests {
    use kvtier_key::Digest;

    use super::*;
    use crate::IndexConfig;

    #[test]
    fn a_tenant_whose_other_chunks_are_held_waits_for_its_victims() {
        let (tenant, held, going) = (TenantId(1), Digest([2; 32]), Digest([3; 32]));
        let mut index = Index::new(IndexConfig::new(1000), PolicyKind::Lru.build()).unwrap();
        index.set_quota(tenant, Some(100));
        for (digest, bytes) in [(held, 50), (going, 10)] {
            let _ = index.insert(Chunk::new(digest, bytes, bytes).with_tenant(tenant));
        }
        let _ = index.hold(&[held], 60_000).unwrap();
        let _ = index.begin_evict(&going);
        let request = ReserveRequest::new(60).with_tenant(tenant);
        assert!(matches!(index.above_quota(&request), Some(Reserve::Busy)));
        assert!(index.finish_evict(&going));
        assert!(matches!(index.above_quota(&request), Some(Reserve::Full(Refusal::Held))));
    }

    #[test]
    fn a_write_that_just_fits_is_not_above_the_quota() {
        let tenant = TenantId(1);
        let mut index = Index::new(IndexConfig::new(1000), PolicyKind::Lru.build()).unwrap();
        index.set_quota(tenant, Some(100));
        let above = |index: &Index, bytes| {
            index.is_above_quota(&ReserveRequest::new(bytes).with_tenant(tenant))
        };
        assert_eq!([100, 101].map(|bytes| above(&index, bytes)), [false, true]);
        let _ = index.insert(Chunk::new(Digest([1; 32]), 40, 40).with_tenant(tenant));
        assert_eq!([60, 61].map(|bytes| above(&index, bytes)), [false, true]);
        assert!(!index.is_above_quota(&ReserveRequest::new(1000)), "a tenant without a quota");
    }

    #[test]
    fn one_write_may_need_the_whole_quota_and_no_more() {
        let tenant = TenantId(1);
        let mut index = Index::new(IndexConfig::new(1000), PolicyKind::Lru.build()).unwrap();
        index.set_quota(tenant, Some(100));
        let request = |bytes| ReserveRequest::new(bytes).with_tenant(tenant);
        let refused = Reserve::Full(Refusal::Quota { bytes_max: 100 });
        assert_eq!(index.reserve_for(0, &request(101)), refused);
        assert!(matches!(index.reserve_for(0, &request(100)), Reserve::Granted(_)));
    }
}
