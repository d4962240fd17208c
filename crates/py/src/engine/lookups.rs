//! Lookups of single keys that never wait.
//!
//! A key is answered from what the tiers have in memory. Only a key of which a medium must be asked
//! is answered [`Answer::Retry`]. [`Lookups::flush`], once per step of the engine's scheduler, asks
//! for all such keys in one batch in the background; the tier bounds its concurrency, and lists a
//! bucket where that is cheaper. Later lookups of these keys find the answer.
//!
//! No key is answered `Retry` for ever. Keys are asked for in the order in which they came, so that
//! the head of a prefix, which decides about the rest, is answered first. A key that waits longer
//! than [`WAIT_MAX`] for its batch is a miss. An answer counts for [`ANSWER_TTL`], and longer where
//! batches are slow or many keys wait: a request that needs many answers at once must get all of
//! them before the first expires.
//!
//! A medium that fails is not asked again for a pause that doubles up to [`PAUSE_MAX`]; meanwhile
//! unknown keys are misses, which the engine computes.
//!
//! A chunk that could not be loaded is a miss until it is stored again, whatever the index says:
//! the engine would ask for it again and again otherwise. At most [`FAILED_MAX`] are remembered.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier::core::{Class, Ctx, Digest, Error, Hold, Key, LookedUp, Mode, Presence, Ticket, Tier};

/// How long the answer of a medium counts at least, and at most.
const ANSWER_TTL: Duration = Duration::from_millis(500);
const ANSWER_TTL_MAX: Duration = Duration::from_secs(10);
/// The longest that a key waits for its batch.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// The longest that a batch of lookups may take; then its keys are misses.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause after the first failure of a medium, and the longest one.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The most keys of one batch, and the most that wait for the next one; more are misses.
const BATCH_MAX: usize = 1024;
const WAITING_MAX: usize = 16 * BATCH_MAX;
/// The most answers that are kept, and the most chunks that are misses because a load failed.
const ANSWERS_MAX: usize = 65_536;
const FAILED_MAX: usize = 65_536;

/// The answer for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The chunk is not there.
    Miss,
    /// The chunk is there.
    Hit,
    /// A medium is asked: look it up again.
    Retry,
}

/// The state of lookups.
#[derive(Debug, Default)]
pub struct Lookups {
    failed: FailedChunks,
    waiting: WaitingKeys,
    batch: Option<PendingBatch>,
    answers: HashMap<Digest, MediumAnswer>,
    pause: Option<Pause>,
    pub counts: Counts,
}

/// How often each answer was given, and batches that a medium did not answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub hits: u64,
    pub misses: u64,
    pub retries: u64,
    pub failures: u64,
}

/// A batch of lookups that a medium has not answered yet.
#[derive(Debug)]
struct PendingBatch {
    keys: Arc<[Key]>,
    digests: HashSet<Digest>,
    began: Instant,
    ticket: Ticket<Result<LookedUp, Error>>,
}

/// The answer of a medium.
#[derive(Clone, Copy, Debug)]
struct MediumAnswer {
    is_hit: bool,
    until: Instant,
}

/// After a failure of a medium.
#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Instant,
    length: Duration,
}

/// Keys that wait for the next batch, in the order in which they came.
#[derive(Debug, Default)]
struct WaitingKeys {
    all: HashSet<Digest>,
    order: VecDeque<WaitingKey>,
}

#[derive(Debug)]
struct WaitingKey {
    key: Key,
    since: Instant,
}

impl WaitingKeys {
    fn insert(&mut self, key: &Key, now: Instant) {
        if self.all.insert(*key.digest()) {
            self.order.push_back(WaitingKey { key: key.clone(), since: now });
        }
    }

    /// The first key that came at `since_max` or before, or any first key without one.
    fn pop(&mut self, since_max: Option<Instant>) -> Option<Key> {
        let first = self.order.front()?;
        if since_max.is_some_and(|since_max| first.since > since_max) {
            return None;
        }
        let key = self.order.pop_front()?.key;
        self.all.remove(key.digest());
        Some(key)
    }

    fn clear(&mut self) {
        self.all.clear();
        self.order.clear();
    }
}

/// Chunks whose load failed, with the number of their last failure.
#[derive(Debug, Default)]
struct FailedChunks {
    all: HashMap<Digest, u64>,
    /// The oldest first. A chunk that was stored since, or failed again, is there with an old
    /// number, which means nothing.
    order: VecDeque<(u64, Digest)>,
    failures: u64,
}

impl FailedChunks {
    fn insert(&mut self, digest: Digest) {
        self.failures += 1;
        self.all.insert(digest, self.failures);
        self.order.push_back((self.failures, digest));
        while self.all.len() > FAILED_MAX || self.order.len() > 2 * FAILED_MAX {
            let Some((number, oldest)) = self.order.pop_front() else { return };
            if self.all.get(&oldest) == Some(&number) {
                self.all.remove(&oldest);
            }
        }
    }
}

impl Lookups {
    /// Looks one key up.
    pub fn lookup(&mut self, tier: &dyn Tier, key: &Key) -> Answer {
        self.take_answers();
        let answer = self.answer(tier, key);
        match answer {
            Answer::Hit => self.counts.hits += 1,
            Answer::Miss => self.counts.misses += 1,
            Answer::Retry => self.counts.retries += 1,
        }
        answer
    }

    fn answer(&mut self, tier: &dyn Tier, key: &Key) -> Answer {
        if self.failed.all.contains_key(key.digest()) {
            return Answer::Miss;
        }
        match tier.lookup_in_memory(std::slice::from_ref(key)).first() {
            Some(Presence::Hit { .. }) => Answer::Hit,
            Some(Presence::Miss) => Answer::Miss,
            _ => self.answer_unknown(key),
        }
    }

    fn answer_unknown(&mut self, key: &Key) -> Answer {
        let (now, digest) = (Instant::now(), key.digest());
        if let Some(answer) = self.answers.get(digest).filter(|answer| now < answer.until) {
            return if answer.is_hit { Answer::Hit } else { Answer::Miss };
        }
        if self.batch.as_ref().is_some_and(|batch| batch.digests.contains(digest)) {
            return Answer::Retry;
        }
        if self.pause.is_some_and(|pause| now < pause.until)
            || self.waiting.all.len() >= WAITING_MAX
        {
            return Answer::Miss;
        }
        self.waiting.insert(key, now);
        Answer::Retry
    }

    /// Asks the media for the keys that wait, unless a batch is under way. Returns whether one is.
    pub fn flush(&mut self, tier: &dyn Tier) -> bool {
        self.take_answers();
        self.end_long_waits(Instant::now());
        if self.batch.is_none() && !self.waiting.order.is_empty() {
            let keys: Arc<[Key]> =
                std::iter::from_fn(|| self.waiting.pop(None)).take(BATCH_MAX).collect();
            let digests = keys.iter().map(|key| *key.digest()).collect();
            let began = Instant::now();
            let ctx = Ctx::within(LOOKUP_TIMEOUT).with_class(Class::Demand);
            let ticket = tier.lookup(&ctx, Arc::clone(&keys), Mode::Each, Hold::None);
            self.batch = Some(PendingBatch { keys, digests, began, ticket });
            self.take_answers();
        }
        self.batch.is_some()
    }

    /// Keys that waited too long are misses.
    fn end_long_waits(&mut self, now: Instant) {
        let Some(since_max) = now.checked_sub(WAIT_MAX) else { return };
        while let Some(key) = self.waiting.pop(Some(since_max)) {
            self.answer_until(&key, false, now + ANSWER_TTL);
        }
    }

    fn answer_until(&mut self, key: &Key, is_hit: bool, until: Instant) {
        if self.answers.len() < ANSWERS_MAX {
            self.answers.insert(*key.digest(), MediumAnswer { is_hit, until });
        }
    }

    /// Records the answers of a batch that ended.
    fn take_answers(&mut self) {
        let Some(batch) = self.batch.take_if(|batch| batch.ticket.is_done()) else { return };
        let now = Instant::now();
        if self.answers.len() + batch.keys.len() > ANSWERS_MAX {
            self.answers.retain(|_, answer| now < answer.until);
        }
        // Until the keys that wait have their answers too, if their batches take as long.
        let batches = 1 + (self.waiting.order.len() / BATCH_MAX) as u32;
        let rest = 2 * batches * (now - batch.began);
        let until = now + rest.clamp(ANSWER_TTL, ANSWER_TTL_MAX);
        let found = batch.ticket.wait();
        let is_answered = found.is_ok();
        let found = found.map(|found| found.found).unwrap_or_default();
        let mut is_whole = is_answered;
        for (at, key) in batch.keys.iter().enumerate() {
            let found = found.get(at).copied().unwrap_or(Presence::Unknown);
            is_whole &= found != Presence::Unknown;
            self.answer_until(key, found.is_hit(), until);
        }
        if is_whole {
            self.pause = None;
            return;
        }
        self.counts.failures += 1;
        let length = self.pause.map_or(PAUSE_MIN, |last| (2 * last.length).min(PAUSE_MAX));
        self.pause = Some(Pause { until: now + length, length });
        // The waiting keys are misses now; later lookups ask again.
        self.waiting.clear();
    }

    /// These chunks could not be loaded or saved: they are misses until they are stored again.
    pub fn mark_failed(&mut self, digests: impl IntoIterator<Item = Digest>) {
        digests.into_iter().for_each(|digest| self.failed.insert(digest));
    }

    /// These chunks were stored.
    pub fn mark_stored(&mut self, digests: impl IntoIterator<Item = Digest>) {
        for digest in digests {
            self.failed.all.remove(&digest);
            self.answers.remove(&digest);
        }
    }
}
