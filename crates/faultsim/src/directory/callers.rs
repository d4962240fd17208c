//! What the callers of one process do, and what each result must be.

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{
    Ctx, Done, Error, Hold, HoldId, Load, Loaded, LookedUp, Mode, Removed, Save, Saved, Ticket,
    Tier,
};
use kvtier_disk::Disk;

use super::device::Device;
use super::expected::Expected;
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
    pub(super) shared: Arc<Shared>,
    pub(super) process: Arc<SimProcess>,
    pub(super) tier: Disk<Device>,
    waiting: Vec<Waiting>,
    /// What the callers hold, until they release it.
    pub(super) held: Vec<Held>,
    next_at: Duration,
    /// After the last operation, the next key to load: so each chunk that is missing is noticed.
    swept_to: u64,
}

/// Chunks that are held until they are released.
pub struct Held {
    pub hold: HoldId,
    pub numbers: Vec<u64>,
    pub release_at: Duration,
}

/// An operation that has not ended.
struct Waiting {
    op: Op,
    began: Duration,
    lost_before: Duration,
    /// It was reported that it does not end.
    is_reported: bool,
}

enum Op {
    Save(Vec<u64>, Ticket<Vec<Done<Save, Saved>>>),
    Load(Vec<Expected>, Ticket<Vec<Done<Load, Loaded>>>),
    Lookup(Vec<Expected>, Hold, Ticket<Result<LookedUp, Error>>),
    Remove(Expected, RemoveBegun, Ticket<Result<Removed, Error>>),
}

impl Callers {
    pub fn new(shared: &Arc<Shared>, process: &Arc<SimProcess>, tier: Disk<Device>) -> Self {
        let next_at = shared.world.elapsed();
        let (shared, process) = (Arc::clone(shared), Arc::clone(process));
        Callers {
            shared,
            process,
            tier,
            waiting: Vec::new(),
            held: Vec::new(),
            next_at,
            swept_to: 0,
        }
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
        self.shared.is_quiet() && self.swept_to == KEYS
    }

    /// Whether all operations have ended.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Begins an operation, if it is time.
    pub fn begin(&mut self) {
        let world = Arc::clone(&self.shared.world);
        let now = world.elapsed();
        if now < self.next_at {
            return;
        }
        self.next_at = now + world.between_ms(5, 400);
        self.release_due(now);
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
            0..47 => self.save(numbers),
            47..78 => self.load(numbers),
            78..89 => self.lookup(numbers),
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
        self.waiting.push(Waiting { op, began, lost_before, is_reported: false });
    }

    fn save(&mut self, numbers: Vec<u64>) {
        let op = |n: &u64| {
            let bytes = self.shared.setup.bytes(*n);
            let mut lease = self.shared.arena.lease(bytes.len()).expect("memory for callers");
            lease.write_at(0, &bytes).expect("the lease is as long");
            Save { key: self.shared.model().key(*n), from: vec![lease.freeze()] }
        };
        let ops = numbers.iter().map(op).collect();
        for n in &numbers {
            self.shared.model().save_begins(*n);
            self.shared.chunk_files.save_begins(*n);
        }
        let ticket = self.tier.save(&self.shared.setup.describe_chunks(self.ctx()), ops);
        self.wait(Op::Save(numbers, ticket));
    }

    fn load(&mut self, numbers: Vec<u64>) {
        let expected = self.expected(&numbers);
        let op = |n: &u64| {
            let lease = self.shared.arena.lease(model::len(*n)).expect("memory for callers");
            Load { key: self.shared.model().key(*n), into: vec![lease] }
        };
        let ops = numbers.iter().map(op).collect();
        let ticket = self.tier.load(&self.ctx(), ops);
        self.wait(Op::Load(expected, ticket));
    }

    /// Half of the lookups hold what they find.
    fn lookup(&mut self, numbers: Vec<u64>) {
        let world = &self.shared.world;
        let hold = match world.below(2) {
            0 => Hold::None,
            _ => Hold::For(world.between_ms(50, 3000)),
        };
        let expected = self.expected(&numbers);
        let keys = numbers.iter().map(|n| self.shared.model().key(*n)).collect();
        let ticket = self.tier.lookup(&self.ctx(), keys, Mode::Each, hold);
        self.wait(Op::Lookup(expected, hold, ticket));
    }

    fn expected(&self, numbers: &[u64]) -> Vec<Expected> {
        numbers.iter().map(|n| Expected::of(&self.shared, &self.process, *n)).collect()
    }

    /// Releases what the callers no longer need.
    fn release_due(&mut self, now: Duration) {
        for held in self.held.extract_if(.., |held| held.release_at <= now) {
            self.shared.chunk_files.release(&held.numbers, self.process.number, held.hold);
            self.tier.release(held.hold);
        }
    }

    fn remove(&mut self, n: u64) {
        let expected = Expected::of(&self.shared, &self.process, n);
        let (key, begun) = {
            let model = self.shared.model();
            (model.key(n), model.remove_begins(n, self.shared.world.elapsed()))
        };
        let ticket = self.tier.remove(&self.ctx(), [key].into());
        self.wait(Op::Remove(expected, begun, ticket));
    }

    /// Checks the operations that have ended, and that no other one is late.
    pub fn check(&mut self) {
        self.find_overdue();
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

    /// An operation that has not ended long after its deadline.
    fn find_overdue(&mut self) {
        let (now, lost) = (self.shared.world.elapsed(), self.process.state().lost);
        for waiting in self.waiting.iter_mut().filter(|waiting| !waiting.is_reported) {
            // A stop is lost as it begins.
            let late = (now - waiting.began).saturating_sub(lost - waiting.lost_before);
            if late > 2 * DEADLINE && !waiting.op.is_done() {
                waiting.is_reported = true;
                let (op, name) = (waiting.op.name(), self.process.name());
                let what = format!("{op} by {name} has not ended after {late:?}");
                self.shared.world.finding("deadline", what);
            }
        }
    }

    fn ended(&mut self, ended: Waiting) {
        let now = self.shared.world.elapsed();
        let (said, has_failed) = match ended.op {
            Op::Save(numbers, ticket) => self.saved(&numbers, ticket.wait()),
            Op::Load(expected, ticket) => self.loaded(&expected, ended.began, ticket.wait()),
            Op::Lookup(expected, hold, ticket) => {
                self.looked_up(&expected, hold, ended.began, ticket.wait())
            }
            Op::Remove(expected, begun, ticket) => self.removed(&expected, begun, ticket.wait()),
        };
        let world = &self.shared.world;
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
}

impl Drop for Callers {
    /// A killed process: what it had begun may still arrive.
    fn drop(&mut self) {
        let now = self.shared.world.elapsed();
        for waiting in &self.waiting {
            if let Op::Save(numbers, _) = &waiting.op {
                for n in numbers {
                    self.shared.model().save_ended(*n, now);
                    self.shared.chunk_files.save_ended(*n, false, now);
                }
            }
        }
    }
}

impl Op {
    fn name(&self) -> String {
        match self {
            Op::Save(numbers, _) => format!("save {numbers:?}"),
            Op::Load(expected, _) => format!("load of {} chunks", expected.len()),
            Op::Lookup(expected, ..) => format!("lookup of {} chunks", expected.len()),
            Op::Remove(expected, ..) => format!("remove {}", expected.n),
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Op::Save(_, ticket) => ticket.is_done(),
            Op::Load(_, ticket) => ticket.is_done(),
            Op::Lookup(_, _, ticket) => ticket.is_done(),
            Op::Remove(_, _, ticket) => ticket.is_done(),
        }
    }
}
