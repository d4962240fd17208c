use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use kvtier_core::{
    Caps, Class, Ctx, Cursor, Done, Error, ErrorKind, Event, Hold, HoldId, Key, KeyInfo, KeyPage, Listener, Load,
    Loaded, LookedUp, MissReason, Mode, Observe, Op, Presence, Removed, Save, Saved, ShedReason, Status, TenantUsage,
    Ticket, Tier, Usage,
};
use kvtier_evict::PolicyKind;
use kvtier_index::{Chunk, Entry, Index, IndexConfig, Reserve, TenantId};
use kvtier_key::{BlockSums, Digest};
use kvtier_mem::{Arena, ArenaConfig, Lease, View};

/// How to open a host tier.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HostConfig {
    /// The cap in bytes; every chunk counts as whole 4 KiB pages.
    pub bytes: u64,
    /// The tier's name in errors and reports.
    pub name: String,
}

impl HostConfig {
    /// A host tier of at most `bytes` bytes of chunks.
    pub fn new(bytes: u64) -> Self {
        HostConfig { bytes, name: "host".into() }
    }
}

/// Chunks in host memory: an arena of its own, exact LRU. A save copies once (ledger: payload), unless the chunk lies in the tier's own
/// arena already and its class is [`Class::Write`], when the view is kept as it is; a load copies once and sums what it copied. Everything is answered before the call returns.
#[derive(Debug)]
pub struct HostTier {
    caps: Caps,
    arena: Arena,
    state: Mutex<State>,
    closed: AtomicBool,
    began: Instant,
    listeners: RwLock<Vec<Arc<dyn Listener>>>,
    counters: [AtomicU64; COUNTERS.len()],
}

const COUNTERS: [&str; 7] = ["hits", "misses_absent", "misses_corrupt", "misses_length", "stored", "shed", "evicted"];

#[derive(Debug)]
struct State {
    index: Index,
    chunks: HashMap<Digest, Stored>,
    tenants: Vec<String>,
}

#[derive(Clone, Debug)]
struct Stored {
    bytes: View,
    sums: BlockSums,
}

impl HostTier {
    /// Reserves the memory. The arena is a sixteenth larger than the cap, for chunks that are still read while evicted.
    pub fn open(config: HostConfig) -> Result<Self, Error> {
        let index = Index::new(IndexConfig::new(config.bytes).with_high_mark(1.0), PolicyKind::Lru.build());
        let index =
            index.map_err(|e| Error::new(ErrorKind::Invalid, "the host tier's size is out of range").with_source(e))?;
        let arena = Arena::new(ArenaConfig::heap(config.bytes as usize + config.bytes as usize / 16 + (1 << 20)));
        let arena = arena
            .map_err(|e| Error::new(ErrorKind::Full, "no memory for the host tier; make it smaller").with_source(e))?;
        let mut caps = Caps::new(config.name.as_str(), u32::MAX, u64::MAX);
        caps.chunk_bytes_max = config.bytes;
        Ok(HostTier {
            caps,
            arena,
            state: Mutex::new(State { index, chunks: HashMap::new(), tenants: vec![] }),
            closed: AtomicBool::new(false),
            began: Instant::now(),
            listeners: RwLock::default(),
            counters: Default::default(),
        })
    }

    /// The tier's arena: chunks made in it are kept without a copy when saved with [`Class::Write`].
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, name: &str, n: u64) {
        if let Some(i) = COUNTERS.iter().position(|c| *c == name) {
            self.counters[i].fetch_add(n, Ordering::Relaxed);
        }
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn tell(&self, events: &[Event]) {
        if !events.is_empty() {
            self.listeners.read().unwrap_or_else(PoisonError::into_inner).iter().for_each(|l| l.hear(events));
        }
    }

    /// Answers an op that is over before it began, or came to a closed tier.
    fn gate(&self, ctx: &Ctx) -> Result<(), Error> {
        let no = |kind, what: &'static str| Err(Error::new(kind, what).with_tier(self.caps.name.clone()));
        if self.closed.load(Ordering::Acquire) {
            return no(ErrorKind::Closed, "the tier is closed");
        }
        if Instant::now() >= ctx.deadline {
            return no(ErrorKind::Timeout, "the deadline passed");
        }
        Ok(())
    }

    fn load_one(&self, op: &mut Load) -> Loaded {
        op.into.iter_mut().for_each(|lease| lease.assume_filled(0));
        let found = {
            let mut state = self.state();
            let here = state.index.get(op.key.digest()).is_some();
            if here {
                state.index.touch_batch(&[*op.key.digest()]);
            }
            state.chunks.get(op.key.digest()).filter(|_| here).cloned()
        };
        let Some(stored) = found else { return self.miss("misses_absent", MissReason::Absent) };
        if stored.bytes.len() as u64 > op.bytes() {
            return self.miss("misses_length", MissReason::Length);
        }
        if !copy(&stored, &mut op.into) {
            op.into.iter_mut().for_each(|lease| lease.assume_filled(0));
            self.forget(op.key.digest());
            return self.miss("misses_corrupt", MissReason::Corrupt);
        }
        self.count("hits", 1);
        self.tell(&[Event::Touched { key: *op.key.digest() }]);
        Loaded::Hit { len: stored.sums.len() }
    }

    fn miss(&self, counter: &str, reason: MissReason) -> Loaded {
        self.count(counter, 1);
        Loaded::Miss(reason)
    }

    fn forget(&self, digest: &Digest) {
        let mut state = self.state();
        state.chunks.remove(digest);
        let gone = state.index.forget(digest);
        drop(state);
        if let Some(entry) = gone {
            self.tell(&[Event::Gone { key: *digest, len: entry.chunk.len }]);
        }
    }

    fn save_one(&self, ctx: &Ctx, op: &Save) -> Result<Saved, Error> {
        let len = op.bytes();
        if let Some(error) = refusal(op, len) {
            return Err(error.with_tier(self.caps.name.clone()));
        }
        let mut state = self.state();
        if state.index.get(op.key.digest()).is_some_and(|e| e.chunk.len == len) {
            state.index.touch_batch(&[*op.key.digest()]);
            return Ok(Saved::Present);
        }
        drop(state);
        let sums = match op.from.as_slice() {
            [one] => one.memo(|| BlockSums::of(one.as_ref())).cloned().unwrap_or_else(|| BlockSums::of(one.as_ref())),
            many => BlockSums::of_pieces(many.iter().map(View::as_ref)),
        };
        let bytes = len.next_multiple_of(4096);
        let room = match self.claim(bytes) {
            Ok(room) => room,
            Err(reason) => return Ok(self.shed(reason)),
        };
        let Some(view) = self.keep(op, len, ctx.class == Class::Write) else {
            self.state().index.cancel(room);
            return Ok(self.shed(ShedReason::Full));
        };
        let mut state = self.state();
        let tenant = state.tenant(op.key.namespace().tenant());
        state.chunks.insert(*op.key.digest(), Stored { bytes: view, sums });
        let _ = state.index.commit(room, Chunk::new(*op.key.digest(), len, bytes).with_tenant(tenant));
        drop(state);
        self.count("stored", 1);
        self.tell(&[Event::Stored { key: *op.key.digest(), len }]);
        Ok(Saved::Stored)
    }

    fn shed(&self, reason: ShedReason) -> Saved {
        self.count("shed", 1);
        Saved::Shed(reason)
    }

    /// The chunk in our own arena: as it is, or a copy.
    fn keep(&self, op: &Save, len: u64, may_share: bool) -> Option<View> {
        if let [one] = op.from.as_slice()
            && may_share
            && self.arena.regions().iter().any(|r| Some(r.id) == one.region())
        {
            return Some(one.clone());
        }
        let mut lease = self.arena.lease(len as usize).ok()?;
        let mut at = 0;
        for view in &op.from {
            lease.write_at(at, view.as_ref()).ok()?;
            at += view.len();
        }
        Some(lease.freeze())
    }

    fn claim(&self, bytes: u64) -> Result<kvtier_index::Reservation, ShedReason> {
        loop {
            let mut state = self.state();
            match state.index.reserve(self.now_ms(), bytes) {
                Reserve::Granted(room) => return Ok(room),
                Reserve::Evict(victims) => {
                    let events = state.drop_chunks(&victims);
                    drop(state);
                    self.count("evicted", events.len() as u64);
                    self.tell(&events);
                }
                Reserve::Full(kvtier_index::Refusal::TooLarge { .. }) => return Err(ShedReason::TooLarge),
                _ => return Err(ShedReason::Full),
            }
        }
    }
}

impl State {
    fn drop_chunks(&mut self, victims: &[Entry]) -> Vec<Event> {
        let gone = |victim: &Entry| {
            self.chunks.remove(&victim.chunk.digest);
            self.index.evicted(&victim.chunk.digest);
            Event::Gone { key: victim.chunk.digest, len: victim.chunk.len }
        };
        victims.iter().map(gone).collect()
    }

    fn tenant(&mut self, name: &str) -> TenantId {
        let at = self.tenants.iter().position(|t| t == name).unwrap_or_else(|| {
            self.tenants.push(name.into());
            self.tenants.len() - 1
        });
        TenantId(at as u32)
    }
}

/// Why a save can never succeed here.
fn refusal(op: &Save, len: u64) -> Option<Error> {
    let invalid = |what: String| Some(Error::new(ErrorKind::Invalid, what).with_op("save").with_key(*op.key.digest()));
    if len == 0 {
        return invalid("a chunk has at least one byte".into());
    }
    if op.from.iter().any(|view| view.as_host().is_none()) {
        return invalid("the CPU cannot read this memory; use a tier that can".into());
    }
    let kvtier_key::KeyId::Object(id) = op.key.id() else { return None };
    match op.key.namespace().chunk_bytes(id.group) {
        Some(full) if len > full || (len < full && !op.key.namespace().allow_partial()) => invalid(format!(
            "the namespace has chunks of {full} bytes, this one has {len}; fix the layout or allow partial chunks"
        )),
        _ => None,
    }
}

/// Copies a stored chunk to the leases block by block and checks each block where it arrived, while it is in the cache.
fn copy(stored: &Stored, into: &mut [Lease]) -> bool {
    let all = stored.bytes.as_ref();
    let mut at = 0;
    for lease in into.iter_mut() {
        let n = lease.len().min(all.len() - at);
        if n > 0 && lease.write_at(0, &all[at..at + n]).is_err() {
            return false;
        }
        at += n;
    }
    let arrived = into.iter().filter_map(Lease::as_host);
    at == all.len() && BlockSums::of_pieces(arrived.collect::<Vec<_>>()) == stored.sums
}

impl Tier for HostTier {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn lookup(&self, ctx: &Ctx, keys: Arc<[Key]>, mode: Mode, hold: Hold) -> Ticket<Result<LookedUp, Error>> {
        if let Err(error) = self.gate(ctx) {
            return Ticket::now(Err(error.with_op("lookup")));
        }
        let mut found = vec![Presence::Unknown; keys.len()];
        let mut state = self.state();
        let mut hits = Vec::new();
        for (key, presence) in keys.iter().zip(&mut found) {
            match state.index.get(key.digest()) {
                Some(entry) => {
                    *presence = Presence::Hit { len: entry.chunk.len };
                    hits.push(*key.digest());
                }
                None => *presence = Presence::Miss,
            }
            if mode == Mode::Prefix && *presence == Presence::Miss {
                break;
            }
        }
        let Hold::For(ttl) = hold else { return Ticket::now(Ok(LookedUp::new(found, None))) };
        let now = self.now_ms();
        state.index.expire_holds(now);
        let held =
            if hits.is_empty() { Ok(None) } else { state.index.hold(&hits, now + ttl.as_millis() as u64).map(Some) };
        Ticket::now(match held {
            Ok(id) => Ok(LookedUp::new(found, id.map(|id| HoldId(id.as_u64())))),
            Err(full) => Err(Error::new(ErrorKind::Throttled, "too many holds").with_source(full)),
        })
    }

    fn load(&self, ctx: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
        let one = |mut op: Load| {
            let result = self.gate(ctx).map(|()| self.load_one(&mut op));
            Done { result: result.map_err(|e| e.with_op("load").with_key(*op.key.digest())), op }
        };
        Ticket::now(ops.into_iter().map(one).collect())
    }

    fn save(&self, ctx: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>> {
        let one = |op: Save| {
            let result = self.gate(ctx).and_then(|()| self.save_one(ctx, &op));
            Done { result: result.map_err(|e| e.with_op("save").with_key(*op.key.digest())), op }
        };
        Ticket::now(ops.into_iter().map(one).collect())
    }

    fn remove(&self, ctx: &Ctx, keys: Arc<[Key]>) -> Ticket<Result<Removed, Error>> {
        if let Err(error) = self.gate(ctx) {
            return Ticket::now(Err(error.with_op("remove")));
        }
        let (mut counts, mut events) = (Removed::default(), Vec::new());
        let mut state = self.state();
        state.index.expire_holds(self.now_ms());
        for key in keys.iter() {
            match state.index.leave(key.digest()) {
                kvtier_index::Removed::Gone(entry) => {
                    events.extend(state.drop_chunks(&[entry]));
                    counts.removed += 1;
                }
                kvtier_index::Removed::Held => counts.held += 1,
                _ => counts.absent += 1,
            }
        }
        drop(state);
        self.tell(&events);
        Ticket::now(Ok(counts))
    }

    fn release(&self, hold: HoldId) {
        self.state().index.release(kvtier_index::HoldId::from_u64(hold.0));
    }

    fn ready(&self, ctx: &Ctx) -> Ticket<Result<(), Error>> {
        Ticket::now(self.gate(ctx))
    }

    fn close(&self) -> Ticket<Result<(), Error>> {
        self.closed.store(true, Ordering::Release);
        Ticket::now(Ok(()))
    }
}

impl Observe for HostTier {
    fn usage(&self) -> Usage {
        let state = self.state();
        let all = state.index.usage();
        let tenant = |id: TenantId| state.tenants.get(id.0 as usize).cloned().unwrap_or_default();
        let mut usage = Usage::default();
        usage.used_bytes = Some(all.used);
        usage.capacity_bytes = Some(all.capacity);
        usage.chunks = all.entries as u64;
        usage.tenants = (state.index.tenants())
            .map(|(id, u)| TenantUsage { tenant: tenant(id), used_bytes: u.bytes, chunks: u.entries as u64 })
            .collect();
        usage
    }

    fn keys(&self, from: Cursor, max: usize) -> KeyPage {
        let page = self.state().index.keys_page(kvtier_index::Cursor::from_u32(from.0 as u32), max);
        KeyPage {
            keys: page.chunks.iter().map(|c| KeyInfo { key: c.digest, len: c.len }).collect(),
            next: page.next.map(|cursor| Cursor(cursor.as_u32().into())),
        }
    }

    fn listen(&self, listener: Arc<dyn Listener>) {
        self.listeners.write().unwrap_or_else(PoisonError::into_inner).push(listener);
    }

    fn status(&self) -> Status {
        let counters =
            COUNTERS.iter().zip(&self.counters).map(|(name, n)| (*name, n.load(Ordering::Relaxed))).collect();
        Status::new(!self.closed.load(Ordering::Acquire), vec![], counters)
    }
}
