//! Things that expire: fetched by one caller at a time, renewed in the background while the old one is still good, and kept as long
//! as they are valid when renewing fails.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::creds::Credentials;
use crate::error::Result;

/// A caller waits for new ones only when less than this is left, in seconds, or less than a tenth of their life.
const MARGIN_S: i64 = 5;
/// After a failed renewal the next is tried no sooner than this, in seconds, and no later than twice that.
const PAUSE_S: i64 = 5;
/// Nothing is kept for longer than this without renewal, in seconds.
const LIFE_MAX_S: i64 = 30 * 24 * 3600;

/// A fetch of new credentials.
pub type Fetch = Pin<Box<dyn Future<Output = Result<Credentials>> + Send>>;

/// Credentials that are kept fresh.
#[derive(Debug, Default)]
pub struct Fresh {
    held: Mutex<Option<Held>>,
    /// Held by the one that fetches while others wait.
    turn: tokio::sync::Mutex<()>,
    renewing: AtomicBool,
}

#[derive(Debug)]
struct Held {
    credentials: Credentials,
    renew_at: i64,
    good_until: i64,
}

/// What to do for a caller.
#[derive(Debug)]
pub enum Have {
    /// Use these.
    Good(Credentials),
    /// Use these, and start the renewal: nobody else does.
    Due(Credentials),
    /// Fetch some first.
    Nothing,
}

impl Fresh {
    /// What there is at `now` (the store's time in seconds since 1970). After `Due` the caller must see that
    /// [`Fresh::renewed`] is called.
    pub fn have(&self, now: i64) -> Have {
        let held = self.held();
        let Some(held) = held.as_ref().filter(|held| now < held.good_until) else {
            return Have::Nothing;
        };
        let credentials = held.credentials.clone();
        match now >= held.renew_at && !self.renewing.swap(true, Ordering::Relaxed) {
            true => Have::Due(credentials),
            false => Have::Good(credentials),
        }
    }

    /// The result of a renewal that [`Have::Due`] asked for.
    pub fn renewed(&self, now: i64, result: Result<Credentials>) {
        match result {
            Ok(credentials) => self.keep(now, credentials),
            Err(_) => {
                if let Some(held) = self.held().as_mut() {
                    held.renew_at = now + fastrand::i64(PAUSE_S..=2 * PAUSE_S);
                }
            }
        }
        self.renewing.store(false, Ordering::Relaxed);
    }

    /// Fetches, or waits for the one who does. `now` is asked again after the wait.
    pub async fn fetch(&self, now: impl Fn() -> i64, fetch: impl FnOnce() -> Fetch) -> Result<Credentials> {
        let _turn = self.turn.lock().await;
        if let Have::Good(credentials) | Have::Due(credentials) = self.peek(now()) {
            return Ok(credentials);
        }
        let credentials = fetch().await?;
        self.keep(now(), credentials.clone());
        Ok(credentials)
    }

    /// Forgets what the store called expired, unless it was replaced meanwhile.
    pub fn forget(&self, bad: &Credentials) {
        let mut held = self.held();
        if held.as_ref().is_some_and(|held| held.credentials.is(bad)) {
            *held = None;
        }
    }

    fn peek(&self, now: i64) -> Have {
        match self.have(now) {
            Have::Due(credentials) => {
                self.renewing.store(false, Ordering::Relaxed);
                Have::Good(credentials)
            }
            other => other,
        }
    }

    fn keep(&self, now: i64, credentials: Credentials) {
        let (renew_at, good_until) = credentials.expires().map_or((i64::MAX, i64::MAX), |end| {
            let life = end.saturating_sub(now).clamp(0, LIFE_MAX_S);
            // Between 60 and 70 % of what is left, so that a fleet does not renew at once.
            (now + life * fastrand::i64(60..=70) / 100, now + life - MARGIN_S.min(life / 10))
        });
        *self.held() = Some(Held { credentials, renew_at, good_until });
    }

    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::error::{Error, ErrorKind};

    fn lasting(until: i64) -> Credentials {
        Credentials::temporary("A", "s", None, Some(until))
    }

    #[test]
    fn one_renews_while_the_others_go_on() {
        let fresh = Fresh::default();
        assert!(matches!(fresh.have(0), Have::Nothing));
        fresh.keep(0, lasting(300));
        assert!(matches!(fresh.have(179), Have::Good(_)));
        assert!(matches!(fresh.have(211), Have::Due(_)));
        assert!(matches!(fresh.have(211), Have::Good(_)));
        fresh.renewed(211, Err(Error::new(ErrorKind::Io, "x")));
        assert!(matches!(fresh.have(212), Have::Good(_)), "a failure is not repeated at once");
        assert!(matches!(fresh.have(222), Have::Due(_)));
        assert!(matches!(fresh.have(294), Have::Good(_)));
        assert!(matches!(fresh.have(295), Have::Nothing), "too close to the end");
        fresh.renewed(295, Ok(lasting(600)));
        assert!(matches!(fresh.have(296), Have::Good(_)));
    }

    #[tokio::test]
    async fn many_callers_make_one_fetch() {
        let (fresh, fetches) = (Arc::new(Fresh::default()), Arc::new(AtomicU32::new(0)));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..32 {
            let (fresh, fetches) = (Arc::clone(&fresh), Arc::clone(&fetches));
            tasks.spawn(async move {
                let fetch = || -> Fetch {
                    Box::pin(async move {
                        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                        fetches.fetch_add(1, Ordering::Relaxed);
                        Ok(lasting(300))
                    })
                };
                fresh.fetch(|| 0, fetch).await.unwrap();
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
        assert_eq!(fetches.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn only_what_is_still_held_is_forgotten() {
        let fresh = Fresh::default();
        let (old, new) = (lasting(300), lasting(300));
        fresh.keep(0, new.clone());
        fresh.forget(&old);
        assert!(matches!(fresh.have(1), Have::Good(_)));
        fresh.forget(&new);
        assert!(matches!(fresh.have(1), Have::Nothing));
    }
}
