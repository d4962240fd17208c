use std::fmt;
use std::sync::Arc;

use kvtier_key::{Digest, Key};
use kvtier_mem::View;

use crate::{
    Caps, Ctx, Done, Error, Hold, HoldId, Load, Loaded, LookedUp, Mode, Observe, Removed, Save,
    Saved, Ticket,
};

/// One medium that keeps chunks, or several that look like one. This is the implementor's contract,
/// small and total; callers find the conveniences in [`TierExt`](crate::TierExt).
///
/// - Every op of a batch is answered, in order, exactly once. A batch is no transaction.
/// - Submitting never blocks. Beyond [`Caps`] limits ops come back `Throttled`;
///   [`ready`](Tier::ready) tells when to try again.
/// - At `ctx.deadline` a ticket resolves, with `Timeout` for what is not done.
/// - What `load` calls a hit is exactly what `save` was given for that key. Everything else is a
///   miss.
/// - Nobody sees half a chunk: a save becomes visible at once and whole, or not at all.
/// - Dropping a ticket forgets the answer and nothing else.
pub trait Tier: Observe + fmt::Debug + Send + Sync + 'static {
    /// What the tier can take; constant.
    fn caps(&self) -> &Caps;

    /// Which of `keys` are here. With a hold, the hits are kept from eviction and remove until
    /// [`release`](Tier::release) or the hold's end.
    fn lookup(
        &self,
        ctx: &Ctx,
        keys: Arc<[Key]>,
        mode: Mode,
        hold: Hold,
    ) -> Ticket<Result<LookedUp, Error>>;

    /// Loads chunks into the ops' leases.
    fn load(&self, ctx: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>>;

    /// Saves chunks. No durability is promised: after a crash an entry may be gone, never wrong.
    fn save(&self, ctx: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>>;

    /// Removes chunks, except those that are held.
    fn remove(&self, ctx: &Ctx, keys: Arc<[Key]>) -> Ticket<Result<Removed, Error>>;

    /// Ends a hold. Unknown and expired ones are fine.
    fn release(&self, hold: HoldId);

    /// Ends a hold for these of its keys; its others stay held. A key that the lookup named twice
    /// is held until it is released twice, and members of a [set](Ctx::atomic) until none of
    /// them is held. Keys that it does not hold are fine, as are unknown and expired holds.
    /// With its last key a hold ends; to [`release`](Tier::release) it after that is fine.
    fn release_keys(&self, hold: HoldId, keys: &[Digest]);

    /// Resolves when the tier may take more work, or with `Timeout` at `ctx.deadline`, or `Closed`.
    fn ready(&self, ctx: &Ctx) -> Ticket<Result<(), Error>>;

    /// The bytes of a chunk where they lie, whole and without a copy, for another tier to save;
    /// they stay while the view lives. `None` where it is not here, and from media that are no
    /// memory.
    fn peek(&self, key: &Key) -> Option<View> {
        let _ = key;
        None
    }

    /// All that is there together with a chunk or not at all, itself included, in no order that
    /// means anything. `None` for a chunk on its own, for one that nobody told of, and from
    /// tiers that know no [sets](Ctx::atomic).
    fn atomic_set_of(&self, key: &Key) -> Option<Arc<[Digest]>> {
        let _ = key;
        None
    }

    /// Hands what it evicts to `spill` from now on, before the bytes go. `false` from tiers that
    /// cannot.
    fn spill_to(&self, spill: Arc<dyn Spill>) -> bool {
        let _ = spill;
        false
    }

    /// Limits from now on what one tenant (cache salt) may have here, in bytes; `None` ends its
    /// limit, and [`OTHER_TENANTS`] are all that have none of their own. What is there above it
    /// goes with the tenant's next save. `false` from tiers that limit nobody; nothing changes
    /// then. A tier that is opened again has the limits of its configuration.
    fn set_quota(&self, tenant: &str, bytes: Option<u64>) -> bool {
        let _ = (tenant, bytes);
        false
    }

    /// Takes no more work and resolves when all that was taken has ended and memory is back. Ops
    /// after it answer `Closed`.
    fn close(&self) -> Ticket<Result<(), Error>>;
}

/// What [`Tier::set_quota`] and configurations call all tenants that have no limit of their own. The
/// one without a name is none of them.
pub const OTHER_TENANTS: &str = "*";

/// A chunk that a tier gave up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Spilled {
    /// Its key.
    pub key: Key,
    /// Its bytes, whole.
    pub bytes: View,
    /// All that is there together with it or not at all, itself included; `None` for a chunk on
    /// its own.
    pub atomic_set: Option<Arc<[Digest]>>,
}

impl Spilled {
    /// A chunk on its own.
    pub fn new(key: Key, bytes: View) -> Self {
        Spilled { key, bytes, atomic_set: None }
    }

    /// The same as a part of a set.
    pub fn with_atomic_set(mut self, set: Option<Arc<[Digest]>>) -> Self {
        self.atomic_set = set;
        self
    }
}

/// Takes what a tier gives up.
pub trait Spill: fmt::Debug + Send + Sync {
    /// Evicted chunks with their bytes. Called without locks held, on the thread that made room: be
    /// quick, and keep no more than there is memory for.
    fn take(&self, victims: Vec<Spilled>);
}

const _: Option<&dyn Tier> = None;
