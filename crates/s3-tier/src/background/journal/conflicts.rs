//! What journals leave open: whether a chunk that one node deleted and another saved at about the
//! same time is there. The bucket is asked, in the background.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kvtier_core::Event;
use kvtier_index::Chunk;
use kvtier_key::Digest;
use kvtier_s3::try_for_each_concurrent;
use tokio::time::Instant;

use crate::state::counters::add;
use crate::state::key_locks::Look;
use crate::state::scheduler::Lane;
use crate::state::shared::Shared;

/// The most questions that wait; what is beyond waits for the next listing.
const WAITING_MAX: usize = 4096;
/// The most questions that are asked after one look at the journals.
const ASKED_MAX: usize = 256;
/// How many of them at a time.
const WIDTH: usize = 16;
/// No longer than this: journals have to be written meanwhile.
const TIME_MAX: Duration = Duration::from_secs(5);

/// The chunks to be asked for, as they were told of.
#[derive(Debug, Default)]
pub struct Questions(HashMap<Digest, Chunk>);

impl Questions {
    /// It is unclear whether the chunk is there.
    pub fn put(&mut self, chunk: Chunk) {
        if self.0.len() < WAITING_MAX || self.0.contains_key(&chunk.digest) {
            self.0.insert(chunk.digest, chunk);
        }
    }

    /// Asks some of them.
    pub async fn ask(&mut self, shared: &Shared) {
        let until = Instant::now() + TIME_MAX;
        let some: Vec<Chunk> = self.0.values().take(ASKED_MAX).copied().collect();
        let answered = Mutex::new(Vec::with_capacity(some.len()));
        let asked = some.iter().map(|chunk| async {
            if one(shared, chunk, until).await? {
                answered.lock().unwrap_or_else(PoisonError::into_inner).push(chunk.digest);
            }
            Ok(())
        });
        if let Ok(Err(e)) =
            tokio::time::timeout(TIME_MAX, try_for_each_concurrent(asked, WIDTH)).await
        {
            drop(shared.error("ask", None, e));
        }
        for digest in answered.into_inner().unwrap_or_else(PoisonError::into_inner) {
            self.0.remove(&digest);
        }
    }
}

/// Asks for one chunk. `false`: somebody here changes it meanwhile, and it is to be asked for
/// again.
async fn one(shared: &Shared, chunk: &Chunk, until: Instant) -> kvtier_s3::Result<bool> {
    let look = shared.turns.look(&chunk.digest);
    let names = names(shared, &chunk.digest);
    for name in &names {
        let _go = shared.lanes.turn(Lane::Lookup).await;
        add(&shared.counters.heads, 1);
        match shared.client.until(until).head(name).await {
            Ok(Some(object)) => return Ok(found(shared, chunk, (object.total(), &look))),
            Ok(None) => {}
            Err(e) if e.is_retryable() => return Err(e),
            // It will not be answered another time either: the listing tells.
            Err(e) => {
                drop(shared.error("ask", None, e));
                return Ok(true);
            }
        }
    }
    let current = look.is_current();
    if !names.is_empty() {
        shared.vanished(&chunk.digest, &look);
    }
    Ok(current)
}

/// The names that the chunk may have; none where it is not in the index and its digest does not
/// tell.
fn names(shared: &Shared, digest: &Digest) -> Vec<String> {
    let known = shared.books().name(digest).map(|name| name.to_string());
    let name = known.or_else(|| shared.names.is_own().then(|| shared.names.of_digest(digest)));
    let twin = name.as_ref().and_then(|name| shared.names.twin(name));
    name.into_iter().chain(twin).collect()
}

/// It is there, and so long: counted, if it was not.
fn found(shared: &Shared, chunk: &Chunk, (len, look): (u64, &Look<'_>)) -> bool {
    let mut books = shared.books();
    if !look.is_current() {
        return false;
    }
    let digest = chunk.digest;
    let new = !books.index.is_known(&digest);
    if new {
        let mut chunk = *chunk;
        (chunk.len, chunk.bytes) = (len, len);
        let _ = books.hear_of(chunk);
        shared.listeners.push(Event::Stored { key: digest, len });
    } else if books.index.known(&digest).is_some_and(|entry| entry.chunk.len != len) {
        books.index.resize(&digest, len, len);
    }
    books.confirm(&digest, shared.now_ms());
    drop(books);
    if new {
        add(&shared.counters.added_externally, 1);
        shared.outbox.ring();
        shared.listeners.notify();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_questions_wait_than_may() {
        let mut questions = Questions::default();
        let chunk = |n: usize| Chunk::new(Digest::derive("test", &n.to_le_bytes()), 1, 1);
        (0..2 * WAITING_MAX).for_each(|n| questions.put(chunk(n)));
        assert_eq!(questions.0.len(), WAITING_MAX);
        questions.put(Chunk::new(chunk(0).digest, 2, 2));
        assert_eq!(questions.0[&chunk(0).digest].len, 2, "what is told last counts");
    }
}
