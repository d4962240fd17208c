//! `kvtier migrate|export|import`: chunks from one place to another, whatever their layouts; every byte is checked on the way.

mod archive;
mod bucket;
mod directory;
mod report;
mod source;
mod target;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use crate::store::StoreArgs;
use report::Tally;
use source::{Read, Source, Wanted};
use target::{Outcome, Target};

/// How many chunks are under way at a time where a bucket is at one end.
const WORKERS: usize = 8;

/// `kvtier migrate`, `export` and `import`.
#[derive(clap::Args)]
pub struct CopyArgs {
    /// Where the chunks are: a directory, `s3://bucket/prefix`, or, for import, a file that export wrote. Nothing there is changed.
    from: PathBuf,
    /// Where they go: a directory, which is made if it is not there, `s3://bucket/prefix`, or, for export, a new file.
    to: PathBuf,
    /// Whose chunks FROM holds, where a directory's manifest does not say; of a bucket only chunks of this layout are taken.
    #[arg(long)]
    from_layout: Option<String>,
    /// Whose chunks TO is to hold: kvtier, lmcache-mp, lmcache, lmcache-gds or lmcache-gds-weka. As a directory's manifest says, else kvtier.
    #[arg(long)]
    to_layout: Option<String>,
    /// With lmcache-gds, whose files say it: the tensor that a full chunk is, such as 2x32x256x1024 (keys and values, layers, tokens,
    /// elements).
    #[arg(long)]
    shape: Option<String>,
    /// The cap of a directory TO, such as 100GiB; as its manifest says, else all of its file system. Buckets are not capped here.
    #[arg(long)]
    bytes: Option<String>,
    /// The tenant of chunks that carry no facts, because another program wrote them.
    #[arg(long, default_value = "")]
    tenant: String,
    /// The layout digest of their namespace, 64 hexadecimal digits; zeros if nothing is said.
    #[arg(long)]
    layout_id: Option<String>,
    /// Copy chunks without facts too, whose bytes nothing proves; without this they stay behind.
    #[arg(long)]
    unverified: bool,
    /// The length of a whole chunk, such as 4MiB: of the chunks without facts only those of that length are copied. One that its writer filled
    /// with zeros to the next 4096 bytes is cut to it.
    #[arg(long, requires = "unverified")]
    chunk_bytes: Option<String>,
    /// Of the chunks without facts, copy those shorter than --chunk-bytes too.
    #[arg(long, requires = "chunk_bytes")]
    partial: bool,
    /// How the model is spelled whose `/` is a `_` in the names of a bucket of layout lmcache, such as org/model; needed for chunks without
    /// facts.
    #[arg(long)]
    model: Vec<String>,
    /// Only say what would be copied; nothing is written.
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
    /// The endpoint of TO, where it is not that of FROM.
    #[arg(long)]
    to_endpoint: Option<String>,
    /// The region of TO, where it is not that of FROM.
    #[arg(long)]
    to_region: Option<String>,
}

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
    let from = Source::of(args, way)?;
    let mut tally = Tally::default();
    let target = Target::of(args, way)?;
    let found = from.wanted(args, &mut tally)?;
    let wanted = target.select(found, &mut tally);
    let (wanted, sink) = target.without_present(wanted, args, &mut tally)?;
    match sink {
        Some(sink) if !args.dry_run => {
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
