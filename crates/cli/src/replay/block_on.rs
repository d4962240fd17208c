//! Batches of loads and saves: how large they are, and the wait for them.

use std::sync::Arc;

/// The most blocks loaded or saved in one batch.
pub const BATCH_MAX: usize = 16;

/// Drives a future on this thread.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(value) => return value,
            // An unpark that comes before the park is remembered, so no wake is lost.
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}
