//! Reads the host parts of a load through the I/O engine, and converts transfers to engine jobs.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvtier_core::{Error as CoreError, Ticket};
use kvtier_disk::{Part, Transfer};
use kvtier_uring::{Engine, Error, ErrorKind, Finished, Job};

use super::load::submit;

/// A part of a transfer into host memory, with its index.
pub struct HostPart {
    at: usize,
    part: Part,
}

/// The reads of host parts, in flight.
pub struct HostReads {
    at: Vec<usize>,
    read: Option<Ticket<Result<Finished, CoreError>>>,
}

/// Takes the parts for host memory.
pub fn take_host_parts(parts: &mut [Option<Part>]) -> Vec<HostPart> {
    let is_host = |part: &Part| match part {
        Part::Read { into, .. } => into.place().is_host(),
        Part::Write { from, .. } => from.place().is_host(),
    };
    let take = |(at, part): (usize, &mut Option<Part>)| {
        let part = part.take_if(|part| is_host(part))?;
        Some(HostPart { at, part })
    };
    parts.iter_mut().enumerate().filter_map(take).collect()
}

impl HostReads {
    /// Starts to read the parts.
    pub fn start(engine: &Engine, file: &Arc<OwnedFd>, parts: Vec<HostPart>) -> Self {
        // The engine returns the parts in the order of the job, so their indices are enough to put
        // them back.
        let at: Vec<usize> = parts.iter().map(|part| part.at).collect();
        let mut job = Job::read(Arc::clone(file));
        job.parts = parts.into_iter().map(|part| to_engine_part(part.part)).collect();
        HostReads { read: (!at.is_empty()).then(|| submit(engine, job)), at }
    }

    /// Waits for the reads and puts the parts back at their indices. Returns the bytes read.
    pub async fn finish(self, parts: &mut [Option<Part>]) -> io::Result<u64> {
        let Some(read) = self.read else { return Ok(0) };
        let Finished { job, result, .. } = read.await.map_err(io::Error::other)?;
        // Before the result is judged: the memory goes back to the caller also after an error.
        for (at, part) in self.at.into_iter().zip(job.parts) {
            parts[at] = Some(from_engine_part(part));
        }
        result.map_err(io_error)
    }
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

fn to_engine_part(part: Part) -> kvtier_uring::Part {
    match part {
        Part::Read { at, into, len } => kvtier_uring::Part::Read { at, into, len },
        Part::Write { at, from } => kvtier_uring::Part::Write { at, len: from.len(), from },
    }
}

fn from_engine_part(part: kvtier_uring::Part) -> Part {
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
