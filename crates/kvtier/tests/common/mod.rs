//! Chunks to save and a tier that can be made slow or broken.
#![allow(dead_code)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use kvtier::core::{
    Batch, Clock, Error, LookedUp, ManualClock, Removed, Timekeeper, delegate_tier, ticket,
};
use kvtier::prelude::*;

pub const LEN: usize = 100_000;

/// More time than any machine needs: no promise about time is tested by it.
pub const LONG: Duration = Duration::from_secs(600);

pub fn ctx() -> Ctx {
    Ctx::within(LONG)
}

/// Waits for what is to happen by itself.
pub fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "{what}: not so after {LONG:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn key(n: u64) -> Key {
    let ns = Arc::new(Namespace::new("tests", Digest::derive("layout", b"tests")));
    let hash = ChunkHash::new(Digest::derive("chunk", &n.to_le_bytes()).as_bytes());
    Key::new(ns, KeyId::Object(ObjectKey::new("model", KvRank(0), 0, hash, "").unwrap()))
}

/// The bytes of chunk `n`: no two chunks and no two pages alike.
pub fn bytes(n: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i / 251 + i + n * 131) as u8 ^ (n >> 3) as u8).collect()
}

pub fn view(arena: &Arena, n: u64, len: usize) -> View {
    let mut lease = arena.lease(len).unwrap();
    lease.write_at(0, &bytes(n, len)).unwrap();
    lease.freeze()
}

pub fn arena() -> Arena {
    Arena::new(ArenaConfig::heap(32 << 20)).unwrap()
}

pub fn host(bytes: u64) -> Arc<HostTier> {
    Arc::new(HostTier::open(HostConfig::new(bytes)).unwrap())
}

pub fn save(tier: &dyn Tier, arena: &Arena, n: u64, len: usize) -> Saved {
    let op = Save { key: key(n), from: vec![view(arena, n, len)] };
    tier.save(&ctx(), vec![op]).wait().remove(0).result.unwrap()
}

/// Loads chunk `n` and proves every byte of a hit.
pub fn load(tier: &dyn Tier, arena: &Arena, n: u64, len: usize) -> Loaded {
    let op = Load { key: key(n), into: vec![arena.lease(len).unwrap()] };
    let done = tier.load(&ctx(), vec![op]).wait().remove(0);
    let loaded = done.result.unwrap();
    if let Loaded::Hit { len: hit } = loaded {
        assert_eq!(hit as usize, len);
        assert!(done.op.into[0].as_host().unwrap() == bytes(n, len), "a wrong byte in chunk {n}");
    }
    loaded
}

pub fn hit(len: usize) -> Loaded {
    Loaded::Hit { len: len as u64 }
}

pub const ABSENT: Loaded = Loaded::Miss(MissReason::Absent);

type Switch = Arc<(Mutex<bool>, Condvar)>;

fn set(switch: &Switch, open: bool) {
    *switch.0.lock().unwrap() = open;
    switch.1.notify_all();
}

fn wait_for(switch: &Switch) {
    let open = switch.0.lock().unwrap();
    drop(switch.1.wait_while(open, |open| !*open).unwrap());
}

/// What came with a batch of saves: its context, and its keys.
pub type Batched = (Ctx, Vec<Key>);
/// How many of them are kept.
const BATCHES_MAX: usize = 1000;

/// How long loads take.
#[derive(Clone, Debug)]
struct Delay {
    time: ManualClock,
    by: Duration,
}

/// A host tier whose loads and saves wait at gates, and which can be slow or broken. It keeps
/// deadlines of loads. It stands for a medium that is no memory: it shows no bytes where they lie,
/// and hands nothing on.
#[derive(Debug)]
pub struct Probe {
    pub below: Arc<HostTier>,
    pub loads: AtomicU64,
    broken: AtomicBool,
    unsure: Mutex<Vec<Key>>,
    late: AtomicBool,
    gate: Switch,
    saves: Switch,
    answers: Switch,
    batches: Mutex<Vec<Batched>>,
    delay: Arc<Mutex<Option<Delay>>>,
    clock: Timekeeper,
}

impl Probe {
    pub fn over(below: Arc<HostTier>) -> Arc<Self> {
        Probe::over_on(Clock::real(), below)
    }

    /// The same on this clock.
    pub fn over_on(clock: Clock, below: Arc<HostTier>) -> Arc<Self> {
        let switch = || Arc::new((Mutex::new(true), Condvar::new()));
        let (loads, broken, unsure, late, delay) = Default::default();
        let clock = Timekeeper::start_on(clock, "probe").unwrap();
        let gate = switch();
        let saves = switch();
        let answers = switch();
        let batches = Mutex::default();
        Arc::new(Probe {
            below,
            loads,
            broken,
            unsure,
            late,
            gate,
            saves,
            answers,
            batches,
            delay,
            clock,
        })
    }

    /// From now on everything answers `Io`.
    pub fn break_it(&self) {
        self.broken.store(true, Ordering::SeqCst);
    }

    /// From now on a lookup of this key answers `Unknown`.
    pub fn cannot_say(&self, key: Key) {
        self.unsure.lock().unwrap().push(key);
    }

    /// From now on every load answers `Timeout`, and gives the memory back.
    pub fn time_out(&self) {
        self.late.store(true, Ordering::SeqCst);
    }

    /// It works again.
    pub fn mend(&self) {
        self.broken.store(false, Ordering::SeqCst);
    }

    /// Lets loads through, or makes them wait.
    pub fn open_gate(&self, open: bool) {
        set(&self.gate, open);
    }

    /// Lets saves through, or makes them wait.
    pub fn open_saves(&self, open: bool) {
        set(&self.saves, open);
    }

    /// Answers loads, or keeps the answers.
    pub fn open_answers(&self, open: bool) {
        set(&self.answers, open);
    }

    /// The first batches of saves that came.
    pub fn batches(&self) -> Vec<Batched> {
        self.batches.lock().unwrap().clone()
    }

    /// Makes every batch of loads take this long, on the clock of the test.
    pub fn delay_loads(&self, time: &ManualClock, by: Duration) {
        *self.delay.lock().unwrap() = Some(Delay { time: time.clone(), by });
    }

    fn check(&self) -> Result<(), Error> {
        match self.broken.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Io, "broken for the test")),
            false => Ok(()),
        }
    }
}

impl Tier for Probe {
    delegate_tier!(below: caps release release_keys atomic_set_of ready close);

    fn lookup(
        &self,
        ctx: &Ctx,
        keys: Arc<[Key]>,
        mode: Mode,
        hold: Hold,
    ) -> Ticket<Result<LookedUp, Error>> {
        if let Err(e) = self.check() {
            return Ticket::ready(Err(e));
        }
        let unsure = self.unsure.lock().unwrap();
        if unsure.is_empty() {
            return self.below.lookup(ctx, keys, mode, hold);
        }
        let mut answer = self.below.lookup(ctx, Arc::clone(&keys), mode, hold).wait();
        for (key, found) in keys.iter().zip(answer.iter_mut().flat_map(|answer| &mut answer.found))
        {
            if unsure.contains(key) {
                *found = Presence::Unknown;
            }
        }
        Ticket::ready(answer)
    }

    fn load(&self, ctx: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
        self.loads.fetch_add(ops.len() as u64, Ordering::SeqCst);
        if self.late.load(Ordering::SeqCst) {
            let late =
                |op| Done { op, result: Err(Error::new(ErrorKind::Timeout, "late for the test")) };
            return Ticket::ready(ops.into_iter().map(late).collect());
        }
        if self.check().is_err() {
            return Ticket::ready(
                ops.into_iter()
                    .map(|op| Done { op, result: self.check().map(|()| ABSENT) })
                    .collect(),
            );
        }
        let keys = ops.iter().map(|op| op.key.clone()).collect();
        let (batch, slots, ticket) =
            Batch::<Load, Loaded>::new_on(self.clock.clock(), ctx.deadline, keys);
        self.clock.schedule(ctx.deadline, &batch.expiry());
        let below = Arc::clone(&self.below);
        let gate = Arc::clone(&self.gate);
        let delay = self.delay.lock().unwrap().clone();
        let ctx = ctx.clone();
        let answers = Arc::clone(&self.answers);
        std::thread::spawn(move || {
            wait_for(&gate);
            if let Some(Delay { time, by }) = delay {
                time.advance(by);
            }
            let done = below.load(&ctx, ops).wait();
            wait_for(&answers);
            for (slot, done) in slots.into_iter().zip(done) {
                slot.finish(done.op, done.result);
            }
        });
        ticket
    }

    fn save(&self, ctx: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>> {
        let mut batches = self.batches.lock().unwrap();
        if batches.len() < BATCHES_MAX {
            batches.push((ctx.clone(), ops.iter().map(|op| op.key.clone()).collect()));
        }
        drop(batches);
        if self.check().is_err() {
            let failed = |op| Done { op, result: self.check().map(|()| Saved::Present) };
            return Ticket::ready(ops.into_iter().map(failed).collect());
        }
        if *self.saves.0.lock().unwrap() {
            return self.below.save(ctx, ops);
        }
        let (completer, ticket) = ticket();
        let below = Arc::clone(&self.below);
        let saves = Arc::clone(&self.saves);
        let ctx = ctx.clone();
        std::thread::spawn(move || {
            wait_for(&saves);
            completer.complete(below.save(&ctx, ops).wait());
        });
        ticket
    }

    fn remove(&self, ctx: &Ctx, keys: Arc<[Key]>) -> Ticket<Result<Removed, Error>> {
        match self.check() {
            Ok(()) => self.below.remove(ctx, keys),
            Err(e) => Ticket::ready(Err(e)),
        }
    }
}

impl Observe for Probe {
    delegate_tier!(below: usage keys listen status);
}
