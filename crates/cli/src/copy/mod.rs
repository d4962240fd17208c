//! `kvtier migrate|export|import`: chunks from one place to another, whatever their layouts; every
//! byte is checked on the way.

mod archive;
mod args;
mod chunk;
mod decode;
mod encode;
mod from_bucket;
mod from_directory;
mod report;
mod source;
mod target;
mod to_bucket;
mod to_directory;
mod unverified;
mod upgrade_dir_format;

use std::sync::{Mutex, PoisonError};

use anyhow::Result;

use crate::parallel::Pace;
use args::Migration;
use chunk::{ChunkRead, SourceChunk};
use report::Tally;
use source::CopySource;
use target::CopyTarget;

pub use args::{CopyArgs, ExportArgs, ImportArgs, MigrateArgs};

/// How many chunks are under way at a time where a bucket is at one end.
const WORKERS: usize = 8;

/// Which end is a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum CopyMode {
    /// Neither: `kvtier migrate`.
    Migrate,
    /// The file is written.
    Export,
    /// The file is read.
    Import,
}

/// `kvtier migrate`: copies, or upgrades a directory in place. Answers whether every chunk is there.
pub fn migrate(args: MigrateArgs) -> Result<bool> {
    match args.migration()? {
        Migration::Copy(args) => run(&args, CopyMode::Migrate),
        Migration::Upgrade(args) => upgrade_dir_format::run(&args).map(|()| true),
    }
}

/// Copies. Answers whether every chunk is now in TO.
pub fn run(args: &CopyArgs, way: CopyMode) -> Result<bool> {
    crate::interrupt::watch()?;
    args.check(way)?;
    let from = CopySource::of(args, way)?;
    let mut tally = Tally::default();
    let target = CopyTarget::of(args, way)?;
    let pace =
        // Requests to a store wait for the network, so several are in flight. On one disk a second
        // worker mostly disturbs the first.
        args.how.pace.checked(if from.is_remote() || target.is_remote() { WORKERS } else { 1 })?;
    let filter = args.how.filter.filter()?;
    let mut found = from.wanted(args, &mut tally)?;
    found.retain(|one| filter.takes(&one.label));
    // First what the target can name at all, then what it does not have yet.
    let wanted = target.select(found, &mut tally);
    if way == CopyMode::Export {
        wanted
            .iter()
            .filter_map(|one| one.identity.key.as_ref().err())
            .for_each(|why| tally.without_key(why));
    }
    let (wanted, sink) = target.without_present(wanted, args, &mut tally)?;
    match sink {
        Some(sink) if !args.how.dry_run => {
            copy(&Ends { from: &from, to: &*sink }, &wanted, &pace, &mut tally)?;
            // Not after an error: an archive gets its name only if all of it is there.
            sink.finish()?;
        }
        _ => {
            tally.copied = wanted.len() as u64;
            tally.copied_bytes = wanted.iter().map(|one| one.len).sum();
        }
    }
    tally.report(args, &from.layout(), target.layout())?;
    Ok(tally.is_whole())
}

/// What takes chunks.
trait Sink: Sync {
    /// Stores a chunk whose bytes match its facts, if it has some.
    fn put(&self, one: &SourceChunk, payload: Vec<u8>) -> Result<CopyOutcome>;

    /// After the last.
    fn finish(&self) -> Result<()>;
}

/// What became of one chunk.
enum CopyOutcome {
    Stored,
    /// It was there already.
    Present,
    /// It has no place there, for this reason.
    Unsupported(String),
}

/// The two ends of a copy.
struct Ends<'a> {
    from: &'a CopySource,
    to: &'a dyn Sink,
}

fn copy(ends: &Ends<'_>, wanted: &[SourceChunk], pace: &Pace, tally: &mut Tally) -> Result<()> {
    // Workers count into one tally. It is held for a few additions at a time.
    let shared = Mutex::new(std::mem::take(tally));
    let done = pace.each(wanted, |one| one.len, |one| copy_one(ends, one, &shared));
    *tally = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    done
}

fn copy_one(ends: &Ends<'_>, one: &SourceChunk, tally: &Mutex<Tally>) -> Result<()> {
    let tally = || tally.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut payload, proven) = match ends.from.read(one)? {
        ChunkRead::Payload(payload, proven) => (payload, proven),
        ChunkRead::Damaged => {
            tally().damaged += 1;
            return Ok(());
        }
        ChunkRead::Gone => {
            tally().gone += 1;
            return Ok(());
        }
        ChunkRead::Undecodable(why) => {
            tally().unsupported(why);
            return Ok(());
        }
    };
    // What has no facts and had some a moment ago is another one.
    // Behind the payload there may be padding of zeros and nothing else.
    if (one.proven && !proven) || payload.iter().skip(one.len as usize).any(|byte| *byte != 0) {
        tally().leave_behind();
        return Ok(());
    }
    // Without the padding of the layout it came from.
    payload.truncate(one.len as usize);
    let len = payload.len() as u64;
    match ends.to.put(one, payload)? {
        CopyOutcome::Stored => {
            let mut tally = tally();
            tally.copied += 1;
            tally.copied_bytes += len;
            tally.unverified += u64::from(!proven);
        }
        CopyOutcome::Present => tally().present += 1,
        CopyOutcome::Unsupported(why) => tally().unsupported(why),
    }
    Ok(())
}
