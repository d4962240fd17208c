//! A thread that stands for a process of a simulation.

use std::cell::RefCell;
use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

pub use crate::call::{Call, Name};
pub use crate::identity::Identity;

/// What a simulated process runs later.
pub type Job = Box<dyn FnOnce() + Send>;

/// A process of a simulation, which lives on one thread.
pub trait Process: Debug {
    /// A call is about to be made. It may wait here, and unwind where the process is killed.
    ///
    /// # Errors
    /// The call fails with this error.
    fn before(&self, call: Call<'_>) -> Result<(), nix::Error>;

    /// The call succeeded.
    fn after(&self, call: Call<'_>);

    /// How many of these bytes a write brings to the file before it fails; `None` for all.
    fn written(&self, bytes: usize) -> Option<(usize, nix::Error)>;

    /// Whether a directory is known to have no names, so that it need not be listed.
    fn has_empty_dir(&self, name: Name<'_>) -> bool;

    /// The attribute of the file with this inode, if it has one.
    fn attribute(&self, inode: u64) -> Option<Vec<u8>>;

    /// Who it is.
    fn identity(&self) -> Identity;

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

/// A write that ends early.
pub(crate) struct Torn<'a> {
    part: &'a [u8],
    error: nix::Error,
}

impl Torn<'_> {
    pub(crate) fn and_fail(self, write: impl FnOnce(&[u8]) -> io::Result<()>) -> io::Result<()> {
        write(self.part)?;
        Err(self.error.into())
    }
}

/// Lets the simulated process see a write. `Some` where only a part of the bytes is written.
pub(crate) fn torn<'a>(file: BorrowedFd<'_>, bytes: &'a [u8]) -> io::Result<Option<Torn<'a>>> {
    let Some(process) = current() else { return Ok(None) };
    process.before(Call::Write(file))?;
    let torn = process.written(bytes.len());
    Ok(torn.map(|(len, error)| Torn { part: &bytes[..len.min(bytes.len())], error }))
}
