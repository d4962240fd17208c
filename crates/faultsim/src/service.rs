//! Whether a tier serves again after the last fault: it stores a chunk that it lacks, and the load of it is
//! a hit.

use std::time::Duration;

use kvtier_core::{Error, Saved, ShedReason};
use tokio::time::{Instant, sleep};

use crate::caller::{Caller, is_hit, is_stored};

/// The time limit of an operation. It is short: one key may wait for a request of another caller that
/// hangs.
pub const OPERATION_MAX: Duration = Duration::from_millis(400);
/// A tier is given up after this time.
const GIVEN_UP: Duration = Duration::from_secs(60);

/// When a tier served again, since the last fault.
#[derive(Clone, Copy, Debug)]
pub struct ServedAgain {
    /// A chunk was loaded.
    pub loaded: Duration,
    /// A new one was stored, or shed for the reason that is allowed.
    pub saved: Duration,
    /// A new one was stored.
    pub stored: Duration,
}

/// Tries until a chunk is stored and loaded. The keys are below `keys`. `may_be_full`: whether it may shed
/// new chunks now since it waits for another node to evict. `stores`: whether it must store one some time.
pub async fn serves_again(
    caller: &Caller<'_>,
    keys: u64,
    may_be_full: &(dyn Fn() -> bool + Sync),
    stores: bool,
) -> ServedAgain {
    let (began, began_at) = (Instant::now(), caller.common.world.elapsed());
    let (mut loaded, mut saved) = (None, None);
    let mut is_done = false;
    while !is_done && began.elapsed() < GIVEN_UP {
        if let Some(n) = absent(caller, keys) {
            let results = caller.save(&[n]).await;
            if is_stored(&results) && is_hit(&caller.load(&[n]).await) {
                loaded.get_or_insert(began.elapsed());
                saved.get_or_insert(began.elapsed());
                break;
            }
            if is_full(&results) && may_be_full() {
                saved.get_or_insert(began.elapsed());
            }
        }
        if loaded.is_none() && loads(caller, keys).await {
            loaded = Some(began.elapsed());
        }
        // Callers share what a node may write.
        let has_stored = !stores || caller.has_stored_since(began_at);
        is_done = has_stored && loaded.is_some() && saved.is_some();
        sleep(Duration::from_millis(50)).await;
    }
    let stored = began.elapsed();
    ServedAgain { loaded: loaded.unwrap_or(stored), saved: saved.unwrap_or(stored), stored }
}

fn is_full(saved: &[Result<Saved, Error>]) -> bool {
    matches!(saved, [Ok(Saved::Shed(ShedReason::Full))])
}

/// A chunk of the bucket is a hit.
async fn loads(caller: &Caller<'_>, keys: u64) -> bool {
    match any(caller, keys, |n| caller.common.is_in_bucket(n)) {
        Some(n) => is_hit(&caller.load(&[n]).await),
        None => false,
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
