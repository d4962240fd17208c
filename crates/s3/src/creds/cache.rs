//! Caches credentials that expire, and renews them before they do.
//!
//! [`CredentialCache::get`] answers every request, without a wait while credentials are valid:
//!
//! - `Valid`: use them.
//! - `RefreshDue`: use them, and renew them in the background. The flag `renewing` goes to one
//!   caller, until that caller reports the end by [`CredentialCache::finish_refresh`]. If the
//!   renewal fails, the credentials stay in use, and another renewal is due a few seconds later.
//! - `Empty`: fetch some. [`CredentialCache::fetch_turn`] passes an async mutex to one caller, so
//!   one fetch runs at a time. Each waiter looks into the cache again after its wait, so it uses
//!   what the caller before it fetched.
//!
//! A failed fetch must not be repeated by each of many waiters, one after the other. So its error
//! is kept: a waiter that began to wait before the failure gets the error. After the second failure
//! in a row all callers get it, until a pause has passed that doubles up to `pause_max`. No pause
//! is longer, so a source that works again is used again.
//!
//! [`CredentialCache::forget`] drops credentials that the store refused, but only those that are
//! still cached: a late refusal of older ones drops nothing. Credentials that never worked, or that
//! were dropped just before, stay for a while. A store that refuses all credentials would otherwise
//! cause a fetch with every request. Their requests are bounded by [`RefusalBackoff`].

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use crate::creds::Credentials;
use crate::creds::refusal_backoff::RefusalBackoff;
use crate::error::{Error, Result};
use crate::local_clock::Instant;

/// A caller waits for new ones only when less than this is left, in seconds, or less than a tenth
/// of their life.
const MARGIN_S: i64 = 5;
/// After a failed renewal the next is tried no sooner than this, in seconds, and no later than
/// twice that.
const PAUSE_S: i64 = 5;
/// New credentials are used at least this long, in seconds, even if they seem to have expired. The
/// store's clock may be ahead, and fetching again at once would not help. The store refuses
/// credentials that really have expired.
const LIFE_MIN_S: i64 = 5;
/// A source of credentials that fails again and again is asked no sooner than this after its last
/// failure; so is one whose credentials the store refuses.
pub const BASE_PAUSE_MAX: Duration = Duration::from_secs(10);
/// As much for sessions, which the store itself makes: it must be noticed soon that it is back.
pub const SESSION_PAUSE_MAX: Duration = Duration::from_secs(1);
/// What the store refuses is dropped no sooner than this after the last drop, even if it worked: a
/// store that takes and refuses by turns, such as one of many nodes, would have the source asked
/// with every request.
const DROP_PAUSE_MIN: Duration = Duration::from_secs(1);
/// The pause after the second failure in a row; after the first there is none.
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// Nothing is kept for longer than this without renewal, in seconds.
const LIFE_MAX_S: i64 = 30 * 24 * 3600;

/// A fetch of new credentials.
pub type Fetch = Pin<Box<dyn Future<Output = Result<Credentials>> + Send>>;

/// Caches credentials and renews them before they expire.
#[derive(Debug)]
pub struct CredentialCache {
    pause_max: Duration,
    cached: Mutex<Option<CachedCredentials>>,
    /// When credentials were last dropped because the store refused them.
    dropped: Mutex<Option<Instant>>,
    /// Locked by the task that fetches, while others wait.
    guard: Arc<tokio::sync::Mutex<()>>,
    failed: Mutex<Option<Failed>>,
    renewing: AtomicBool,
    refusals: RefusalBackoff,
}

/// A failed fetch. Callers that waited for it get its error instead of fetching one after the
/// other.
#[derive(Debug)]
struct Failed {
    at: Instant,
    /// No fetch begins before; callers have the error until then.
    until: Instant,
    /// Failures in a row.
    times: u32,
    error: Error,
}

/// The result of waiting for the right to fetch.
#[derive(Debug)]
pub enum FetchTurn {
    /// Another fetched these meanwhile.
    Use(Credentials),
    /// It is for us to fetch, and to give back by [`CredentialCache::finish_fetch`].
    Fetch(FetchGuard),
}

/// The right to fetch.
pub type FetchGuard = OwnedMutexGuard<()>;

#[derive(Debug)]
struct CachedCredentials {
    credentials: Credentials,
    renew_at: i64,
    good_until: i64,
}

/// What the cache holds for a caller.
#[derive(Debug)]
pub enum Cached {
    /// Use these.
    Valid(Credentials),
    /// Use these, and start the renewal: no other caller gets this answer until it ends.
    RefreshDue(Credentials),
    /// Fetch some first.
    Empty,
}

impl CredentialCache {
    /// Nothing yet. Pauses between failures grow to `pause_max`.
    pub fn new(pause_max: Duration) -> Self {
        let (cached, dropped, guard, failed, renewing) = Default::default();
        let refusals = RefusalBackoff::default();
        CredentialCache { pause_max, cached, dropped, guard, failed, renewing, refusals }
    }

    /// Lets a request pass that these credentials sign.
    ///
    /// # Errors
    /// The store's last refusal, if it refuses them again and again.
    pub fn admit(&self) -> Result<()> {
        self.refusals.admit(Instant::now())
    }

    /// A request that they signed was a success.
    pub fn note_worked(&self, credentials: &Credentials) {
        credentials.note_worked();
        self.refusals.end();
    }

    /// What there is at `now` (the store's time in seconds since 1970). After `Due` the caller must
    /// see that [`CredentialCache::finish_refresh`] is called.
    pub fn get(&self, now: i64) -> Cached {
        let cached = self.cached();
        // Expired ones are not dropped here: a renewal that ends soon replaces them.
        let Some(cached) = cached.as_ref().filter(|cached| now < cached.good_until) else {
            return Cached::Empty;
        };
        let credentials = cached.credentials.clone();
        // The flag decides which caller renews. No memory is ordered by it, since the credentials
        // are under a mutex.
        match now >= cached.renew_at && !self.renewing.swap(true, Ordering::Relaxed) {
            true => Cached::RefreshDue(credentials),
            false => Cached::Valid(credentials),
        }
    }

    /// The result of a renewal that [`Cached::RefreshDue`] asked for.
    pub fn finish_refresh(&self, now: i64, result: Result<Credentials>) {
        match result {
            Ok(credentials) => self.keep(now, credentials),
            Err(_) => {
                // The old ones stay in use: they are valid for a while yet.
                if let Some(cached) = self.cached().as_mut() {
                    cached.renew_at = now + fastrand::i64(PAUSE_S..=2 * PAUSE_S);
                }
            }
        }
        // Also after a failure, or no caller would ever renew again.
        self.renewing.store(false, Ordering::Relaxed);
    }

    /// Waits until no other caller fetches. `now` is called again after the wait.
    ///
    /// # Errors
    /// The error of the fetch that this call waited for, and of recent failures until their pause
    /// is over.
    pub async fn fetch_turn(&self, now: impl Fn() -> i64) -> Result<FetchTurn> {
        // Taken before the wait, to recognise a failure during it.
        let since = Instant::now();
        let guard = Arc::clone(&self.guard).lock_owned().await;
        // The caller before this one has fetched them.
        if let Cached::Valid(credentials) | Cached::RefreshDue(credentials) = self.peek(now()) {
            return Ok(FetchTurn::Use(credentials));
        }
        match &*self.failed.lock().unwrap_or_else(PoisonError::into_inner) {
            // It failed while this call waited, so this call would fail as well; or the source
            // failed repeatedly, and its pause is not over.
            Some(failed) if failed.at >= since || Instant::now() < failed.until => {
                Err(failed.error.clone())
            }
            _ => Ok(FetchTurn::Fetch(guard)),
        }
    }

    /// Stores the result of a fetch by the holder of `guard`.
    pub fn finish_fetch(&self, now: i64, result: &Result<Credentials>, guard: FetchGuard) {
        match result {
            Ok(credentials) => {
                // A success ends the row of failures and its pause.
                *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = None;
                self.keep(now, credentials.clone());
            }
            Err(e) => {
                let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                let at = Instant::now();
                let times = failed.as_ref().map_or(0, |failed| failed.times).saturating_add(1);
                *failed =
                    Some(Failed { at, until: at + self.pause(times), times, error: e.clone() });
            }
        }
        drop(guard);
    }

    /// Forgets what the store called expired, unless it was replaced meanwhile, or is itself a
    /// replacement that never worked and is not old: a store that refuses all of them is not
    /// cured by more. Those that stay count as refused.
    pub fn forget(&self, bad: &Credentials, refusal: &Error) {
        let mut cached = self.cached();
        let now = Instant::now();
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        // Compared by identity: a request that was sent before a renewal may be refused long after
        // it.
        let is_held = cached.as_ref().is_some_and(|cached| cached.credentials.is(bad));
        let is_after = |pause| dropped.is_none_or(|last| now.duration_since(last) >= pause);
        // Whether they worked is asked only then, since the answer is taken.
        // All three, or the credentials stay. Replaced ones are not there to be dropped, and those
        // that never worked would be replaced by the same.
        if is_held && is_after(DROP_PAUSE_MIN) && (bad.take_worked() || is_after(self.pause_max)) {
            (*cached, *dropped) = (None, Some(now));
        } else if is_held {
            self.refusals.note(now, refusal);
        }
    }

    /// The store refused what these credentials signed.
    pub fn note_refused(&self, refused: &Credentials, refusal: &Error) {
        if self.cached().as_ref().is_some_and(|cached| cached.credentials.is(refused)) {
            self.refusals.note(Instant::now(), refusal);
        }
    }

    /// None after one failure, then twice as long each time, and up to a quarter less, so that a
    /// fleet does not ask at once.
    fn pause(&self, failures: u32) -> Duration {
        match failures {
            0 | 1 => Duration::ZERO,
            n => (PAUSE_MIN * (1 << n.min(12).saturating_sub(2)))
                .min(self.pause_max)
                .mul_f64(fastrand::f64().mul_add(0.25, 0.75)),
        }
    }

    fn peek(&self, now: i64) -> Cached {
        match self.get(now) {
            Cached::RefreshDue(credentials) => {
                self.renewing.store(false, Ordering::Relaxed);
                Cached::Valid(credentials)
            }
            other => other,
        }
    }

    fn keep(&self, now: i64, credentials: Credentials) {
        let (renew_at, good_until) = credentials.expires().map_or((i64::MAX, i64::MAX), |end| {
            // By the store's clock, since the store decides whether they have expired.
            let life = end.saturating_sub(now).clamp(LIFE_MIN_S, LIFE_MAX_S);
            // Between 60 and 70 % of what is left, so that a fleet does not renew at once.
            (now + life * fastrand::i64(60..=70) / 100, now + life - MARGIN_S.min(life / 10))
        });
        *self.cached() = Some(CachedCredentials { credentials, renew_at, good_until });
        // A pause for the old ones must not hold up the new ones.
        self.refusals.renewed();
    }

    fn cached(&self) -> MutexGuard<'_, Option<CachedCredentials>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn lasting(until: i64) -> Credentials {
        Credentials::temporary("A", "s", None, Some(until))
    }

    fn refusal() -> Error {
        Error::new(ErrorKind::Denied, "expired")
    }

    #[test]
    fn one_renews_while_the_others_go_on() {
        let cache = CredentialCache::new(BASE_PAUSE_MAX);
        assert!(matches!(cache.get(0), Cached::Empty));
        cache.keep(0, lasting(300));
        assert!(matches!(cache.get(179), Cached::Valid(_)));
        assert!(matches!(cache.get(211), Cached::RefreshDue(_)));
        assert!(matches!(cache.get(211), Cached::Valid(_)));
        cache.finish_refresh(211, Err(Error::new(ErrorKind::Io, "x")));
        assert!(matches!(cache.get(212), Cached::Valid(_)), "a failure is not repeated at once");
        assert!(matches!(cache.get(222), Cached::RefreshDue(_)));
        assert!(matches!(cache.get(294), Cached::Valid(_)));
        assert!(matches!(cache.get(295), Cached::Empty), "too close to the end");
        cache.finish_refresh(295, Ok(lasting(600)));
        assert!(matches!(cache.get(296), Cached::Valid(_)));
    }

    #[tokio::test]
    async fn one_fetches_while_the_others_wait() {
        let cache = CredentialCache::new(BASE_PAUSE_MAX);
        let Ok(FetchTurn::Fetch(guard)) = cache.fetch_turn(|| 0).await else {
            panic!("no other caller fetches")
        };
        let waiting = async { cache.fetch_turn(|| 0).await };
        let ending = async { cache.finish_fetch(0, &Ok(lasting(300)), guard) };
        assert!(matches!(tokio::join!(waiting, ending).0, Ok(FetchTurn::Use(_))));
    }

    #[tokio::test]
    async fn waiters_get_the_error_of_a_failed_fetch_and_the_next_caller_fetches_again() {
        let cache = CredentialCache::new(BASE_PAUSE_MAX);
        let Ok(FetchTurn::Fetch(guard)) = cache.fetch_turn(|| 0).await else {
            panic!("no other caller fetches")
        };
        let waiting = async { tokio::join!(cache.fetch_turn(|| 0), cache.fetch_turn(|| 0)) };
        let ending =
            async { cache.finish_fetch(0, &Err(Error::new(ErrorKind::Denied, "away")), guard) };
        let ((one, two), ()) = tokio::join!(waiting, ending);
        for failed in [one, two] {
            let failed = failed.unwrap_err();
            assert!(
                failed.kind() == ErrorKind::Denied && failed.to_string().contains("away"),
                "{failed}"
            );
        }
        assert!(matches!(cache.fetch_turn(|| 0).await, Ok(FetchTurn::Fetch(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_goes_on_failing_is_asked_less_and_less() {
        let cache = CredentialCache::new(BASE_PAUSE_MAX);
        let began = Instant::now();
        let mut asked = 0;
        let mut refused = 0;
        while began.elapsed() < Duration::from_secs(100) {
            match cache.fetch_turn(|| 0).await {
                Ok(FetchTurn::Fetch(guard)) => {
                    asked += 1;
                    cache.finish_fetch(0, &Err(Error::new(ErrorKind::Denied, "away")), guard);
                }
                Ok(FetchTurn::Use(_)) => panic!("there are none"),
                Err(e) => {
                    assert!(e.to_string().contains("away"), "{e}");
                    refused += 1;
                }
            }
            tokio::time::advance(Duration::from_millis(4)).await;
        }
        assert!((10..25).contains(&asked) && refused > 20_000, "{asked} asked, {refused} refused");
        tokio::time::advance(BASE_PAUSE_MAX).await;
        let Ok(FetchTurn::Fetch(guard)) = cache.fetch_turn(|| 0).await else {
            panic!("it is asked again all the same")
        };
        cache.finish_fetch(0, &Ok(lasting(300)), guard);
        cache.forget(
            &match cache.get(1) {
                Cached::Valid(credentials) => credentials,
                _ => panic!("they are there"),
            },
            &refusal(),
        );
        for _ in 0..2 {
            let Ok(FetchTurn::Fetch(guard)) = cache.fetch_turn(|| 0).await else {
                panic!("one failure is no reason to wait")
            };
            cache.finish_fetch(0, &Err(Error::new(ErrorKind::Denied, "away")), guard);
            tokio::time::advance(Duration::from_millis(4)).await;
        }
        assert!(cache.fetch_turn(|| 0).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_refuses_all_credentials_does_not_make_us_ask_all_the_time() {
        let cache = CredentialCache::new(BASE_PAUSE_MAX);
        for round in 0..3 {
            let cached = lasting(300);
            cache.keep(0, cached.clone());
            cache.forget(&cached, &refusal());
            assert!(matches!(cache.get(1), Cached::Empty), "the first time in a while, {round}");
            let next = lasting(300);
            cache.keep(0, next.clone());
            cache.forget(&next, &refusal());
            assert!(
                matches!(cache.get(1), Cached::Valid(_)),
                "so soon that it is not the credentials, {round}"
            );
            next.note_worked();
            cache.forget(&next, &refusal());
            assert!(
                matches!(cache.get(1), Cached::Valid(_)),
                "it worked, but was given just now, {round}"
            );
            tokio::time::advance(DROP_PAUSE_MIN).await;
            cache.forget(&next, &refusal());
            assert!(
                matches!(cache.get(1), Cached::Empty),
                "it worked and has expired since, {round}"
            );
            tokio::time::advance(BASE_PAUSE_MAX).await;
        }
    }

    #[test]
    fn what_seems_to_have_ended_is_not_fetched_all_the_time() {
        let cache = CredentialCache::new(BASE_PAUSE_MAX);
        cache.keep(10_000, lasting(3600));
        assert!(matches!(cache.get(10_002), Cached::Valid(_)));
        assert!(matches!(cache.get(10_004), Cached::RefreshDue(_)));
        assert!(matches!(cache.get(10_005), Cached::Empty));
    }

    #[test]
    fn only_what_is_still_held_is_forgotten() {
        let cache = CredentialCache::new(BASE_PAUSE_MAX);
        let old = lasting(300);
        let new = lasting(300);
        cache.keep(0, new.clone());
        cache.forget(&old, &refusal());
        assert!(matches!(cache.get(1), Cached::Valid(_)));
        cache.forget(&new, &refusal());
        assert!(matches!(cache.get(1), Cached::Empty));
    }
}
