//! What a simulation gives a client in place of its machine: connections in memory and a wall clock.
//!
//! Only with the feature `simulate`. A client whose [`Config::machine`](crate::Config::machine) is
//! set opens no socket, resolves no name and starts no thread. On a runtime with a paused clock and
//! one thread, and with a seeded `fastrand`, all it does follows from what it is sent.

use std::fmt::Debug;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

pub use tokio::io::DuplexStream;

/// A connection on its way.
pub type Connecting = Pin<Box<dyn Future<Output = io::Result<DuplexStream>> + Send>>;

/// A simulated machine.
pub trait SimulatedMachine: Debug + Send + Sync + 'static {
    /// The host name.
    fn name(&self) -> &str;

    /// The time of day by its clock, which may be wrong and may jump.
    fn wall(&self) -> SystemTime;

    /// What its monotonic clock counts while `passed` goes by: it may be a little fast or slow.
    fn monotonic(&self, passed: Duration) -> Duration {
        passed
    }

    /// A connection with the store.
    fn connect(&self) -> Connecting;

    /// Whether its process runs. While it is stopped this is pending, and `cx` is woken when it goes on.
    fn poll_runs(&self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = cx;
        Poll::Ready(())
    }
}

/// A task of the machine's process: it stands still while that is stopped, and its timers are late.
pub async fn of_process<T>(machine: Arc<dyn SimulatedMachine>, task: impl Future<Output = T>) -> T {
    let mut task = std::pin::pin!(task);
    std::future::poll_fn(|cx| {
        ready!(machine.poll_runs(cx));
        task.as_mut().poll(cx)
    })
    .await
}
