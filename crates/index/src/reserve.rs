//! The one driver of eviction: who may write, and what has to go for it.

use std::fmt;

use kvtier_key::Digest;

use crate::index::{RemovalCause, hash};
use crate::slab::State;
use crate::{CHUNK_BYTES_LIMIT, ChainPlace, Index, IndexEntry, ReserveRequest, TenantId};

/// The most victims in one batch.
pub const VICTIMS_MAX: usize = 1024;

/// Room that was claimed for one write. Give it to [`Index::commit`] or [`Index::cancel`]: dropped,
/// it stays claimed.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "room stays claimed until the reservation is committed or cancelled"]
pub struct Reservation {
    bytes: u64,
    /// Whose limit it counts towards.
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
    /// It may: this room is its own.
    Granted(Reservation),
    /// Not before these victims are deleted. Answer [`Index::finish_evict`] or [`Index::abort_evict`] for
    /// each, then ask again.
    Evict(Vec<IndexEntry>),
    /// Not before victims that were given to others are deleted: ask again then.
    Busy,
    /// It may not: shed it.
    Full(Refusal),
}

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The chunk would not fit into an empty medium.
    TooLarge {
        /// What it takes, in bytes.
        bytes: u64,
        /// The most that one chunk may take, in bytes.
        bytes_max: u64,
    },
    /// Everything that is there is held, or still being written.
    Held,
    /// The index has no slot left.
    NoSlot,
    /// All that could go for it is worth at least as much.
    NotWorth,
    /// It is larger than all that its tenant may have.
    Quota {
        /// The tenant's limit in bytes.
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
                f.write_str("no room: all chunks are held or being written; release holds, or raise the capacity")
            }
            Refusal::NotWorth => f.write_str("not worth the room: what would go for it is likelier to be asked for"),
            Refusal::Quota { bytes_max } => {
                write!(f, "larger than the {bytes_max} bytes of its tenant: raise its quota")
            }
            Refusal::NoSlot => f.write_str("no slot left in the index: remove chunks, or use larger ones"),
        }
    }
}

impl std::error::Error for Refusal {}

impl Index {
    /// Claims room for a write that costs the medium `bytes` bytes. Grants whatever fits into the
    /// capacity; when something has to go, it goes down to the high mark.
    pub fn reserve(&mut self, now_ms: u64, bytes: u64) -> Reserve {
        let bytes_max = self.marks.high.min(CHUNK_BYTES_LIMIT - 1);
        if bytes > bytes_max {
            return Reserve::Full(Refusal::TooLarge { bytes, bytes_max });
        }
        if self.totals.used.saturating_add(self.totals.reserved).saturating_add(bytes)
            <= self.marks.capacity
        {
            self.totals.reserved += bytes;
            return Reserve::Granted(Reservation { bytes, tenant: None });
        }
        match self.victims(now_ms, bytes) {
            victims if !victims.is_empty() => Reserve::Evict(victims),
            _ if self.totals.evicting > 0 => Reserve::Busy,
            _ => Reserve::Full(Refusal::Held),
        }
    }

    /// [`reserve`](Self::reserve) for a chunk of which more is known. When something has to go for
    /// it, the policy may find it worth no more than what would go, or nothing at all where the
    /// caller says that one comes before it which is missing: then it is refused, and so is the
    /// rest of its chain. Above its tenant's limit what goes is the tenant's own, and counts until
    /// it is gone.
    pub fn reserve_for(&mut self, now_ms: u64, want: &ReserveRequest) -> Reserve {
        let bytes = want.bytes;
        let taken = self.totals.used.saturating_add(self.totals.reserved);
        let fits = taken.saturating_add(bytes) <= self.marks.capacity;
        if !fits || self.quotas.are_set() {
            // Before anybody asks who would go: whose time is up may.
            self.expire_holds(now_ms);
            self.policy.set_time(now_ms);
        }
        if self.quotas.are_set() {
            if self.quota_excess(want) > 0 && !self.is_worth_its_own(want) {
                return self.not_worth(want);
            }
            if let Some(not_yet) = self.above_quota(want) {
                return not_yet;
            }
        }
        // It counts from now on: who gives for it is whoever has more than its part then.
        let room = self.of_tenant(want);
        let answer = match fits || self.is_worth(want.place) {
            true => self.reserve(now_ms, bytes),
            false => self.not_worth(want),
        };
        if matches!(answer, Reserve::Granted(_)) {
            return Reserve::Granted(room);
        }
        self.not_of_tenant(&room);
        answer
    }

    /// Refuses a chunk that is worth no more than what would go for it. The policy learns from it
    /// whether such chunks come back.
    fn not_worth(&mut self, want: &ReserveRequest) -> Reserve {
        if let Some(digest) = &want.digest {
            self.policy.shed(hash(digest));
        }
        Reserve::Full(Refusal::NotWorth)
    }

    /// Whether a chunk at this place is worth what would go for it. Where nothing can go, that is
    /// no matter of worth; and to a policy that takes orphans all chunks are worth the same.
    fn is_worth(&mut self, place: ChainPlace) -> bool {
        if self.policy.accepts_orphans() {
            return true;
        }
        // Who only inferred that something is missing may be wrong.
        let Ok(ancestor) = self.ancestor(place) else { return !place.explicit };
        match self.preferred_victim().or_else(|| self.policy.victim_for(ancestor)) {
            Some(victim) => self.may_go_for(victim, ancestor),
            None => self.policy.victim().is_none(),
        }
    }

    /// Whether a chunk above its tenant's limit is worth what would go of its tenant's: not what it
    /// comes after.
    fn is_worth_its_own(&mut self, want: &ReserveRequest) -> bool {
        if self.policy.accepts_orphans() {
            return true;
        }
        let Ok(ancestor) = self.ancestor(want.place) else { return !want.place.explicit };
        let victim = self.leftover_of(want.tenant).or_else(|| self.tenant_victim(want.tenant));
        victim.is_none_or(|victim| self.may_go_for(victim, ancestor))
    }

    /// Whether a victim is none of those before a chunk that comes after `ancestor`. Only what the
    /// policy knows, or cannot know, to be before another is looked for on the way up.
    fn may_go_for(&self, victim: u32, ancestor: Option<u32>) -> bool {
        let may_lead = Some(victim) == ancestor
            || !self.policy.is_evictable(victim)
            || self.is_followed(victim);
        !(may_lead && self.leads_to(victim, ancestor))
    }

    /// Claims room whatever the marks say: for those who do not evict, and keep to a limit of their
    /// own.
    pub fn force_reserve(&mut self, want: &ReserveRequest) -> Reservation {
        self.totals.reserved += want.bytes;
        self.of_tenant(want)
    }

    /// Room that was claimed already, on its tenant's account.
    fn of_tenant(&mut self, want: &ReserveRequest) -> Reservation {
        let counted = self.quotas.are_set();
        if counted {
            self.quotas.reserve(want.tenant, want.bytes);
            self.update_quota(want.tenant);
        }
        Reservation { bytes: want.bytes, tenant: counted.then_some(want.tenant) }
    }

    /// Takes room off its tenant's account.
    fn not_of_tenant(&mut self, reservation: &Reservation) {
        if let Some(tenant) = reservation.tenant {
            self.quotas.unreserve(tenant, reservation.bytes);
            self.update_quota(tenant);
        }
    }

    /// Gives claimed room back: the write failed or was given up.
    pub fn cancel(&mut self, reservation: Reservation) {
        self.totals.reserved -= reservation.bytes;
        self.not_of_tenant(&reservation);
    }

    /// What has to go so that what is there, what is claimed and `need_bytes` more stay below the
    /// high mark: at most one batch, none when nothing has to go or all is held. Call it with 0
    /// after a commit.
    ///
    /// Victims are misses, still counted, until [`finish_evict`](Self::finish_evict) or
    /// [`abort_evict`](Self::abort_evict) is called for each; do so whatever became of the deleting,
    /// or their room is lost.
    pub fn victims(&mut self, now_ms: u64, need_bytes: u64) -> Vec<IndexEntry> {
        let staying =
            (self.totals.used - self.totals.evicting).saturating_add(self.totals.reserved);
        let over = staying.saturating_add(need_bytes).saturating_sub(self.marks.high);
        self.evict_bytes(now_ms, over.min(self.marks.batch.max(need_bytes)))
    }

    /// Victims of `wanted` bytes or a little more, however much room the marks leave: the medium
    /// itself is short of it.
    pub fn evict_bytes(&mut self, now_ms: u64, wanted: u64) -> Vec<IndexEntry> {
        self.expire_holds(now_ms);
        self.policy.set_time(now_ms);
        let (mut victims, mut freed) = (Vec::new(), 0);
        while freed < wanted && victims.len() < VICTIMS_MAX {
            let Some(slot) = self.preferred_victim().or_else(|| self.policy.victim()) else {
                break;
            };
            let victim = self.mark_evicting(slot);
            freed += victim.chunk.bytes;
            victims.push(victim);
        }
        victims
    }

    /// The victim is deleted. `false` if it is none: saved again meanwhile, or forgotten.
    pub fn finish_evict(&mut self, digest: &Digest) -> bool {
        self.leaving(digest).map(|slot| self.drop_entry(slot, RemovalCause::Evicted)).is_some()
    }

    /// The victim could not be deleted and is there as before, as the most recent, so that others
    /// are tried first. `false` if it is none.
    pub fn abort_evict(&mut self, digest: &Digest) -> bool {
        let back = self.leaving(digest);
        if let Some(slot) = back {
            self.unmark_evicting(slot);
            self.notify_policy(slot);
        }
        back.is_some()
    }

    /// Whether the chunk is a victim on its way out.
    pub fn is_evicting(&self, digest: &Digest) -> bool {
        self.leaving(digest).is_some()
    }

    fn leaving(&self, digest: &Digest) -> Option<u32> {
        self.find(digest).filter(|slot| self.slab[*slot].state == State::Evicting)
    }
}
