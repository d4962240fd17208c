use kvtier_core::{Error, ErrorKind, Hold, HoldId, Key, LookedUp, Mode, Presence, Reply};

use crate::mover::Mover;
use crate::shared::Shared;

/// Answers a lookup from the index. Calls `ask` for each key that the index lacks; `ask` may read
/// the directory, and returns `None` to give up the lookup.
pub fn lookup<M: Mover>(
    shared: &Shared<M>,
    keys: &[Key],
    mode: Mode,
    hold: Hold,
    ask: impl Fn(&Key) -> Option<Option<u64>>,
) -> Option<Result<LookedUp, Error>> {
    let mut found = vec![Presence::Unknown; keys.len()];
    // The entries lie anywhere in memory: asked for together, their cache misses overlap.
    if keys.len() > 1 {
        shared.index().prefetch(keys.iter().map(Key::digest));
    }
    for (key, presence) in keys.iter().zip(&mut found) {
        let known = shared.known_len(key.digest());
        let len = match known {
            Some(len) => Some(len),
            None => ask(key)?,
        };
        *presence = len.map_or(Presence::Miss, |len| Presence::Hit { len });
        // What follows the first miss of a prefix is not asked for, so it stays unknown.
        if len.is_none() && mode == Mode::Prefix {
            break;
        }
    }
    // The keys of one lookup are a chain: eviction takes its last chunks first.
    if keys.len() > 1 {
        shared.index().learn_order(keys);
    }
    Some(hold_hits(shared, keys, LookedUp::new(found, None), hold))
}

/// Holds the hits of a lookup. A hit that was evicted since is a miss.
fn hold_hits<M: Mover>(
    shared: &Shared<M>,
    keys: &[Key],
    found: LookedUp,
    hold: Hold,
) -> Result<LookedUp, Error> {
    let Hold::For(ttl) = hold else { return Ok(found) };
    // In one step: no chunk of the answer is evicted after it was seen and before it is held.
    let held = shared.index().hold_hits(shared.now_ms(), ttl, &found.hits(keys));
    let held =
        held.map_err(|full| Error::new(ErrorKind::Throttled, "too many holds").with_source(full))?;
    let id = held.id.map(|id| HoldId(id.as_u64()));
    Ok(found.with_hold(id, keys, &held.gone))
}

/// Answers a lookup that must read the directory, or many records of peers. Releases the hold if the
/// caller no longer waits for the answer.
pub fn look<M: Mover>(
    shared: &Shared<M>,
    keys: &[Key],
    mode: Mode,
    hold: Hold,
    answer: Reply<LookedUp>,
) {
    // A chunk without a record in the change log may be found by its name.
    let asks_names = !shared.follow_changes().is_complete || shared.asks_names();
    let ask = |key: &Key| match answer.is_over() {
        true => None,
        false => Some(asks_names.then(|| shared.find_on_disk(key, None)).flatten()),
    };
    let Some(found) = lookup(shared, keys, mode, hold, ask) else { return answer.give_up() };
    answer.complete_or_release(found, |hold| shared.release(hold));
}
