//! What was stored and removed, in the names of the engine.
//!
//! A tier reports digests. The log remembers the name of each chunk that this process stored or
//! found. Events of other chunks are ignored.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvtier::core::{Digest, Event, Listener};

/// The most names that are remembered: the removal of a chunk with an older one is not reported.
/// And the most events that wait to be taken; older events are dropped and counted.
const NAMES_MAX: usize = 1 << 20;
const EVENTS_MAX: usize = 1 << 16;
/// The most events of one call: the engine's scheduler makes an object of each, in its own thread.
const TAKEN_MAX: usize = 2048;

/// A chunk that was stored or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkEvent {
    pub is_removed: bool,
    pub name: Box<[u8]>,
}

/// Collects the events of the tiers.
#[derive(Debug, Default)]
pub struct EventLog(Mutex<Log>);

#[derive(Debug, Default)]
struct Log {
    names: HashMap<Digest, Name>,
    /// The digests of all names, the oldest first.
    order: VecDeque<Digest>,
    events: VecDeque<ChunkEvent>,
    dropped: u64,
}

#[derive(Debug)]
struct Name {
    name: Box<[u8]>,
    is_stored: bool,
}

impl EventLog {
    /// Remembers the name of a chunk that is about to be stored.
    pub fn remember(&self, digest: Digest, name: &[u8]) {
        self.lock().insert(digest, name, false);
    }

    /// Remembers the name of a chunk that was found, by any process.
    pub fn found(&self, digest: Digest, name: &[u8]) {
        self.lock().insert(digest, name, true);
    }

    /// A save found the chunk in the tier already. That is an event too, as it is in vLLM's own
    /// tiers: who missed the first one learns of the chunk now. `is_there` asks the tier again.
    pub fn present(&self, digest: &Digest, is_there: impl FnOnce() -> bool) {
        let mut log = self.lock();
        // Under the lock: a removal that the tier reports from now on comes after this event. One
        // that was reported since the save makes the answer `false`, and there is no event.
        if is_there() {
            log.stored(digest);
        }
    }

    /// The oldest events, in their order, and how many were dropped. Further ones are left to the
    /// next call.
    pub fn take(&self) -> (Vec<ChunkEvent>, u64) {
        let mut log = self.lock();
        let taken = log.events.len().min(TAKEN_MAX);
        (log.events.drain(..taken).collect(), std::mem::take(&mut log.dropped))
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener for EventLog {
    fn on_events(&self, events: &[Event]) {
        let mut log = self.lock();
        for event in events {
            match event {
                Event::Stored { key, .. } => log.stored(key),
                Event::Gone { key, .. } => log.gone(key),
                Event::Missed { events } => log.dropped += events,
                _ => {}
            }
        }
    }
}

impl Log {
    fn insert(&mut self, digest: Digest, name: &[u8], is_stored: bool) {
        if let Some(known) = self.names.get_mut(&digest) {
            // Never back to `false` here: only the tier says that a chunk is gone.
            known.is_stored |= is_stored;
            return;
        }
        self.names.insert(digest, Name { name: name.into(), is_stored });
        self.order.push_back(digest);
        // A name costs about 150 bytes. A million of them is more than the chunks of most disks.
        if self.order.len() > NAMES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.names.remove(&oldest);
        }
    }

    fn stored(&mut self, key: &Digest) {
        // A chunk of another process whose name was never seen here: the digest alone says nothing
        // to the engine.
        let Some(entry) = self.names.get_mut(key) else { return };
        entry.is_stored = true;
        let name = entry.name.clone();
        self.push(ChunkEvent { is_removed: false, name });
    }

    fn gone(&mut self, key: &Digest) {
        // The name stays: a save that replaces the chunk may be under way.
        let Some(entry) = self.names.get_mut(key).filter(|entry| entry.is_stored) else { return };
        entry.is_stored = false;
        let name = entry.name.clone();
        self.push(ChunkEvent { is_removed: true, name });
    }

    fn push(&mut self, event: ChunkEvent) {
        self.events.push_back(event);
        if self.events.len() > EVENTS_MAX {
            // Newer events say more about what is there now.
            self.events.pop_front();
            self.dropped += 1;
        }
    }
}
