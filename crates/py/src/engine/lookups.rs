//! Lookups of single keys that never wait.
//!
//! A key is answered from what the tiers have in memory. Only a key of which a medium must be asked
//! is answered [`Answer::Retry`]. [`Lookups::flush`], once per step of the engine's scheduler, asks
//! for such keys in batches in the background; the tier bounds its concurrency, and lists a bucket
//! where that is better. Later lookups of these keys find the answer: each key as soon as the tier
//! has its answer in memory, whatever the others of its batch still wait for.
//!
//! Even to begin such a batch may block, on a file of a device that hangs. So it begins on a thread
//! of its own ([`Asker`]), and nothing here waits for it.
//!
//! No key is answered `Retry` for ever. Keys are asked for in the order in which they came, so that
//! the head of a prefix, which decides about the rest, is answered first. Where a batch takes longer
//! than [`SLOW`] the next one begins beside it. A key that waits longer than [`WAIT_MAX`] for its
//! batch is a miss. An answer counts for [`ANSWER_TTL`], and longer where batches are slow or many
//! keys wait: a request that needs many answers at once must get all of them before the first
//! expires.
//!
//! A medium that answers no key of a batch is not asked again for a pause that doubles up to
//! [`PAUSE_MAX`]; meanwhile unknown keys are misses, which the engine computes.
//!
//! A chunk that could not be loaded is a miss until it is stored again, whatever the index says:
//! the engine would ask for it again and again otherwise ([`FailedChunks`]).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvtier::core::{Class, Ctx, Digest, Error, Hold, Key, LookedUp, Mode, Presence, Ticket, Tier};

use super::failed_chunks::FailedChunks;
use super::submitter::Submitter;
use crate::open_store::Store;

/// How long the answer of a medium counts at least, and at most.
const ANSWER_TTL: Duration = Duration::from_millis(500);
const ANSWER_TTL_MAX: Duration = Duration::from_secs(10);
/// The longest that a key waits for its batch.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// The longest that a batch of lookups may take; then its keys are misses.
pub const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// Beyond it, the longest that a thread may take to begin a batch. Later the batch counts as failed.
pub const BEGIN_MAX: Duration = Duration::from_secs(1);
/// A batch that takes longer does not keep the next one from beginning.
const SLOW: Duration = Duration::from_millis(250);
/// The most batches at a time.
const BATCHES_MAX: usize = 4;
/// The pause after the first failure of a medium, and the longest one.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The most keys of one batch, and the most that wait for the next one; more are misses.
const BATCH_MAX: usize = 1024;
const WAITING_MAX: usize = 16 * BATCH_MAX;
/// The most answers that are kept.
const ANSWERS_MAX: usize = 65_536;

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
    /// Chunks that are misses, whatever the index says.
    pub failed: FailedChunks,
    waiting: WaitingKeys,
    /// The batches that were begun, the oldest first.
    batches: Vec<PendingBatch>,
    answers: HashMap<Digest, MediumAnswer>,
    pause: Option<Pause>,
    pub counts: Counts,
}

/// How often each answer was given, and batches of which a medium left a key without an answer.
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
    asked: Arc<Asked>,
}

/// A batch as the thread sees it that begins it: the ticket is there once it has begun.
#[derive(Debug, Default)]
struct Asked(Mutex<Option<Ticket<Found>>>);

type Found = Result<LookedUp, Error>;

impl Asked {
    fn lock(&self) -> MutexGuard<'_, Option<Ticket<Found>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingBatch {
    /// The answer, if it is there; `None` within `Some` if there is none in time.
    fn take(&self, now: Instant) -> Option<Option<LookedUp>> {
        let mut ticket = self.asked.lock();
        if let Some(done) = ticket.take_if(|ticket| ticket.is_done()) {
            return Some(done.wait().ok());
        }
        (now - self.began > LOOKUP_TIMEOUT + BEGIN_MAX).then_some(None)
    }
}

/// The thread that begins batches, and what it asks.
#[derive(Debug)]
pub struct Asker {
    pub store: Arc<Store>,
    pub thread: Submitter,
}

impl Asker {
    fn tier(&self) -> &dyn Tier {
        self.store.tier()
    }

    /// Begins a batch. `None` if the thread is so far behind that it would do no good.
    fn ask(&self, keys: &Arc<[Key]>) -> Option<Arc<Asked>> {
        let (asked, store, keys) = (Arc::<Asked>::default(), Arc::clone(&self.store), keys.clone());
        let theirs = Arc::clone(&asked);
        let is_sent = self.thread.run_if_free(move || {
            // Given up long ago, when the thread was kept elsewhere.
            if Arc::strong_count(&theirs) == 1 {
                return;
            }
            // No hold: the engine may ask for a chunk and never load it. One that is evicted in
            // between is a miss at its load.
            let ctx = Ctx::within(LOOKUP_TIMEOUT).with_class(Class::Demand);
            let ticket = store.tier().lookup(&ctx, keys, Mode::Each, Hold::None);
            *theirs.lock() = Some(ticket);
        });
        is_sent.then_some(asked)
    }
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

impl Lookups {
    /// Looks one key up.
    pub fn lookup(&mut self, tier: &dyn Tier, key: &Key) -> Answer {
        self.take_answers(tier);
        let answer = self.answer(tier, key);
        self.count(answer)
    }

    /// Counts an answer that was found without a lookup, and returns it.
    pub fn count(&mut self, answer: Answer) -> Answer {
        match answer {
            Answer::Hit => self.counts.hits += 1,
            Answer::Miss => self.counts.misses += 1,
            Answer::Retry => self.counts.retries += 1,
        }
        answer
    }

    fn answer(&mut self, tier: &dyn Tier, key: &Key) -> Answer {
        // Before the index, which may still have the chunk: it was not quarantined where the medium
        // failed, and its load would fail again and again.
        if self.failed.contains(key.digest()) {
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
        // Answers of tiers that remember none themselves, and of batches that came too late.
        if let Some(answer) = self.answers.get(digest).filter(|answer| now < answer.until) {
            return if answer.is_hit { Answer::Hit } else { Answer::Miss };
        }
        if self.batches.iter().any(|batch| batch.digests.contains(digest)) {
            return Answer::Retry;
        }
        // Misses cost a computation. Retries would make every new request wait for a medium that is
        // known to be down.
        if self.is_paused(now) || self.waiting.all.len() >= WAITING_MAX {
            return Answer::Miss;
        }
        self.waiting.insert(key, now);
        Answer::Retry
    }

    /// Asks the media for the keys that wait. Returns whether a batch is under way.
    pub fn flush(&mut self, asker: &Asker) -> bool {
        self.take_answers(asker.tier());
        let now = Instant::now();
        self.end_long_waits(now);
        while self.may_begin(now) {
            let keys: Arc<[Key]> =
                std::iter::from_fn(|| self.waiting.pop(None)).take(BATCH_MAX).collect();
            let digests = keys.iter().map(|key| *key.digest()).collect();
            let Some(asked) = asker.ask(&keys) else {
                // The thread is stuck. What waits is a miss until it may be asked for again.
                self.fail(now);
                break;
            };
            self.batches.push(PendingBatch { keys, digests, began: now, asked });
        }
        !self.batches.is_empty()
    }

    /// Whether the next batch may begin: there are keys, and no batch is under way but slow ones.
    fn may_begin(&self, now: Instant) -> bool {
        !self.waiting.order.is_empty()
            && self.batches.len() < BATCHES_MAX
            && self.batches.iter().all(|batch| now - batch.began > SLOW)
    }

    /// Keys that waited too long are misses.
    fn end_long_waits(&mut self, now: Instant) {
        // Right after the machine's start the clock has no time that long ago, nor has a key
        // waited.
        let Some(since_max) = now.checked_sub(WAIT_MAX) else { return };
        while let Some(key) = self.waiting.pop(Some(since_max)) {
            self.answer_until(&key, false, now + ANSWER_TTL);
        }
    }

    fn answer_until(&mut self, key: &Key, is_hit: bool, until: Instant) {
        // Where the map is full the key stays unknown, and is asked for again.
        if self.answers.len() < ANSWERS_MAX {
            self.answers.insert(*key.digest(), MediumAnswer { is_hit, until });
        }
    }

    /// Records the answers of the batches that ended.
    fn take_answers(&mut self, tier: &dyn Tier) {
        // Lookups call this for every key, and mostly nothing is under way.
        if self.batches.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut at = 0;
        while at < self.batches.len() {
            match self.batches[at].take(now) {
                Some(found) => {
                    let batch = self.batches.remove(at);
                    self.record(tier, &batch, found, now);
                }
                None => at += 1,
            }
        }
    }

    fn record(
        &mut self,
        tier: &dyn Tier,
        batch: &PendingBatch,
        found: Option<LookedUp>,
        now: Instant,
    ) {
        if self.answers.len() + batch.keys.len() > ANSWERS_MAX {
            self.answers.retain(|_, answer| now < answer.until);
        }
        // Until the keys that wait have their answers too, if their batches take as long.
        let batches = 1 + (self.waiting.order.len() / BATCH_MAX) as u32;
        let rest = 2 * batches * (now - batch.began);
        let until = now + rest.clamp(ANSWER_TTL, ANSWER_TTL_MAX);
        // A batch that ended late has no answers, and the tier may have those of most keys.
        let found = found.map_or_else(|| tier.lookup_in_memory(&batch.keys), |found| found.found);
        let mut answered = 0;
        for (at, key) in batch.keys.iter().enumerate() {
            let found = found.get(at).copied().unwrap_or(Presence::Unknown);
            answered += usize::from(found != Presence::Unknown);
            self.answer_until(key, found.is_hit(), until);
        }
        self.record_answers(answered, batch.keys.len(), now);
    }

    /// A medium answered for some of the keys that it was asked for.
    pub fn record_answers(&mut self, answered: usize, asked: usize, now: Instant) {
        self.counts.failures += u64::from(answered < asked);
        // One key without an answer, such as that of one slow request, says nothing of the others.
        if answered > 0 {
            self.pause = None;
        } else {
            self.fail(now);
        }
    }

    /// Whether no medium is asked now, since it failed to answer.
    pub fn is_paused(&self, now: Instant) -> bool {
        self.pause.is_some_and(|pause| now < pause.until)
    }

    /// A medium answers nothing: it is asked again after a pause.
    fn fail(&mut self, now: Instant) {
        let length = self.pause.map_or(PAUSE_MIN, |last| (2 * last.length).min(PAUSE_MAX));
        self.pause = Some(Pause { until: now + length, length });
        // The waiting keys are misses now; later lookups ask again.
        self.waiting.clear();
    }

    /// These chunks could not be loaded or saved: they are misses until they are stored again, or
    /// until this time.
    pub fn mark_failed(
        &mut self,
        digests: impl IntoIterator<Item = Digest>,
        until: Option<Instant>,
    ) {
        digests.into_iter().for_each(|digest| self.failed.insert(digest, until));
    }

    /// These chunks were stored.
    pub fn mark_stored(&mut self, digests: impl IntoIterator<Item = Digest>) {
        for digest in digests {
            self.failed.remove(&digest);
            // A medium that answered before the store said that the chunk is absent.
            self.answers.remove(&digest);
        }
    }
}
