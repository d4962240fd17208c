//! What an operator sees.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use kvtier_core::{Cursor, Digest, Event, Listener, Tier};

use super::Fixture;

const LEN: usize = 9000;

/// Usage counts chunks and bytes as they come and go.
pub fn usage_counts_what_is_there(make: &dyn Fn() -> Fixture) {
    let f = make();
    assert_eq!(f.tier.usage().chunks, 0);
    f.store(&f.keys(0..5), LEN);
    let usage = f.tier.usage();
    assert_eq!(usage.chunks, 5);
    assert!(usage.used_bytes.is_none_or(|used| used >= 5 * LEN as u64), "{usage:?}");
    f.remove(&f.keys(0..5));
    f.eventually("usage falls to nothing", || {
        let usage = f.tier.usage();
        usage.chunks == 0 && usage.used_bytes.is_none_or(|used| used == 0)
    });
}

fn listing(tier: &dyn Tier, page: usize) -> Vec<(Digest, u64)> {
    let mut all = Vec::new();
    let mut from = Cursor::default();
    // A bound, for a tier whose cursor does not move.
    for _ in 0..10_000 {
        let got = tier.keys(from, page);
        assert!(got.keys.len() <= page, "a page of {} where {page} were asked", got.keys.len());
        all.extend(got.keys.iter().map(|info| (info.key, info.len)));
        match got.next {
            Some(next) => from = next,
            None => return all,
        }
    }
    panic!("a listing without end");
}

/// The pages, of whatever size, list every chunk once, with its length.
pub fn pages_list_every_key_once(make: &dyn Fn() -> Fixture) {
    let f = make();
    assert!(listing(&*f.tier, 10).is_empty());
    let mut expected: Vec<_> = (0..23).map(|n| (*f.key(n).digest(), LEN as u64 + n)).collect();
    (0..23).for_each(|n| f.store(&f.keys([n]), LEN + n as usize));
    expected.sort_unstable();
    // Pages of one, of odd sizes, of exactly all keys, and of more.
    for page in [1, 2, 7, 23, 1000] {
        let mut all = listing(&*f.tier, page);
        all.sort_unstable();
        assert_eq!(all, expected, "pages of {page}");
    }
    // Cursors come from outside, as numbers. One behind the end must end the listing and not
    // overflow.
    for past in [1 << 32, u64::MAX] {
        let page = f.tier.keys(Cursor(past), 10);
        assert!(page.keys.is_empty() && page.next.is_none(), "from {past}: {page:?}");
    }
}

#[derive(Debug, Default)]
struct Received(Mutex<BTreeMap<Digest, Vec<Event>>>);

impl Listener for Received {
    fn on_events(&self, events: &[Event]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            if let Event::Stored { key, .. } | Event::Gone { key, .. } = event {
                // A listing of a shared medium may find, and report, what is being saved before
                // the save is done.
                let events = all.entry(*key).or_default();
                if events.last() != Some(event) {
                    events.push(*event);
                }
            }
        }
    }
}

/// Listeners receive, key by key and in order, what was stored and what was removed.
pub fn stored_and_removed_are_reported(make: &dyn Fn() -> Fixture) {
    let f = make();
    let received = Arc::new(Received::default());
    f.tier.listen(received.clone());
    let key = *f.key(0).digest();
    let len = LEN as u64;
    f.store(&f.keys([0, 1]), LEN);
    f.remove(&f.keys([0]));
    f.store(&f.keys([0]), LEN);
    let of = |n| {
        received.0.lock().unwrap_or_else(PoisonError::into_inner).get(f.key(n).digest()).cloned()
    };
    let stored = Event::Stored { key, len };
    f.eventually("three events", || of(0).is_some_and(|events| events.len() >= 3));
    assert_eq!(of(0), Some(vec![stored, Event::Gone { key, len }, stored]));
    assert_eq!(of(1), Some(vec![Event::Stored { key: *f.key(1).digest(), len }]));
}

/// However many save and remove a key at once, the last event that listeners receive matches its
/// state. Not every tier promises that, so it is not in the suite: each tier of a stack reports its
/// own events.
pub fn the_last_event_of_a_key_matches_the_state(f: &Fixture) {
    let received = Arc::new(Received::default());
    f.tier.listen(received.clone());
    std::thread::scope(|scope| {
        // Four threads on two keys: each key has writers that save and remove at the same time.
        for n in 0..4 {
            scope.spawn(move || {
                (0..10).for_each(|round| {
                    let keys = f.keys([(n + round) % 2]);
                    // Some save what others remove: which comes first is all the same.
                    if (n / 2 + round) % 2 == 0 {
                        let _ = f.save_with(f.save_op(&keys[0], LEN));
                    } else {
                        f.remove(&keys);
                    }
                });
            });
        }
    });
    for n in 0..2 {
        let is_there = || f.lookup(&f.keys([n]), kvtier_core::Mode::Each)[0].is_hit();
        let last = || {
            received
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get(f.key(n).digest())?
                .last()
                .copied()
        };
        // Events may arrive later than the answers.
        f.eventually("the last event matches", || {
            matches!(last(), Some(Event::Stored { .. })) == is_there()
        });
    }
}

/// A fresh tier works and says so.
pub fn status_says_whether_it_works(make: &dyn Fn() -> Fixture) {
    let f = make();
    let status = f.tier.status();
    assert!(status.healthy, "{status:?}");
    assert!(!f.tier.caps().name.is_empty());
    let mut names: Vec<_> = status.counters.iter().map(|(name, _)| *name).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "a counter's name twice");
}
