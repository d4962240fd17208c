//! When records for the change log had to wait, since the medium took no writes.

use std::time::Duration;

/// Within this time after writes succeed again the change log has what waited.
const LOGGED_WITHIN: Duration = Duration::from_secs(2);
/// A record is written within this time after its change, if writes succeed: a process may be stopped between
/// the two for six seconds.
const WRITTEN_WITHIN: Duration = Duration::from_secs(7);

/// The times in which the medium took no writes, the last one last.
#[derive(Debug, Default)]
pub struct LogDelay(Vec<Failing>);

#[derive(Debug)]
struct Failing {
    since: Duration,
    /// `None` while it goes on.
    until: Option<Duration>,
}

impl LogDelay {
    /// Writes may fail from now on, or succeed.
    pub fn set_failing(&mut self, is_failing: bool, now: Duration) {
        let going_on = self.0.last_mut().filter(|last| last.until.is_none());
        match (going_on, is_failing) {
            (None, true) => self.0.push(Failing { since: now, until: None }),
            (Some(last), false) => last.until = Some(now),
            _ => {}
        }
    }

    /// Whether the log may lack a change of this moment for a reader that begins then.
    pub fn may_lack(&self, changed: Duration, began: Duration) -> bool {
        self.0.iter().any(|failing| failing.may_delay(changed, began))
    }
}

impl Failing {
    /// Whether a change of this moment may be in the log later than a reader that begins then.
    fn may_delay(&self, changed: Duration, began: Duration) -> bool {
        let was_due = changed + WRITTEN_WITHIN >= self.since;
        was_due && self.until.is_none_or(|until| began < until + LOGGED_WITHIN)
    }
}

/// As [`LogDelay::may_lack`], where one batch did not arrive at a moment.
pub fn may_lack_batch(failed: Duration, changed: Duration, began: Duration) -> bool {
    Failing { since: failed, until: Some(failed) }.may_delay(changed, began)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn only_changes_near_or_after_the_first_failure_may_lack_until_shortly_after_the_last() {
        let mut delay = LogDelay::default();
        assert!(!delay.may_lack(s(1), s(2)));
        delay.set_failing(false, s(9));
        delay.set_failing(true, s(10));
        delay.set_failing(true, s(11));
        assert!(!delay.may_lack(s(2), s(12)) && delay.may_lack(s(3), s(12)));
        delay.set_failing(false, s(20));
        assert!(delay.may_lack(s(12), s(21)) && !delay.may_lack(s(12), s(22)));
        delay.set_failing(true, s(40));
        assert!(!delay.may_lack(s(12), s(41)) && delay.may_lack(s(33), s(41)));
        assert!(may_lack_batch(s(10), s(3), s(11)) && may_lack_batch(s(10), s(12), s(11)));
        assert!(!may_lack_batch(s(10), s(2), s(11)) && !may_lack_batch(s(10), s(3), s(12)));
    }
}
