use std::io;

use kvtier_disk::{Finish, Moved, Mover, Part, Refused, Transfer};
use kvtier_uring::{Engine, Error, ErrorKind, Finished, Job, RefusalReason};

/// The engine as the directory tier sees it.
#[derive(Debug)]
pub struct EngineMover(pub Engine);

impl Mover for EngineMover {
    fn submit(&self, transfer: Transfer, done: Finish) -> Result<(), Refused> {
        // Runs on a thread of the engine, once for each job that it took. A refused job comes back
        // below, and its callback is dropped.
        let finish = move |Finished { job, result, .. }: Finished| {
            done(Moved {
                transfer: transfer_of(job),
                result: result.map_err(io_error),
                // The engine reads into memory of the host, so the watch has got every byte.
                unseen: false,
            });
        };
        self.0.submit(job_of(transfer), finish).map_err(|refused| Refused {
            closed: matches!(refused.why, RefusalReason::Closed),
            transfer: transfer_of(refused.job),
        })
    }

    fn close(&self) {
        self.0.close();
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let stats = self.0.stats();
        vec![
            ("fixed_requests", stats.fixed),
            ("unfixed_requests", stats.unfixed),
            ("registered_bytes", stats.registered_bytes),
        ]
    }

    fn describe(&self) -> String {
        format!("engine {:?}: {}", self.0.kind(), self.0.reason())
    }
}

fn job_of(transfer: Transfer) -> Job {
    // A write moves its whole view. A read may fill only a part of its lease.
    let part = |part| match part {
        Part::Read { at, into, len } => kvtier_uring::Part::Read { at, into, len },
        Part::Write { at, from } => kvtier_uring::Part::Write { at, len: from.len(), from },
    };
    // A transfer is a load or a save, never both: the first part shows which.
    let reads = matches!(transfer.parts.first(), Some(Part::Read { .. }));
    let mut job = if reads { Job::read(transfer.file) } else { Job::write(transfer.file) };
    job.parts = transfer.parts.into_iter().map(part).collect();
    job.watch = transfer.watch;
    job
}

fn transfer_of(job: Job) -> Transfer {
    let part = |part| match part {
        kvtier_uring::Part::Read { at, into, len } => Part::Read { at, into, len },
        kvtier_uring::Part::Write { at, from, .. } => Part::Write { at, from },
    };
    Transfer {
        file: job.file,
        parts: job.parts.into_iter().map(part).collect(),
        watch: job.watch,
        // Only movers for GPUs report checksums. The memory here is checked through the watch.
        sums: None,
    }
}

fn io_error(e: Error) -> io::Error {
    match (e.kind(), e.raw_os_error()) {
        // A file that ends early is a damaged chunk, which the tier quarantines; every other error
        // says nothing about the file.
        (ErrorKind::ShortRead { .. }, _) => io::Error::new(io::ErrorKind::UnexpectedEof, e),
        // With the system's own code, so that a full or read-only device is recognised by its kind.
        (_, Some(code)) => io::Error::from_raw_os_error(code),
        _ => io::Error::other(e),
    }
}
