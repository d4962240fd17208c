//! What a caller of a tier does: saves, loads, lookups with holds, removes; and what each result must
//! be.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvtier_core::{
    Ctx, Done, Error, ErrorKind, Hold, Load, Loaded, LookedUp, Mode, Presence, Save, Saved, Tier,
};
use kvtier_mem::{Arena, ArenaConfig};
use tokio::time::{Instant, sleep};

use crate::chunk_times::ChunkTimes;
use crate::fleet::model::{self, Model};
use crate::fleet::node::{by_fastest_clock, by_slowest_clock};
use crate::holds::{HeldChunk, HeldIn};
use crate::host::Host;
use crate::own_objects::says_it_evicts;
use crate::stripped_answers::Stripped;
use crate::world::World;

/// How much later than its deadline an operation may end: timers have steps of a millisecond.
const LATE_MAX: Duration = Duration::from_millis(5);

/// How long a delete may be on its way after its remove failed, or after its node evicted last: its retries end
/// by then.
const DELETE_MAX: Duration = Duration::from_secs(20);

/// For how long lookups hold what they find.
const HOLDS: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(10)];

/// What callers have in common.
#[derive(Debug)]
pub struct Common {
    pub world: Arc<World>,
    pub arena: Arena,
    model: Mutex<Model>,
    /// When each tier, by its address, last stored a chunk.
    stored: Mutex<BTreeMap<usize, Duration>>,
    /// Until when processes may hold chunks that a lookup found, ...
    held: ChunkTimes,
    /// ... and those of a lookup that is not answered yet.
    looked_up: ChunkTimes,
    /// Until when processes may be deleting chunks, ...
    deleting: ChunkTimes,
    /// ... and writing them.
    saving: ChunkTimes,
    /// A lookup finds each chunk that has been in the bucket for so long; `None` if it need not.
    pub found_after: Option<Duration>,
}

impl Common {
    pub fn new(world: &Arc<World>, arena_bytes: usize, model: Model) -> Self {
        let arena = Arena::new(ArenaConfig::heap(arena_bytes)).expect("memory for the callers");
        let (world, model) = (Arc::clone(world), Mutex::new(model));
        let (stored, held, looked_up, deleting, saving) = Default::default();
        let found_after = None;
        Common { world, arena, model, stored, held, looked_up, deleting, saving, found_after }
    }

    pub fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stored(&self) -> MutexGuard<'_, BTreeMap<usize, Duration>> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of a chunk's object in the bucket.
    pub fn object(&self, n: u64) -> String {
        self.model().object(n)
    }

    /// The version of a chunk's object in the bucket.
    fn version(&self, n: u64) -> Option<String> {
        let object = self.object(n);
        self.world.lock().bucket.objects.get(&object).map(|object| object.etag.clone())
    }

    pub fn is_in_bucket(&self, n: u64) -> bool {
        let object = self.object(n);
        self.world.lock().bucket.objects.contains_key(&object)
    }
}

/// An operation in flight.
struct Operation {
    /// What it does.
    op: String,
    number: u64,
    began: Instant,
}

/// A caller of one tier.
pub struct Caller<'a> {
    pub common: &'a Common,
    /// The name of the machine.
    pub name: String,
    /// `None` while it is down.
    pub tier: Option<Arc<dyn Tier>>,
    pub timeout: Duration,
    /// The machine whose process it is part of.
    host: Arc<Host>,
}

impl<'a> Caller<'a> {
    pub fn new(
        common: &'a Common,
        host: Arc<Host>,
        tier: Option<Arc<dyn Tier>>,
        timeout: Duration,
    ) -> Self {
        Caller { common, name: host.name().to_owned(), tier, timeout, host }
    }

    fn ctx(&self) -> Ctx {
        let mut ctx = Ctx::within(self.timeout);
        ctx.deadline = (Instant::now() + self.timeout).into_std();
        ctx
    }

    /// Records that an operation begins.
    fn begins(&self, op: String) -> Operation {
        let world = &self.common.world;
        let what = format!("{op} on {}", self.name);
        let number = world.lock().operations.begin(world.elapsed(), what);
        Operation { op, number, began: Instant::now() }
    }

    /// Records the end of an operation, which must not be late.
    fn ended(&self, operation: Operation, result: &str) {
        let (world, name) = (&self.common.world, &self.name);
        let Operation { op, number, began } = operation;
        world.lock().operations.end(number);
        world.event(format_args!("{name} {op}: {result}"));
        let took = began.elapsed();
        // In a process that was stopped it ends when that goes on.
        let since_stop = world.elapsed() - self.host.went_on();
        let was_stopped = self.host.went_on() > Duration::ZERO && since_stop <= LATE_MAX;
        if took > self.timeout + LATE_MAX && !was_stopped {
            world.finding("deadline", format!("{op} on {name} took {took:?}: {result}"));
        }
    }

    /// A tier of which an operation failed at the bucket or on the medium names a fault in its status.
    fn look_at_failure(&self, error: &Error) {
        let tier = self.tier.as_ref().filter(|_| !self.host.is_killed());
        let Some(tier) = tier.filter(|_| error.kind() == ErrorKind::Io) else { return };
        let reasons = tier.status().reasons;
        if !reasons.iter().any(|reason| reason.contains("last fault: ")) {
            self.finding("status", format!("{error} is no fault in {reasons:?}"));
        }
    }

    fn look_at_failures<Op, T>(&self, done: &[Done<Op, T>]) {
        for error in done.iter().filter_map(|done| done.result.as_ref().err()) {
            self.look_at_failure(error);
        }
    }

    /// Saves. No result while the machine is down.
    pub async fn save(&self, numbers: &[u64]) -> Vec<Result<Saved, Error>> {
        let Some(tier) = &self.tier else { return Vec::new() };
        // An operation begins as soon as the process runs.
        self.host.runs().await;
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
        let operation = self.begins(format!("save {numbers:?}"));
        self.common.saving.begin(&self.name, numbers);
        let done = tier.save(&self.ctx(), ops).await;
        let now = self.common.world.elapsed();
        self.common.saving.end(&self.name, numbers, now);
        numbers.iter().for_each(|n| self.common.model().save_ended(*n, now));
        let results: Vec<String> = done.iter().map(|done| short(&done.result)).collect();
        self.ended(operation, &results.join(", "));
        self.look_at_failures(&done);
        if done.iter().any(|done| matches!(done.result, Ok(Saved::Stored))) {
            self.common.stored().insert(address(tier), now);
        }
        done.into_iter().map(|done| done.result).collect()
    }

    /// Whether the tier stored a chunk since then, of whichever caller.
    pub fn has_stored_since(&self, since: Duration) -> bool {
        let stored = self.common.stored();
        let last = self.tier.as_ref().and_then(|tier| stored.get(&address(tier)));
        last.is_some_and(|last| *last > since)
    }

    /// Loads. No result while the machine is down.
    pub async fn load(&self, numbers: &[u64]) -> Vec<Result<Loaded, Error>> {
        self.load_changed(numbers).await.0
    }

    /// The same, and which are hits with bytes that were changed on their way.
    async fn load_changed(&self, numbers: &[u64]) -> (Vec<Result<Loaded, Error>>, Vec<u64>) {
        let mut changed = Vec::new();
        let Some(tier) = &self.tier else { return (Vec::new(), changed) };
        self.host.runs().await;
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
        let stripped: Vec<Stripped> = numbers.iter().map(|n| self.stripped_answers(*n)).collect();
        let operation = self.begins(format!("load {numbers:?}"));
        let done = tier.load(&self.ctx(), ops).await;
        let results: Vec<String> = done.iter().map(|done| short(&done.result)).collect();
        self.ended(operation, &results.join(", "));
        self.look_at_failures(&done);
        for (((n, done), removed), stripped) in numbers.iter().zip(&done).zip(removed).zip(stripped)
        {
            let Ok(Loaded::Hit { len }) = done.result else { continue };
            let lease = done.op.into.first().and_then(|lease| lease.as_host());
            if lease.and_then(|bytes| bytes.get(..len as usize)) != Some(&model::bytes(*n)[..]) {
                match self.stripped_answers(*n).changed > stripped.changed {
                    true => changed.push(*n),
                    false => self.finding("wrong bytes", format!("load of {n}")),
                }
            }
            if removed.is_some() && removed == self.common.model().is_removed(*n) {
                self.finding("removed", format!("load of {n}, which was removed, is a hit"));
            }
        }
        (done.into_iter().map(|done| done.result).collect(), changed)
    }

    fn stripped_answers(&self, n: u64) -> Stripped {
        self.common.world.lock().stripped_answers.of(&self.name, || self.common.object(n))
    }

    /// Looks up with a hold, waits, loads what is held, and releases it.
    pub async fn lookup(&self, numbers: &[u64]) {
        let Some(tier) = &self.tier else { return };
        self.host.runs().await;
        let world = &self.common.world;
        let (operation, began_at) = (self.begins(format!("lookup {numbers:?}")), world.elapsed());
        let keys: Vec<_> = numbers.iter().map(|n| self.common.model().key(*n)).collect();
        let removed = numbers.iter().map(|n| self.removed_for_lookups(*n)).collect();
        let there = numbers.iter().map(|n| self.version_to_be_found(*n)).collect();
        let term = HOLDS[world.below(HOLDS.len() as u64) as usize];
        // Another lookup may find what this one holds, before this one is answered.
        self.common.looked_up.begin(&self.name, numbers);
        let found = tier.lookup(&self.ctx(), keys.into(), Mode::Each, Hold::For(term)).await;
        let answered = world.elapsed();
        self.common.looked_up.end(&self.name, numbers, answered);
        for (at, n) in numbers.iter().enumerate() {
            if found.as_ref().is_ok_and(|found| found.found[at].is_hit()) {
                self.common.held.extend(&self.name, &[*n], answered + by_slowest_clock(term));
            }
        }
        let result = match &found {
            Ok(found) => {
                self.look_at_found(numbers, found, removed);
                self.look_at_missed(numbers, found, there, began_at);
                format!("{:?}", found.found)
            }
            Err(e) => {
                self.look_at_failure(e);
                format!("{:?}", e.kind())
            }
        };
        self.ended(operation, &result);
        let wait = world.between_ms(10, term.as_millis() as u64 / 3);
        let Ok(found) = found else { return sleep(wait).await };
        let until = began_at + by_fastest_clock(term);
        let held = self.held(numbers, &found, until);
        sleep(wait).await;
        self.look_at_held(held, began_at, until).await;
        found.hold.into_iter().for_each(|hold| tier.release(hold));
    }

    /// The number of saves of a chunk, if it was removed and no lookup of this process that begins now may
    /// find it. What the process holds it may find.
    fn removed_for_lookups(&self, n: u64) -> Option<u64> {
        let now = self.common.world.elapsed();
        let [held, looked_up] = [&self.common.held, &self.common.looked_up];
        if [held, looked_up].iter().any(|times| times.applies_at(&self.name, n, now)) {
            return self.common.model().is_removed_by(n, &self.name);
        }
        self.common.model().is_removed_for_lookups(n, &self.name, now)
    }

    /// The version of a chunk's object, if it has been in the bucket for so long that a lookup that begins
    /// now must find it.
    fn version_to_be_found(&self, n: u64) -> Option<String> {
        let found_after = self.common.found_after?;
        let object = self.common.object(n);
        let world = &self.common.world;
        let now_ms = world.store_ms();
        let state = world.lock();
        let object = state.bucket.objects.get(&object)?;
        // The time of an object has whole seconds.
        let since_ms = (object.modified_s + 1) * 1000 + found_after.as_millis() as u64;
        (since_ms < now_ms).then(|| object.etag.clone())
    }

    /// A lookup that began then misses no chunk that has been in the bucket for a while, unless this process is
    /// deleting it, or writes it: what is not in the index cannot be held.
    fn look_at_missed(
        &self,
        numbers: &[u64],
        found: &LookedUp,
        there: Vec<Option<String>>,
        began: Duration,
    ) {
        let now = self.common.world.elapsed();
        if self.evicts() {
            self.host.note_evicts(now);
        }
        let evicts = self.host.last_evicted().is_some_and(|last| now < last + DELETE_MAX);
        for ((n, presence), there) in numbers.iter().zip(&found.found).zip(there) {
            let is_missed = matches!(presence, Presence::Miss) && there.is_some();
            let is_deleted = evicts || self.common.deleting.applies_at(&self.name, *n, now);
            let is_written = self.common.saving.applies_at(&self.name, *n, began);
            if is_missed && there == self.common.version(*n) && !is_deleted && !is_written {
                self.finding("lost", format!("lookup of {n} is a miss, which is in the bucket"));
            }
        }
    }

    fn evicts(&self) -> bool {
        self.tier.as_deref().is_some_and(says_it_evicts)
    }

    /// What a lookup found has its length, is held, and was not removed long before it, nor by this process.
    fn look_at_found(&self, numbers: &[u64], found: &LookedUp, removed: Vec<Option<u64>>) {
        for ((n, presence), removed) in numbers.iter().zip(&found.found).zip(removed) {
            let Presence::Hit { len } = presence else { continue };
            if *len != model::len(*n) as u64 {
                self.finding("wrong length", format!("lookup of {n} found {presence:?}"));
            }
            if removed.is_some() && removed == self.common.model().is_removed(*n) {
                self.finding("removed", format!("lookup of {n}, which was removed, is a hit"));
            }
            if found.hold.is_none() {
                self.finding("hold", format!("lookup of {n} is a hit without a hold"));
            }
        }
    }

    /// The chunks that a lookup found and holds. Their objects are watched from now on.
    fn held(&self, numbers: &[u64], found: &LookedUp, until: Duration) -> Vec<HeldChunk> {
        let world = &self.common.world;
        let mut held = Vec::new();
        for (at, n) in numbers.iter().enumerate().filter(|(at, _)| found.found[*at].is_hit()) {
            let place = HeldIn::of(found.tier_of(at));
            let mut watched = None;
            if matches!(place, HeldIn::Bucket | HeldIn::BucketOfStack) {
                let object = self.common.object(*n);
                let (mut state, now) = (world.lock(), world.elapsed());
                // The answer may be older than the delete of another node.
                if !state.bucket.objects.contains_key(&object) {
                    continue;
                }
                watched = Some(state.watched.watch(object, &self.name, now, until));
            }
            let file = self.common.model().file(*n);
            let is_torn = world.lock().torn.contains(&file);
            held.push(HeldChunk { n: *n, place, watched, is_torn });
        }
        held
    }

    /// Loads chunks that are held until `until`: they are hits, unless another process deleted them or a
    /// fault since `since` took them.
    async fn look_at_held(&self, held: Vec<HeldChunk>, since: Duration, until: Duration) {
        let world = &self.common.world;
        let numbers: Vec<u64> = held.iter().map(|chunk| chunk.n).collect();
        let (loaded, changed) = match held.is_empty() {
            true => (Vec::new(), Vec::new()),
            false => self.load_held(&numbers).await,
        };
        // A hold of a process that ended has ended with it.
        let is_held = world.elapsed() < until && !self.host.is_killed();
        for (at, chunk) in held.into_iter().enumerate() {
            let is_there = chunk.watched.is_none_or(|number| world.lock().watched.end(number));
            if is_held && is_there && changed.contains(&chunk.n) {
                let what = format!("load of {}, whose facts it has seen", chunk.n);
                self.finding("wrong bytes", what);
            }
            let Some(Ok(Loaded::Miss(reason))) = loaded.get(at) else { continue };
            let is_excused = {
                let state = world.lock();
                state.failed_until.excuses(chunk.place, since, chunk.is_torn)
            };
            if is_held && is_there && !is_excused {
                let HeldChunk { n, place, .. } = chunk;
                self.finding("hold", format!("{n}, held in {place:?}, is a miss: {reason:?}"));
            }
        }
    }

    /// Loads, and once more where objects are served without facts. Returns the results, and which are hits
    /// with other bytes than the version had whose facts the tier has seen.
    async fn load_held(&self, numbers: &[u64]) -> (Vec<Result<Loaded, Error>>, Vec<u64>) {
        let versions = || -> Vec<_> { numbers.iter().map(|n| self.common.version(*n)).collect() };
        let stripped = || -> Vec<_> { numbers.iter().map(|n| self.stripped_answers(*n)).collect() };
        if !self.common.model().has_lmcache_names() {
            return (self.load(numbers).await, Vec::new());
        }
        let before = (versions(), stripped());
        let loaded = self.load(numbers).await;
        let after = (versions(), stripped());
        let has_seen_facts = |at: &usize| {
            let is_hit = matches!(loaded.get(*at), Some(Ok(Loaded::Hit { .. })));
            is_hit && (&before.0[*at], before.1[*at]) == (&after.0[*at], after.1[*at])
        };
        let seen: Vec<usize> = (0..numbers.len()).filter(has_seen_facts).collect();
        if seen.is_empty() {
            return (loaded, Vec::new());
        }
        let again: Vec<u64> = seen.iter().map(|at| numbers[*at]).collect();
        let mut changed = self.load_changed(&again).await.1;
        let is_same = |at: &usize| self.common.version(numbers[*at]) == after.0[*at];
        let same: Vec<u64> = seen.iter().filter(|at| is_same(at)).map(|at| numbers[*at]).collect();
        changed.retain(|n| same.contains(n));
        (loaded, changed)
    }

    pub async fn remove(&self, n: u64) {
        let Some(tier) = &self.tier else { return };
        self.host.runs().await;
        let now = self.common.world.elapsed();
        let (key, begun) = {
            let model = self.common.model();
            (model.key(n), model.remove_begins(n, now))
        };
        let operation = self.begins(format!("remove {n}"));
        self.common.deleting.begin(&self.name, &[n]);
        let removed = tier.remove(&self.ctx(), [key].into()).await;
        let result = removed.as_ref().map_or_else(
            |e| format!("{:?}", e.kind()),
            |removed| format!("{} removed, {} held", removed.removed, removed.held),
        );
        self.ended(operation, &result);
        let mut deleting_until = self.common.world.elapsed();
        if let Err(e) = &removed {
            self.look_at_failure(e);
            // The request may be on its way.
            deleting_until += DELETE_MAX;
        }
        self.common.deleting.end(&self.name, &[n], deleting_until);
        if removed.is_ok_and(|removed| removed.held == 0) {
            let now = self.common.world.elapsed();
            self.common.model().removed_by(n, begun, &self.name, now);
        }
    }

    fn finding(&self, kind: &'static str, what: String) {
        self.common.world.finding(kind, format!("{} on {}", what, self.name));
    }
}

fn address(tier: &Arc<dyn Tier>) -> usize {
    Arc::as_ptr(tier).cast::<()>().addr()
}

/// Whether the only chunk of a load is a hit.
pub fn is_hit(results: &[Result<Loaded, Error>]) -> bool {
    matches!(results, [Ok(Loaded::Hit { .. })])
}

/// Whether the only chunk of a save is there now.
pub fn is_stored(results: &[Result<Saved, Error>]) -> bool {
    matches!(results, [Ok(Saved::Stored | Saved::Present)])
}

/// A result in few words, which are the same in each run.
fn short<T: std::fmt::Debug>(result: &Result<T, Error>) -> String {
    match result {
        Ok(good) => format!("{good:?}"),
        Err(e) => format!("{:?}", e.kind()),
    }
}
