//! A thread that stands for a process of a simulation.

use std::cell::RefCell;
use std::ffi::CString;
use std::fmt::Debug;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

pub use crate::call::{Call, Name, Write};
pub use crate::identity::Identity;

/// A name in a directory, as a simulation has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownName {
    /// The name.
    pub name: CString,
    /// The inode of a file; of a directory any number.
    pub inode: u64,
}

/// What of a write arrives at the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrived {
    /// This many of its bytes. Fewer than it has without an error are a short write.
    pub bytes: usize,
    /// The error that it is answered with.
    pub error: Option<nix::Error>,
}

/// What a simulated process runs later.
pub type Job = Box<dyn FnOnce() + Send>;

/// A process of a simulation, which lives on one thread.
pub trait Process: Debug {
    /// A call is about to be made. It may wait here, and unwind where the process is killed.
    ///
    /// # Errors
    /// The call fails with this error.
    fn before(&self, call: Call<'_>) -> Result<(), nix::Error>;

    /// The call succeeded; a write may have failed too, after these bytes.
    fn after(&self, call: Call<'_>);

    /// The call was made, and failed with this error.
    fn failed(&self, call: Call<'_>, error: nix::Error);

    /// What of a write arrives.
    fn written(&self, write: Write<'_>) -> Arrived;

    /// How many of these bytes a read answers at most.
    fn read_len(&self, bytes: usize) -> usize;

    /// The names in a directory, in their order, where they are known without a look.
    fn names_in(&self, dir: Name<'_>) -> Option<Vec<KnownName>>;

    /// The attribute of the file with this inode, if it has one.
    fn attribute(&self, inode: u64) -> Option<Vec<u8>>;

    /// Who it is.
    fn identity(&self) -> Identity;

    /// Random bytes.
    fn random_bytes(&self) -> [u8; 32];

    /// Its time for intervals.
    fn now(&self) -> Instant;

    /// Its time of day.
    fn wall(&self) -> SystemTime;

    /// All and free bytes of its file system.
    fn sizes(&self) -> (u64, u64);

    /// Pauses for this time.
    fn sleep(&self, time: Duration);

    /// Runs `job` after this time.
    fn later(&self, after: Duration, job: Job);
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<dyn Process>>> = const { RefCell::new(None) };
}

/// Makes this thread a simulated process until the guard is dropped.
pub fn enter(process: Rc<dyn Process>) -> Entered {
    CURRENT.with_borrow_mut(|current| Entered { before: current.replace(process) })
}

/// Ends the simulated process of its thread on drop.
#[derive(Debug)]
pub struct Entered {
    before: Option<Rc<dyn Process>>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let before = self.before.take();
        // The process is dropped outside of the borrow: its parts may make calls.
        let ended = CURRENT.with_borrow_mut(|current| std::mem::replace(current, before));
        drop(ended);
    }
}

/// The simulated process of this thread.
pub(crate) fn current() -> Option<Rc<dyn Process>> {
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// Why a call failed.
pub(crate) trait Failure {
    /// Its number.
    fn number(&self) -> nix::Error;
}

impl Failure for nix::Error {
    fn number(&self) -> nix::Error {
        *self
    }
}

impl Failure for io::Error {
    fn number(&self) -> nix::Error {
        match self.raw_os_error() {
            Some(number) => nix::Error::from_raw(number),
            None if self.kind() == io::ErrorKind::WouldBlock => nix::Error::EWOULDBLOCK,
            None => nix::Error::UnknownErrno,
        }
    }
}

/// Makes one write, of which the process may let a part arrive. Answers how many bytes did.
pub(crate) fn write(
    process: &dyn Process,
    write: Write<'_>,
    make: impl FnOnce(&[u8]) -> io::Result<()>,
) -> io::Result<usize> {
    process.before(Call::Write(write))?;
    let arrived = process.written(write);
    let part = &write.bytes[..arrived.bytes.min(write.bytes.len())];
    let made = make(part);
    // One that failed may have written a part too.
    process.after(Call::Write(Write { bytes: part, ..write }));
    let made = made.and(arrived.error.map_or(Ok(part.len()), |error| Err(error.into())));
    if let Err(error) = &made {
        process.failed(Call::Write(write), error.number());
    }
    made
}

/// Makes writes until all bytes arrived or one fails.
pub(crate) fn write_all(
    process: &dyn Process,
    write: Write<'_>,
    make: impl Fn(&[u8], Option<u64>) -> io::Result<()>,
) -> io::Result<()> {
    let mut done = 0;
    loop {
        let at = write.at.map(|at| at + done as u64);
        let rest = Write { at, bytes: &write.bytes[done..], ..write };
        let arrived = self::write(process, rest, |part| make(part, at))?;
        done += arrived;
        if done >= write.bytes.len() {
            return Ok(());
        }
        if arrived == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
    }
}
