//! Whether the events of a tier say which keys it has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvtier_core::{Cursor, Digest, Event, Listener, Observe};

use crate::world::World;

/// How often the events are compared with the keys.
pub const COMPARE_EVERY: Duration = Duration::from_millis(500);
/// How many keys a page has: more than there are.
const PAGE: usize = 4096;
/// How long a chunk may be evicted: then it is gone, or listed again.
const EVICTING_MAX: Duration = Duration::from_secs(20);

/// The keys of a tier by its events: those that it had when it was opened, and what was reported since.
#[derive(Debug)]
pub struct KeyEvents {
    /// What the tier is called in a finding.
    name: String,
    state: Mutex<Reported>,
}

#[derive(Debug, Default)]
struct Reported {
    keys: BTreeSet<Digest>,
    /// Since when some of them are not listed.
    unlisted: BTreeMap<Digest, Duration>,
    /// The first event that reported what was so before.
    repeated: Option<Event>,
    /// Events were lost. The keys have to be listed again.
    has_missed: bool,
}

impl KeyEvents {
    /// Follows a tier from now on.
    pub fn of(name: String, tier: &dyn Observe) -> Arc<Self> {
        let events = Arc::new(KeyEvents { name, state: Mutex::default() });
        tier.listen(Arc::clone(&events) as Arc<dyn Listener>);
        events.state().keys = keys_of(tier);
        events
    }

    /// Every key that the tier lists was reported, and none is unlisted for longer than an eviction takes. The process
    /// has run without a stop since `runs_since`.
    pub fn compare(&self, world: &World, tier: &dyn Observe, runs_since: Duration) {
        let mut state = self.state();
        let listed = keys_of(tier);
        if std::mem::take(&mut state.has_missed) {
            state.keys = listed;
            return;
        }
        if let Some(event) = state.repeated.take() {
            world.finding("events", format!("{} reports what was so: {event:?}", self.name));
        }
        let silent: Vec<_> = listed.difference(&state.keys).copied().collect();
        if !silent.is_empty() {
            world.finding("events", format!("{} never reported {silent:?}", self.name));
            state.keys.extend(silent);
        }
        let now = world.elapsed();
        let Reported { keys, unlisted, .. } = &mut *state;
        unlisted.retain(|key, _| keys.contains(key) && !listed.contains(key));
        for key in keys.difference(&listed) {
            let since = *unlisted.entry(*key).or_insert(now);
            if now - since.max(runs_since) > EVICTING_MAX {
                let what = format!("{} reported no end of {key:?} since {since:?}", self.name);
                world.finding("events", what);
                unlisted.insert(*key, now);
            }
        }
    }

    /// The same, and the end of every key that it does not list any more. One that is being evicted is not
    /// listed, but may stay.
    pub fn compare_all(&self, world: &World, tier: &dyn Observe) {
        self.compare(world, tier, Duration::ZERO);
        let mut state = self.state();
        let listed = keys_of(tier);
        let gone: Vec<_> = state.keys.difference(&listed).collect();
        if !gone.is_empty() {
            world.finding("events", format!("{} never reported the end of {gone:?}", self.name));
        }
        state.keys = listed;
    }

    fn state(&self) -> MutexGuard<'_, Reported> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener for KeyEvents {
    fn on_events(&self, events: &[Event]) {
        let mut state = self.state();
        for event in events {
            let is_new = match event {
                // Also where a chunk replaces an older one.
                Event::Stored { key, .. } => {
                    state.keys.insert(*key);
                    true
                }
                Event::Gone { key, .. } => state.keys.remove(key),
                Event::Missed { .. } => {
                    state.has_missed = true;
                    true
                }
                _ => true,
            };
            if !is_new {
                state.repeated.get_or_insert(*event);
            }
        }
    }
}

fn keys_of(tier: &dyn Observe) -> BTreeSet<Digest> {
    let mut keys = BTreeSet::new();
    let mut from = Some(Cursor::default());
    while let Some(cursor) = from {
        let page = tier.keys(cursor, PAGE);
        keys.extend(page.keys.iter().map(|info| info.key));
        from = page.next;
    }
    keys
}
