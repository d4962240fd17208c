//! Selects the objects among the leases that nodes made. An epoch grows by one with each take-over,
//! so an object with a number far above the others is foreign. It must not count: no node could
//! succeed the highest of all numbers, and the age of that object alone would decide.

use std::time::Duration;

use kvtier_s3::Entry;
use tokio::time::Instant;

use crate::background::epoch_object::FREE;
use crate::state::epoch_lease::TopEpoch;

/// The highest epoch that counts without a lower one: a take-over every two seconds reaches it in
/// 272 years.
const FIRST_MAX: u64 = 1 << 32;
/// The largest step above the next lower epoch. Older epochs are deleted now and then, and none is
/// skipped.
const STEP_MAX: u64 = 1 << 20;

/// The epochs of a listing.
#[derive(Debug, Default)]
pub struct Epochs<'a> {
    /// The highest plausible epoch.
    pub top: Option<(u64, &'a Entry)>,
    /// Objects with numbers that no node can have reached.
    pub ignored: Vec<&'a str>,
}

impl<'a> Epochs<'a> {
    /// Selects from `entries`, whose names `epoch` parses.
    pub fn new(entries: &'a [Entry], epoch: impl Fn(&str) -> Option<u64>) -> Self {
        let mut all: Vec<(u64, &Entry)> =
            entries.iter().filter_map(|entry| Some((epoch(&entry.key)?, entry))).collect();
        all.sort_unstable_by_key(|(epoch, _)| *epoch);
        let mut epochs = Epochs::default();
        for (epoch, entry) in all {
            let highest = epochs.top.map_or(FIRST_MAX, |(lower, _)| lower.saturating_add(STEP_MAX));
            match epoch <= highest {
                true => epochs.top = Some((epoch, entry)),
                false => epochs.ignored.push(&entry.key),
            }
        }
        epochs
    }

    /// A sentence for the status about ignored objects.
    pub fn advice(&self) -> Option<String> {
        let first = self.ignored.first()?;
        let (many, them) = match self.ignored.len() {
            1 => (String::new(), "it"),
            n => (format!(" and {} more", n - 1), "them"),
        };
        Some(format!(
            "no node of kvtier can have made {first}{many}: ignored as a lease; remove {them}"
        ))
    }
}

/// Since when the highest epoch's object is unchanged, by this node's clock.
#[derive(Debug, Default)]
pub struct Unchanged(Option<Same>);

#[derive(Debug)]
struct Same {
    epoch: u64,
    modified: i64,
    since: Instant,
}

impl Unchanged {
    /// The highest epoch in a listing, whose answer has this date.
    pub fn top(&mut self, found: Option<(u64, &Entry)>, date: Option<i64>) -> Option<TopEpoch> {
        let Some((epoch, entry)) = found else {
            self.0 = None;
            return None;
        };
        let known =
            self.0.as_ref().filter(|same| (same.epoch, same.modified) == (epoch, entry.modified));
        let since = known.map_or_else(Instant::now, |same| same.since);
        self.0 = Some(Same { epoch, modified: entry.modified, since });
        // A time that was not readable is no age.
        let is_read = entry.modified > 0;
        let age_s = date.filter(|_| is_read).map(|date| date.saturating_sub(entry.modified));
        let unchanged = if is_read { since.elapsed() } else { Duration::ZERO };
        Some(TopEpoch {
            epoch,
            age_s,
            unchanged_ms: unchanged.as_millis() as u64,
            free: entry.bytes == FREE.len() as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::own_object_names::OwnObjectNames;

    fn entry(key: String, modified: i64, bytes: u64) -> Entry {
        let mut entry = Entry::default();
        (entry.key, entry.modified, entry.bytes) = (key, modified, bytes);
        entry
    }

    #[tokio::test(start_paused = true)]
    async fn the_highest_epoch_counts_in_any_order_and_beside_foreign_objects() {
        let paths = OwnObjectNames::under("");
        let entries = [
            entry(paths.lease(9), 50, 80),
            entry(paths.lease(10), 60, 80),
            entry(format!("{}junk", paths.leases()), 1, 5),
            entry(paths.lease(2), 1, 5),
        ];
        let of = |entries: &[Entry], date| {
            Unchanged::default().top(Epochs::new(entries, |name| paths.epoch(name)).top, date)
        };
        let expected = TopEpoch { epoch: 10, age_s: Some(15), unchanged_ms: 0, free: false };
        assert_eq!(of(&entries, Some(75)), Some(expected));
        assert_eq!(of(&entries, None).unwrap().age_s, None);
        assert!(of(&entries[3..], Some(9)).unwrap().free);
        assert_eq!(of(&entries[2..3], Some(9)), None);
        assert_eq!(of(&[entry(paths.lease(1), 0, 80)], Some(9)).unwrap().age_s, None);
    }

    #[test]
    fn numbers_that_no_node_can_have_reached_are_ignored_and_named() {
        let paths = OwnObjectNames::under("");
        let of = |numbers: &[u64]| {
            let entries: Vec<Entry> =
                numbers.iter().map(|n| entry(paths.lease(*n), 5, 80)).collect();
            let epochs = Epochs::new(&entries, |name| paths.epoch(name));
            assert_eq!(epochs.advice().is_some(), !epochs.ignored.is_empty());
            (epochs.top.map(|(epoch, _)| epoch), epochs.ignored.len())
        };
        assert_eq!(of(&[u64::MAX]), (None, 1));
        assert_eq!(of(&[u64::MAX, 7, 1 << 40]), (Some(7), 2));
        assert_eq!(of(&[7, 8, u64::from(u32::MAX)]), (Some(8), 1), "the distance counts");
        assert_eq!(
            of(&[u64::from(u32::MAX), 1 << 32]),
            (Some(1 << 32), 0),
            "what is alone there can be succeeded"
        );
        assert_eq!(of(&[1 << 32, (1 << 32) + 1]), (Some((1 << 32) + 1), 0));
        assert_eq!(of(&[(1 << 32) + 1]), (None, 1), "and then all begin anew");
        assert_eq!(of(&[]), (None, 0));
        let entries = [entry(paths.lease(u64::MAX), 5, 80), entry(paths.lease(1 << 50), 5, 80)];
        let advice = Epochs::new(&entries, |name| paths.epoch(name)).advice().unwrap();
        assert!(
            advice.contains(&paths.lease(1 << 50))
                && advice.contains("1 more")
                && advice.contains("remove")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_stays_the_same_ages_by_this_nodes_clock() {
        let paths = OwnObjectNames::under("");
        let mut unchanged = Unchanged::default();
        let held = |epoch, modified| entry(paths.lease(epoch), modified, 80);
        let mut seen = |entry: &Entry, epoch| {
            unchanged.top(Some((epoch, entry)), Some(10)).unwrap().unchanged_ms
        };
        assert_eq!(seen(&held(7, 5000), 7), 0);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(seen(&held(7, 5000), 7), 3000);
        assert_eq!(seen(&held(7, 5001), 7), 0, "renewed");
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(seen(&held(8, 5001), 8), 0, "another");
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(seen(&held(8, 0), 8), 0, "a store without times");
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(seen(&held(8, 0), 8), 0);
    }
}
