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
    for page in [1, 2, 7, 23, 1000] {
        let mut all = listing(&*f.tier, page);
        all.sort_unstable();
        assert_eq!(all, expected, "pages of {page}");
    }
}

#[derive(Debug, Default)]
struct Heard(Mutex<BTreeMap<Digest, Vec<Event>>>);

impl Listener for Heard {
    fn on_events(&self, events: &[Event]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            if let Event::Stored { key, .. } | Event::Gone { key, .. } = event {
                // A listing of a shared medium may find, and tell of, what is being saved before
                // the save is done.
                let told = all.entry(*key).or_default();
                if told.last() != Some(event) {
                    told.push(*event);
                }
            }
        }
    }
}

/// Listeners hear, key by key and in order, what was stored and what is gone.
pub fn stored_and_gone_are_heard(make: &dyn Fn() -> Fixture) {
    let f = make();
    let heard = Arc::new(Heard::default());
    f.tier.listen(heard.clone());
    let key = *f.key(0).digest();
    let len = LEN as u64;
    f.store(&f.keys([0, 1]), LEN);
    f.remove(&f.keys([0]));
    f.store(&f.keys([0]), LEN);
    let of =
        |n| heard.0.lock().unwrap_or_else(PoisonError::into_inner).get(f.key(n).digest()).cloned();
    let stored = Event::Stored { key, len };
    f.eventually("three events", || of(0).is_some_and(|events| events.len() >= 3));
    assert_eq!(of(0), Some(vec![stored, Event::Gone { key, len }, stored]));
    assert_eq!(of(1), Some(vec![Event::Stored { key: *f.key(1).digest(), len }]));
}

/// However many save and remove a key at once, what listeners hear of it last is how it is. No
/// promise of every tier, so not in the suite: the tiers of a stack each tell of theirs.
pub fn what_is_heard_last_of_a_key_is_so(f: &Fixture) {
    let heard = Arc::new(Heard::default());
    f.tier.listen(heard.clone());
    std::thread::scope(|scope| {
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
            heard
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get(f.key(n).digest())?
                .last()
                .copied()
        };
        f.eventually("what was heard last is so", || {
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
