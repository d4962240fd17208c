use std::fmt;
use std::sync::Arc;

use kvtier_key::{Digest, Key};
use kvtier_mem::View;

use crate::{
    Caps, Ctx, Cursor, Done, Error, Hint, Hold, HoldId, KeyPage, Listener, Load, Loaded, LookedUp,
    Mode, Presence, Removed, Save, Saved, Spill, Status, Ticket, Usage,
};

/// One medium that stores chunks, or several that look like one. This is the contract for
/// implementors, small and total; callers find conveniences in [`TierExt`](crate::TierExt).
///
/// - Every op of a batch is answered exactly once, in order. A batch is no transaction.
/// - Submitting never blocks. Beyond the limits of [`Caps`] ops are answered `Throttled`;
///   [`ready`](Tier::ready) resolves when it is time to retry.
/// - At `ctx.deadline` a ticket resolves, with `Timeout` for what is not done.
/// - A hit contains exactly the bytes that `save` received for that key. Everything else is a miss.
/// - A save becomes visible whole and at once, or not at all.
/// - Dropping a ticket discards the result and nothing else.
///
/// The conformance suite of `kvtier-testkit` checks this contract for any tier.
///
/// # Example
///
/// A tier in a map, without limits, holds or deadlines:
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::{Arc, Mutex};
/// use std::time::Duration;
///
/// use kvtier_core::*;
/// use kvtier_core::key::{ChunkHash, KvRank, ObjectKey};
///
/// #[derive(Debug)]
/// struct MapTier {
///     caps: Caps,
///     chunks: Mutex<HashMap<Digest, Vec<u8>>>,
///     listeners: Listeners,
/// }
///
/// impl MapTier {
///     fn load_chunk(&self, mut op: Load) -> Done<Load, Loaded> {
///         let chunks = self.chunks.lock().unwrap();
///         let loaded = match (chunks.get(op.key.digest()), &mut op.into[..]) {
///             (None, _) => Loaded::Miss(MissReason::Absent),
///             (Some(bytes), [lease]) if bytes.len() <= lease.len() => {
///                 lease.as_host_mut().unwrap()[..bytes.len()].copy_from_slice(bytes);
///                 lease.assume_filled(bytes.len());
///                 Loaded::Hit { len: bytes.len() as u64 }
///             }
///             _ => Loaded::Miss(MissReason::Length),
///         };
///         Done { op, result: Ok(loaded) }
///     }
///
///     fn save_chunk(&self, op: Save) -> Done<Save, Saved> {
///         let bytes: Vec<u8> = op.from.iter().flat_map(|view| view.as_host().unwrap()).copied().collect();
///         let (key, len) = (*op.key.digest(), bytes.len() as u64);
///         let mut chunks = self.chunks.lock().unwrap();
///         if chunks.insert(key, bytes).is_some() {
///             return Done { op, result: Ok(Saved::Present) };
///         }
///         self.listeners.push(Event::Stored { key, len }); // under the lock that orders the changes
///         Done { op, result: Ok(Saved::Stored) }
///     }
/// }
///
/// impl Tier for MapTier {
///     fn caps(&self) -> &Caps {
///         &self.caps
///     }
///
///     fn load(&self, _: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
///         Ticket::ready(ops.into_iter().map(|op| self.load_chunk(op)).collect())
///     }
///
///     fn save(&self, _: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>> {
///         let done = ops.into_iter().map(|op| self.save_chunk(op)).collect();
///         self.listeners.notify(); // without any lock
///         Ticket::ready(done)
///     }
///
///     fn lookup(
///         &self,
///         _: &Ctx,
///         keys: Arc<[Key]>,
///         _: Mode,
///         _: Hold,
///     ) -> Ticket<Result<LookedUp, Error>> {
///         let chunks = self.chunks.lock().unwrap();
///         let presence = |key: &Key| match chunks.get(key.digest()) {
///             Some(bytes) => Presence::Hit { len: bytes.len() as u64 },
///             None => Presence::Miss,
///         };
///         Ticket::ready(Ok(LookedUp::new(keys.iter().map(presence).collect(), None)))
///     }
///
///     fn remove(&self, _: &Ctx, keys: Arc<[Key]>) -> Ticket<Result<Removed, Error>> {
///         let mut removed = Removed::default();
///         for key in keys.iter().map(Key::digest) {
///             match self.chunks.lock().unwrap().remove(key) {
///                 Some(bytes) => {
///                     removed.removed += 1;
///                     self.listeners.push(Event::Gone { key: *key, len: bytes.len() as u64 });
///                 }
///                 None => removed.absent += 1,
///             }
///         }
///         self.listeners.notify();
///         Ticket::ready(Ok(removed))
///     }
///
///     fn release(&self, _: HoldId) {}
///
///     fn release_keys(&self, _: HoldId, _: &[Digest]) {}
///
///     fn ready(&self, _: &Ctx) -> Ticket<Result<(), Error>> {
///         Ticket::ready(Ok(()))
///     }
///
///     fn close(&self) -> Ticket<Result<(), Error>> {
///         Ticket::ready(Ok(()))
///     }
/// }
///
/// impl Observe for MapTier {
///     fn usage(&self) -> Usage {
///         let mut usage = Usage::default();
///         usage.chunks = self.chunks.lock().unwrap().len() as u64;
///         usage
///     }
///
///     fn keys(&self, _: Cursor, _: usize) -> KeyPage {
///         let chunks = self.chunks.lock().unwrap();
///         let info = |(key, bytes): (&Digest, &Vec<u8>)| KeyInfo { key: *key, len: bytes.len() as u64 };
///         KeyPage { keys: chunks.iter().map(info).collect(), next: None }
///     }
///
///     fn listen(&self, listener: Arc<dyn Listener>) {
///         self.listeners.add(listener);
///     }
///
///     fn status(&self) -> Status {
///         Status::new(true, Vec::new(), Vec::new())
///     }
/// }
///
/// let tier = MapTier {
///     caps: Caps::new("map", 64, 1 << 30),
///     chunks: Mutex::default(),
///     listeners: Listeners::default(),
/// };
/// let namespace = Arc::new(Namespace::new("tenant", Digest::default()));
/// let id = ObjectKey::new("model", KvRank(0), 0, ChunkHash::new(&[1; 8]), "")?;
/// let key = Key::new(namespace, id.into());
/// let ctx = Ctx::within(Duration::from_secs(1));
///
/// let saved = tier.save(&ctx, vec![Save { key: key.clone(), from: vec![vec![7; 4096].into()] }]);
/// assert!(matches!(saved.wait()[0].result, Ok(Saved::Stored)));
/// let mut loaded = tier.load(&ctx, vec![Load { key, into: vec![vec![0; 4096].into()] }]).wait();
/// let done = loaded.remove(0);
/// assert!(matches!(done.result, Ok(Loaded::Hit { len: 4096 })));
/// assert_eq!(done.op.into[0].as_host().unwrap(), [7; 4096]);
/// # Ok::<(), key::InvalidKey>(())
/// ```
pub trait Tier: Observe + fmt::Debug + Send + Sync + 'static {
    /// The limits of the tier; constant.
    fn caps(&self) -> &Caps;

    /// Finds which of `keys` are in the tier. With a hold, the hits are safe from eviction and
    /// removal until [`release`](Tier::release) or the hold's end.
    ///
    /// # Errors
    ///
    /// `Throttled`, `Timeout`, `Canceled`, `Closed`, and what the medium answers. A missing chunk
    /// is no error.
    fn lookup(
        &self,
        ctx: &Ctx,
        keys: Arc<[Key]>,
        mode: Mode,
        hold: Hold,
    ) -> Ticket<Result<LookedUp, Error>>;

    /// Finds which of `keys` are in the tier from what it has in memory, at once: without a request
    /// and without waiting. `Unknown` where the medium must be asked, as [`lookup`](Tier::lookup)
    /// does. On a shared medium a hit may be outdated, and its load is then a miss; a miss may be
    /// outdated by half a second.
    fn lookup_in_memory(&self, keys: &[Key]) -> Vec<Presence> {
        vec![Presence::Unknown; keys.len()]
    }

    /// Counts one use of each chunk that was served from elsewhere, such as an engine's own memory,
    /// for eviction. `keys` is in the order of their prefix chain. Unknown keys are ignored.
    fn touch(&self, keys: &[Digest], hint: &Hint) {
        let _ = (keys, hint);
    }

    /// Loads chunks into the leases of the ops. A chunk that is missing, corrupt or of another
    /// length is a [`Loaded::Miss`].
    ///
    /// # Errors
    ///
    /// Per op: `Invalid` for memory that the tier cannot use ([`Caps`]), `Timeout` at the deadline,
    /// `Canceled`, `Closed`, and what the medium answers, as `Io` or `Denied`. After any of them
    /// the leases contain nothing.
    fn load(&self, ctx: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>>;

    /// Saves chunks. Durability is not promised: after a crash an entry may be gone, but is never
    /// wrong.
    ///
    /// # Errors
    ///
    /// Per op, as for [`load`](Tier::load). A chunk that the tier chooses not to keep is no error
    /// but [`Saved::Shed`].
    fn save(&self, ctx: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>>;

    /// Removes chunks, except those that are held.
    ///
    /// # Errors
    ///
    /// As for [`lookup`](Tier::lookup). Some of the chunks may be gone all the same.
    fn remove(&self, ctx: &Ctx, keys: Arc<[Key]>) -> Ticket<Result<Removed, Error>>;

    /// Ends a hold. Unknown and expired holds are ignored.
    fn release(&self, hold: HoldId);

    /// Releases these keys of a hold; its other keys stay held. A key that the lookup named twice
    /// must be released twice. Members of an [atomic set](Ctx::atomic) stay held while one of them
    /// is held. Unknown keys and unknown or expired holds are ignored. A hold ends with its last
    /// key.
    fn release_keys(&self, hold: HoldId, keys: &[Digest]);

    /// Resolves when the tier may accept more work.
    ///
    /// # Errors
    ///
    /// `Timeout` at `ctx.deadline`, `Closed` after [`close`](Tier::close).
    fn ready(&self, ctx: &Ctx) -> Ticket<Result<(), Error>>;

    /// The bytes of a chunk in the tier's own memory, whole and without a copy, for another tier to
    /// save. They stay while the view is alive. `None` if the chunk is absent or the medium is not
    /// memory.
    fn peek(&self, key: &Key) -> Option<View> {
        let _ = key;
        None
    }

    /// The [atomic set](Ctx::atomic) of a chunk, itself included, in no particular order. `None`
    /// for a chunk without a set, and from tiers that do not support sets.
    fn atomic_set_of(&self, key: &Key) -> Option<Arc<[Digest]>> {
        let _ = key;
        None
    }

    /// From now on, hands evicted chunks to `spill` before their bytes are deleted. `false` from
    /// tiers that cannot.
    fn spill_to(&self, spill: Arc<dyn Spill>) -> bool {
        let _ = spill;
        false
    }

    /// Sets or ends (`None`) the quota of one tenant (cache salt), in bytes. [`OTHER_TENANTS`]
    /// stands for all tenants without a quota of their own. Bytes above the quota are evicted with
    /// the tenant's next save. The change is not persistent: a reopened tier has the quotas of its
    /// configuration. `false` from tiers without quotas, which change nothing.
    fn set_quota(&self, tenant: &str, bytes: Option<u64>) -> bool {
        let _ = (tenant, bytes);
        false
    }

    /// Accepts no more work. Resolves when all accepted work has ended and its memory is back.
    /// Later ops are answered `Closed`.
    fn close(&self) -> Ticket<Result<(), Error>>;
}

/// The name in [`Tier::set_quota`] and configurations for all tenants without a quota of their own.
/// It does not include the tenant with the empty name.
pub const OTHER_TENANTS: &str = "*";

/// What an operator or a coordinator can ask of any tier.
pub trait Observe {
    /// The space in use, whichever process wrote it.
    fn usage(&self) -> Usage;

    /// A page of at most `max` keys from `from` (the default is the start). The order is the tier's
    /// own and stays the same while the tier is open. A key stored or removed meanwhile may or may
    /// not appear.
    ///
    /// ```
    /// use kvtier_core::{Cursor, Digest, Observe};
    ///
    /// fn all_keys(tier: &dyn Observe) -> Vec<Digest> {
    ///     let mut keys = Vec::new();
    ///     let mut from = Some(Cursor::default());
    ///     while let Some(cursor) = from {
    ///         let page = tier.keys(cursor, 1000);
    ///         keys.extend(page.keys.iter().map(|info| info.key));
    ///         from = page.next;
    ///     }
    ///     keys
    /// }
    /// ```
    fn keys(&self, from: Cursor, max: usize) -> KeyPage;

    /// Sends `listener` every later event. The [keys](Self::keys) of this moment, changed by the events
    /// since, are those that the tier lists at a later one, but for those that it is evicting at either
    /// moment: they are not listed, and some stay, of which no event says anything. After
    /// [`Event::Missed`](crate::Event::Missed) list the keys again. The tier calls the listener on its own
    /// threads, without locks held: return fast.
    fn listen(&self, listener: Arc<dyn Listener>);

    /// Whether the tier works, and if not, why.
    fn status(&self) -> Status;
}

const _: Option<&dyn Tier> = None;
