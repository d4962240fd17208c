//! Removes: deletes chunks that callers name.

use std::sync::Arc;

use kvtier_core::{Error, Key, Mode, Removed};
use tokio::time::Instant;

use crate::ops::evict::{self, Victim};
use crate::ops::lookup;
use crate::state::shared::Shared;

/// Removes keys that are not held, also those that other nodes wrote.
pub async fn remove(
    shared: Arc<Shared>,
    keys: Arc<[Key]>,
    deadline: Instant,
) -> Result<Removed, Error> {
    // A key that is unknown could be there: it is not said to be absent.
    if let Some(error) = lookup::ask(&shared, &keys, Mode::Each, deadline).await?.error {
        return Err(error);
    }
    // Sorted, so that no two removes wait for each other.
    let named = |key| Ok((key, shared.names.format(key)?));
    let mut sorted: Vec<(&Key, String)> = keys.iter().map(named).collect::<Result<_, Error>>()?;
    sorted.sort_unstable_by_key(|(key, _)| *key.digest().as_bytes());
    let mut counts = Removed::default();
    let mut victims = Vec::new();
    let mut last = None;
    for (key, name) in sorted {
        let digest = *key.digest();
        if last.replace(digest) == Some(digest) {
            counts.absent += 1;
            continue;
        }
        // A running save of the key ends first, so the delete comes behind its PUT.
        let guard = shared.key_locks.write(&digest).await;
        let mut catalog = shared.catalog();
        catalog.index.expire_holds(shared.now_ms());
        // A victim whose key is not in use waits to be deleted: this remove takes it over.
        catalog.index.abort_evict(&digest);
        match catalog.index.begin_evict(&digest) {
            kvtier_index::RemoveOutcome::Gone(entry) => {
                // It may have come by a peer's journal since the bucket was asked, without its name.
                let name = catalog.name(&digest).map_or(name, |known| known.to_string());
                victims.push(Victim { entry, name, _guard: guard });
            }
            kvtier_index::RemoveOutcome::Held => counts.held += 1,
            _ => counts.absent += 1,
        }
    }
    // Victims must be settled whatever happens to the caller; the client's deadline limits the
    // time.
    let wanted = victims.len();
    let (gone, error) = evict::delete(&shared, victims).await;
    counts.removed = gone;
    if gone < wanted { Err(evict::not_deleted(error)) } else { Ok(counts) }
}
