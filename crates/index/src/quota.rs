//! Quotas: how much space each tenant may use.

use std::collections::BTreeMap;

use hashbrown::{HashMap, HashSet};
use kvtier_evict::{PerTenant, PolicyKind};
use kvtier_key::Digest;

use crate::over_quota::OverQuota;
use crate::slab::State;
use crate::{ChainPlace, Chunk, Index, IndexEntry, Refusal, Reserve, TenantId, VICTIMS_MAX};

/// A write that asks for space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReserveRequest {
    /// Its cost on the medium, in bytes.
    pub bytes: u64,
    /// The position of its chunk in its chain.
    pub place: ChainPlace,
    /// The tenant.
    pub tenant: TenantId,
    /// Its chunk, for policies that learn from shed saves.
    pub digest: Option<Digest>,
}

impl ReserveRequest {
    /// A write of this many bytes, without a tenant and a chain.
    pub fn new(bytes: u64) -> Self {
        ReserveRequest { bytes, place: ChainPlace::default(), tenant: TenantId::NONE, digest: None }
    }

    /// Sets the position in the chain.
    pub fn with_place(mut self, place: ChainPlace) -> Self {
        self.place = place;
        self
    }

    /// Sets the tenant.
    pub fn with_tenant(mut self, tenant: TenantId) -> Self {
        self.tenant = tenant;
        self
    }

    /// Sets the chunk.
    pub fn with_digest(mut self, digest: &Digest) -> Self {
        self.digest = Some(*digest);
        self
    }
}

/// The quotas of tenants, by name.
///
/// ```
/// use kvtier_index::Quotas;
///
/// // Tenant a may hold 1 GiB, every other tenant 100 MiB; each keeps what its quota guarantees.
/// let quotas = Quotas::new().with("a", 1 << 30).with_others(100 << 20).with_fair(true);
/// assert!(!quotas.is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Quotas {
    /// Quotas of single tenants, in bytes.
    pub by_tenant: BTreeMap<String, u64>,
    /// The quota of every other tenant, in bytes; `None` for none. It does not apply to the tenant
    /// `""`: chunks without a salt, or with an unknown one.
    pub others: Option<u64>,
    /// Whether the quotas of single tenants are also guaranteed to them: see
    /// [`Index::set_fair_sharing`].
    pub fair: bool,
}

impl Quotas {
    /// No quotas.
    pub fn new() -> Self {
        Quotas::default()
    }

    /// Sets the quota of a tenant.
    pub fn with(mut self, tenant: &str, bytes: u64) -> Self {
        self.by_tenant.insert(tenant.into(), bytes);
        self
    }

    /// Sets the quota of every tenant without one of its own.
    pub fn with_others(mut self, bytes: u64) -> Self {
        self.others = Some(bytes);
        self
    }

    /// Also guarantees the quotas of single tenants to them.
    pub fn with_fair(mut self, fair: bool) -> Self {
        self.fair = fair;
        self
    }

    /// Whether there is no quota.
    pub fn is_empty(&self) -> bool {
        self.by_tenant.is_empty() && self.others.is_none()
    }
}

/// A tenant with less than this fraction of its quota free is full.
const SPARE: u64 = 50;

/// The quotas, and what counts towards them besides present chunks.
#[derive(Debug, Default)]
pub(crate) struct Limits {
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

impl Limits {
    /// The quota of a tenant. The quota of the others must not evict chunks of unknown tenants,
    /// which tenant 0 stands for.
    fn limit(&self, tenant: TenantId) -> Option<u64> {
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
        let scaled = u128::from(own) * u128::from(all) / self.sum.max(u128::from(all));
        u64::try_from(scaled).unwrap_or(own)
    }

    /// A tenant has this many bytes now.
    pub fn update(&mut self, tenant: TenantId, bytes: u64) {
        let [coming, leaving] =
            [&self.reserved, &self.evicting].map(|of| of.get(&tenant).copied().unwrap_or(0));
        let staying = bytes.saturating_sub(leaving).saturating_add(coming);
        self.over_quota.set_excess(tenant, staying.saturating_sub(self.part(tenant)));
        match self.limit(tenant).is_some_and(|limit| bytes > limit - limit / SPARE) {
            true => self.full.insert(tenant),
            false => self.full.remove(&tenant),
        };
    }

    pub fn reserve(&mut self, tenant: TenantId, bytes: u64) {
        *self.reserved.entry(tenant).or_default() += bytes;
    }

    pub fn unreserve(&mut self, tenant: TenantId, bytes: u64) {
        take(&mut self.reserved, tenant, bytes);
    }

    pub fn add_evicting(&mut self, tenant: TenantId, bytes: u64) {
        *self.evicting.entry(tenant).or_default() += bytes;
    }

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

impl Index {
    /// Sets or ends (`None`) the quota of one tenant, in bytes. Bytes above it are evicted with the
    /// tenant's next write: its least recently used chunks, or those that the policy chooses if it
    /// divides by tenant. With a policy that never evicts, writes above the quota are refused.
    pub fn set_quota(&mut self, tenant: TenantId, bytes: Option<u64>) {
        let before = match bytes {
            Some(bytes) => {
                self.begin_limits();
                self.quotas.by_tenant.insert(tenant, bytes)
            }
            None => self.quotas.by_tenant.remove(&tenant),
        };
        self.quotas.sum =
            self.quotas.sum - u128::from(before.unwrap_or(0)) + u128::from(bytes.unwrap_or(0));
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
        self.quotas.default = bytes;
        self.update_all_quotas();
    }

    /// Recomputes all tenants after a change of the quotas.
    pub(crate) fn update_all_quotas(&mut self) {
        self.quotas.over_quota = OverQuota::default();
        self.quotas.full.clear();
        if self.quotas.are_set() {
            let there = self.tenants().map(|(tenant, _)| tenant);
            let tenants: Vec<TenantId> =
                there.chain(self.quotas.reserved.keys().copied()).collect();
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
        let request = |tenant: &TenantId| {
            let limit = self.quotas.limit(*tenant)?;
            Some(ReserveRequest::new(limit / SPARE).with_tenant(*tenant))
        };
        self.quotas.full.iter().filter_map(request).collect()
    }

    /// Before the first quota: makes the policy divide by tenant, and counts the victims. Without
    /// quotas neither costs anything.
    fn begin_limits(&mut self) {
        if !self.quotas.are_set() {
            self.quotas.evicting.clear();
            // There are no victims, mostly: then skip the scan.
            let end = if self.totals.evicting == 0 { 0 } else { self.slab.end() };
            for row in
                (0..end).map(|slot| &self.slab[slot]).filter(|row| row.state == State::Evicting)
            {
                *self.quotas.evicting.entry(self.slab.tenant(row)).or_default() += row.bytes();
            }
        }
        if self.policy.tracks_tenants() {
            return;
        }
        let policy = std::mem::replace(&mut self.policy, PolicyKind::Noop.build());
        let slab = &self.slab;
        let is_pinned = |slot: u32| slab[slot].holds > 0 || slab[slot].state == State::Evicting;
        self.policy =
            Box::new(PerTenant::around(policy, |slot| slab[slot].tenant_number(), is_pinned));
    }

    /// Bytes of a tenant's writes in flight.
    pub fn tenant_reserved(&self, tenant: TenantId) -> u64 {
        self.quotas.reserved.get(&tenant).copied().unwrap_or(0)
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
            _ if self.quotas.evicting.contains_key(&tenant) => Some(Reserve::Busy),
            _ => Some(Reserve::Full(Refusal::Held)),
        }
    }

    /// How many bytes of its tenant must be evicted for a write, besides its victims.
    pub(crate) fn quota_excess(&self, request: &ReserveRequest) -> u64 {
        let Some(limit) = self.quotas.limit(request.tenant) else { return 0 };
        // Here victims do not count, or every waiting write would choose further ones for the same
        // excess.
        let leaving = self.quotas.evicting.get(&request.tenant).copied().unwrap_or(0);
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
        while freed < wanted && victims.len() < VICTIMS_MAX {
            // Leftovers of sets are misses anyway: to evict one costs no hit.
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
