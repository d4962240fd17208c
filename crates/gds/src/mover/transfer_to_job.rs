//! Jobs of the I/O engine: transfers as jobs, and the start of a job.

use std::io;

use kvtier_core::{Error as CoreError, Ticket, ticket};
use kvtier_disk::{Part, Transfer};
use kvtier_uring::{Engine, Error, ErrorKind, Finished, Job};

/// Submits a job. The ticket resolves when it has finished.
pub fn submit(engine: &Engine, job: Job) -> Ticket<Result<Finished, CoreError>> {
    let (completer, ticket) = ticket();
    // A refused job drops the completer, and the ticket resolves to an error.
    let _ = engine.submit(job, move |finished| completer.complete(Ok(finished)));
    ticket
}

/// Converts a transfer with host memory only.
pub fn to_job(transfer: Transfer) -> Job {
    let reads = matches!(transfer.parts.first(), Some(Part::Read { .. }));
    let mut job = if reads { Job::read(transfer.file) } else { Job::write(transfer.file) };
    job.parts = transfer.parts.into_iter().map(to_engine_part).collect();
    job.watch = transfer.watch;
    job
}

/// Converts a job back to its transfer.
pub fn to_transfer(job: Job) -> Transfer {
    Transfer {
        file: job.file,
        parts: job.parts.into_iter().map(from_engine_part).collect(),
        watch: job.watch,
        sums: None,
    }
}

pub fn to_engine_part(part: Part) -> kvtier_uring::Part {
    match part {
        Part::Read { at, into, len } => kvtier_uring::Part::Read { at, into, len },
        Part::Write { at, from } => kvtier_uring::Part::Write { at, len: from.len(), from },
    }
}

pub fn from_engine_part(part: kvtier_uring::Part) -> Part {
    match part {
        kvtier_uring::Part::Read { at, into, len } => Part::Read { at, into, len },
        kvtier_uring::Part::Write { at, from, .. } => Part::Write { at, from },
    }
}

pub fn io_error(e: Error) -> io::Error {
    match (e.kind(), e.raw_os_error()) {
        // Lets the disk tier distinguish a truncated file from a fault of the device.
        (ErrorKind::ShortRead { .. }, _) => io::Error::new(io::ErrorKind::UnexpectedEof, e),
        (_, Some(code)) => io::Error::from_raw_os_error(code),
        _ => io::Error::other(e),
    }
}
