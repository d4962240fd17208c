use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvtier_mem::{Lease, View};

use crate::{Error, ErrorKind};

/// Which jobs go first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Class {
    /// Somebody waits for the bytes.
    Read,
    /// May wait for reads.
    Write,
}

/// Sees bytes as they arrive: (index of the part, offset in the part, the bytes). Each byte exactly once, in any order.
pub type Watch = Box<dyn FnMut(usize, u64, &[u8]) + Send>;

/// One contiguous piece of a job.
#[derive(Debug)]
pub enum Part {
    /// Fill the first `len` bytes of `into` from offset `at`.
    Read {
        /// Offset in the file in bytes.
        at: u64,
        /// Where to.
        into: Lease,
        /// How many bytes; at most the lease's length.
        len: usize,
    },
    /// Write the first `len` bytes of `from` to offset `at`.
    Write {
        /// Offset in the file in bytes.
        at: u64,
        /// The bytes.
        from: View,
        /// How many bytes; at most the view's length (the caller brings its own padding).
        len: usize,
    },
}

/// Parts to move between memory and one open file, all in one direction. It owns its memory until [`Finished`] hands it back.
/// Alignment for direct I/O is the caller's business.
#[non_exhaustive]
pub struct Job {
    /// The file.
    pub file: Arc<OwnedFd>,
    /// What goes where.
    pub parts: Vec<Part>,
    /// Who sees arriving bytes.
    pub watch: Option<Watch>,
    /// When it goes; by default reads go first.
    pub class: Class,
}

/// A job that ended, with its memory; leases count as filled as far as bytes arrived.
pub struct Finished {
    /// The job.
    pub job: Job,
    /// Bytes moved: all of them, or an error.
    pub result: Result<u64, Error>,
}

/// Why a job was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RefusedWhy {
    /// As many jobs as allowed are waiting.
    Full,
    /// The engine is closed.
    Closed,
    /// The job can never be done: no parts, both directions, memory the CPU cannot reach, or a part longer than its memory.
    Invalid,
}

/// A job that was not taken, untouched.
pub struct Refused {
    /// The job.
    pub job: Job,
    /// Why.
    pub why: RefusedWhy,
}

/// What runs when a job ended.
pub(crate) type Done = Box<dyn FnOnce(Finished) + Send>;

impl Job {
    /// A job that reads from `file`, of no parts yet.
    pub fn read(file: Arc<OwnedFd>) -> Self {
        Job { file, parts: Vec::new(), watch: None, class: Class::Read }
    }

    /// A job that writes to `file`, of no parts yet.
    pub fn write(file: Arc<OwnedFd>) -> Self {
        Job { file, parts: Vec::new(), watch: None, class: Class::Write }
    }

    /// Adds a part.
    pub fn with_part(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }

    /// Sets who sees arriving bytes.
    pub fn with_watch(mut self, watch: impl FnMut(usize, u64, &[u8]) + Send + 'static) -> Self {
        self.watch = Some(Box::new(watch));
        self
    }

    /// Its class, by its direction; `None` for a job that can never be done.
    pub(crate) fn class(&self) -> Option<Class> {
        let class = |part: &Part| match part {
            Part::Read { into, len, .. } if into.place().is_host() && *len <= into.len() => Some(Class::Read),
            Part::Write { from, len, .. } if from.place().is_host() && *len <= from.len() => Some(Class::Write),
            _ => None,
        };
        let first = class(self.parts.first()?)?;
        self.parts.iter().all(|p| class(p) == Some(first)).then_some(first)
    }

    /// Marks how far a part's lease was filled.
    pub(crate) fn fill(&mut self, part: usize, len: usize) {
        if let Some(Part::Read { into, .. }) = self.parts.get_mut(part) {
            into.assume_filled(len);
        }
    }
}

impl Part {
    /// Offset in the file, first address, and length in bytes.
    pub(crate) fn range(&self) -> (u64, usize, usize) {
        match self {
            Part::Read { at, into, len } => (*at, into.addr(), *len),
            Part::Write { at, from, len } => (*at, from.addr(), *len),
        }
    }

    pub(crate) fn is_read(&self) -> bool {
        matches!(self, Part::Read { .. })
    }
}

impl Finished {
    pub(crate) fn closed(job: Job) -> Self {
        Finished { job, result: Err(Error::new(ErrorKind::Closed, "the I/O engine was closed")) }
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("file", &self.file).field("parts", &self.parts).finish_non_exhaustive()
    }
}

impl fmt::Debug for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Finished({:?})", self.result)
    }
}

impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Refused({:?})", self.why)
    }
}
