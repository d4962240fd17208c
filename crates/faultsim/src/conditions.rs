//! What goes wrong with requests now: how often by kind, and the fate of one request.

use std::fmt;
use std::time::Duration;

/// How often requests fail now, in thousandths, by kind; and whether the store is down. By default none fails.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Conditions {
    /// Every request is answered 500 or 503.
    pub is_down: bool,
    /// Answered 503 SlowDown.
    pub throttled: u64,
    /// Answered 500 without an effect.
    pub errors: u64,
    /// Answered 500 after the effect.
    pub late_errors: u64,
    /// The connection closes after the effect.
    pub lost_answers: u64,
    /// The connection closes before the effect.
    pub closed: u64,
    /// No answer comes; half of them take effect.
    pub hanging: u64,
    /// The connection closes within the answer.
    pub cut_answers: u64,
    /// Something before the store answers 200 in its place.
    pub pages: u64,
    /// Slow ways to the store, and back: up to two seconds each.
    pub slow: u64,
    /// Something before the store sends the request twice.
    pub twice: u64,
    /// Something before the store takes away the metadata of a chunk's answer, and changes a byte of half
    /// of them. That is a wrong byte for a tier of layout `lmcache-mp` that has not seen the version.
    pub stripped: u64,
}

/// What happens to one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Answered,
    Throttled,
    Error,
    /// It takes effect, and the answer is an error.
    LateError,
    /// It takes effect, and the connection closes.
    LostAnswer,
    /// The connection closes before it takes effect.
    Closed,
    /// It takes effect, or not, and no answer comes.
    Hanging(bool),
    /// The connection closes within the answer.
    CutAnswer,
    /// The answer has no metadata, and perhaps another byte.
    Stripped {
        is_changed: bool,
    },
    /// It is answered, and takes effect a second time some time later.
    Twice,
    /// The request does not reach the store, and the answer is this page with 200.
    Page(Page),
}

/// What answers 200 in place of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Page {
    /// A page of HTML, as of a login.
    Html,
    /// A document of an error.
    Error,
    Empty,
}

/// A fate and its times.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub fate: Fate,
    /// From the request to its effect.
    pub before: Duration,
    /// From its effect to the answer.
    pub after: Duration,
}

impl Conditions {
    /// Some kinds of failing requests, some of them often.
    pub(crate) fn storm(rng: &mut fastrand::Rng) -> Self {
        let mut rate = |max: u64| if rng.u64(..3) == 0 { rng.u64(..max) } else { 0 };
        Conditions {
            is_down: false,
            throttled: rate(300),
            errors: rate(200),
            late_errors: rate(100),
            lost_answers: rate(150),
            closed: rate(150),
            hanging: rate(50),
            cut_answers: rate(100),
            pages: rate(200),
            slow: rate(300),
            twice: rate(150),
            stripped: 0,
        }
    }

    /// Whether no request fails.
    pub(crate) fn are_good(&self) -> bool {
        *self == Conditions::default()
    }

    fn fate(&self, rng: &mut fastrand::Rng) -> Fate {
        if self.is_down {
            return if rng.bool() { Fate::Throttled } else { Fate::Error };
        }
        let hanging = Fate::Hanging(rng.bool());
        let page = if self.pages > 0 { rng.usize(..3) } else { 0 };
        let page = [Page::Html, Page::Error, Page::Empty][page];
        let is_changed = self.stripped > 0 && rng.bool();
        let mut at = rng.u64(..1000);
        let rates = [
            (self.throttled, Fate::Throttled),
            (self.errors, Fate::Error),
            (self.late_errors, Fate::LateError),
            (self.lost_answers, Fate::LostAnswer),
            (self.closed, Fate::Closed),
            (self.hanging, hanging),
            (self.cut_answers, Fate::CutAnswer),
            (self.pages, Fate::Page(page)),
            (self.twice, Fate::Twice),
            (self.stripped, Fate::Stripped { is_changed }),
        ];
        for (rate, fate) in rates {
            if at < rate {
                return fate;
            }
            at -= rate;
        }
        Fate::Answered
    }

    /// What happens to the next request.
    pub(crate) fn plan(&self, rng: &mut fastrand::Rng) -> Plan {
        let fate = self.fate(rng);
        let mut time = || {
            let slow = rng.u64(..1000) < self.slow;
            Duration::from_micros(if slow {
                rng.u64(20_000..2_000_000)
            } else {
                rng.u64(500..8_000)
            })
        };
        Plan { fate, before: time(), after: time() }
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conditions { is_down, throttled, errors, late_errors, lost_answers, .. } = self;
        let Conditions { closed, hanging, cut_answers, pages, slow, twice, stripped, .. } = self;
        write!(
            f,
            "down {is_down}, throttled {throttled}, errors {errors}, late errors {late_errors}, lost answers {lost_answers}, closed {closed}, hanging {hanging}, cut {cut_answers}, pages {pages}, slow {slow}, twice {twice}"
        )?;
        if *stripped > 0 { write!(f, ", stripped {stripped}") } else { Ok(()) }
    }
}
