//! Reads the parts of a load in host memory through the I/O engine.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvtier_core::{Error, Ticket};
use kvtier_disk::Part;
use kvtier_uring::{Engine, Finished, Job};

use super::transfer_to_job::{from_engine_part, io_error, submit, to_engine_part};

/// A part of a transfer into host memory, with its index.
pub struct HostPart {
    at: usize,
    part: Part,
}

/// The reads of host parts, in flight.
pub struct HostReads {
    at: Vec<usize>,
    read: Option<Ticket<Result<Finished, Error>>>,
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
