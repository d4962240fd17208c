use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvtier_mem::{Lease, Place, View};

/// Moves bytes between memory and an open file. The only interface of a directory tier to the
/// hardware, without keys and names.
pub trait Mover: fmt::Debug + Send + Sync + 'static {
    /// Starts a transfer; `done` is called exactly once, on a thread of the mover's, when no part
    /// of its memory is in use any more. Never blocks.
    ///
    /// # Errors
    /// The mover is full or closed; the transfer is returned.
    fn submit(&self, transfer: Transfer, done: Finish) -> Result<(), Refused>;

    /// Ends everything: transfers under way are cancelled or awaited, `done` of each is called,
    /// threads are joined.
    fn close(&self);

    /// Which engine moves the bytes, and why that one.
    fn describe(&self) -> String;

    /// Whether it moves memory of this place. The rest of this trait is for movers of memory that the
    /// CPU cannot reach. Their [`submit`](Mover::submit) accepts reads of any alignment into it,
    /// empty ones included, and waits for work on that memory.
    fn reaches(&self, place: Place) -> bool {
        place.is_host()
    }

    /// The most bytes that [`fetch`](Mover::fetch) brings at once.
    fn fetch_bytes_max(&self) -> u64 {
        0
    }

    /// Copies the bytes of views that the CPU cannot reach into memory that it can reach, when there is
    /// space; `done` gets them, in the same order, at addresses that may be written from, and is
    /// called exactly once, on a thread of the mover's. Never blocks.
    fn fetch(&self, from: Vec<View>, done: Fetched) {
        drop(from);
        done(Err(io::ErrorKind::Unsupported.into()));
    }

    /// Copies the bytes of a view of host memory into leases that the CPU cannot reach, in their order,
    /// and waits for work on that memory; `done` gets the leases. On success each counts as filled
    /// with what it got. `done` is called exactly once, on a thread of the mover's, when the view was
    /// dropped. Never blocks.
    fn upload(&self, from: View, into: Vec<Lease>, done: Uploaded) {
        drop(from);
        done(into, Err(io::ErrorKind::Unsupported.into()));
    }

    /// Copies a few bytes (less than 4 KiB) to `at` of a lease that the CPU cannot reach, and that
    /// was part of a transfer just before.
    fn put(&self, into: &mut Lease, at: usize, bytes: &[u8]) -> io::Result<()> {
        into.write_at(at, bytes).map_err(io::Error::other)
    }

    /// What it counted, by name.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// Called with bytes that were fetched.
pub type Fetched = Box<dyn FnOnce(io::Result<Vec<View>>) + Send>;

/// Called with the memory and the outcome of an upload.
pub type Uploaded = Box<dyn FnOnce(Vec<Lease>, io::Result<()>) + Send>;

/// Called with the memory and the outcome of a transfer. Must be quick.
pub type Finish = Box<dyn FnOnce(Moved) + Send>;

/// Sees bytes as they arrive: (index of the part, offset in the part, the bytes). Each byte of a
/// read exactly once.
pub type Watch = Box<dyn FnMut(usize, u64, &[u8]) + Send>;

/// Receives checksums of bytes that arrived where the CPU cannot see them, instead of the bytes: (index
/// of the part, offset in the part, bytes of a unit, CRC32C of each unit, as
/// [`PieceSums::units`](kvtier_key::PieceSums::units) takes them).
pub type Sums = Box<dyn FnMut(usize, u64, u64, &[u32]) + Send>;

/// Parts to move to or from one file; all reads or all writes. Offsets, addresses and lengths are
/// multiples of 4 KiB, except where a file system without such rules is in use.
pub struct Transfer {
    /// The file.
    pub file: Arc<OwnedFd>,
    /// The pieces and their memory.
    pub parts: Vec<Part>,
    /// Receives arriving bytes.
    pub watch: Option<Watch>,
    /// Receives checksums of bytes that `watch` does not get.
    pub sums: Option<Sums>,
}

/// One contiguous piece of a transfer.
#[derive(Debug)]
pub enum Part {
    /// Fill the first `len` bytes of `into` from offset `at` of the file.
    Read {
        /// Offset in the file in bytes.
        at: u64,
        /// Where to.
        into: Lease,
        /// How many bytes.
        len: usize,
    },
    /// Write all of `from` to offset `at` of the file.
    Write {
        /// Offset in the file in bytes.
        at: u64,
        /// The bytes.
        from: View,
    },
}

/// A finished transfer.
pub struct Moved {
    /// The transfer, with its memory; leases know how far they were filled.
    pub transfer: Transfer,
    /// Bytes moved, which is all of them. The end of the file before that is `UnexpectedEof`.
    pub result: io::Result<u64>,
    /// Neither `watch` nor `sums` got all of the read bytes, because they went where the CPU cannot see
    /// them and checksums were not requested: they are accepted without verification.
    pub unseen: bool,
}

/// A transfer that was not taken.
pub struct Refused {
    /// The transfer, untouched.
    pub transfer: Transfer,
    /// Whether the mover is closed; otherwise it is full.
    pub closed: bool,
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("file", &self.file)
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Moved({:?})", self.result)
    }
}

impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Refused({})", if self.closed { "closed" } else { "full" })
    }
}
