//! Runs futures concurrently in one task, at most a given number at a time.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Runs `futures`, at most `width` at a time, until all are done or one fails. Then the others are
/// dropped.
///
/// # Errors
/// The error of the first future that fails.
pub async fn try_for_each_concurrent<F: Future<Output = Result<(), E>>, E>(
    futures: impl IntoIterator<Item = F>,
    width: usize,
) -> Result<(), E> {
    let mut waiting: VecDeque<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut running: Vec<Pin<Box<F>>> = Vec::new();
    poll_fn(|cx| {
        loop {
            while running.len() < width.max(1)
                && let Some(next) = waiting.pop_front()
            {
                running.push(next);
            }
            // All are polled at each wake-up: there are few, and none is woken for itself.
            let before = running.len();
            let mut at = 0;
            while at < running.len() {
                match running[at].as_mut().poll(cx) {
                    Poll::Ready(Ok(())) => drop(running.swap_remove(at)),
                    Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                    Poll::Pending => at += 1,
                }
            }
            match (running.is_empty(), running.len() < before && !waiting.is_empty()) {
                (true, _) if waiting.is_empty() => return Poll::Ready(Ok(())),
                // One ended and another waits: it starts now, since nothing else would wake this
                // task for it.
                (_, true) => {}
                _ => return Poll::Pending,
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn all_run_and_never_too_many() {
        let now = Cell::new(0);
        let most = Cell::new(0);
        let done = Cell::new(0);
        let one = async |fail: bool| {
            now.set(now.get() + 1);
            most.set(most.get().max(now.get()));
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
            now.set(now.get() - 1);
            done.set(done.get() + 1);
            if fail { Err(()) } else { Ok(()) }
        };
        assert_eq!(try_for_each_concurrent((0..10).map(|_| one(false)), 3).await, Ok(()));
        assert_eq!((most.get(), done.get()), (3, 10));
        assert_eq!(try_for_each_concurrent((0..10).map(|n| one(n == 0)), 1).await, Err(()));
        assert_eq!(done.get(), 11);
        assert_eq!(
            try_for_each_concurrent(std::iter::empty::<std::future::Ready<Result<(), ()>>>(), 3)
                .await,
            Ok(())
        );
    }
}
