//! A mover that does its work with plain reads and writes on one thread, and fails as a seed says.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use kvtier_disk::{Finish, Moved, Mover, Part, Refused, Transfer};
use kvtier_mem::{Lease, View};
use kvtier_testkit::Seed;

type Work = (Transfer, Finish);

/// Moves bytes, or does what a device does instead on a bad day.
#[derive(Debug)]
pub struct BadDay {
    queue: Mutex<Option<SyncSender<Work>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    seed: Mutex<Seed>,
    /// Of a thousand transfers, this many meet a fault.
    per_mille: u64,
    healed: AtomicBool,
    met: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The device says no.
    Error(i32),
    /// Half of the bytes move before it says no.
    Torn,
    /// A write says yes and half of it never arrives; a read says yes with a flipped bit.
    Lie,
    /// The device is slow.
    Slow,
}

impl BadDay {
    pub fn new(seed: u64, per_mille: u64) -> Self {
        let state = State {
            seed: Mutex::new(Seed::new(seed)),
            per_mille,
            healed: AtomicBool::new(per_mille == 0),
            met: AtomicU64::new(0),
        };
        let state = Arc::new(state);
        let (queue, work) = sync_channel(16);
        let theirs = Arc::clone(&state);
        let thread = std::thread::spawn(move || run(&work, &theirs));
        BadDay { queue: Mutex::new(Some(queue)), thread: Mutex::new(Some(thread)), state }
    }

    pub fn heal(&self) {
        self.state.healed.store(true, Ordering::SeqCst);
    }

    pub fn met(&self) -> u64 {
        self.state.met.load(Ordering::SeqCst)
    }
}

impl Mover for BadDay {
    fn submit(&self, transfer: Transfer, done: Finish) -> Result<(), Refused> {
        let queue = self.queue.lock().unwrap();
        let Some(queue) = queue.as_ref() else { return Err(Refused { transfer, closed: true }) };
        queue.try_send((transfer, done)).map_err(|e| match e {
            TrySendError::Full((transfer, _)) => Refused { transfer, closed: false },
            TrySendError::Disconnected((transfer, _)) => Refused { transfer, closed: true },
        })
    }

    fn close(&self) {
        drop(self.queue.lock().unwrap().take());
        if let Some(thread) = self.thread.lock().unwrap().take() {
            thread.join().unwrap();
        }
    }

    fn describe(&self) -> String {
        "a bad day".into()
    }
}

impl State {
    fn fate(&self) -> Option<Fault> {
        let mut seed = self.seed.lock().unwrap();
        let fault = seed.below(1000) < self.per_mille;
        let which = seed.below(6);
        if !fault || self.healed.load(Ordering::SeqCst) {
            return None;
        }
        self.met.fetch_add(1, Ordering::SeqCst);
        Some(match which {
            0 => Fault::Error(5),  // EIO
            1 => Fault::Error(28), // ENOSPC
            2 => Fault::Torn,
            3 | 4 => Fault::Lie,
            _ => Fault::Slow,
        })
    }
}

fn run(work: &Receiver<Work>, state: &State) {
    for (mut transfer, done) in work {
        let result = move_all(&mut transfer, state.fate());
        done(Moved { transfer, result, unseen: false });
    }
}

fn move_all(transfer: &mut Transfer, fault: Option<Fault>) -> io::Result<u64> {
    match fault {
        Some(Fault::Error(code)) => return Err(io::Error::from_raw_os_error(code)),
        Some(Fault::Slow) => std::thread::sleep(std::time::Duration::from_millis(3)),
        _ => {}
    }
    let file = Arc::clone(&transfer.file);
    let half = transfer.parts.len() / 2;
    let mut moved = 0;
    for (n, part) in transfer.parts.iter_mut().enumerate() {
        match fault {
            Some(Fault::Torn) if n >= half => return Err(io::Error::from_raw_os_error(5)),
            Some(Fault::Lie) if n < half && matches!(part, Part::Write { .. }) => continue,
            _ => {}
        }
        moved += match part {
            Part::Read { at, into, len } => read(&file, *at, into, *len)?,
            Part::Write { at, from } => write(&file, *at, from)?,
        };
        if let (Some(Fault::Lie), Part::Read { into, .. }) = (fault, &mut *part) {
            into.as_host_mut().unwrap()[0] ^= 1;
        }
        if let (Part::Read { into, len, .. }, Some(watch)) = (&*part, &mut transfer.watch) {
            watch(n, 0, &into.as_host().unwrap()[..*len]);
        }
    }
    Ok(moved)
}

/// Without direct I/O: alignment is the engines' concern, and their tests'.
fn plain(fd: &OwnedFd) -> io::Result<File> {
    let file = File::from(fd.try_clone()?);
    let flags = nix::fcntl::OFlag::empty();
    nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETFL(flags))?;
    Ok(file)
}

fn read(fd: &OwnedFd, at: u64, into: &mut Lease, len: usize) -> io::Result<u64> {
    let mut bytes = vec![0; len];
    plain(fd)?.read_exact_at(&mut bytes, at)?;
    into.write_at(0, &bytes).unwrap();
    Ok(len as u64)
}

fn write(fd: &OwnedFd, at: u64, from: &View) -> io::Result<u64> {
    plain(fd)?.write_all_at(from.as_ref(), at)?;
    Ok(from.len() as u64)
}
