//! What the callers of one process do, and what each result must be.

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Ctx, Done, Error, Load, Loaded, Removed, Save, Saved, ShedReason, Ticket, Tier};
use kvtier_disk::Disk;

use super::device::Device;
use super::process::SimProcess;
use super::{KEYS, Shared};
use crate::fleet::model::{self, RemoveBegun};

/// The time limit of an operation.
const DEADLINE: Duration = Duration::from_secs(2);
/// How much later than its deadline an operation may end.
const LATE_MAX: Duration = Duration::from_millis(50);

/// How many keys are loaded at once after the last operation.
const SWEPT_AT_ONCE: usize = 6;

/// The callers of a process.
pub struct Callers {
    shared: Arc<Shared>,
    process: Arc<SimProcess>,
    tier: Disk<Device>,
    waiting: Vec<Waiting>,
    next_at: Duration,
    /// After the last operation, the next key to load: so each chunk that is missing is noticed.
    swept_to: u64,
}

/// An operation that has not ended.
struct Waiting {
    op: Op,
    began: Duration,
    lost_before: Duration,
}

enum Op {
    Save(Vec<u64>, Ticket<Vec<Done<Save, Saved>>>),
    Load(Vec<u64>, Vec<Option<u64>>, Ticket<Vec<Done<Load, Loaded>>>),
    Remove(u64, RemoveBegun, Ticket<Result<Removed, Error>>),
}

impl Callers {
    pub fn new(shared: &Arc<Shared>, process: &Arc<SimProcess>, tier: Disk<Device>) -> Self {
        let next_at = shared.world.elapsed();
        let (shared, process) = (Arc::clone(shared), Arc::clone(process));
        Callers { shared, process, tier, waiting: Vec::new(), next_at, swept_to: 0 }
    }

    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    pub fn tier(&self) -> &Disk<Device> {
        &self.tier
    }

    /// When the next operation begins.
    pub fn next_at(&self) -> Duration {
        self.next_at
    }

    /// Whether nothing more is to begin.
    pub fn is_quiet(&self) -> bool {
        self.shared.is_quiet() && (self.swept_to == KEYS || !self.shared.is_harmed())
    }

    /// Whether all operations have ended.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Begins an operation, if it is time.
    pub fn begin(&mut self) {
        let world = &self.shared.world;
        let now = world.elapsed();
        if now < self.next_at {
            return;
        }
        self.next_at = now + world.between_ms(5, 400);
        if self.waiting.len() >= 4 {
            return;
        }
        if self.shared.is_quiet() {
            let numbers = (self.swept_to..KEYS).take(SWEPT_AT_ONCE).collect();
            self.swept_to = KEYS.min(self.swept_to + SWEPT_AT_ONCE as u64);
            return self.load(numbers);
        }
        let first = world.below(KEYS);
        let count = 1 + world.below(3);
        let numbers: Vec<u64> = (0..count).map(|more| (first + more) % KEYS).collect();
        match world.below(100) {
            0..50 => self.save(numbers),
            50..88 => self.load(numbers),
            _ => self.remove(first),
        }
    }

    fn ctx(&self) -> Ctx {
        let mut ctx = Ctx::within(DEADLINE);
        ctx.deadline = self.shared.world.now() + DEADLINE;
        ctx
    }

    fn wait(&mut self, op: Op) {
        let began = self.shared.world.elapsed();
        let lost_before = self.process.state().lost;
        self.waiting.push(Waiting { op, began, lost_before });
    }

    fn save(&mut self, numbers: Vec<u64>) {
        let op = |n: &u64| {
            let bytes = self.shared.setup.bytes(*n);
            let mut lease = self.shared.arena.lease(bytes.len()).expect("memory for callers");
            lease.write_at(0, &bytes).expect("the lease is as long");
            Save { key: self.shared.model().key(*n), from: vec![lease.freeze()] }
        };
        let ops = numbers.iter().map(op).collect();
        numbers.iter().for_each(|n| self.shared.model().save_begins(*n));
        let ticket = self.tier.save(&self.shared.setup.describe_chunks(self.ctx()), ops);
        self.wait(Op::Save(numbers, ticket));
    }

    fn load(&mut self, numbers: Vec<u64>) {
        let removed = numbers.iter().map(|n| self.shared.model().is_removed(*n)).collect();
        let op = |n: &u64| {
            let lease = self.shared.arena.lease(model::len(*n)).expect("memory for callers");
            Load { key: self.shared.model().key(*n), into: vec![lease] }
        };
        let ops = numbers.iter().map(op).collect();
        let ticket = self.tier.load(&self.ctx(), ops);
        self.wait(Op::Load(numbers, removed, ticket));
    }

    fn remove(&mut self, n: u64) {
        let (key, begun) = {
            let model = self.shared.model();
            (model.key(n), model.remove_begins(n, self.shared.world.elapsed()))
        };
        let ticket = self.tier.remove(&self.ctx(), [key].into());
        self.wait(Op::Remove(n, begun, ticket));
    }

    /// Checks the operations that have ended.
    pub fn check(&mut self) {
        let mut n = 0;
        while n < self.waiting.len() {
            if self.waiting[n].op.is_done() {
                let ended = self.waiting.remove(n);
                self.ended(ended);
            } else {
                n += 1;
            }
        }
    }

    fn ended(&self, ended: Waiting) {
        let world = &self.shared.world;
        let now = world.elapsed();
        let (said, has_failed) = match ended.op {
            Op::Save(numbers, ticket) => self.saved(&numbers, ticket.wait()),
            Op::Load(numbers, removed, ticket) => self.loaded(&numbers, &removed, ticket.wait()),
            Op::Remove(n, begun, ticket) => self.removed(n, begun, ticket.wait()),
        };
        let name = self.process.name();
        world.event(format_args!("{name} {said}"));
        if has_failed && self.shared.is_well(ended.began) {
            world.finding("service", format!("{name} {said}"));
        }
        let lost = self.process.state().lost - ended.lost_before;
        let took = now - ended.began;
        if took > DEADLINE + LATE_MAX + lost {
            world.finding(
                "deadline",
                format!("{name} {said} took {took:?}, of which {lost:?} stopped"),
            );
        }
    }

    fn saved(&self, numbers: &[u64], done: Vec<Done<Save, Saved>>) -> (String, bool) {
        let now = self.shared.world.elapsed();
        for (n, done) in numbers.iter().zip(&done) {
            match done.result {
                Ok(_) => self.shared.model().save_ended_well(*n),
                Err(_) => self.shared.model().save_ended(*n, now),
            }
        }
        let results: Vec<String> = done.iter().map(|done| short(&done.result)).collect();
        let has_failed = done.iter().any(|done| done.result.is_err());
        let is_shed =
            |saved: &Saved| matches!(saved, Saved::Shed(ShedReason::DeviceFull | ShedReason::Full));
        let is_shed = self.shared.is_harmed()
            && done.iter().any(|done| done.result.as_ref().is_ok_and(is_shed));
        (format!("save {numbers:?}: {}", results.join(", ")), has_failed || is_shed)
    }

    fn loaded(
        &self,
        numbers: &[u64],
        removed: &[Option<u64>],
        done: Vec<Done<Load, Loaded>>,
    ) -> (String, bool) {
        let world = &self.shared.world;
        for ((n, done), removed) in numbers.iter().zip(&done).zip(removed) {
            let Ok(Loaded::Hit { len }) = done.result else { continue };
            let lease = done.op.into.first().and_then(|lease| lease.as_host());
            if lease.and_then(|bytes| bytes.get(..len as usize))
                != Some(&self.shared.setup.bytes(*n)[..])
            {
                world.finding("wrong bytes", format!("load of {n} by {}", self.process.name()));
            }
            if removed.is_some() && *removed == self.shared.model().is_removed(*n) {
                let by = self.process.name();
                world.finding(
                    "removed",
                    format!("load of {n} by {by}, which was removed, is a hit"),
                );
            }
        }
        let results: Vec<String> = done.iter().map(|done| short(&done.result)).collect();
        let has_failed = done.iter().any(|done| done.result.is_err());
        (format!("load {numbers:?}: {}", results.join(", ")), has_failed)
    }

    fn removed(
        &self,
        n: u64,
        begun: RemoveBegun,
        removed: Result<Removed, Error>,
    ) -> (String, bool) {
        if removed.as_ref().is_ok_and(|removed| removed.held == 0) {
            self.shared.model().removed(n, begun);
        }
        let has_failed = removed.is_err();
        let said = match removed {
            Ok(removed) => {
                format!("remove {n}: {} removed, {} held", removed.removed, removed.held)
            }
            Err(e) => format!("remove {n}: {:?}", e.kind()),
        };
        (said, has_failed)
    }
}

impl Drop for Callers {
    /// A killed process: what it had begun may still arrive.
    fn drop(&mut self) {
        let now = self.shared.world.elapsed();
        for waiting in &self.waiting {
            if let Op::Save(numbers, _) = &waiting.op {
                numbers.iter().for_each(|n| self.shared.model().save_ended(*n, now));
            }
        }
    }
}

impl Op {
    fn is_done(&self) -> bool {
        match self {
            Op::Save(_, ticket) => ticket.is_done(),
            Op::Load(_, _, ticket) => ticket.is_done(),
            Op::Remove(_, _, ticket) => ticket.is_done(),
        }
    }
}

/// A result in few words, which are the same in each run.
fn short<T: std::fmt::Debug>(result: &Result<T, Error>) -> String {
    match result {
        Ok(good) => format!("{good:?}"),
        Err(e) => format!("{:?}", e.kind()),
    }
}
