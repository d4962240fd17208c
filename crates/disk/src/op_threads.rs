use std::sync::Arc;

use kvtier_core::Timekeeper;

use crate::syncfs_thread::Syncer;
use crate::thread_pool::{Lane, ThreadPool};
use crate::wait_queue::{QueueEntry, WaitQueue, WaitToken};

/// The threads and the clock on which operations continue.
#[derive(Clone, Debug)]
pub struct OpThreads {
    pub pool: Arc<ThreadPool>,
    pub syncer: Arc<Syncer>,
    pub clock: Arc<Timekeeper>,
}

impl OpThreads {
    /// Queues an operation. `resume` continues it on the pool, with the token of the queue.
    pub fn wait(
        &self,
        queue: &WaitQueue,
        entry: QueueEntry,
        lane: Lane,
        resume: impl FnOnce(WaitToken) + Send + 'static,
    ) {
        let pool = Arc::clone(&self.pool);
        let callback = Box::new(move |token| pool.push(lane, move || resume(token)));
        if queue.wait(callback, entry) {
            queue.poll_with(&self.clock);
        }
    }
}
