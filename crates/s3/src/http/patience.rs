use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// How long a connection waits while nothing moves. One timer serves all its waits, and only when there is nothing to do but wait: to
/// set it anew costs far less than to make another.
#[derive(Debug)]
pub struct Patience(Pin<Box<Sleep>>);

impl Patience {
    pub fn new() -> Self {
        Patience(Box::pin(sleep(Duration::ZERO)))
    }

    /// What `poll` has at last, or `None` when it has nothing for `idle`.
    pub async fn with<T>(&mut self, idle: Duration, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
        let mut waiting = false;
        poll_fn(|cx| {
            if let Poll::Ready(done) = poll(cx) {
                return Poll::Ready(Some(done));
            }
            if !std::mem::replace(&mut waiting, true) {
                self.0.as_mut().reset(Instant::now() + idle);
            }
            ready!(self.0.as_mut().poll(cx));
            Poll::Ready(None)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_wait_has_its_own_time() {
        let mut patience = Patience::new();
        assert_eq!(patience.with(Duration::from_secs(1), |_| Poll::Ready(7)).await, Some(7));
        for millis in [100, 40, 150] {
            let (start, idle) = (Instant::now(), Duration::from_millis(millis));
            assert_eq!(patience.with(idle, |_| Poll::<()>::Pending).await, None);
            assert!(start.elapsed() >= idle);
        }
        let mut late = Box::pin(sleep(Duration::from_millis(50)));
        assert_eq!(patience.with(Duration::from_secs(60), |cx| late.as_mut().poll(cx)).await, Some(()));
    }
}
