use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvtier_mem::{Lease, Place, View};

/// Moves bytes between memory and an open file. All a directory tier asks of the hardware: it knows
/// no keys and no names.
pub trait Mover: fmt::Debug + Send + Sync + 'static {
    /// Starts a transfer; `done` is called exactly once, on a thread of the mover's, when no part
    /// of its memory is in use any more. Never blocks: what cannot be taken now comes back.
    fn submit(&self, transfer: Transfer, done: Finish) -> Result<(), Refused>;

    /// Ends everything: transfers under way are cancelled or awaited, `done` of each is called,
    /// threads are joined.
    fn close(&self);

    /// Which engine moves the bytes, and why that one.
    fn describe(&self) -> String;

    /// Whether it moves memory of this place. The rest of this trait is for memory that the CPU
    /// cannot reach, and for who moves such: their [`submit`](Mover::submit) takes reads of any
    /// alignment into it, among them reads of nothing, and looks at what memory has to wait for.
    fn reaches(&self, place: Place) -> bool {
        place.is_host()
    }

    /// The most bytes that [`fetch`](Mover::fetch) brings at once.
    fn fetch_bytes_max(&self) -> u64 {
        0
    }

    /// Brings the bytes of views that the CPU cannot reach to where it can, when there is room;
    /// `done` gets them, in the same order, at addresses that may be written from, and is
    /// called exactly once, on a thread of the mover's. Never blocks.
    fn fetch(&self, from: Vec<View>, done: Fetched) {
        drop(from);
        done(Err(io::ErrorKind::Unsupported.into()));
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

/// Called with the memory and the outcome of a transfer. Must be quick.
pub type Finish = Box<dyn FnOnce(Moved) + Send>;

/// Sees bytes as they arrive: (index of the part, offset in the part, the bytes). Each byte of a
/// read exactly once.
pub type Watch = Box<dyn FnMut(usize, u64, &[u8]) + Send>;

/// Is told sums of bytes that arrived where the CPU does not look, instead of the bytes: (index of
/// the part, offset in the part, bytes of a unit, CRC32C of each unit, as
/// [`PieceSums::units`](kvtier_key::PieceSums::units) takes them).
pub type Sums = Box<dyn FnMut(usize, u64, u64, &[u32]) + Send>;

/// Parts to move to or from one file; all reads or all writes. Offsets, addresses and lengths are
/// multiples of 4 KiB, except where a file system without such rules is in use.
pub struct Transfer {
    /// The file.
    pub file: Arc<OwnedFd>,
    /// What goes where.
    pub parts: Vec<Part>,
    /// Who sees arriving bytes.
    pub watch: Option<Watch>,
    /// Who is told sums of those that are not seen.
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
    /// Neither has the transfer's watch seen all that was read nor was it told its sums, because
    /// the bytes went where the CPU does not look and nobody asked for more: they are
    /// believed.
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
