//! The quotas of one index, and which tenants are near or above theirs.
//!
//! Each change of a tenant's bytes calls [`TenantLimits::update`], so that a save finds full tenants and
//! those over their share without a scan of all tenants. Victims and writes in flight are kept by tenant
//! here. A quota counts victims until they are deleted, since they are still on the medium; the share
//! of a tenant does not, or its chunks would be evicted twice for one excess.

use hashbrown::{HashMap, HashSet};

use crate::index::over_quota::OverQuota;
use crate::{ReserveRequest, TenantId};

/// A tenant with less than this fraction of its quota free is full.
// So background eviction begins before a save has to wait for it.
const SPARE: u64 = 50;

/// The quotas, and what counts towards them besides present chunks.
#[derive(Debug, Default)]
pub(crate) struct TenantLimits {
    default: Option<u64>,
    by_tenant: HashMap<TenantId, u64>,
    /// Bytes of writes in flight.
    reserved: HashMap<TenantId, u64>,
    /// Bytes of victims.
    evicting: HashMap<TenantId, u64>,
    /// Tenants whose quotas are full, or nearly full, so that callers need not scan all tenants.
    full: HashSet<TenantId>,
    /// Tenants over their share, counted with writes in flight and without victims.
    pub over_quota: OverQuota,
    /// The maximum sum of all shares, if quotas are guaranteed.
    pub fair: Option<u64>,
    /// The sum of the quotas of single tenants.
    sum: u128,
}

impl TenantLimits {
    /// Sets or ends the quota of one tenant.
    pub fn set(&mut self, tenant: TenantId, bytes: Option<u64>) {
        let before = match bytes {
            Some(bytes) => self.by_tenant.insert(tenant, bytes),
            None => self.by_tenant.remove(&tenant),
        };
        self.sum = self.sum - u128::from(before.unwrap_or(0)) + u128::from(bytes.unwrap_or(0));
    }

    /// Sets or ends the quota of each tenant that has none of its own.
    pub fn set_default(&mut self, bytes: Option<u64>) {
        self.default = bytes;
    }

    /// The quota of a tenant. The quota of the others must not evict chunks of unknown tenants,
    /// which tenant 0 stands for.
    pub fn limit(&self, tenant: TenantId) -> Option<u64> {
        self.by_tenant.get(&tenant).copied().or(self.default.filter(|_| tenant != TenantId::NONE))
    }

    /// Whether there is any quota.
    pub fn are_set(&self) -> bool {
        self.default.is_some() || !self.by_tenant.is_empty()
    }

    /// The share of a tenant: below it, the tenant's chunks are not evicted while another tenant is
    /// over its share.
    fn part(&self, tenant: TenantId) -> u64 {
        let Some(all) = self.fair.filter(|_| !self.by_tenant.is_empty()) else {
            return self.limit(tenant).unwrap_or(u64::MAX);
        };
        let own = self.by_tenant.get(&tenant).copied().unwrap_or(0);
        // In 128 bits, because two sums of bytes are multiplied. Shares shrink only if the quotas
        // together exceed the high mark.
        let scaled = u128::from(own) * u128::from(all) / self.sum.max(u128::from(all));
        u64::try_from(scaled).unwrap_or(own)
    }

    /// Forgets which tenants are full or over their share, before all are [updated](Self::update).
    pub fn clear_marks(&mut self) {
        self.over_quota = OverQuota::default();
        self.full.clear();
    }

    /// A tenant has this many bytes now.
    pub fn update(&mut self, tenant: TenantId, bytes: u64) {
        let staying =
            bytes.saturating_sub(self.evicting(tenant)).saturating_add(self.reserved(tenant));
        // Without victims: their space is on its way back, and counting it would evict further
        // chunks for the same excess.
        self.over_quota.set_excess(tenant, staying.saturating_sub(self.part(tenant)));
        // With victims: on the medium they still fill the quota.
        match self.limit(tenant).is_some_and(|limit| bytes > limit - limit / SPARE) {
            true => self.full.insert(tenant),
            false => self.full.remove(&tenant),
        };
    }

    /// The tenants with less than a fiftieth of their quota free, each as a request for that space.
    pub fn full_tenants(&self) -> Vec<ReserveRequest> {
        let request = |tenant: &TenantId| {
            let limit = self.limit(*tenant)?;
            Some(ReserveRequest::new(limit / SPARE).with_tenant(*tenant))
        };
        self.full.iter().filter_map(request).collect()
    }

    /// Bytes of a tenant's writes in flight.
    pub fn reserved(&self, tenant: TenantId) -> u64 {
        self.reserved.get(&tenant).copied().unwrap_or(0)
    }

    /// The tenants with writes in flight.
    pub fn reserving_tenants(&self) -> impl Iterator<Item = TenantId> + '_ {
        self.reserved.keys().copied()
    }

    /// Bytes of a tenant's victims.
    pub fn evicting(&self, tenant: TenantId) -> u64 {
        self.evicting.get(&tenant).copied().unwrap_or(0)
    }

    /// Whether a tenant has victims.
    pub fn has_victims(&self, tenant: TenantId) -> bool {
        self.evicting.contains_key(&tenant)
    }

    /// Forgets the victims, before they are counted anew.
    pub fn clear_victims(&mut self) {
        self.evicting.clear();
    }

    /// This many bytes are claimed for a write of a tenant.
    pub fn reserve(&mut self, tenant: TenantId, bytes: u64) {
        *self.reserved.entry(tenant).or_default() += bytes;
    }

    /// A claim for a write of a tenant has ended.
    pub fn unreserve(&mut self, tenant: TenantId, bytes: u64) {
        take(&mut self.reserved, tenant, bytes);
    }

    /// This many bytes of a tenant became victims.
    pub fn add_evicting(&mut self, tenant: TenantId, bytes: u64) {
        *self.evicting.entry(tenant).or_default() += bytes;
    }

    /// This many bytes of a tenant are no longer victims.
    pub fn sub_evicting(&mut self, tenant: TenantId, bytes: u64) {
        take(&mut self.evicting, tenant, bytes);
    }
}

/// Subtracts from a sum; sums of 0 are removed. Bytes claimed before the first quota were not
/// added.
fn take(sums: &mut HashMap<TenantId, u64>, tenant: TenantId, bytes: u64) {
    if let Some(sum) = sums.get_mut(&tenant) {
        *sum = sum.saturating_sub(bytes);
        if *sum == 0 {
            sums.remove(&tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);

    #[test]
    fn quotas_are_set_while_a_tenant_or_the_others_have_one() {
        let mut limits = TenantLimits::default();
        assert!(!limits.are_set());
        limits.set(A, Some(5));
        assert!(limits.are_set());
        limits.set(A, None);
        assert!(!limits.are_set());
        limits.set_default(Some(5));
        assert!(limits.are_set());
        limits.set_default(None);
        assert!(!limits.are_set());
    }

    #[test]
    fn a_tenant_has_victims_until_the_last_byte_is_gone() {
        let mut limits = TenantLimits::default();
        limits.add_evicting(A, 5);
        limits.sub_evicting(A, 4);
        assert_eq!((limits.has_victims(A), limits.evicting(A)), (true, 1));
        limits.sub_evicting(A, 4);
        assert_eq!((limits.has_victims(A), limits.evicting(A)), (false, 0));
    }

    #[test]
    fn a_tenant_is_full_with_less_than_a_fiftieth_of_its_quota_free() {
        let mut limits = TenantLimits::default();
        limits.set(A, Some(100));
        limits.update(A, 98);
        assert_eq!(limits.full_tenants().len(), 0);
        limits.update(A, 99);
        assert_eq!(limits.full_tenants(), [ReserveRequest::new(2).with_tenant(A)]);
    }
}
