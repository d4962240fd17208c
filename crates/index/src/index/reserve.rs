//! Reservations: whether a save may write, or which chunks must be evicted first.
//!
//! Space is claimed before the write, so `used + reserved` never exceeds the capacity, however many
//! saves run at once. A victim counts in `used` until the medium has deleted it
//! ([`evict`](crate::evict)).
//!
//! A save that needs more space gets victims of its own, so saves evict concurrently. Only when all
//! space that could be freed is already being freed for other saves, the answer is `Busy`.

use std::fmt;

use kvtier_key::Digest;

use crate::index::lookup::hash;
use crate::{CHUNK_BYTES_LIMIT, ChainPlace, DigestTag, Index, IndexEntry, TenantId};

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

/// Space claimed for one write. Pass it to [`Index::commit`] or [`Index::cancel`]: dropped, the
/// space stays claimed.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "space stays claimed until the reservation is committed or cancelled"]
pub struct Reservation {
    bytes: u64,
    /// The tenant whose quota it counts towards.
    tenant: Option<TenantId>,
}

impl Reservation {
    /// The bytes claimed.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Whether a write may begin.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum Reserve {
    /// It may, in this space.
    Granted(Reservation),
    /// After these victims are deleted: call [`Index::finish_evict`] or [`Index::abort_evict`] for
    /// each, then ask again.
    Evict(Vec<IndexEntry>),
    /// After the victims of other saves are deleted: ask again then.
    Busy,
    /// It may not: shed it.
    Full(Refusal),
}

/// A chunk is worth no more than its victim.
#[derive(Clone, Copy, Debug)]
struct NotWorth {
    /// The slot of the victim, one of its predecessors; `None` where its predecessor is missing.
    stays: Option<u32>,
}

/// The answer for a chunk whose predecessor is missing.
fn orphan(place: ChainPlace) -> Result<(), NotWorth> {
    if place.explicit { Err(NotWorth { stays: None }) } else { Ok(()) }
}

/// Why there is no space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The chunk does not fit into an empty medium.
    TooLarge {
        /// Its cost, in bytes.
        bytes: u64,
        /// The most that one chunk may cost, in bytes.
        bytes_max: u64,
    },
    /// Every chunk is held, or still being written.
    Held,
    /// The index has no free slot.
    NoSlot,
    /// Every possible victim is worth at least as much.
    NotWorth,
    /// It is larger than the whole quota of its tenant.
    Quota {
        /// The quota in bytes.
        bytes_max: u64,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::TooLarge { bytes, bytes_max } => {
                write!(
                    f,
                    "a chunk of {bytes} bytes is larger than the {bytes_max} that one may have: raise the capacity"
                )
            }
            Refusal::Held => {
                f.write_str("no space: all chunks are held or being written; release holds, or raise the capacity")
            }
            Refusal::NotWorth => f.write_str("not worth the space: its victims are likelier to be requested again"),
            Refusal::Quota { bytes_max } => {
                write!(f, "larger than the {bytes_max} bytes of its tenant: raise its quota")
            }
            Refusal::NoSlot => f.write_str("no slot left in the index: remove chunks, or use larger ones"),
        }
    }
}

impl std::error::Error for Refusal {}

impl Index {
    /// Claims space for a write that costs the medium `bytes` bytes. It grants whatever fits into
    /// the capacity; if anything must be evicted, it evicts down to the high mark.
    pub fn reserve(&mut self, now_ms: u64, bytes: u64) -> Reserve {
        // Within the high mark: a larger chunk would leave the medium above it with nothing else
        // there.
        let bytes_max = self.marks.high.min(CHUNK_BYTES_LIMIT - 1);
        if bytes > bytes_max {
            return Reserve::Full(Refusal::TooLarge { bytes, bytes_max });
        }
        // Victims still count in `used`. Their space is granted only after the medium has deleted
        // them.
        if self.totals.used.saturating_add(self.totals.reserved).saturating_add(bytes)
            <= self.marks.capacity
        {
            self.totals.reserved += bytes;
            return Reserve::Granted(Reservation { bytes, tenant: None });
        }
        match self.victims(now_ms, bytes) {
            victims if !victims.is_empty() => Reserve::Evict(victims),
            // Nothing more can be chosen, but some victims are not deleted yet. The save that chose
            // them will call back, so this one need not be shed.
            _ if self.totals.evicting > 0 => Reserve::Busy,
            _ => Reserve::Full(Refusal::Held),
        }
    }

    /// Like [`reserve`](Self::reserve), for a chunk with a tenant and a position in its chain. The
    /// request is refused if the policy finds the chunk worth no more than its victim, or if the
    /// caller says that its predecessor exists and it is missing. The rest of its chain is refused
    /// then, too. Above the tenant's quota the victims are the tenant's own, and count until they
    /// are deleted.
    pub fn reserve_for(&mut self, now_ms: u64, request: &ReserveRequest) -> Reserve {
        let bytes = request.bytes;
        // Saturating, since listings and `force_reserve` may exceed the capacity.
        let taken = self.totals.used.saturating_add(self.totals.reserved);
        let fits = taken.saturating_add(bytes) <= self.marks.capacity;
        // Both calls cost time, and the usual save of a cache that is not full needs neither.
        if !fits || self.quotas.are_set() {
            // Expired holds must end before the policy is asked for a victim.
            self.expire_holds(now_ms);
            self.policy.set_time(now_ms);
        }
        if self.quotas.are_set() {
            // The question of worth comes first. A refusal after victims were chosen would have
            // evicted them for nothing.
            if self.quota_excess(request) > 0
                && let Err(refused) = self.check_worth_of_own(request)
            {
                return self.not_worth(request, refused);
            }
            if let Some(not_yet) = self.above_quota(request) {
                return not_yet;
            }
        }
        // The request counts from here on, when tenants over their quota are compared.
        // Charged before the reserve, and refunded if that grants nothing: while victims are
        // chosen, the tenant of this write is as full as it would be afterwards. Otherwise a tenant
        // at its share could push others out with each write.
        let reservation = self.charge_tenant(request);
        let worth = if fits { Ok(()) } else { self.check_worth(request.place) };
        let answer = match worth {
            Ok(()) => self.reserve(now_ms, bytes),
            Err(refused) => self.not_worth(request, refused),
        };
        if matches!(answer, Reserve::Granted(_)) {
            return Reserve::Granted(reservation);
        }
        self.refund_tenant(&reservation);
        answer
    }

    /// Refuses a chunk that is worth no more than its victim. The policy learns from it whether
    /// such chunks return.
    ///
    /// No chunk is refused for ever. A save is a use of what comes before it, so the chunk that stays
    /// counts as used now, and the next save finds another victim. A position that was only inferred
    /// is forgotten: chunks that no lookup names together any more do not protect each other.
    fn not_worth(&mut self, request: &ReserveRequest, NotWorth { stays }: NotWorth) -> Reserve {
        if let Some(slot) = stays {
            self.policy.touch(slot);
        }
        if let Some(digest) = &request.digest {
            self.policy.shed(hash(digest));
            if !request.place.explicit {
                self.chains.forget(DigestTag::from_digest(digest));
            }
        }
        Reserve::Full(Refusal::NotWorth)
    }

    /// Whether a chunk at this position is worth its victim. If there is no victim, that is no
    /// question of worth. For a policy that accepts orphans all chunks are worth the same.
    fn check_worth(&mut self, place: ChainPlace) -> Result<(), NotWorth> {
        if self.policy.accepts_orphans() {
            return Ok(());
        }
        // A chunk whose predecessor is missing cannot be loaded as part of a prefix. If the caller
        // said so, it is worthless; if it was inferred, the inference may be at fault.
        let Ok(ancestor) = self.ancestor(place) else { return orphan(place) };
        match self.preferred_victim().or_else(|| self.policy.victim_for(ancestor)) {
            Some(victim) if self.may_go_for(victim, ancestor) => Ok(()),
            Some(victim) => Err(NotWorth { stays: Some(victim) }),
            // No victim for this chunk although there are victims: all of them are worth more. No
            // victim at all is a question of space, which `reserve` answers.
            None => self.policy.victim().map_or(Ok(()), |it| Err(NotWorth { stays: Some(it) })),
        }
    }

    /// Whether a chunk above its tenant's quota is worth a victim of its tenant: the victim must
    /// not be one of its own predecessors.
    fn check_worth_of_own(&mut self, request: &ReserveRequest) -> Result<(), NotWorth> {
        if self.policy.accepts_orphans() {
            return Ok(());
        }
        // As in `check_worth`: an orphan is worthless only if the caller itself named the missing
        // chunk.
        let Ok(ancestor) = self.ancestor(request.place) else { return orphan(request.place) };
        let victim =
            self.leftover_of(request.tenant).or_else(|| self.tenant_victim(request.tenant));
        match victim {
            Some(victim) if !self.may_go_for(victim, ancestor) => {
                Err(NotWorth { stays: Some(victim) })
            }
            _ => Ok(()),
        }
    }

    /// Whether a victim is none of the predecessors of a chunk after `ancestor`. The chain is
    /// walked only for victims that the policy has, or cannot exclude, as predecessors of others.
    fn may_go_for(&self, victim: u32, ancestor: Option<u32>) -> bool {
        // Cheap conditions before a walk that may have thousands of steps. Most victims are leaves
        // of other chains.
        let may_lead = Some(victim) == ancestor
            || !self.policy.is_evictable(victim)
            || self.is_followed(victim);
        !(may_lead && self.leads_to(victim, ancestor))
    }

    /// Claims space regardless of the marks, for tiers that do not evict and have a limit of their
    /// own.
    pub fn force_reserve(&mut self, request: &ReserveRequest) -> Reservation {
        self.totals.reserved += request.bytes;
        self.charge_tenant(request)
    }

    /// Counts space that is already claimed towards its tenant.
    fn charge_tenant(&mut self, request: &ReserveRequest) -> Reservation {
        // Remembered in the reservation: quotas may be set before it ends, and only what was
        // charged may be refunded.
        let counted = self.quotas.are_set();
        if counted {
            self.quotas.reserve(request.tenant, request.bytes);
            self.update_quota(request.tenant);
        }
        Reservation { bytes: request.bytes, tenant: counted.then_some(request.tenant) }
    }

    /// Subtracts space from its tenant.
    fn refund_tenant(&mut self, reservation: &Reservation) {
        if let Some(tenant) = reservation.tenant {
            self.quotas.unreserve(tenant, reservation.bytes);
            self.update_quota(tenant);
        }
    }

    /// Releases claimed space: the write failed or was abandoned.
    pub fn cancel(&mut self, reservation: Reservation) {
        // Consumes the reservation, so no claim can be released twice.
        self.totals.reserved -= reservation.bytes;
        self.refund_tenant(&reservation);
    }
}

#[cfg(test)]
mod tests {
    use kvtier_evict::PolicyKind;

    use super::*;
    use crate::{Chunk, IndexConfig};

    #[test]
    fn a_chunk_before_a_pending_one_may_go_for_all_that_do_not_come_after_it() {
        let mut index = Index::new(IndexConfig::new(1 << 20), PolicyKind::Lru.build()).unwrap();
        let [first, other, coming] = [1, 2, 3].map(|n| Digest([n; 32]));
        for digest in [first, other] {
            let _ = index.insert(Chunk::new(digest, 1, 1));
        }
        let place = ChainPlace::after(Some(&first), 1);
        assert!(index.add_pending(DigestTag::from_digest(&coming), place));
        let [first, other] = [first, other].map(|digest| index.find(&digest));
        let may_go = [None, first, other].map(|before| index.may_go_for(first.unwrap(), before));
        assert_eq!(may_go, [true, false, true]);
    }
}
