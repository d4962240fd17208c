//! How much each tenant may have.

use std::collections::BTreeMap;

use hashbrown::{HashMap, HashSet};
use kvtier_evict::{PerTenant, PolicyKind};
use kvtier_key::Digest;

use crate::over_quota::OverQuota;
use crate::slab::State;
use crate::{ChainPlace, Chunk, Index, IndexEntry, Refusal, Reserve, TenantId, VICTIMS_MAX};

/// What a write asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReserveRequest {
    /// What it costs the medium, in bytes.
    pub bytes: u64,
    /// Where its chunk stands in its chain.
    pub place: ChainPlace,
    /// Whose it is.
    pub tenant: TenantId,
    /// Its chunk, for policies that learn from what is shed.
    pub digest: Option<Digest>,
}

impl ReserveRequest {
    /// A write of so many bytes, of tenant 0, its chain unknown.
    pub fn new(bytes: u64) -> Self {
        ReserveRequest { bytes, place: ChainPlace::default(), tenant: TenantId::NONE, digest: None }
    }

    /// The same of a chunk at this place in its chain.
    pub fn with_place(mut self, place: ChainPlace) -> Self {
        self.place = place;
        self
    }

    /// The same of this tenant.
    pub fn with_tenant(mut self, tenant: TenantId) -> Self {
        self.tenant = tenant;
        self
    }

    /// The same of this chunk.
    pub fn with_digest(mut self, digest: &Digest) -> Self {
        self.digest = Some(*digest);
        self
    }
}

/// How much tenants may have, by name.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Quotas {
    /// Limits of single tenants, in bytes.
    pub by_tenant: BTreeMap<String, u64>,
    /// The limit of every other tenant, in bytes; `None` for none. Chunks without a salt, or whose
    /// salt nobody knows, are of the tenant `""`, which this does not include.
    pub others: Option<u64>,
    /// Whether the limits of single tenants are also what these are sure of: see
    /// [`Index::set_fair_sharing`].
    pub fair: bool,
}

impl Quotas {
    /// No limits.
    pub fn new() -> Self {
        Quotas::default()
    }

    /// Limits a tenant.
    pub fn with(mut self, tenant: &str, bytes: u64) -> Self {
        self.by_tenant.insert(tenant.into(), bytes);
        self
    }

    /// Limits every tenant that has no limit of its own.
    pub fn with_others(mut self, bytes: u64) -> Self {
        self.others = Some(bytes);
        self
    }

    /// Makes the limits of single tenants also what these are sure of.
    pub fn with_fair(mut self, fair: bool) -> Self {
        self.fair = fair;
        self
    }

    /// Whether nobody has a limit.
    pub fn is_empty(&self) -> bool {
        self.by_tenant.is_empty() && self.others.is_none()
    }
}

/// A tenant whose limit has less than one part in so many to spare is full.
const SPARE: u64 = 50;

/// Limits, and what counts towards them besides what is there.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    default: Option<u64>,
    by_tenant: HashMap<TenantId, u64>,
    /// Bytes of writes in flight.
    reserved: HashMap<TenantId, u64>,
    /// Bytes on their way out.
    evicting: HashMap<TenantId, u64>,
    /// Tenants whose limits are full, or nearly: so that nobody has to look at all of them.
    full: HashSet<TenantId>,
    /// Tenants that have more than their part, with writes in flight and without what is on its
    /// way out.
    pub over_quota: OverQuota,
    /// How much all parts together may be, where limits are also what tenants are sure of.
    pub fair: Option<u64>,
    /// The limits of single tenants together.
    sum: u128,
}

impl Limits {
    /// Tenant 0 is also whose chunks nobody knows: what limits the others must not delete those.
    fn limit(&self, tenant: TenantId) -> Option<u64> {
        self.by_tenant.get(&tenant).copied().or(self.default.filter(|_| tenant != TenantId::NONE))
    }

    /// Whether anybody has a limit.
    pub fn are_set(&self) -> bool {
        self.default.is_some() || !self.by_tenant.is_empty()
    }

    /// How much a tenant has at most when it gives no chunk while others have more than their part.
    fn part(&self, tenant: TenantId) -> u64 {
        let Some(all) = self.fair.filter(|_| !self.by_tenant.is_empty()) else {
            return self.limit(tenant).unwrap_or(u64::MAX);
        };
        let own = self.by_tenant.get(&tenant).copied().unwrap_or(0);
        let scaled = u128::from(own) * u128::from(all) / self.sum.max(u128::from(all));
        u64::try_from(scaled).unwrap_or(own)
    }

    /// A tenant has so many bytes now.
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

    pub fn leave(&mut self, tenant: TenantId, bytes: u64) {
        *self.evicting.entry(tenant).or_default() += bytes;
    }

    pub fn left(&mut self, tenant: TenantId, bytes: u64) {
        take(&mut self.evicting, tenant, bytes);
    }
}

/// Takes from a sum; sums of nothing are not kept. What was claimed before there were limits was
/// not added.
fn take(sums: &mut HashMap<TenantId, u64>, tenant: TenantId, bytes: u64) {
    if let Some(sum) = sums.get_mut(&tenant) {
        *sum = sum.saturating_sub(bytes);
        if *sum == 0 {
            sums.remove(&tenant);
        }
    }
}

impl Index {
    /// Limits from now on what one tenant may have, in bytes; `None` ends its limit. What is there
    /// above it goes with the tenant's next write: its least recently used chunks, or those
    /// that the policy chooses where it knows owners. By a policy that gives nothing up, writes
    /// above the limit are refused.
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
            // The parts of all are others now.
            Some(_) => self.update_all_quotas(),
            None => self.update_quota(tenant),
        }
    }

    /// Limits from now on, in bytes, what each tenant but number 0 may have that has no limit of
    /// its own; `None` is no limit.
    pub fn set_quota_of_others(&mut self, bytes: Option<u64>) {
        if bytes.is_some() {
            self.begin_limits();
        }
        self.quotas.default = bytes;
        self.update_all_quotas();
    }

    /// Notes of all tenants what limits ask of them, which have changed.
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

    /// Notes whether a tenant's limit is full, and how much more it has than its part.
    pub(crate) fn update_quota(&mut self, tenant: TenantId) {
        let bytes = self.tenant_usage(tenant).bytes;
        self.quotas.update(tenant, bytes);
    }

    /// So many bytes of a tenant's are on their way out.
    pub(crate) fn count_evicting(&mut self, tenant: TenantId, bytes: u64) {
        self.totals.evicting += bytes;
        if self.quotas.are_set() {
            self.quotas.leave(tenant, bytes);
            self.update_quota(tenant);
        }
    }

    /// So many bytes of a tenant's are not on their way out any more.
    pub(crate) fn uncount_evicting(&mut self, tenant: TenantId, bytes: u64) {
        self.totals.evicting -= bytes;
        if self.quotas.are_set() {
            self.quotas.left(tenant, bytes);
            self.update_quota(tenant);
        }
    }

    /// A chunk is there.
    pub(crate) fn count(&mut self, chunk: &Chunk) {
        self.totals.add(chunk);
        if self.quotas.are_set() {
            self.update_quota(chunk.tenant);
        }
    }

    /// A chunk is there no more.
    pub(crate) fn uncount(&mut self, chunk: &Chunk) {
        self.totals.sub(chunk);
        if self.quotas.are_set() {
            self.update_quota(chunk.tenant);
        }
    }

    /// The tenants of whose limit less than a fiftieth is free, in no order, each with a write that
    /// asks for just that.
    pub fn full_tenants(&self) -> Vec<ReserveRequest> {
        let want = |tenant: &TenantId| {
            let limit = self.quotas.limit(*tenant)?;
            Some(ReserveRequest::new(limit / SPARE).with_tenant(*tenant))
        };
        self.quotas.full.iter().filter_map(want).collect()
    }

    /// Before the first limit: sees that the policy can tell one tenant's chunks from another's,
    /// and counts what is on its way out. Who has no limits does not pay for it.
    fn begin_limits(&mut self) {
        if !self.quotas.are_set() {
            self.quotas.evicting.clear();
            // Nothing is, mostly: then nobody has to look.
            let end = if self.totals.evicting == 0 { 0 } else { self.slab.end() };
            for line in
                (0..end).map(|slot| &self.slab[slot]).filter(|line| line.state == State::Evicting)
            {
                *self.quotas.evicting.entry(self.slab.tenant(line)).or_default() += line.bytes();
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

    /// Whether a write of this tenant's needs room that its limit does not leave. What is on its
    /// way out still takes up some.
    pub fn is_above_quota(&self, want: &ReserveRequest) -> bool {
        self.quotas.limit(want.tenant).is_some_and(|limit| self.had_with(want) > limit)
    }

    /// What its tenant has if a write goes through now.
    fn had_with(&self, want: &ReserveRequest) -> u64 {
        let there = self.tenant_usage(want.tenant).bytes;
        there.saturating_add(self.tenant_reserved(want.tenant)).saturating_add(want.bytes)
    }

    /// What stands against a write below the capacity: its tenant's limit. Victims are the tenant's
    /// own.
    pub(crate) fn above_quota(&mut self, want: &ReserveRequest) -> Option<Reserve> {
        let (limit, tenant) = (self.quotas.limit(want.tenant)?, want.tenant);
        if want.bytes > limit {
            return Some(Reserve::Full(Refusal::Quota { bytes_max: limit }));
        }
        if self.had_with(want) <= limit {
            return None;
        }
        let over = self.quota_excess(want);
        if over == 0 {
            return Some(Reserve::Busy);
        }
        match self.victims_of(tenant, over) {
            victims if !victims.is_empty() => Some(Reserve::Evict(victims)),
            _ if self.quotas.evicting.contains_key(&tenant) => Some(Reserve::Busy),
            _ => Some(Reserve::Full(Refusal::Held)),
        }
    }

    /// How much of its tenant's has to go for a write beside what is on its way out.
    pub(crate) fn quota_excess(&self, want: &ReserveRequest) -> u64 {
        let Some(limit) = self.quotas.limit(want.tenant) else { return 0 };
        let leaving = self.quotas.evicting.get(&want.tenant).copied().unwrap_or(0);
        self.had_with(want).saturating_sub(leaving).saturating_sub(limit)
    }

    /// What has to go, of its tenant's, so that a write stays below its tenant's limit: at most one
    /// batch, none when the rest of it is held or on its way out. Answer for each as for
    /// [`victims`](Self::victims).
    pub fn victims_of_quota(&mut self, now_ms: u64, want: &ReserveRequest) -> Vec<IndexEntry> {
        self.expire_holds(now_ms);
        match self.above_quota(want) {
            Some(Reserve::Evict(victims)) => victims,
            _ => Vec::new(),
        }
    }

    fn victims_of(&mut self, tenant: TenantId, wanted: u64) -> Vec<IndexEntry> {
        let (mut victims, mut freed) = (Vec::new(), 0);
        while freed < wanted && victims.len() < VICTIMS_MAX {
            let Some(slot) = self.leftover_of(tenant).or_else(|| self.tenant_victim(tenant)) else {
                break;
            };
            let victim = self.mark_evicting(slot);
            freed += victim.chunk.bytes;
            victims.push(victim);
        }
        victims
    }
}
