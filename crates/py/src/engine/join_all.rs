//! Awaits several futures at once.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Polls all futures together, so that all start, and returns their outputs in order.
pub async fn join_all<T>(futures: Vec<impl Future<Output = T> + Send>) -> Vec<T> {
    let mut running: Vec<Pin<Box<_>>> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<T>> = running.iter().map(|_| None).collect();
    poll_fn(|context| {
        // All are polled for each wake-up: the runs of a job, mostly one, or the pages of a call.
        for (future, output) in running.iter_mut().zip(&mut outputs) {
            // A future that is ready must not be polled again.
            if output.is_none()
                && let Poll::Ready(done) = future.as_mut().poll(context)
            {
                *output = Some(done);
            }
        }
        if outputs.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
