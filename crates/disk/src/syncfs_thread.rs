use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Called with the result of a sync.
pub type AfterSync = Box<dyn FnOnce(io::Result<()>) + Send>;

/// A thread that syncs the file system for many operations at once: those that arrive during a sync
/// share the next one. The tier's gate bounds the queue, since each operation waits here at most
/// once.
pub struct Syncer {
    shared: Arc<Shared>,
    /// `None` in a simulated process.
    thread: Mutex<Option<JoinHandle<()>>>,
    sync: Arc<SyncCall>,
}

type SyncCall = dyn Fn() -> io::Result<()> + Send + Sync;

#[derive(Default)]
struct Shared {
    waiting: Mutex<WaitingSync>,
    work: Condvar,
}

#[derive(Default)]
struct WaitingSync {
    calls: Vec<AfterSync>,
    closed: bool,
}

impl Syncer {
    /// Starts the thread; `sync` does the work.
    pub fn start(
        name: &str,
        sync: impl Fn() -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let sync: Arc<SyncCall> = Arc::new(sync);
        let (theirs, their_sync) = (Arc::clone(&shared), Arc::clone(&sync));
        let thread = match kvtier_os::is_simulated() {
            true => None,
            false => Some(
                std::thread::Builder::new()
                    .name(format!("{name}-sync"))
                    .spawn(move || theirs.run(&*their_sync))?,
            ),
        };
        Ok(Syncer { shared, thread: Mutex::new(thread), sync })
    }

    /// Calls `call` after the next sync that begins from now on. After [`close`](Syncer::close) `call`
    /// is dropped.
    pub fn after_sync(&self, call: AfterSync) {
        let mut waiting = self.shared.lock();
        if waiting.closed {
            drop(waiting);
            return drop(call);
        }
        if kvtier_os::is_simulated() {
            drop(waiting);
            let sync = Arc::clone(&self.sync);
            return kvtier_os::later(Duration::ZERO, move || call(sync()));
        }
        waiting.calls.push(call);
        drop(waiting);
        self.shared.work.notify_one();
    }

    /// Runs a last sync for waiting operations, then ends the thread.
    pub fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, WaitingSync> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, sync: &SyncCall) {
        loop {
            let mut waiting = self.lock();
            while waiting.calls.is_empty() {
                if waiting.closed {
                    return;
                }
                waiting = self.work.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
            // Only calls from before the sync begins: one that arrives during it may have written
            // what this sync misses.
            let calls = std::mem::take(&mut waiting.calls);
            drop(waiting);
            let synced = sync();
            for call in calls {
                call(synced.as_ref().copied().map_err(|e| io::Error::new(e.kind(), e.to_string())));
            }
        }
    }
}

impl Drop for Syncer {
    /// Ends the thread of a tier whose open failed. Its `sync` keeps the tier's state alive.
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Syncer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Syncer({} waiting)", self.shared.lock().calls.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn many_operations_share_few_syncs_and_get_their_results() {
        let syncs = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&syncs);
        let (begin, begun) = sync_channel(1);
        let (go, wait) = sync_channel::<()>(1);
        let wait = Mutex::new(wait);
        // The first takes until all the others wait.
        let slow = move || match count.fetch_add(1, Ordering::SeqCst) {
            0 => {
                begin.send(()).unwrap();
                let _ = wait.lock().unwrap().recv();
                Ok(())
            }
            _ => Err(io::Error::from_raw_os_error(5)),
        };
        let syncer = Syncer::start("test", slow).unwrap();
        let (sender, results) = sync_channel(50);
        for n in 0..50 {
            let sender = sender.clone();
            syncer.after_sync(Box::new(move |synced| sender.send((n, synced.is_ok())).unwrap()));
            if n == 0 {
                begun.recv().unwrap();
            }
        }
        drop(go);
        syncer.close();
        drop(sender);
        let results: Vec<_> = results.iter().collect();
        assert_eq!(results.len(), 50);
        assert_eq!(results[0], (0, true));
        assert!(
            results[1..].iter().all(|(_, synced)| !synced),
            "each by a sync that began after it asked"
        );
        assert_eq!(syncs.load(Ordering::SeqCst), 2);
        syncer.after_sync(Box::new(|_| panic!("it is closed")));
    }
}
