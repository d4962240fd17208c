//! What a hold must keep: a chunk that a lookup found and holds stays a hit for its process until the hold
//! ends. A hold binds the process that took it: others may delete the chunk.

use std::time::Duration;

/// A store that was bad serves again within this time.
pub const BACK_MAX: Duration = Duration::from_secs(2);

/// Where a chunk is that a lookup holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeldIn {
    /// In the memory of its process.
    Memory,
    /// In its directory.
    Directory,
    /// In the bucket, of which it is alone the tier, ...
    Bucket,
    /// ... or the lowest: a bucket that fails is then a miss.
    BucketOfStack,
}

impl HeldIn {
    /// The tier of a stack, or none of one.
    pub fn of(tier: Option<usize>) -> Self {
        match tier {
            None => HeldIn::Bucket,
            Some(0) => HeldIn::Memory,
            Some(1) => HeldIn::Directory,
            Some(_) => HeldIn::BucketOfStack,
        }
    }
}

/// A chunk that a lookup holds.
#[derive(Clone, Debug)]
pub struct HeldChunk {
    pub n: u64,
    pub place: HeldIn,
    /// The number of the object that is watched for it. `None` where there is none.
    pub watched: Option<u64>,
    /// A crash changed its file.
    pub is_torn: bool,
}

/// The objects of held chunks.
#[derive(Debug, Default)]
pub struct WatchedObjects {
    all: Vec<WatchedObject>,
    next: u64,
}

#[derive(Debug)]
struct WatchedObject {
    number: u64,
    name: String,
    /// The machine whose process holds the chunk.
    host: String,
    from: Duration,
    until: Duration,
    /// It was deleted since.
    is_gone: bool,
}

/// A request that deletes an object.
#[derive(Clone, Copy, Debug)]
pub struct Deletion<'a> {
    pub name: &'a str,
    pub host: &'a str,
    pub sent: Duration,
    pub now: Duration,
}

impl WatchedObjects {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Watches an object that is there, for a hold of this time. Returns its number.
    pub fn watch(&mut self, name: String, host: &str, from: Duration, until: Duration) -> u64 {
        self.next += 1;
        let (number, host) = (self.next, host.to_owned());
        self.all.push(WatchedObject { number, name, host, from, until, is_gone: false });
        number
    }

    /// The object is deleted. Whether it was held by the process that asked for that, and there until
    /// now. A request that was sent before may be late.
    pub fn deleted(&mut self, deletion: Deletion<'_>) -> bool {
        let mut is_broken = false;
        for object in self.all.iter_mut().filter(|object| object.name == deletion.name) {
            let is_held = object.from <= deletion.sent && deletion.now < object.until;
            is_broken |= is_held && !object.is_gone && object.host == deletion.host;
            object.is_gone = true;
        }
        is_broken
    }

    /// Ends the watch. Whether the object was there all the time.
    pub fn end(&mut self, number: u64) -> bool {
        let at = self.all.iter().position(|object| object.number == number);
        at.is_some_and(|at| !self.all.swap_remove(at).is_gone)
    }
}

/// Until when the parts of a machine last failed; `Duration::MAX` while they do.
#[derive(Clone, Copy, Default, Debug)]
pub struct FailedUntil {
    pub requests: Duration,
    pub network: Duration,
    pub medium: Duration,
}

impl FailedUntil {
    /// Whether a fault since `since`, or a crash that changed its file, may make a held chunk a miss.
    pub fn excuses(&self, place: HeldIn, since: Duration, is_torn: bool) -> bool {
        match place {
            HeldIn::Memory | HeldIn::Bucket => false,
            HeldIn::Directory => self.medium >= since || is_torn,
            HeldIn::BucketOfStack => {
                self.requests.max(self.network).saturating_add(BACK_MAX) >= since
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn who_deletes_what_it_holds_breaks_the_hold() {
        let mut watched = WatchedObjects::default();
        let by =
            |host, sent: u32, now: u32| Deletion { name: "a", host, sent: S * sent, now: S * now };
        let number = watched.watch("a".into(), "one", S * 10, S * 20);
        assert!(!watched.deleted(by("two", 11, 12)), "others may");
        assert!(!watched.deleted(by("one", 13, 14)), "it was gone");
        assert!(!watched.end(number));
        for (sent, now, breaks) in [(9, 11, false), (11, 21, false), (11, 12, true)] {
            let number = watched.watch("a".into(), "one", S * 10, S * 20);
            let other = watched.watch("b".into(), "one", S * 10, S * 20);
            assert_eq!(watched.deleted(by("one", sent, now)), breaks, "{sent} {now}");
            assert!(!watched.end(number) && watched.end(other));
        }
        assert!(watched.is_empty());
    }

    #[test]
    fn only_a_fault_of_its_place_excuses_a_miss() {
        let failed = FailedUntil { medium: S * 5, network: S * 7, ..FailedUntil::default() };
        for (place, since, excused) in [
            (HeldIn::Memory, 1, false),
            (HeldIn::Bucket, 1, false),
            (HeldIn::Directory, 5, true),
            (HeldIn::Directory, 6, false),
            (HeldIn::BucketOfStack, 9, true),
            (HeldIn::BucketOfStack, 10, false),
        ] {
            assert_eq!(failed.excuses(place, S * since, false), excused, "{place:?} {since}");
        }
        assert!(failed.excuses(HeldIn::Directory, S * 6, true));
    }
}
