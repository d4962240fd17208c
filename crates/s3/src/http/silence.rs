//! Whether anything moves on the connection of a request. What waits on the connection records it; the
//! limits of requests in flight ask.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::error::Elapsed;
use tokio::time::timeout;

/// A connection on which nothing has moved for this long, while a request waits for it, is silent.
pub const SILENT_AFTER: Duration = Duration::from_secs(1);

/// Whether it is silent now.
#[derive(Debug, Default)]
pub struct Silence(AtomicBool);

impl Silence {
    /// Whether nothing has moved for [`SILENT_AFTER`].
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Nothing has moved for so long.
    pub fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Something moved, or a new request begins.
    pub fn end(&self) {
        // A check, since that is what happens nearly always.
        if self.is_on() {
            self.0.store(false, Ordering::Relaxed);
        }
    }

    /// As [`timeout`], and records a silence meanwhile.
    pub async fn timeout<T>(
        &self,
        idle: Duration,
        work: impl Future<Output = T>,
    ) -> Result<T, Elapsed> {
        let mut work = std::pin::pin!(work);
        match timeout(idle.min(SILENT_AFTER), work.as_mut()).await {
            Err(_) if idle > SILENT_AFTER => {
                self.begin();
                let done = timeout(idle - SILENT_AFTER, work).await;
                if done.is_ok() {
                    self.end();
                }
                done
            }
            done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_begins_after_a_second_and_ends_with_the_first_move() {
        let silence = Silence::default();
        let [work, watch] = [3, 1].map(|times| SILENT_AFTER * times);
        let watched = async {
            sleep(watch / 2).await;
            assert!(!silence.is_on(), "too early");
            sleep(watch).await;
            assert!(silence.is_on());
        };
        let (done, ()) = tokio::join!(silence.timeout(work * 2, sleep(work)), watched);
        assert!(done.is_ok() && !silence.is_on());
        assert!(silence.timeout(work, std::future::pending::<()>()).await.is_err());
        assert!(silence.is_on(), "nothing moved to the end");
        silence.end();
        let short = SILENT_AFTER / 2;
        assert!(silence.timeout(short, std::future::pending::<()>()).await.is_err());
        assert!(!silence.is_on(), "its limit was shorter");
    }
}
