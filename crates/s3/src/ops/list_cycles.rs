//! Detects listings that never end: their tokens repeat, or their pages repeat under new tokens.
//! Brent's algorithm follows each listing with a few numbers, however many pages it has.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most listings that are followed at a time; beyond, the one that stood still longest is
/// followed from where it is.
const LISTINGS_MAX: usize = 64;

/// The listings of a client that are under way.
#[derive(Debug, Default)]
pub struct Listings {
    /// By what the next page is asked for with; the latest last.
    under_way: Mutex<VecDeque<(u64, Trail)>>,
    hashes: RandomState,
}

/// One step of a listing.
#[derive(Clone, Copy, Debug)]
pub struct ListStep<L, T, C> {
    /// What is listed.
    pub what: L,
    /// Where the page began; `None` for the first.
    pub from: Option<T>,
    /// Where the next one begins; `None` on the last.
    pub next: Option<T>,
    /// What is on the page; `None` when nothing is.
    pub content: Option<C>,
}

/// The pages of one listing so far.
#[derive(Clone, Copy, Debug, Default)]
struct Trail {
    tokens: Brent,
    contents: Brent,
}

/// Finds any cycle: of a cycle of `n` that begins after `m`, within three times `m + n`.
#[derive(Clone, Copy, Debug, Default)]
struct Brent {
    kept: Option<u64>,
    /// How many come before another is kept, and how many have come.
    power: u64,
    came: u64,
}

impl Listings {
    /// Follows a step; whether the listing came to where it was before. Then it is not followed
    /// further, so that the same step asked for again says so again.
    pub fn is_cycle<L: Hash, T: Hash, C: Hash>(&self, step: ListStep<L, T, C>) -> bool {
        let place = |token: &T| self.hashes.hash_one((&step.what, token));
        let from = step.from.as_ref().map(place);
        let Some(next) = step.next.as_ref().map(place) else {
            // The last page: the listing is over.
            from.and_then(|from| take(&mut self.under_way(), from));
            return false;
        };
        let mut under_way = self.under_way();
        let found = from.and_then(|from| take(&mut under_way, from));
        let mut trail = found.unwrap_or_default();
        let content = step.content.map(|content| self.hashes.hash_one(content));
        let is_cycle = from == Some(next)
            || trail.tokens.repeats(next)
            || content.is_some_and(|content| trail.contents.repeats(content));
        let followed = match (is_cycle, from, found) {
            (false, ..) => Some((next, trail)),
            // The trail before this step stays, so that a retry of the same page is judged alike.
            (true, Some(from), Some(before)) => Some((from, before)),
            (true, ..) => None,
        };
        // A listing that its caller has given up ends here; it is never finished.
        if under_way.len() >= LISTINGS_MAX {
            under_way.pop_front();
        }
        under_way.extend(followed);
        is_cycle
    }

    fn under_way(&self) -> MutexGuard<'_, VecDeque<(u64, Trail)>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn take(under_way: &mut VecDeque<(u64, Trail)>, place: u64) -> Option<Trail> {
    let at = under_way.iter().position(|(other, _)| *other == place)?;
    under_way.remove(at).map(|(_, trail)| trail)
}

impl Brent {
    fn repeats(&mut self, one: u64) -> bool {
        if self.kept == Some(one) {
            return true;
        }
        self.came += 1;
        // Brent: what is kept is replaced at growing distances, so a cycle of any length is met.
        if self.came >= self.power {
            (self.kept, self.power, self.came) = (Some(one), (2 * self.power).max(1), 0);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(
        from: Option<u64>,
        next: Option<u64>,
        content: Option<u64>,
    ) -> ListStep<&'static str, u64, u64> {
        ListStep { what: "all", from, next, content }
    }

    /// How many pages are read of a listing whose tokens, and whose contents, go round after
    /// `begin`, in a round of `len`.
    fn pages(begin: u64, len: u64, by_token: bool, by_content: bool) -> u64 {
        let listings = Listings::default();
        let mut from = None;
        let turned = |n: u64| if n < begin { n } else { begin + (n - begin) % len };
        for n in 0.. {
            let next = Some(if by_token { turned(n) } else { n });
            let content = by_content.then(|| turned(n));
            if listings.is_cycle(step(from, next, content)) {
                assert!(
                    listings.is_cycle(step(from, next, content)),
                    "asked again it says so again"
                );
                return n;
            }
            assert!(listings.under_way().len() <= 1);
            from = next;
        }
        unreachable!("it goes on for ever")
    }

    #[test]
    fn every_cycle_is_found_soon() {
        for begin in [0, 1, 2, 7, 100] {
            for len in [1, 2, 3, 5, 64, 100] {
                for kind in [(true, false), (false, true), (true, true)] {
                    let read = pages(begin, len, kind.0, kind.1);
                    assert!(read <= 3 * (begin + len) + 3, "{begin} {len} {kind:?}: {read}");
                }
            }
        }
    }

    #[test]
    fn listings_that_end_are_none_however_they_are_read() {
        let listings = Listings::default();
        // Two at the same time, each page asked for twice, some of them empty.
        for n in 0..1000u64 {
            let from = n.checked_sub(1);
            for _ in 0..4 {
                let content = (n % 3 > 0).then_some(n);
                assert!(!listings.is_cycle(step(from, Some(n), content)), "{n}");
            }
        }
        assert!(listings.under_way().len() <= LISTINGS_MAX);
        for _ in 0..4 {
            assert!(!listings.is_cycle(step(Some(999), None, Some(1000))));
        }
        // The next listing is another.
        assert!(!listings.is_cycle(step(None, Some(0), Some(1))));
    }

    #[test]
    fn more_listings_than_are_followed_cost_no_more_memory() {
        let listings = Listings::default();
        for n in 0..10_000u64 {
            assert!(!listings.is_cycle(ListStep {
                what: n,
                from: None,
                next: Some(1),
                content: Some(2)
            }));
        }
        assert_eq!(listings.under_way().len(), LISTINGS_MAX);
    }
}
