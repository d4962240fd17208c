use std::sync::Arc;
use std::time::Instant;

use kvtier_core::{Completer, Error, ErrorKind, Hold, HoldId, Key, LookedUp, Mode, Presence, Removed};
use kvtier_key::Digest;

use crate::mover::Mover;
use crate::shared::Shared;

/// Answers a lookup: the index first, the directory for what another process may have written. `None` when the directory would have
/// to be asked and `may_block` is false.
pub fn lookup<M: Mover>(
    shared: &Shared<M>,
    keys: &[Key],
    (mode, hold): (Mode, Hold),
    may_block: bool,
) -> Option<Result<LookedUp, Error>> {
    let mut found = vec![Presence::Unknown; keys.len()];
    let mut hits: Vec<Digest> = Vec::with_capacity(keys.len());
    for (key, presence) in keys.iter().zip(&mut found) {
        let known = shared.index().get(key.digest()).map(|e| e.chunk.len);
        let len = match known {
            Some(len) => Some(len),
            None if !may_block => return None,
            None => shared.discover(key, None),
        };
        *presence = len.map_or(Presence::Miss, |len| Presence::Hit { len });
        match len {
            Some(_) => hits.push(*key.digest()),
            None if mode == Mode::Prefix => break,
            None => {}
        }
    }
    let hold = match hold {
        Hold::For(ttl) if !hits.is_empty() => {
            let until = shared.now_ms().saturating_add(ttl.as_millis() as u64);
            let mut index = shared.index();
            index.expire_holds(shared.now_ms());
            // What went between looking and holding is a miss after all.
            hits.retain(|digest| index.get(digest).is_some());
            match index.hold(&hits, until) {
                Ok(id) => Some(HoldId(id.as_u64())),
                Err(full) => return Some(Err(Error::new(ErrorKind::Throttled, "too many holds").with_source(full))),
            }
        }
        _ => None,
    };
    for (key, presence) in keys.iter().zip(&mut found) {
        if presence.is_hit() && !hits.contains(key.digest()) {
            *presence = Presence::Miss;
        }
    }
    Some(Ok(LookedUp::new(found, hold)))
}

/// Removes keys that nobody holds; those of other processes too.
pub fn remove<M: Mover>(
    shared: &Arc<Shared<M>>,
    keys: &[Key],
    deadline: Instant,
    answer: Completer<Result<Removed, Error>>,
) {
    let mut counts = Removed::default();
    for key in keys {
        if Instant::now() >= deadline {
            return answer.complete(Err(Error::new(ErrorKind::Timeout, "the deadline passed").with_op("remove")));
        }
        if shared.index().get(key.digest()).is_none() {
            shared.discover(key, None);
        }
        let mut index = shared.index();
        index.expire_holds(shared.now_ms());
        match index.leave(key.digest()) {
            kvtier_index::Removed::Gone(entry) => {
                drop(index);
                counts.removed += shared.delete(vec![entry]);
            }
            kvtier_index::Removed::Held => counts.held += 1,
            _ => counts.absent += 1,
        }
    }
    answer.complete(Ok(counts));
}
