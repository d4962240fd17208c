use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::task::unconstrained;
use tokio::time::{Sleep, sleep};

use super::silence::{SILENT_AFTER, Silence};
use crate::local_clock::Instant;

/// How long a connection waits while nothing moves. One timer serves all its waits, and only when
/// there is nothing to do but wait: to set it anew costs far less than to make another.
#[derive(Debug)]
pub struct StallTimeout {
    timer: Pin<Box<Sleep>>,
    silence: Arc<Silence>,
}

impl StallTimeout {
    pub fn new() -> Self {
        StallTimeout { timer: Box::pin(sleep(Duration::ZERO)), silence: Arc::default() }
    }

    /// Whether nothing moves, for others to see.
    pub fn silence(&self) -> &Arc<Silence> {
        &self.silence
    }

    /// What `poll` has at last, or `None` when it has nothing for `idle`.
    pub async fn wait<T>(
        &mut self,
        idle: Duration,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Option<T> {
        let StallTimeout { timer, silence } = self;
        // When the wait ends, once it has begun.
        let mut until = None;
        poll_fn(|cx| {
            if let Poll::Ready(done) = poll(cx) {
                silence.end();
                return Poll::Ready(Some(done));
            }
            let end = *until.get_or_insert_with(|| {
                let now = Instant::now();
                timer.as_mut().reset(now + idle.min(SILENT_AFTER));
                now + idle
            });
            // Not within the task's budget, which a socket that never runs dry spends each time.
            ready!(pin!(unconstrained(timer.as_mut())).poll(cx));
            if timer.deadline() < end {
                silence.begin();
                timer.as_mut().reset(end);
                ready!(pin!(unconstrained(timer.as_mut())).poll(cx));
            }
            Poll::Ready(None)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_wait_has_its_own_time() {
        let mut timeout = StallTimeout::new();
        assert_eq!(timeout.wait(Duration::from_secs(1), |_| Poll::Ready(7)).await, Some(7));
        for millis in [100, 40, 150] {
            let start = Instant::now();
            let idle = Duration::from_millis(millis);
            assert_eq!(timeout.wait(idle, |_| Poll::<()>::Pending).await, None);
            let waited = start.elapsed();
            assert!((idle..idle + Duration::from_millis(2)).contains(&waited), "{waited:?}");
        }
        let mut late = Box::pin(sleep(Duration::from_millis(50)));
        assert_eq!(
            timeout.wait(Duration::from_secs(60), |cx| late.as_mut().poll(cx)).await,
            Some(())
        );
        assert!(!timeout.silence().is_on());
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_wait_is_a_silence_until_something_moves() {
        let mut timeout = StallTimeout::new();
        let silence = Arc::clone(timeout.silence());
        let mut moves = Box::pin(sleep(SILENT_AFTER * 3));
        let start = Instant::now();
        let watch = async {
            sleep(SILENT_AFTER / 2).await;
            assert!(!silence.is_on());
            sleep(SILENT_AFTER).await;
            assert!(silence.is_on());
        };
        let wait = timeout.wait(SILENT_AFTER * 9, |cx| moves.as_mut().poll(cx));
        let (moved, ()) = tokio::join!(wait, watch);
        assert_eq!((moved, silence.is_on()), (Some(()), false));
        assert_eq!(start.elapsed(), SILENT_AFTER * 3);
        let start = Instant::now();
        assert_eq!(timeout.wait(SILENT_AFTER * 2, |_| Poll::<()>::Pending).await, None);
        assert!(silence.is_on() && start.elapsed() == SILENT_AFTER * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_also_where_the_task_has_done_much() {
        let busy = |cx: &mut Context<'_>| {
            // As a socket does that never runs dry: it goes on until the task's budget is spent.
            while let Poll::Ready(done) = tokio::task::coop::poll_proceed(cx) {
                done.made_progress();
            }
            Poll::<()>::Pending
        };
        let mut timeout = StallTimeout::new();
        let idle = Duration::from_millis(50);
        let mut wait = std::pin::pin!(timeout.wait(idle, busy));
        let is_pending =
            std::future::poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx).is_pending())).await;
        assert!(is_pending);
        tokio::time::advance(idle).await;
        // A task that is never idle keeps a paused clock from going on.
        tokio::time::resume();
        assert_eq!(tokio::time::timeout(Duration::from_secs(600), wait).await.unwrap(), None);
    }
}
