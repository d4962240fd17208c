use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvtier_mem::{Lease, View};

use crate::{Error, ErrorKind};

/// The order in which jobs are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum JobClass {
    /// A request is blocked on the bytes.
    Read,
    /// Yields to reads.
    Write,
}

/// Called with bytes as they arrive: (index of the part, offset in the part in bytes, the bytes).
/// It is called once for each piece, in any order, never concurrently, on a thread of the engine.
/// It should take no longer than a checksum. Pieces start at multiples of
/// [`EngineConfig::piece_bytes`](crate::EngineConfig::piece_bytes) from the start of their part. In
/// a job that succeeds, each byte was seen exactly once. A watch that panics fails its job as
/// `Invalid`.
pub type Watch = Box<dyn FnMut(usize, u64, &[u8]) + Send>;

/// One contiguous part of a job.
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

/// Parts to move between memory and one open file, all in one direction. It owns its memory until
/// [`Finished`] returns it. Alignment for direct I/O is up to the caller.
#[non_exhaustive]
pub struct Job {
    /// The file.
    pub file: Arc<OwnedFd>,
    /// The parts.
    pub parts: Vec<Part>,
    /// Called with arriving bytes.
    pub watch: Option<Watch>,
    /// The order of service; by default reads go first.
    pub class: JobClass,
}

/// A job that ended, with its memory. Leases count as filled up to the first gap. The parts are
/// missing only if the engine itself failed while the kernel had the job: the memory is then
/// leaked, since the kernel may still use it.
pub struct Finished {
    /// The job.
    pub job: Job,
    /// Bytes moved: all of them, or the first error.
    pub result: Result<u64, Error>,
}

/// Why a job was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RefusalReason {
    /// As many jobs as allowed are waiting.
    Full,
    /// The engine is closed.
    Closed,
}

/// A job that was not accepted, unchanged.
pub struct RefusedJob {
    /// The job.
    pub job: Job,
    /// Why.
    pub why: RefusalReason,
}

/// Called when a job has ended.
pub(crate) type OnDone = Box<dyn FnOnce(Finished) + Send>;

impl Job {
    /// A job that reads from `file`, without parts.
    pub fn read(file: Arc<OwnedFd>) -> Self {
        Job { file, parts: Vec::new(), watch: None, class: JobClass::Read }
    }

    /// A job that writes to `file`, without parts.
    pub fn write(file: Arc<OwnedFd>) -> Self {
        Job { file, parts: Vec::new(), watch: None, class: JobClass::Write }
    }

    /// Adds a part.
    pub fn with_part(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }

    /// Sets the function that is called with arriving bytes.
    pub fn with_watch(mut self, watch: impl FnMut(usize, u64, &[u8]) + Send + 'static) -> Self {
        self.watch = Some(Box::new(watch));
        self
    }

    /// Refuses what can never be done.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let reads = self.parts.first().is_some_and(Part::is_read);
        self.parts.iter().try_for_each(|part| {
            let (at, _, len) = part.range();
            let (held, place) = match part {
                Part::Read { into, .. } => (into.len(), into.place()),
                Part::Write { from, .. } => (from.len(), from.place()),
            };
            let invalid = |what: String| Err(Error::new(ErrorKind::Invalid, what));
            match () {
                _ if !place.is_host() => Err(Error::new(
                    ErrorKind::Unsupported,
                    format!(
                        "this engine moves host memory only, not {place:?}: go through a host lease"
                    ),
                )),
                _ if part.is_read() != reads => {
                    invalid("one job both reads and writes: make two of it".into())
                }
                // The last check before addresses go to the kernel. Everything behind it trusts
                // these lengths.
                _ if len > held => invalid(format!("a part of {len} bytes in memory of {held}")),
                _ if at.checked_add(len as u64).is_none_or(|end| end > i64::MAX as u64) => {
                    invalid(format!("no file has {len} bytes at offset {at}"))
                }
                _ => Ok(()),
            }
        })
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

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("file", &self.file)
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Finished({:?})", self.result)
    }
}

impl fmt::Debug for RefusedJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RefusedJob({:?})", self.why)
    }
}
