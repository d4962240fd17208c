//! `kvtier migrate|export|import`: chunks from one place to another, whatever their layouts; every byte is checked on the way.

mod archive;
mod args;
mod bucket;
mod directory;
mod report;
mod source;
mod target;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use report::Tally;
use source::{Read, Source, Wanted};
use target::{Outcome, Target};

pub use args::{CopyArgs, ExportArgs, ImportArgs, MigrateArgs};

/// How many chunks are under way at a time where a bucket is at one end.
const WORKERS: usize = 8;

/// Which end is a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Neither: `kvtier migrate`.
    Migrate,
    /// The file is written.
    Export,
    /// The file is read.
    Import,
}

/// Copies. Answers whether every chunk is now in TO.
pub fn run(args: &CopyArgs, way: Way) -> Result<bool> {
    crate::interrupt::watch()?;
    args.check(way)?;
    let from = Source::of(args, way)?;
    let mut tally = Tally::default();
    let target = Target::of(args, way)?;
    let found = from.wanted(args, &mut tally)?;
    let wanted = target.select(found, &mut tally);
    if way == Way::Export {
        wanted.iter().filter_map(|one| one.whose.key.as_ref().err()).for_each(|why| tally.without_key(why));
    }
    let (wanted, sink) = target.without_present(wanted, args, &mut tally)?;
    match sink {
        Some(sink) if !args.how.dry_run => {
            let workers = if from.is_remote() || target.is_remote() { WORKERS } else { 1 };
            copy((&from, &*sink), &wanted, workers, &mut tally)?;
            sink.finish()?;
        }
        _ => {
            tally.copied = wanted.len() as u64;
            tally.copied_bytes = wanted.iter().map(|one| one.len).sum();
        }
    }
    tally.report(args, (&from.layout(), target.layout()))?;
    Ok(tally.is_whole())
}

/// What takes chunks.
trait Sink: Sync {
    /// Stores a chunk whose bytes were checked, as far as its facts tell.
    fn put(&self, one: &Wanted, payload: Vec<u8>) -> Result<Outcome>;

    /// After the last.
    fn finish(&self) -> Result<()>;
}

fn copy((from, to): (&Source, &dyn Sink), wanted: &[Wanted], workers: usize, tally: &mut Tally) -> Result<()> {
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {binary_bytes_per_sec} (eta {eta})");
    let bar = ProgressBar::new(wanted.iter().map(|one| one.len).sum()).with_style(style.context("template")?);
    let (next, shared, failed) = (AtomicUsize::new(0), Mutex::new(std::mem::take(tally)), Mutex::new(None));
    let work = || {
        while let Some(one) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
            let done = crate::interrupt::check().and_then(|()| copy_one((from, to), one, &shared));
            if let Err(e) = done {
                // The others end with what they have.
                next.store(wanted.len(), Ordering::Relaxed);
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                return;
            }
            bar.inc(one.len);
        }
    };
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    bar.finish_and_clear();
    *tally = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

fn copy_one((from, to): (&Source, &dyn Sink), one: &Wanted, tally: &Mutex<Tally>) -> Result<()> {
    let tally = || tally.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut payload, proven) = match from.read(one)? {
        Read::Payload(payload, proven) => (payload, proven),
        Read::Damaged => {
            tally().damaged += 1;
            return Ok(());
        }
        Read::Gone => {
            tally().gone += 1;
            return Ok(());
        }
    };
    // What has no facts and had some a moment ago is another one.
    if (one.proven && !proven) || payload.iter().skip(one.len as usize).any(|byte| *byte != 0) {
        tally().leave_behind();
        return Ok(());
    }
    payload.truncate(one.len as usize);
    let len = payload.len() as u64;
    match to.put(one, payload)? {
        Outcome::Stored => {
            let mut tally = tally();
            tally.copied += 1;
            tally.copied_bytes += len;
            tally.unverified += u64::from(!proven);
        }
        Outcome::Unsupported(why) => tally().unsupported(why),
    }
    Ok(())
}
