//! A caller that receives an answer may act on it at once: by then the tier has let go of the chunk's file and
//! of the memory that it was moved with.
#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "of what the test files share, this one uses some")]
mod common;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, Weak};

use common::BadDay;
use kvtier_core::{Done, ErrorKind, Loaded, Saved, ShedReason, Ticket, Tier};
use kvtier_disk::{Disk, DiskConfig, Finish, Layout, Moved, Mover, Part, Refused, Transfer};
use kvtier_mem::View;
use kvtier_testkit::conformance::Fixture;

const LEN: usize = 50_000;

/// A good device whose transfers wait until they are let go, or fail with this code; it keeps an
/// eye on what belongs to them.
#[derive(Debug)]
struct Seen {
    inner: Arc<BadDay>,
    fails: Mutex<Option<i32>>,
    open: (Mutex<bool>, Condvar),
    files: Mutex<Vec<Weak<OwnedFd>>>,
    memory: Mutex<Vec<Weak<()>>>,
}

/// Memory that is gone when nothing refers to it.
struct Owner {
    _alive: Arc<()>,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &[0]
    }
}

impl Seen {
    fn new() -> Arc<Self> {
        let fails = Mutex::default();
        let open = Default::default();
        let files = Mutex::default();
        let memory = Mutex::default();
        Arc::new(Seen { inner: Arc::new(BadDay::new(1, 0)), fails, open, files, memory })
    }

    fn open(&self, open: bool) {
        *self.open.0.lock().unwrap() = open;
        self.open.1.notify_all();
    }

    fn is_let_go(&self) -> bool {
        let files = self.files.lock().unwrap().iter().all(|file| file.strong_count() == 0);
        files && self.memory.lock().unwrap().iter().all(|memory| memory.strong_count() == 0)
    }
}

#[derive(Debug)]
struct Watched(Arc<Seen>);

impl Mover for Watched {
    fn submit(&self, mut transfer: Transfer, done: Finish) -> Result<(), Refused> {
        let seen = Arc::clone(&self.0);
        seen.files.lock().unwrap().push(Arc::downgrade(&transfer.file));
        let fails = *seen.fails.lock().unwrap();
        std::thread::spawn(move || {
            drop(seen.open.1.wait_while(seen.open.0.lock().unwrap(), |open| !*open).unwrap());
            let Some(code) = fails else {
                return assert!(seen.inner.submit(transfer, done).is_ok());
            };
            if matches!(transfer.parts[0], Part::Write { .. }) {
                let alive = Arc::new(());
                seen.memory.lock().unwrap().push(Arc::downgrade(&alive));
                transfer
                    .parts
                    .push(Part::Write { at: 0, from: View::from_owner(Owner { _alive: alive }) });
            }
            done(Moved {
                transfer,
                result: Err(io::Error::from_raw_os_error(code)),
                unseen: false,
            });
        });
        Ok(())
    }

    fn close(&self) {
        self.0.inner.close();
    }

    fn describe(&self) -> String {
        "watched".into()
    }
}

/// The one answer, and whether all was let go when it was given: looked at on the thread that gives
/// it, before any other receiver.
fn observed<O, T>(seen: &Arc<Seen>, ticket: Ticket<Vec<Done<O, T>>>) -> (Done<O, T>, bool)
where
    O: Send + 'static,
    T: Send + 'static,
{
    let (send, received) = sync_channel(1);
    let theirs = Arc::clone(seen);
    let ticket = ticket.inspect(move |_| send.send(theirs.is_let_go()).unwrap());
    seen.open(true);
    let done = ticket.wait().remove(0);
    seen.open(false);
    (done, received.recv().unwrap())
}

#[test]
fn when_an_answer_is_given_files_are_closed_and_memory_is_let_go() {
    for layout in [Layout::Kvtier, Layout::LmcacheMp] {
        let dir = tempfile::tempdir().unwrap();
        let mut config = DiskConfig::new(dir.path(), 1 << 20);
        config.layout = layout;
        let seen = Seen::new();
        let disk = Disk::open(config, Watched(Arc::clone(&seen))).unwrap();
        let f = Fixture::new(
            kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap(),
        )
        .with_one_namespace();
        let save = |n| observed(&seen, disk.save(&f.ctx(), vec![f.save_op(&f.key(n), LEN)]));
        let load = |n| observed(&seen, disk.load(&f.ctx(), vec![f.load_op(&f.key(n), LEN)]));
        let (done, let_go) = save(1);
        assert_eq!((done.result.unwrap(), let_go), (Saved::Stored, true), "{layout:?}");
        let (done, let_go) = load(1);
        assert_eq!(
            (done.result.unwrap(), let_go),
            (Loaded::Hit { len: LEN as u64 }, true),
            "{layout:?}"
        );
        // What failed too: EIO, and ENOSPC.
        *seen.fails.lock().unwrap() = Some(5);
        let (done, let_go) = save(2);
        assert_eq!((done.result.unwrap_err().kind(), let_go), (ErrorKind::Io, true), "{layout:?}");
        let (done, let_go) = load(1);
        assert_eq!((done.result.unwrap_err().kind(), let_go), (ErrorKind::Io, true), "{layout:?}");
        *seen.fails.lock().unwrap() = Some(28);
        let (done, let_go) = save(2);
        assert_eq!(
            (done.result.unwrap(), let_go),
            (Saved::Shed(ShedReason::DeviceFull), true),
            "{layout:?}"
        );
        // SpaceReservation on a full medium may be made and tried again.
        let saw = (seen.files.lock().unwrap().len(), seen.memory.lock().unwrap().len());
        assert!(saw.0 >= 5 && saw.0 - saw.1 == 3, "{saw:?}: it saw them all");
    }
}
