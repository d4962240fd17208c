//! The host tier: chunks in memory. Every op completes before its call returns.

mod checked_copy;
mod chunks;
mod config;
mod load_save;
mod observe;
mod tenant_ids;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use kvtier_core::{
    Caps, Clock, Ctx, Digest, Done, Error, ErrorKind, Hint, Hold, HoldId, Key, Listeners, Load,
    Loaded, LookedUp, Mode, Presence, Removed, Save, Saved, ShedReason, Spill, Ticket, Tier, View,
};
use kvtier_index::{ChainPlace, Index, IndexConfig};
use kvtier_mem::{Arena, ArenaConfig};

use crate::metrics::HostCounters;
use chunks::{Evicted, HostChunks};
pub use config::HostConfig;

/// Bytes of the arena beyond the cap and a sixteenth of it: for chunks that are read while they are
/// evicted, and for gaps.
const SPARE_BYTES: u64 = 1 << 20;

/// Chunks in host memory: an arena of its own and an eviction policy. A save copies once (ledger:
/// payload). It keeps the caller's view instead if that is in the tier's own arena and the class is
/// [`Write`](kvtier_core::Class::Write). A load copies once and verifies every block where it
/// arrives. Every op completes before its call returns.
#[derive(Debug)]
pub struct HostTier {
    caps: Caps,
    arena: Arena,
    /// Shared with the answers of lookups, whose holds end with them.
    chunks: Arc<Mutex<HostChunks>>,
    closed: AtomicBool,
    clock: Clock,
    began: Instant,
    listeners: Arc<Listeners>,
    spill: OnceLock<Arc<dyn Spill>>,
    counters: HostCounters,
}

impl HostTier {
    /// Reserves the memory: the cap, a sixteenth of it, and 1 MiB.
    ///
    /// # Errors
    /// `Invalid` for a cap, mark or share that is out of range, `Full` if there is too little memory.
    pub fn open(config: HostConfig) -> Result<Self, Error> {
        let invalid = |what: &'static str| {
            Error::new(ErrorKind::Invalid, what).with_tier(config.name.as_str().into())
        };
        // LMCache's policies leave a pinned chunk where it is in their order. Ours move it, so the
        // exact emulation needs another build of the policy.
        let policy = if config.compat.is_some() {
            config.policy.build_compat()
        } else {
            config.policy.build()
        };
        let limits = IndexConfig::new(config.bytes).with_high_mark(config.high_mark);
        let index = Index::new(limits, policy)
            .map_err(|e| invalid("the size or high mark is out of range").with_source(e))?;
        let listeners = Arc::<Listeners>::default();
        let mut chunks = HostChunks::new(index, Arc::clone(&listeners));
        chunks.limit(&config.quotas);
        config
            .compat
            .map_or(Ok(()), |compat| compat.check())
            .map_err(|e| invalid("these shares are out of range").with_source(e))?;
        chunks.index.set_compat(config.compat);
        let bytes = config
            .bytes
            .checked_add(config.bytes / 16 + SPARE_BYTES)
            .and_then(|n| usize::try_from(n).ok());
        // The allocator rounds up to whole huge pages. Beyond `isize::MAX` no address range exists.
        let bytes = bytes.filter(|n| *n < isize::MAX as usize - SPARE_BYTES as usize);
        let bytes = bytes.ok_or_else(|| {
            invalid("the host tier is larger than memory can be; make it smaller")
        })?;
        let arena = Arena::new(ArenaConfig::huge(bytes)).map_err(|e| {
            let error = Error::new(ErrorKind::Full, "no memory for the host tier");
            error.with_tier(config.name.as_str().into()).with_source(e)
        })?;
        // No limits of operations: every call is answered before it returns, so nothing is ever in
        // flight.
        let mut caps = Caps::new(config.name.as_str(), u32::MAX, u64::MAX);
        caps.chunk_bytes_max = config.bytes;
        Ok(HostTier {
            caps,
            arena,
            chunks: Arc::new(Mutex::new(chunks)),
            closed: AtomicBool::new(false),
            began: config.clock.now(),
            clock: config.clock,
            listeners,
            spill: OnceLock::new(),
            counters: HostCounters::default(),
        })
    }

    /// The tier's arena: chunks made in it are kept without a copy when saved with
    /// [`Write`](kvtier_core::Class::Write). It is little larger than the cap, so memory that
    /// callers lease for long is not available to the tier.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    fn chunks(&self) -> MutexGuard<'_, HostChunks> {
        lock(&self.chunks)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn now_ms(&self) -> u64 {
        self.clock.elapsed(self.began).as_millis() as u64
    }

    fn error(&self, kind: ErrorKind, what: &'static str) -> Error {
        Error::new(kind, what).with_tier(self.caps.name.clone())
    }

    /// Rejects an op past its deadline, or on a closed tier.
    fn gate(&self, ctx: &Ctx) -> Result<(), Error> {
        if self.is_closed() {
            return Err(self.error(ErrorKind::Closed, "the tier is closed"));
        }
        // An operation whose time is over does not even copy: its caller may have given up on it.
        if self.clock.now() >= ctx.deadline {
            return Err(self.error(ErrorKind::Timeout, "the deadline passed"));
        }
        Ok(())
    }

    fn find(&self, keys: &[Key], mode: Mode, hold: Hold) -> Result<LookedUp, Error> {
        let mut found = vec![Presence::Unknown; keys.len()];
        let mut chunks = self.chunks();
        // The table of a large cache is not in the CPU's caches. Loading the lines of all keys at
        // once hides most of that latency.
        if keys.len() > 1 {
            chunks.index.prefetch(keys.iter().map(Key::digest));
        }
        for (key, presence) in keys.iter().zip(&mut found) {
            *presence = match chunks.index.get(key.digest()) {
                Some(entry) => Presence::Hit { len: entry.chunk.len },
                None => Presence::Miss,
            };
            if mode == Mode::Prefix && *presence == Presence::Miss {
                break;
            }
        }
        // The order of a lookup is the order of the prefix chain, which saves of single chunks do
        // not show.
        chunks.index.learn_order(keys);
        let found = LookedUp::new(found, None);
        let Hold::For(ttl) = hold else { return Ok(found) };
        // Under the same lock as the lookup: no eviction comes between a hit and its hold.
        let held = chunks.index.hold_hits(self.now_ms(), ttl, &found.hits(keys));
        let held = held
            .map_err(|full| self.error(ErrorKind::Throttled, "too many holds").with_source(full))?;
        let id = held.id.map(|id| HoldId(id.as_u64()));
        Ok(found.with_hold(id, keys, &held.gone))
    }

    fn drop_keys(&self, keys: &[Key]) -> Removed {
        let mut counts = Removed::default();
        let mut evicted = Evicted::default();
        let mut chunks = self.chunks();
        // Without it a hold that has ended would still refuse the removal.
        chunks.index.expire_holds(self.now_ms());
        for key in keys {
            match chunks.index.begin_evict(key.digest()) {
                kvtier_index::RemoveOutcome::Gone(entry) => {
                    chunks.drop_all(&[entry], &mut evicted);
                    counts.removed += 1;
                }
                kvtier_index::RemoveOutcome::Held => counts.held += 1,
                _ => counts.absent += 1,
            }
        }
        // Listeners may call this tier.
        drop(chunks);
        self.listeners.notify();
        counts
    }
}

fn lock(chunks: &Mutex<HostChunks>) -> MutexGuard<'_, HostChunks> {
    chunks.lock().unwrap_or_else(PoisonError::into_inner)
}

fn release_hold(chunks: &Mutex<HostChunks>, hold: HoldId) {
    lock(chunks).index.release(kvtier_index::IndexHoldId::from_u64(hold.0));
}

impl Tier for HostTier {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn lookup(
        &self,
        ctx: &Ctx,
        keys: Arc<[Key]>,
        mode: Mode,
        hold: Hold,
    ) -> Ticket<Result<LookedUp, Error>> {
        let found = self.gate(ctx).and_then(|()| self.find(&keys, mode, hold));
        let held = found.as_ref().is_ok_and(|found| found.hold.is_some());
        let hold = if held { hold } else { Hold::None };
        let ticket = Ticket::ready(found.map_err(|e| e.with_op("lookup")));
        // A caller that drops the ticket never sees the id of the hold and could not release it.
        ticket.release_if_dropped(hold, &self.chunks, release_hold)
    }

    fn lookup_in_memory(&self, keys: &[Key]) -> Vec<Presence> {
        let found = self.find(keys, Mode::Each, Hold::None);
        found.map_or_else(|_| vec![Presence::Unknown; keys.len()], |found| found.found)
    }

    fn touch(&self, keys: &[Digest], hint: &Hint) {
        self.used(keys, hint);
    }

    fn load(&self, ctx: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
        let one = |mut op: Load| {
            let result = self.gate(ctx).and_then(|()| self.load_one(&mut op));
            Done { result: result.map_err(|e| e.with_op("load").with_key(*op.key.digest())), op }
        };
        // In one call, because the head of a chain is kept longer than its tail.
        let chain: Vec<_> = ops.iter().map(|op| *op.key.digest()).collect();
        self.used(&chain, &ctx.hint);
        Ticket::ready(ops.into_iter().map(one).collect())
    }

    fn save(&self, ctx: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>> {
        // The set is declared before its first chunk is stored. Until all of them are there, each
        // is a miss.
        let whole = ctx.atomic_set_of(&ops);
        let one = |(op, place): (Save, ChainPlace)| {
            let result = self.gate(ctx).and_then(|()| self.save_one(ctx, &op, place));
            Done { result: result.map_err(|e| e.with_op("save").with_key(*op.key.digest())), op }
        };
        let places = self.places(ctx, &ops);
        let chain = ops.iter().map(|op| *op.key.digest()).collect::<Vec<_>>();
        let set =
            match whole.as_ref().map_or(Ok(None), |whole| self.chunks().index.declare_set(whole)) {
                Ok(set) => set,
                Err(_) => {
                    // Too many sets are incomplete. Storing the chunks without their set could
                    // serve a part of it.
                    let shed = |op| Done { op, result: Ok(self.shed(ShedReason::IncompleteSets)) };
                    return Ticket::ready(ops.into_iter().map(shed).collect());
                }
            };
        let done: Vec<_> = ops.into_iter().zip(places).map(one).collect();
        set.into_iter().for_each(|set| self.chunks().index.end_set(set));
        // A single new chunk without a hint was counted by its insertion. Counting it again would
        // make it look used.
        let is_one_more = matches!(done.as_slice(), [Done { result: Ok(Saved::Stored), .. }]);
        if !is_one_more || ctx.hint != Hint::default() {
            self.used(&chain, &ctx.hint);
        }
        Ticket::ready(done)
    }

    fn remove(&self, ctx: &Ctx, keys: Arc<[Key]>) -> Ticket<Result<Removed, Error>> {
        Ticket::ready(
            self.gate(ctx).map(|()| self.drop_keys(&keys)).map_err(|e| e.with_op("remove")),
        )
    }

    fn release(&self, hold: HoldId) {
        release_hold(&self.chunks, hold);
    }

    fn release_keys(&self, hold: HoldId, keys: &[Digest]) {
        self.chunks().index.release_keys(kvtier_index::IndexHoldId::from_u64(hold.0), keys);
    }

    fn ready(&self, ctx: &Ctx) -> Ticket<Result<(), Error>> {
        Ticket::ready(self.gate(ctx))
    }

    fn peek(&self, key: &Key) -> Option<View> {
        self.chunks().find(key.digest()).map(|stored| stored.bytes)
    }

    /// Accepts one receiver: the first.
    fn spill_to(&self, spill: Arc<dyn Spill>) -> bool {
        self.spill.set(spill).is_ok()
    }

    fn atomic_set_of(&self, key: &Key) -> Option<Arc<[Digest]>> {
        self.chunks().index.set_of(key.digest())
    }

    fn set_quota(&self, tenant: &str, bytes: Option<u64>) -> bool {
        self.chunks().limit_one(tenant, bytes);
        true
    }

    fn close(&self) -> Ticket<Result<(), Error>> {
        self.closed.store(true, Ordering::Release);
        Ticket::ready(Ok(()))
    }
}
