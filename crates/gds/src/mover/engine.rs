//! What moves between files and host memory, as the engine sees it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvtier_core::{Error as CoreError, Ticket};
use kvtier_disk::{Part, Transfer};
use kvtier_uring::{Engine, Error, ErrorKind, Finished, Job};

use super::load::submit;

/// The parts of a transfer that are for the host, under way by themselves.
pub struct Near {
    places: Vec<usize>,
    read: Option<Ticket<Result<Finished, CoreError>>>,
}

/// Takes the parts for the host out of all.
pub fn near(parts: &mut [Option<Part>]) -> Vec<(usize, Part)> {
    let is_near = |part: &Part| match part {
        Part::Read { into, .. } => into.place().is_host(),
        Part::Write { from, .. } => from.place().is_host(),
    };
    let take =
        |(n, part): (usize, &mut Option<Part>)| Some((n, part.take_if(|part| is_near(part))?));
    parts.iter_mut().enumerate().filter_map(take).collect()
}

/// Starts to read them.
pub fn start(engine: &Engine, file: &Arc<OwnedFd>, parts: Vec<(usize, Part)>) -> Near {
    let (places, parts): (Vec<usize>, Vec<Part>) = parts.into_iter().unzip();
    let mut job = Job::read(Arc::clone(file));
    job.parts = parts.into_iter().map(to_engine).collect();
    Near { read: (!places.is_empty()).then(|| submit(engine, job)), places }
}

impl Near {
    /// Waits for them and puts them back where they were.
    pub async fn finish(self, parts: &mut [Option<Part>]) -> io::Result<u64> {
        let Some(read) = self.read else { return Ok(0) };
        let Finished { job, result, .. } = read.await.map_err(io::Error::other)?;
        for (n, part) in self.places.into_iter().zip(job.parts) {
            parts[n] = Some(from_engine(part));
        }
        result.map_err(io_error)
    }
}

/// A transfer for the host alone.
pub fn job_of(transfer: Transfer) -> Job {
    let reads = matches!(transfer.parts.first(), Some(Part::Read { .. }));
    let mut job = if reads { Job::read(transfer.file) } else { Job::write(transfer.file) };
    job.parts = transfer.parts.into_iter().map(to_engine).collect();
    job.watch = transfer.watch;
    job
}

pub fn transfer_of(job: Job) -> Transfer {
    Transfer {
        file: job.file,
        parts: job.parts.into_iter().map(from_engine).collect(),
        watch: job.watch,
        sums: None,
    }
}

fn to_engine(part: Part) -> kvtier_uring::Part {
    match part {
        Part::Read { at, into, len } => kvtier_uring::Part::Read { at, into, len },
        Part::Write { at, from } => kvtier_uring::Part::Write { at, len: from.len(), from },
    }
}

fn from_engine(part: kvtier_uring::Part) -> Part {
    match part {
        kvtier_uring::Part::Read { at, into, len } => Part::Read { at, into, len },
        kvtier_uring::Part::Write { at, from, .. } => Part::Write { at, from },
    }
}

pub fn io_error(e: Error) -> io::Error {
    match (e.kind(), e.raw_os_error()) {
        (ErrorKind::ShortRead { .. }, _) => io::Error::new(io::ErrorKind::UnexpectedEof, e),
        (_, Some(code)) => io::Error::from_raw_os_error(code),
        _ => io::Error::other(e),
    }
}
