//! Whether a tier serves again after the last fault: it stores a chunk that it lacks, and the load of it is
//! a hit.

use std::sync::OnceLock;
use std::time::Duration;

use kvtier_core::{Error, Saved, ShedReason};
use tokio::time::{Instant, sleep};

use crate::caller::{Caller, is_hit, is_stored};

/// The time limit of an operation. It is short: one key may wait for a request of another caller that
/// hangs.
pub const OPERATION_MAX: Duration = Duration::from_millis(400);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest time from one attempt to the next: a save and the load of what it stored.
pub const ATTEMPT_MAX: Duration = Duration::from_millis(2 * 400 + 50);
/// A tier is given up after this time.
const GIVEN_UP: Duration = Duration::from_secs(60);

/// When a tier served again, since the last fault: when the first attempt began that succeeded.
#[derive(Clone, Copy, Debug)]
pub struct ServedAgain {
    /// A chunk was loaded.
    pub loaded: Duration,
    /// A new one was stored, or shed for the reason that is allowed.
    pub saved: Duration,
    /// A new one was stored.
    pub stored: Duration,
}

/// What is tried until a tier serves again.
#[derive(Clone, Copy)]
pub struct Attempts<'a> {
    pub caller: &'a Caller<'a>,
    /// Keys are below this number.
    pub keys: u64,
    /// Whether the tier may shed new chunks now since it waits for another node to evict.
    pub may_be_full: &'a (dyn Fn() -> bool + Sync),
    /// Whether it must store a chunk some time.
    pub stores: bool,
}

impl Attempts<'_> {
    /// Tries until a chunk is loaded, and a new one is stored.
    pub async fn until_served(&self) -> ServedAgain {
        let began = Instant::now();
        let loaded = OnceLock::new();
        let loads = self.until_loaded(began, &loaded);
        let ((), saved) = tokio::join!(loads, self.until_saved(began, &loaded));
        ServedAgain { loaded: loaded.get().copied().unwrap_or(GIVEN_UP), ..saved }
    }

    /// Loads chunks until one is a hit, or what was stored was.
    async fn until_loaded(&self, began: Instant, loaded: &OnceLock<Duration>) {
        let mut at = began.elapsed();
        while at < GIVEN_UP && loaded.get().is_none() {
            if loads(self.caller, self.keys).await {
                loaded.get_or_init(|| at);
            }
            sleep(PAUSE).await;
            at = began.elapsed();
        }
    }

    async fn until_saved(&self, began: Instant, loaded: &OnceLock<Duration>) -> ServedAgain {
        let caller = self.caller;
        let began_at = caller.common.world.elapsed();
        let mut saved = None;
        loop {
            let at = began.elapsed();
            if at >= GIVEN_UP {
                break;
            }
            if let Some(n) = absent(caller, self.keys) {
                let results = caller.save(&[n]).await;
                if is_stored(&results) && is_hit(&caller.load(&[n]).await) {
                    let saved = saved.unwrap_or(at);
                    loaded.get_or_init(|| at);
                    return ServedAgain { loaded: at, saved, stored: at };
                }
                if is_full(&results) && (self.may_be_full)() {
                    saved.get_or_insert(at);
                }
            }
            // Callers share what a node may write.
            let has_stored = !self.stores || caller.has_stored_since(began_at);
            if has_stored && saved.is_some() {
                break;
            }
            sleep(PAUSE).await;
        }
        let stored = began.elapsed();
        ServedAgain { loaded: stored, saved: saved.unwrap_or(stored), stored }
    }
}

fn is_full(saved: &[Result<Saved, Error>]) -> bool {
    matches!(saved, [Ok(Saved::Shed(ShedReason::Full))])
}

/// A chunk of the bucket is a hit. Where it has none, a load is answered without an error.
async fn loads(caller: &Caller<'_>, keys: u64) -> bool {
    match any(caller, keys, |n| caller.common.is_in_bucket(n)) {
        Some(n) => is_hit(&caller.load(&[n]).await),
        None => caller.load(&[0]).await.iter().all(Result::is_ok),
    }
}

/// A chunk that neither the tier nor the bucket has.
fn absent(caller: &Caller<'_>, keys: u64) -> Option<u64> {
    let tier = caller.tier.as_ref()?;
    let has = |n| tier.lookup_in_memory(&[caller.common.model().key(n)])[0].is_hit();
    any(caller, keys, |n| !has(n) && !caller.common.is_in_bucket(n))
        .or_else(|| any(caller, keys, |n| !has(n)))
}

/// The first chunk from a random one on of which this is so.
fn any(caller: &Caller<'_>, keys: u64, is_it: impl Fn(u64) -> bool) -> Option<u64> {
    let first = caller.common.world.below(keys);
    (first..first + keys).map(|n| n % keys).find(|n| is_it(*n))
}
