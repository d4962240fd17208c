//! What a caller of a tier does: saves, loads, lookups with holds, removes; and what each result must
//! be.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvtier_core::{Ctx, Hold, Load, Loaded, Mode, Presence, Save, Saved, Tier};
use kvtier_mem::{Arena, ArenaConfig};
use tokio::time::{Instant, sleep};

use crate::fleet::model::{self, Model};
use crate::host::Host;
use crate::world::World;

/// How much later than its deadline an operation may end: timers have steps of a millisecond.
const LATE_MAX: Duration = Duration::from_millis(5);

/// What callers have in common.
#[derive(Debug)]
pub struct Common {
    pub world: Arc<World>,
    pub arena: Arena,
    model: Mutex<Model>,
}

impl Common {
    pub fn new(world: &Arc<World>, arena_bytes: usize) -> Self {
        let arena = Arena::new(ArenaConfig::heap(arena_bytes)).expect("memory for the callers");
        Common { world: Arc::clone(world), arena, model: Mutex::new(Model::new()) }
    }

    pub fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller of one tier.
pub struct Caller<'a> {
    pub common: &'a Common,
    /// The name of the machine.
    pub name: String,
    /// `None` while it is down.
    pub tier: Option<Arc<dyn Tier>>,
    pub timeout: Duration,
    /// The machine whose process it is part of, where that may be stopped.
    pub host: Option<Arc<Host>>,
}

impl Caller<'_> {
    /// An operation begins as soon as the process runs.
    async fn may_begin(&self) {
        if let Some(host) = &self.host {
            host.runs().await;
        }
    }

    fn ctx(&self) -> Ctx {
        let mut ctx = Ctx::within(self.timeout);
        ctx.deadline = (Instant::now() + self.timeout).into_std();
        ctx
    }

    /// Records the end of an operation, which must not be late.
    fn ended(&self, op: &str, began: Instant, result: &str) {
        let (world, name) = (&self.common.world, &self.name);
        world.event(format_args!("{name} {op}: {result}"));
        let took = began.elapsed();
        // In a process that was stopped it ends when that goes on.
        let since_stop = self.host.as_ref().map(|host| world.elapsed() - host.went_on());
        if took > self.timeout + LATE_MAX && since_stop.is_none_or(|passed| passed > LATE_MAX) {
            world.finding("deadline", format!("{op} on {name} took {took:?}: {result}"));
        }
    }

    /// Saves; whether the tier answered without an error.
    pub async fn save(&self, numbers: &[u64]) -> bool {
        let Some(tier) = &self.tier else { return false };
        self.may_begin().await;
        let ops = {
            let mut model = self.common.model();
            numbers.iter().for_each(|n| model.save_begins(*n));
            let view = |n: u64| {
                let bytes = model::bytes(n);
                let mut lease = self.common.arena.lease(bytes.len()).expect("memory for callers");
                lease.write_at(0, &bytes).expect("the lease is as long");
                lease.freeze()
            };
            numbers.iter().map(|n| Save { key: model.key(*n), from: vec![view(*n)] }).collect()
        };
        let began = Instant::now();
        let done = tier.save(&self.ctx(), ops).await;
        let now = self.common.world.elapsed();
        numbers.iter().for_each(|n| self.common.model().save_ended(*n, now));
        let results: Vec<String> = done.iter().map(|done| short(&done.result)).collect();
        self.ended(&format!("save {numbers:?}"), began, &results.join(", "));
        done.iter()
            .all(|done| matches!(&done.result, Ok(Saved::Stored | Saved::Present | Saved::Shed(_))))
    }

    /// Loads; whether the tier answered without an error, and how many hits there were.
    pub async fn load(&self, numbers: &[u64]) -> (bool, usize) {
        let Some(tier) = &self.tier else { return (false, 0) };
        self.may_begin().await;
        let (ops, removed): (Vec<Load>, Vec<_>) = {
            let model = self.common.model();
            let lease =
                |n: u64| self.common.arena.lease(model::len(n)).expect("memory for callers");
            let op = |n: &u64| {
                let op = Load { key: model.key(*n), into: vec![lease(*n)] };
                (op, model.is_removed(*n))
            };
            numbers.iter().map(op).unzip()
        };
        let began = Instant::now();
        let done = tier.load(&self.ctx(), ops).await;
        let results: Vec<String> = done.iter().map(|done| short(&done.result)).collect();
        self.ended(&format!("load {numbers:?}"), began, &results.join(", "));
        let mut hits = 0;
        for ((n, done), removed) in numbers.iter().zip(&done).zip(removed) {
            let Ok(Loaded::Hit { len }) = done.result else { continue };
            hits += 1;
            let lease = done.op.into.first().and_then(|lease| lease.as_host());
            if lease.and_then(|bytes| bytes.get(..len as usize)) != Some(&model::bytes(*n)[..]) {
                self.finding("wrong bytes", format!("load of {n}"));
            }
            if removed.is_some() && removed == self.common.model().is_removed(*n) {
                self.finding("removed", format!("load of {n}, which was removed, is a hit"));
            }
        }
        let good =
            |result: &Result<Loaded, _>| matches!(result, Ok(Loaded::Hit { .. } | Loaded::Miss(_)));
        (done.iter().all(|done| good(&done.result)), hits)
    }

    pub async fn lookup(&self, numbers: &[u64]) {
        let Some(tier) = &self.tier else { return };
        self.may_begin().await;
        let keys = numbers.iter().map(|n| self.common.model().key(*n)).collect();
        let began = Instant::now();
        let hold = Hold::For(Duration::from_secs(3));
        let found = tier.lookup(&self.ctx(), keys, Mode::Each, hold).await;
        let result = match &found {
            Ok(found) => {
                let wrong = found.found.iter().zip(numbers).find(|(presence, n)| {
                    matches!(presence, Presence::Hit { len } if *len != model::len(**n) as u64)
                });
                if let Some((presence, n)) = wrong {
                    self.finding("wrong length", format!("lookup of {n} found {presence:?}"));
                }
                format!("{:?}", found.found)
            }
            Err(e) => format!("{:?}", e.kind()),
        };
        self.ended(&format!("lookup {numbers:?}"), began, &result);
        sleep(self.common.world.between_ms(10, 1000)).await;
        found.ok().and_then(|found| found.hold).into_iter().for_each(|hold| tier.release(hold));
    }

    pub async fn remove(&self, n: u64) {
        let Some(tier) = &self.tier else { return };
        self.may_begin().await;
        let now = self.common.world.elapsed();
        let (key, begun) = {
            let model = self.common.model();
            (model.key(n), model.remove_begins(n, now))
        };
        let began = Instant::now();
        let removed = tier.remove(&self.ctx(), [key].into()).await;
        let result = removed.as_ref().map_or_else(
            |e| format!("{:?}", e.kind()),
            |removed| format!("{} removed, {} held", removed.removed, removed.held),
        );
        self.ended(&format!("remove {n}"), began, &result);
        if removed.is_ok_and(|removed| removed.held == 0) {
            self.common.model().removed(n, begun);
        }
    }

    fn finding(&self, kind: &'static str, what: String) {
        self.common.world.finding(kind, format!("{} on {}", what, self.name));
    }
}

/// A result in few words, which are the same in each run.
fn short<T: std::fmt::Debug>(result: &Result<T, kvtier_core::Error>) -> String {
    match result {
        Ok(good) => format!("{good:?}"),
        Err(e) => format!("{:?}", e.kind()),
    }
}
