//! Lookups: which chunks the bucket has.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Error, ErrorKind, Hold, HoldId, Key, LookedUp, Mode, Presence};
use kvtier_key::Digest;
use kvtier_s3::List;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};

use crate::ops::classify::suspicious_response;
use crate::ops::classify::{ObjectState, ReadObject, classify, mark_unusable};
use crate::ops::metadata::{self, StoredFacts};
use crate::state::catalog::{UNKNOWN_LEN, raw_len};
use crate::state::counters::add;
use crate::state::head_single_flight::HeadRole;
use crate::state::key_locks::ReadVersion;
use crate::state::machine::of_process;
use crate::state::scheduler::RequestQueue;
use crate::state::shared::{FoundObject, Shared};

/// HEADs in flight.
const HEADS_MAX: usize = 32;
/// The longest time that the work of an operation ends before its deadline.
const MARGIN_MAX: Duration = Duration::from_millis(50);
/// The longest time that HEADs go on behind the end of a prefix, when the lookup has its answer.
const FINISH_MAX: Duration = Duration::from_secs(1);
/// Keys on a page of a listing.
const PAGE_KEYS: usize = 1000;
/// The time of a page of a listing, in HEADs: the store reads a thousand keys for it.
const PAGE_TIME: usize = 4;
/// The price of a page of a listing, in HEADs: S3 asks $0.005 for 1,000 LISTs and $0.0004 for 1,000
/// HEADs.
const PAGE_PRICE: usize = 13;

/// Answers from fresh entries; `None` if the bucket must be asked.
pub fn from_memory(
    shared: &Shared,
    keys: &[Key],
    mode: Mode,
    hold_for: Hold,
) -> Option<Result<LookedUp, Error>> {
    let mut found = vec![Presence::Unknown; keys.len()];
    {
        let mut catalog = shared.catalog();
        let now_ms = shared.now_ms();
        // A chunk is fresh while it is held, and no longer.
        catalog.index.expire_holds(now_ms);
        for (key, presence) in keys.iter().zip(&mut found) {
            *presence = presence_of(catalog.known(key.digest(), now_ms)?);
            // A prefix ends here; the rest stays unknown and costs nothing.
            if mode == Mode::Prefix && !presence.is_hit() {
                break;
            }
        }
    }
    Some(hold(shared, keys, found, hold_for))
}

/// What the catalog says about each key. A chunk counts as there however long ago this node saw it:
/// its load shows whether it still is, and costs the one request that asking would cost.
pub fn without_asking(shared: &Shared, keys: &[Key]) -> Vec<Presence> {
    let catalog = shared.catalog();
    let now_ms = shared.now_ms();
    let presence = |key: &Key| match catalog.index.get(key.digest()) {
        Some(entry) => raw_len(&entry.chunk).map_or(Presence::Unknown, |len| Presence::Hit { len }),
        None => catalog.known(key.digest(), now_ms).map_or(Presence::Unknown, presence_of),
    };
    keys.iter().map(presence).collect()
}

fn presence_of(len: Option<u64>) -> Presence {
    len.map_or(Presence::Miss, |len| Presence::Hit { len })
}

/// Answers a lookup. A key of which the store did not answer is unknown; without any answer the
/// lookup fails.
pub async fn lookup(
    shared: Arc<Shared>,
    keys: Arc<[Key]>,
    mode: Mode,
    hold_for: Hold,
    deadline: Instant,
) -> Result<LookedUp, Error> {
    let Answers { found, error } = ask(&shared, &keys, mode, deadline).await?;
    match error {
        Some(error) if found.iter().all(|presence| *presence == Presence::Unknown) => Err(error),
        _ => hold(&shared, &keys, found, hold_for),
    }
}

/// What is known about each key, and the first error of a key that is unknown for it.
pub struct Answers {
    pub found: Vec<Presence>,
    pub error: Option<Error>,
}

/// Asks with one listing if that is better, else with a HEAD for each key that is not fresh.
pub async fn ask(
    shared: &Arc<Shared>,
    keys: &[Key],
    mode: Mode,
    deadline: Instant,
) -> Result<Answers, Error> {
    // One listing first, where it is cheaper; what it leaves open gets HEADs below.
    let listed = match is_for_a_list(shared, keys) {
        true => list(shared, keys, deadline).await?,
        false => HashMap::new(),
    };
    let mut error = None;
    let mut found = vec![Presence::Unknown; keys.len()];
    let mut heads = Heads::default();
    let asked_until = shortly_before(deadline);
    let mut next = 0;
    // Where the lookup stops: behind the first key of a prefix that is no hit.
    let mut end = keys.len();
    loop {
        // A HEAD that ends makes place for the next one, so that one slow HEAD keeps no other key
        // from its answer.
        while next < end && heads.len() < HEADS_MAX {
            let (at, key) = (next, &keys[next]);
            next += 1;
            let listed = || listed.get(key.digest()).copied();
            match shared.known(key.digest()).or_else(listed) {
                Some(len) => {
                    found[at] = presence_of(len);
                    end = end_after(mode, end, at, found[at]);
                }
                None => {
                    let (shared, key) = (Arc::clone(shared), key.clone());
                    let client = shared.client.clone();
                    let head = async move { head_in_time(&shared, &key, asked_until).await };
                    heads.spawn(at, of_process(&client, head));
                }
            }
        }
        let Some((at, presence)) = heads.next_before(end).await else { break };
        match presence {
            Some(Ok(presence)) => found[at] = presence,
            Some(Err(e)) => error = error.or(Some(e)),
            None => {}
        }
        end = end_after(mode, end, at, found[at]);
    }
    heads.finish_in_background();
    Ok(Answers { found, error })
}

/// When what an operation waits for must end, so that it can answer with what it has by then.
pub fn shortly_before(deadline: Instant) -> Instant {
    let left = deadline.saturating_duration_since(Instant::now());
    // A part of what is left: a short deadline keeps most of its time.
    deadline - (left / 16).min(MARGIN_MAX)
}

/// The HEADs of a lookup that are in flight.
#[derive(Default)]
struct Heads {
    tasks: JoinSet<Result<Presence, Error>>,
    /// The index of the key of each task.
    at: HashMap<Id, usize>,
}

impl Heads {
    fn len(&self) -> usize {
        self.at.len()
    }

    fn spawn(
        &mut self,
        at: usize,
        head: impl Future<Output = Result<Presence, Error>> + Send + 'static,
    ) {
        self.at.insert(self.tasks.spawn(head).id(), at);
    }

    /// Waits for the next HEAD that ends: the index of its key, and its answer unless it panicked.
    /// `None` if none is in flight for a key before `end`.
    async fn next_before(
        &mut self,
        end: usize,
    ) -> Option<(usize, Option<Result<Presence, Error>>)> {
        if self.at.values().all(|at| *at >= end) {
            return None;
        }
        let (id, answer) = match self.tasks.join_next_with_id().await? {
            Ok((id, answer)) => (id, Some(answer)),
            Err(e) => (e.id(), None),
        };
        self.at.remove(&id).map(|at| (at, answer))
    }

    /// Gives the HEADs that are still in flight a moment to end, then drops them. Dropped at once,
    /// each would cost its connection, and the next lookup a handshake.
    fn finish_in_background(mut self) {
        if !self.at.is_empty() {
            let all = async move { while self.tasks.join_next().await.is_some() {} };
            tokio::spawn(timeout(FINISH_MAX, all));
        }
    }
}

/// Where a lookup stops that stopped at `end` before it had the answer for the key `at`.
fn end_after(mode: Mode, end: usize, at: usize, presence: Presence) -> usize {
    if mode == Mode::Prefix && !presence.is_hit() { end.min(at + 1) } else { end }
}

/// As [`head_once`], but the wait for a permit ends by the deadline too.
async fn head_in_time(shared: &Shared, key: &Key, deadline: Instant) -> Result<Presence, Error> {
    timeout_at(deadline, head_once(shared, key, deadline)).await.unwrap_or_else(|_| Err(late(key)))
}

fn late(key: &Key) -> Error {
    Error::new(ErrorKind::Timeout, "the deadline passed").with_op("lookup").with_key(*key.digest())
}

/// Sends a HEAD for one chunk, or waits for that of another lookup. If that one failed, sends its
/// own.
async fn head_once(shared: &Shared, key: &Key, deadline: Instant) -> Result<Presence, Error> {
    // Twice: a listing may leave the key to a HEAD.
    for _ in 0..2 {
        match shared.heads.join(key.digest()) {
            // The answer may have arrived in between.
            HeadRole::Lead(_asked) if shared.known(key.digest()).is_none() => {
                return head(shared, key, deadline).await;
            }
            HeadRole::Lead(_) => {}
            HeadRole::Follow(answered) => {
                // The other lookup may have more time than this one.
                timeout_at(deadline, answered).await.map_err(|_| late(key))?;
            }
        }
        if let Some(len) = shared.known(key.digest()) {
            return Ok(presence_of(len));
        }
    }
    head(shared, key, deadline).await
}

/// Sends HEADs for one chunk under all names that it may have.
pub async fn head(shared: &Shared, key: &Key, deadline: Instant) -> Result<Presence, Error> {
    let name = shared.name_of(key)?;
    // Before the first request: an answer that a save or delete overtook is not entered.
    let version = shared.key_locks.read(key.digest());
    let mut damaged = false;
    for name in std::iter::once(name.clone()).chain(shared.names_but(key, &name)) {
        match head_as(shared, key, &name, &version, deadline).await? {
            None => {}
            // The object under another name may be good.
            Some(presence) if !presence.is_hit() => damaged = true,
            Some(presence) => return Ok(presence),
        }
    }
    if damaged {
        return Ok(Presence::Miss);
    }
    // Only now: the object may have had another name.
    shared.record_missing(key.digest(), &version);
    Ok(Presence::Miss)
}

/// The chunk in the object of that name; `None` if there is none.
async fn head_as(
    shared: &Shared,
    key: &Key,
    name: &str,
    version: &ReadVersion<'_>,
    deadline: Instant,
) -> Result<Option<Presence>, Error> {
    let _permit = shared.scheduler.acquire(RequestQueue::Lookup).await;
    add(&shared.counters.heads, 1);
    let object = shared.client.until(deadline).head(name).await;
    let Some(object) = object.map_err(|e| shared.error("lookup", Some(key), e))? else {
        return Ok(None);
    };
    let facts = metadata::parse(|name| object.header(name), Some(object.total()), key);
    let etag = object.etag().map(str::to_owned);
    let read = ReadObject {
        facts: Some(facts),
        len: object.total(),
        etag,
        intact: true,
        ..ReadObject::default()
    };
    // An error and no miss: a proxy's answer must not make a chunk count as gone.
    if let Some(e) = suspicious_response(shared, key, &read) {
        return Err(shared.error("lookup", Some(key), e));
    }
    let (len, bytes) = (read.raw_len(), read.len);
    let seen = FoundObject { key, name, len, bytes, etag: object.etag(), verified: false };
    let hit = match classify(shared, key, &read, None) {
        ObjectState::Verified | ObjectState::Unverified => {
            let found = shared.record_found(seen, version);
            if let (Some(StoredFacts::Valid(facts)), Some(etag)) = (&read.facts, object.etag()) {
                shared.note_facts(key, etag, facts.sums.whole());
            }
            found
        }
        ObjectState::Miss(_) => false,
        ObjectState::Unusable(reason) => {
            mark_unusable(shared, seen, version, reason);
            false
        }
    };
    Ok(Some(presence_of(hit.then_some(len))))
}

/// Whether a listing is better than a HEAD for each key that is not fresh.
fn is_for_a_list(shared: &Shared, keys: &[Key]) -> bool {
    let catalog = shared.catalog();
    let now_ms = shared.now_ms();
    // The whole tier is listed, whatever is asked for, so the cost follows its size.
    let pages = catalog.index.usage().entries / PAGE_KEYS + 1;
    // Without a cap the size of the bucket is unknown.
    if shared.capacity_bytes.is_none()
        || !catalog.is_listed
        || !is_listing_better(keys.len(), pages)
    {
        return false;
    }
    // Where only the raw length of a chunk is unknown, a listing does not show it.
    let needs_head = |key: &Key| {
        let entry = catalog.index.get(key.digest());
        entry.is_some_and(|entry| raw_len(&entry.chunk).is_none())
    };
    let is_unknown = |key: &&Key| catalog.known(key.digest(), now_ms).is_none() && !needs_head(key);
    let unknown = keys.iter().filter(is_unknown).count();
    is_listing_better(unknown, pages)
}

/// Whether `pages`, which come one after the other, take no longer than `heads`, which run
/// [`HEADS_MAX`] at a time, and cost less.
fn is_listing_better(heads: usize, pages: usize) -> bool {
    pages <= pages_max(heads) && pages * PAGE_PRICE < heads
}

/// The most pages that take no longer than `heads`.
fn pages_max(heads: usize) -> usize {
    heads.div_ceil(HEADS_MAX) / PAGE_TIME
}

/// Finds with one listing which of the keys exist, and their lengths.
async fn list(
    shared: &Shared,
    keys: &[Key],
    deadline: Instant,
) -> Result<HashMap<Digest, Option<u64>>, Error> {
    let unknown = keys.iter().filter(|key| shared.known(key.digest()).is_none());
    let digests: Vec<Digest> = unknown.map(|key| *key.digest()).collect();
    let by_digest: HashMap<&Digest, &Key> = keys.iter().map(|key| (key.digest(), key)).collect();
    // In order, so that what is missing is recorded in the same order in each simulation.
    let mut asked = BTreeMap::new();
    // Keys that another lookup asks for are left to it; keys that are fresh by now are not asked
    // for again.
    // From now on other lookups of these keys wait for this listing.
    for flight in shared.heads.lead_all(&digests) {
        if shared.known(flight.digest()).is_none() {
            let key = by_digest[flight.digest()];
            asked.insert(shared.name_of(key)?, (key, shared.key_locks.read(key.digest()), flight));
        }
    }
    if asked.is_empty() {
        return Ok(HashMap::new());
    }
    add(&shared.counters.listed_lookups, 1);
    let what = List::under(shared.names.root());
    let client = shared.client.until(deadline);
    let mut next: Option<String> = None;
    let mut answers = HashMap::new();
    // One more than expected: other nodes may have stored since the bucket was counted.
    for _page in 0..=pages_max(keys.len()) {
        let _permit = shared.scheduler.acquire(RequestQueue::Lookup).await;
        let page = client
            .list(&what, next.as_deref())
            .await
            .map_err(|e| shared.error("lookup", None, e))?;
        for entry in &page.entries {
            // Chunks whose length is not the expected one get a HEAD.
            if let Some((key, version, _flight)) = asked.remove(&entry.key)
                && (shared.names.is_own() || shared.geometry.full(key) == Some(entry.bytes))
            {
                let (name, etag) = (entry.key.as_str(), Some(entry.etag.as_str()));
                let (listed, bytes) = (shared.listed_len(entry.bytes), entry.bytes);
                let len = shared.catalog().raw_len_of_listed(key.digest(), listed, bytes);
                let seen = FoundObject { key, name, len, bytes, etag, verified: false };
                let hit = shared.record_found(seen, &version);
                // A hit of unknown length gets a HEAD.
                if len != UNKNOWN_LEN || !hit {
                    answers.insert(*key.digest(), Some(len).filter(|_| hit));
                }
            }
        }
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    // The bucket is much larger than expected: the rest gets HEADs.
    if next.is_some() {
        return Ok(answers);
    }
    // Chunks that may have another name get HEADs too.
    asked.retain(|_, (key, ..)| shared.names.old_name(key).is_none());
    for (key, version, _flight) in asked.values() {
        shared.record_missing(key.digest(), version);
        answers.insert(*key.digest(), None);
    }
    Ok(answers)
}

/// Holds the hits of a lookup. A hit that was evicted since is a miss.
fn hold(
    shared: &Shared,
    keys: &[Key],
    found: Vec<Presence>,
    hold: Hold,
) -> Result<LookedUp, Error> {
    let found = LookedUp::new(found, None);
    let Hold::For(ttl) = hold else { return Ok(found) };
    // Only now: an eviction may have taken a hit since its HEAD.
    let held = shared.catalog().index.hold_hits(shared.now_ms(), ttl, &found.hits(keys));
    let held =
        held.map_err(|full| Error::new(ErrorKind::Throttled, "too many holds").with_source(full))?;
    let id = held.id.map(|id| HoldId(id.as_u64()));
    Ok(found.with_hold(id, keys, &held.gone))
}

#[cfg(test)]
mod tests {
    use kvtier_index::Chunk;
    use kvtier_key::{KeyId, Namespace};

    use super::*;
    use crate::test_shared::shared;

    /// Nothing but lookups without holds comes after it, so nothing else ends the hold.
    #[tokio::test(start_paused = true)]
    async fn a_hold_that_has_expired_keeps_no_chunk_fresh() {
        let shared = shared(|_| {});
        let id = KeyId::from_engine_text("m@1@0@ab@half").unwrap();
        let key = Key::new(Namespace::new("", Digest::default()).into(), id);
        {
            let mut catalog = shared.catalog();
            let _ = catalog.insert_unseen(Chunk::new(*key.digest(), 10, 10));
            catalog.confirm(key.digest(), 16);
        }
        let keys = [key];
        let lookup = |hold| from_memory(&shared, &keys, Mode::Each, hold).map(Result::unwrap);
        assert!(lookup(Hold::For(Duration::from_secs(90))).is_some());
        tokio::time::advance(Duration::from_secs(80)).await;
        assert!(lookup(Hold::None).is_some_and(|found| found.found[0].is_hit()), "it is held");
        tokio::time::advance(Duration::from_secs(11)).await;
        assert!(lookup(Hold::None).is_none());
    }

    #[test]
    fn a_listing_is_chosen_where_it_is_no_slower_and_cheaper() {
        // A page takes as long as four HEADs, of which 32 run at a time.
        assert!(!is_listing_better(96, 1), "the HEADs end first");
        assert!(is_listing_better(97, 1));
        assert!(is_listing_better(1024, 8) && !is_listing_better(1024, 9));
        // A hundred pages, one after the other, for a batch that HEADs answer in 32 rounds.
        assert!(!is_listing_better(1024, 100));
        let bought = |pages| (1..).find(|heads| is_listing_better(*heads, pages));
        assert!((1..100).all(|pages| bought(pages) > Some(pages * PAGE_PRICE)));
    }
}
