mod chunks;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvtier_core::{
    Batch, Caps, Ctx, Cursor, Digest, Done, Error, ErrorKind, Gate, GateLimits, GateStats, Hold,
    HoldId, Key, KeyPage, Listener, Listeners, Load, Loaded, LookedUp, MissReason, Mode, Observe,
    Op, Presence, Removed, Save, Saved, ShedReason, Slot, Status, Ticket, Tier, Timekeeper, Usage,
};
use kvtier_mem::{Lease, View};

use self::chunks::ChunkStore;
use crate::worker_thread::WorkerThread;

/// How a model tier is to be.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelConfig {
    /// The tier's name.
    pub name: String,
    /// The cap in bytes of payload; `None` for none.
    pub capacity_bytes: Option<u64>,
    /// What may be in flight.
    pub limits: GateLimits,
    /// How long every load and save takes once it has begun. Longer than a deadline, it strands
    /// the op's memory.
    pub delay: Duration,
}

impl Default for ModelConfig {
    fn default() -> Self {
        let limits = GateLimits::new(1024, 256 << 20);
        ModelConfig { name: "model".into(), capacity_bytes: None, limits, delay: Duration::ZERO }
    }
}

impl ModelConfig {
    /// The same with a cap in bytes.
    pub fn with_capacity(mut self, bytes: u64) -> Self {
        self.capacity_bytes = Some(bytes);
        self
    }

    /// The same with these limits.
    pub fn with_limits(mut self, limits: GateLimits) -> Self {
        self.limits = limits;
        self
    }

    /// The same with every load and save taking this long.
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }
}

/// The contract in memory, as plainly as it can be said: one worker thread, exact LRU, every list
/// walked from end to end.
///
/// ```
/// use kvtier_core::{Loaded, Saved};
/// use kvtier_testkit::ModelTier;
/// use kvtier_testkit::conformance::Fixture;
///
/// let f = Fixture::new(ModelTier::open(Default::default())?);
/// assert_eq!(f.save(&f.key(1), 4096), Saved::Stored);
/// assert_eq!(f.load(&f.key(1), 4096), Loaded::Hit { len: 4096 });
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct ModelTier {
    caps: Caps,
    gate: Gate,
    delay: Duration,
    shared: Arc<ModelState>,
    queue: WorkerThread,
    clock: Timekeeper,
    capacity: Option<u64>,
}

#[derive(Debug, Default)]
struct ModelState {
    store: Mutex<ChunkStore>,
    listeners: Listeners,
}

impl ModelTier {
    /// An empty tier. Errors when the system gives no thread.
    pub fn open(config: ModelConfig) -> std::io::Result<Self> {
        let mut caps =
            Caps::new(config.name.as_str(), config.limits.ops_max, config.limits.bytes_max);
        // A chunk that is longer than the cap could never be stored.
        caps.chunk_bytes_max = config.capacity_bytes.unwrap_or(u64::MAX).min(caps.chunk_bytes_max);
        let store = Mutex::new(ChunkStore::new(config.capacity_bytes));
        Ok(ModelTier {
            caps,
            gate: Gate::new(config.limits),
            delay: config.delay,
            shared: Arc::new(ModelState { store, ..ModelState::default() }),
            queue: WorkerThread::start(&config.name)?,
            clock: Timekeeper::start(&config.name)?,
            capacity: config.capacity_bytes,
        })
    }

    /// What goes through it now.
    pub fn gate(&self) -> GateStats {
        self.gate.stats()
    }

    fn submit<O: Op, T: Send + 'static>(
        &self,
        ctx: &Ctx,
        ops: Vec<O>,
        throttled: fn() -> T,
        act: fn(&ModelState, &mut O) -> Result<T, Error>,
    ) -> Ticket<Vec<Done<O, T>>> {
        let keys = ops.iter().map(|op| op.key().clone()).collect();
        let (batch, slots, ticket) = Batch::new(ctx.deadline, keys);
        self.clock.schedule(ctx.deadline, &batch.expiry());
        for (op, slot) in ops.into_iter().zip(slots) {
            match self.gate.enter(op.bytes()) {
                Ok(pass) => {
                    // The slot keeps the pass until the op has ended, also if the deadline answers
                    // first: the gate then counts its memory as stranded.
                    slot.attach(pass);
                    let shared = Arc::clone(&self.shared);
                    let delay = self.delay;
                    // One thread in order. The model has no race of its own, so a difference to
                    // another tier is that tier's.
                    self.queue.push(move || run(&shared, op, slot, delay, act));
                }
                Err(ErrorKind::Throttled) => slot.finish(op, Ok(throttled())),
                Err(kind) => slot.finish(op, Err(over(kind))),
            }
        }
        ticket
    }

    fn refusal(&self, ctx: &Ctx) -> Result<(), Error> {
        if self.gate.is_closed() {
            return Err(over(ErrorKind::Closed));
        }
        if Instant::now() >= ctx.deadline { Err(over(ErrorKind::Timeout)) } else { Ok(()) }
    }
}

fn over(kind: ErrorKind) -> Error {
    let what = match kind {
        ErrorKind::Closed => "the tier is closed",
        ErrorKind::Timeout => "the deadline passed",
        ErrorKind::Canceled => "the caller asked for the end",
        _ => "the tier does not take it",
    };
    Error::new(kind, what)
}

/// One op, on the worker's thread.
fn run<O: Op, T: Send + 'static>(
    shared: &ModelState,
    mut op: O,
    slot: Slot<O, T>,
    delay: Duration,
    act: fn(&ModelState, &mut O) -> Result<T, Error>,
) {
    // Canceled or timed out while it waited in the queue.
    if let Some(kind) = slot.is_over() {
        return slot.finish(op, Err(over(kind)));
    }
    std::thread::sleep(delay);
    let result = act(shared, &mut op);
    shared.notify();
    slot.finish(op, result);
}

impl ModelState {
    fn store(&self) -> MutexGuard<'_, ChunkStore> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies listeners of what happened, without a lock.
    fn notify(&self) {
        // Under the store's lock, which orders the changes. Listeners are called on the next line,
        // without it.
        self.store().events.drain(..).for_each(|event| self.listeners.push(event));
        self.listeners.notify();
    }

    fn load(&self, op: &mut Load) -> Result<Loaded, Error> {
        if op.into.iter().any(|lease| !lease.place().is_host()) {
            return Err(Error::new(ErrorKind::Invalid, "the CPU cannot write this memory"));
        }
        op.into.iter_mut().for_each(|lease| lease.assume_filled(0));
        // The bytes are cloned under the lock and copied without it.
        let Some(bytes) = self.store().load(op.key.digest()) else {
            return Ok(Loaded::Miss(MissReason::Absent));
        };
        if bytes.len() as u64 > op.bytes() {
            return Ok(Loaded::Miss(MissReason::Length));
        }
        scatter(&bytes, &mut op.into);
        self.store().touched(op.key.digest());
        Ok(Loaded::Hit { len: bytes.len() as u64 })
    }

    fn save(&self, op: &mut Save) -> Result<Saved, Error> {
        refuse(op)?;
        let bytes = op.from.iter().filter_map(View::as_host).collect::<Vec<_>>().concat();
        Ok(self.store().save(&op.key, bytes))
    }
}

fn scatter(mut bytes: &[u8], into: &mut [Lease]) {
    for lease in into {
        let (here, rest) = bytes.split_at(lease.len().min(bytes.len()));
        // Leases behind the end of the chunk get an empty piece and stay empty.
        lease.write_at(0, here).expect("host memory at least this long");
        bytes = rest;
    }
}

/// Why a save can never succeed.
fn refuse(op: &Save) -> Result<(), Error> {
    let len = op.bytes();
    let invalid =
        |what| Err(Error::new(ErrorKind::Invalid, what).with_op("save").with_key(*op.key.digest()));
    if len == 0 {
        return invalid("a chunk has at least one byte");
    }
    if op.from.iter().any(|view| view.as_host().is_none()) {
        return invalid("the CPU cannot read this memory");
    }
    match op.key.full_bytes() {
        Some(full) if len > full => invalid("longer than the namespace's chunks"),
        Some(full) if len < full && !op.key.namespace().allow_partial() => {
            invalid("shorter than the namespace's chunks, which may not be partial")
        }
        _ => Ok(()),
    }
}

impl Tier for ModelTier {
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
        let found = self.refusal(ctx).and_then(|()| {
            let mut store = self.shared.store();
            let found = store.lookup(&keys, mode);
            match hold {
                Hold::For(time) => store.hold(&keys, found, time),
                Hold::None => Ok(LookedUp::new(found, None)),
            }
        });
        let shared = Arc::downgrade(&self.shared);
        Ticket::ready(found).undo_if_dropped(move |answer| {
            if let (Ok(LookedUp { hold: Some(hold), .. }), Some(shared)) =
                (answer, shared.upgrade())
            {
                shared.store().release(hold);
            }
        })
    }

    fn lookup_in_memory(&self, keys: &[Key]) -> Vec<Presence> {
        self.shared.store().lookup(keys, Mode::Each)
    }

    fn load(&self, ctx: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
        self.submit(ctx, ops, || Loaded::Throttled, ModelState::load)
    }

    fn save(&self, ctx: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>> {
        self.submit(ctx, ops, || Saved::Shed(ShedReason::Throttled), ModelState::save)
    }

    fn remove(&self, ctx: &Ctx, keys: Arc<[Key]>) -> Ticket<Result<Removed, Error>> {
        let removed = self.refusal(ctx).map(|()| self.shared.store().remove(&keys));
        self.shared.notify();
        Ticket::ready(removed)
    }

    fn release(&self, hold: HoldId) {
        self.shared.store().release(hold);
    }

    fn release_keys(&self, hold: HoldId, keys: &[Digest]) {
        self.shared.store().release_keys(hold, keys);
    }

    fn ready(&self, ctx: &Ctx) -> Ticket<Result<(), Error>> {
        let ticket = self.gate.ready(ctx.deadline);
        self.clock.schedule(ctx.deadline, &self.gate.expiry());
        ticket
    }

    fn close(&self) -> Ticket<Result<(), Error>> {
        self.gate.close()
    }
}

impl Observe for ModelTier {
    fn usage(&self) -> Usage {
        let store = self.shared.store();
        let mut usage = Usage::default();
        usage.used_bytes = Some(store.used());
        usage.capacity_bytes = self.capacity;
        usage.chunks = store.len() as u64;
        usage.tenants = store.tenants();
        usage
    }

    fn keys(&self, from: Cursor, max: usize) -> KeyPage {
        self.shared.store().page(from, max)
    }

    fn listen(&self, listener: Arc<dyn Listener>) {
        self.shared.listeners.add(listener);
    }

    fn status(&self) -> Status {
        let gate = self.gate.stats();
        let counters = vec![("throttled", gate.throttled), ("stranded", gate.stranded_total)];
        Status::new(!self.gate.is_closed(), vec!["in memory; for tests".into()], counters)
    }
}

impl fmt::Debug for ModelTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelTier({} chunks, {:?})", self.shared.store().len(), self.gate)
    }
}
