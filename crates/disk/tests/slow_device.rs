//! A device that takes longer than the caller waits: what was given up does not appear afterwards.
#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "of what the test files share, this one uses some")]
mod common;

use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::BadDay;
use kvtier_core::{Ctx, ErrorKind, ManualClock, Observe, Tier};
use kvtier_disk::{Disk, DiskConfig, Finish, Layout, Mover, Refused, Transfer};
use kvtier_testkit::conformance::Fixture;

/// A good device whose transfers wait until they are let go.
#[derive(Debug)]
struct Gated {
    inner: Arc<BadDay>,
    open: Arc<(Mutex<bool>, Condvar)>,
    /// One message for each transfer that was submitted.
    submitted: SyncSender<()>,
}

impl Mover for Gated {
    fn submit(&self, transfer: Transfer, done: Finish) -> Result<(), Refused> {
        self.submitted.send(()).unwrap();
        let inner = Arc::clone(&self.inner);
        let open = Arc::clone(&self.open);
        std::thread::spawn(move || {
            let opened = open.0.lock().unwrap();
            drop(open.1.wait_while(opened, |open| !*open).unwrap());
            assert!(inner.submit(transfer, done).is_ok());
        });
        Ok(())
    }

    fn close(&self) {
        self.inner.close();
    }

    fn describe(&self) -> String {
        "gated".into()
    }
}

/// Lets the transfers go when it is dropped, however the test ends.
struct Opens(Arc<(Mutex<bool>, Condvar)>);

impl Drop for Opens {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

#[test]
fn a_save_that_was_given_up_does_not_appear_after_the_remove_that_followed() {
    for layout in [Layout::Kvtier, Layout::LmcacheMp] {
        let dir = tempfile::tempdir().unwrap();
        let open = Arc::<(Mutex<bool>, Condvar)>::default();
        let time = ManualClock::new();
        let minute = Duration::from_secs(60);
        let (submitted, submissions) = sync_channel(1);
        let mut config = DiskConfig::new(dir.path(), 1 << 20);
        (config.layout, config.clock) = (layout, time.clock());
        let inner = Arc::new(BadDay::new(1, 0));
        let disk = Disk::open(config, Gated { inner, open: Arc::clone(&open), submitted }).unwrap();
        let f = Fixture::new(
            kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap(),
        )
        .with_one_namespace();
        let keys = f.keys([1]);
        let _at_last = Opens(Arc::clone(&open));
        let ticket =
            disk.save(&Ctx::within_on(&time.clock(), minute), vec![f.save_op(&keys[0], 50_000)]);
        submissions.recv_timeout(2 * minute).unwrap();
        time.advance(minute - Duration::from_millis(1));
        assert!(!ticket.is_done());
        time.advance(Duration::from_millis(1));
        let late = ticket.wait();
        assert_eq!(late[0].result.as_ref().unwrap_err().kind(), ErrorKind::Timeout);
        // Who was late with beginning gave the memory back with the answer.
        drop(late);
        assert_eq!(disk.remove(&f.ctx(), Arc::clone(&keys)).wait().unwrap().absent, 1);
        drop(Opens(open));
        f.eventually("the device has given the memory back", || {
            f.arena.stats().free == f.arena.stats().capacity
        });
        disk.close().wait().unwrap();
        assert_eq!(disk.usage().chunks, 0, "{layout:?}");
        let folders =
            std::fs::read_dir(dir.path()).unwrap().flatten().filter(|e| e.file_name() != ".kvtier");
        let files = folders.flat_map(|folder| match std::fs::read_dir(folder.path()) {
            Ok(files) => files.flatten().map(|file| file.path()).collect(),
            Err(_) => vec![folder.path()],
        });
        assert_eq!(files.count(), 0, "{layout:?}");
    }
}
