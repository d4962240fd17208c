//! Lookups of single keys that never wait.
//!
//! A key is answered from what the tiers have in memory. Only a key of which a medium must be asked
//! is answered [`Answer::Retry`]. [`Lookups::flush`], once per step of the engine's scheduler, asks
//! for all such keys in one batch in the background; the tier bounds its concurrency, and lists a
//! bucket where that is cheaper. Later lookups of these keys find the answer.
//!
//! Nothing here lasts: the answer for an absent key expires after [`ANSWER_TTL`], and so is asked
//! for at most once in that time. A medium that fails is not asked again for a pause that doubles up
//! to [`PAUSE_MAX`]; meanwhile unknown keys are misses, which the engine computes.
//!
//! A chunk that could not be loaded is a miss until it is stored again, whatever the index says:
//! the engine would ask for it again and again otherwise.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier::core::{Class, Ctx, Digest, Error, Hold, Key, LookedUp, Mode, Presence, Ticket, Tier};

/// How long the answer of a medium counts.
pub const ANSWER_TTL: Duration = Duration::from_millis(500);
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
    waiting: HashMap<Digest, Key>,
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

/// Chunks whose load failed, the oldest first.
#[derive(Debug, Default)]
struct FailedChunks {
    all: HashSet<Digest>,
    order: VecDeque<Digest>,
}

impl FailedChunks {
    fn insert(&mut self, digest: Digest) {
        if !self.all.insert(digest) {
            return;
        }
        self.order.push_back(digest);
        while self.all.len() > FAILED_MAX || self.order.len() > 2 * FAILED_MAX {
            let Some(oldest) = self.order.pop_front() else { return };
            self.all.remove(&oldest);
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
        if self.failed.all.contains(key.digest()) {
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
        if self.pause.is_some_and(|pause| now < pause.until) || self.waiting.len() >= WAITING_MAX {
            return Answer::Miss;
        }
        self.waiting.entry(*digest).or_insert_with(|| key.clone());
        Answer::Retry
    }

    /// Asks the media for the keys that wait, unless a batch is under way. Returns whether one is.
    pub fn flush(&mut self, tier: &dyn Tier) -> bool {
        self.take_answers();
        if self.batch.is_none() && !self.waiting.is_empty() {
            let digests: HashSet<Digest> = self.waiting.keys().take(BATCH_MAX).copied().collect();
            let keys = digests.iter().filter_map(|digest| self.waiting.remove(digest));
            let keys: Arc<[Key]> = keys.collect();
            let ctx = Ctx::within(LOOKUP_TIMEOUT).with_class(Class::Demand);
            let ticket = tier.lookup(&ctx, Arc::clone(&keys), Mode::Each, Hold::None);
            self.batch = Some(PendingBatch { keys, digests, ticket });
            self.take_answers();
        }
        self.batch.is_some()
    }

    /// Records the answers of a batch that ended.
    fn take_answers(&mut self) {
        let Some(batch) = self.batch.take_if(|batch| batch.ticket.is_done()) else { return };
        let now = Instant::now();
        if self.answers.len() + batch.keys.len() > ANSWERS_MAX {
            self.answers.retain(|_, answer| now < answer.until);
        }
        let found = batch.ticket.wait();
        let is_answered = found.is_ok();
        let found = found.map(|found| found.found).unwrap_or_default();
        let mut is_whole = is_answered;
        for (at, key) in batch.keys.iter().enumerate() {
            let found = found.get(at).copied().unwrap_or(Presence::Unknown);
            is_whole &= found != Presence::Unknown;
            let answer = MediumAnswer { is_hit: found.is_hit(), until: now + ANSWER_TTL };
            if self.answers.len() < ANSWERS_MAX {
                self.answers.insert(*key.digest(), answer);
            }
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
