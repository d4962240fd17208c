//! `kvtier rm`: removes chunks from a directory or bucket.

mod bucket;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use kvtier::byte_size::format;
use kvtier::core::Digest;
use kvtier::file::Layout;
use kvtier::file::inspect::{ChunkName, Directory};

use crate::BadInput;
use crate::age::{age, now_s};
use crate::chunk_info::ChunkInfo;
use crate::dir::{InfoReader, listed, written_s};
use crate::location_args::Where;
use crate::name_filter::FilterArgs;
use crate::parallel::ThroughputArgs;
use crate::progress::{Progress, ProgressUnit};

/// `kvtier rm`.
#[derive(clap::Args)]
pub struct RmArgs {
    #[command(flatten)]
    at: Where,
    /// Chunks to remove, by the names that `kvtier ls` prints.
    #[arg(long, value_delimiter = ',')]
    key: Vec<String>,
    /// Remove all chunks, or of all chunks those that --model, --namespace, --older, --include and
    /// --exclude choose.
    #[arg(long, conflicts_with = "key")]
    all: bool,
    /// Only chunks of this model, as `kvtier ls --long` prints it. Chunks of an unknown model
    /// stay.
    #[arg(long)]
    model: Option<String>,
    /// Only chunks of this namespace, by its digest (64 hexadecimal digits), as their facts say.
    /// Chunks without facts stay.
    #[arg(long)]
    namespace: Option<String>,
    /// Only chunks that were written longer ago than this: a number and s, m, h, d or w (seconds
    /// to weeks), such as 7d.
    #[arg(long, value_name = "AGE")]
    older: Option<String>,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    pace: ThroughputArgs,
    /// Remove them; without this, only say what would be removed.
    #[arg(long)]
    yes: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Which chunks go, checked.
pub struct Choice {
    /// Names of chunks; none for all that the rest takes.
    pub keys: Vec<String>,
    model: Option<String>,
    namespace: Option<Digest>,
    /// Written before, in seconds since 1970.
    before_s: Option<i64>,
    filter: crate::name_filter::Filter,
}

impl Choice {
    fn of(args: &RmArgs) -> Result<Self> {
        let narrowed = args.model.is_some() || args.namespace.is_some() || args.older.is_some();
        // `rm DIR` alone must not remove everything, and `--exclude` alone is a poor way to say so.
        if args.key.is_empty() && !args.all && !narrowed && !args.filter.includes() {
            let what = "rm: which chunks? name them with --key, as `kvtier ls` prints them, choose them by --model, \
                        --namespace, --older or --include, or say --all";
            return Err(BadInput(what.into()).into());
        }
        let namespace = args.namespace.as_ref().map(|text| {
            Digest::from_hex(text)
                .ok_or_else(|| BadInput(format!("--namespace {text}: not 64 hexadecimal digits")))
        });
        let older = args.older.as_deref().map(|text| age("--older", text)).transpose()?;
        Ok(Choice {
            keys: args.key.clone(),
            model: args.model.clone(),
            namespace: namespace.transpose()?,
            before_s: older.map(|age_s| now_s().saturating_sub(age_s)),
            filter: args.filter.filter()?,
        })
    }

    /// Whether a chunk is one of them by its name, and by when it was written, which is asked for
    /// only where that matters.
    pub fn takes(&self, label: &str, written_s: impl FnOnce() -> Option<i64>) -> bool {
        let named = self.keys.is_empty() || self.keys.iter().any(|key| key == label);
        let named = named && self.filter.takes(label);
        named
            && self
                .before_s
                // A chunk whose age is not known is not older than anything, and stays. The age
                // costs a system call, so it is asked last.
                .is_none_or(|before| written_s().is_some_and(|written| written < before))
    }

    /// Whether what is known of a chunk besides its name and age matters.
    pub fn needs_info(&self) -> bool {
        self.model.is_some() || self.namespace.is_some()
    }

    /// Whether a chunk is one of them by what else is known of it.
    pub fn takes_info(&self, info: &ChunkInfo) -> bool {
        let model = self.model.as_ref().is_none_or(|model| info.model.as_ref() == Some(model));
        model && self.namespace.is_none_or(|namespace| info.namespace == Some(namespace))
    }

    /// The names that no chunk has are bad input.
    pub fn check_keys<'a>(&self, labels: impl Iterator<Item = &'a str>) -> Result<(), BadInput> {
        let mut absent: BTreeSet<&str> = self.keys.iter().map(String::as_str).collect();
        // All keys are checked before the first chunk is removed: a list with a mistake in it
        // removes nothing.
        labels.for_each(|label| _ = absent.remove(label));
        match absent.first() {
            Some(absent) => {
                Err(BadInput(format!("--key {absent}: no such chunk; nothing was removed")))
            }
            None => Ok(()),
        }
    }
}

/// What became of it.
#[derive(Clone, Copy, Debug)]
pub struct RmOutcome {
    /// Chunks that were removed, or would be.
    pub chunks: u64,
    /// Bytes of the chunks that were chosen.
    pub bytes: u64,
}

impl RmOutcome {
    fn print(self, args: &RmArgs) -> Result<()> {
        if args.json {
            let all = crate::json::json!({ "removed": args.yes, "chunks": self.chunks, "bytes": self.bytes });
            return crate::stdout::line(&all.to_string());
        }
        let chunks = self.chunks;
        let bytes = format(self.bytes);
        crate::stdout::line(&match args.yes {
            true => format!("removed {chunks} chunks ({bytes})"),
            false => format!("would remove {chunks} chunks ({bytes}); add --yes to do it"),
        })
    }
}

/// Removes chunks, or says which.
pub fn rm(args: &RmArgs) -> Result<()> {
    let choice = Choice::of(args)?;
    if let Some(bucket) = args.at.bucket()? {
        return bucket::rm(&bucket, &choice, &args.pace, args.yes)?.print(args);
    }
    crate::interrupt::watch()?;
    let dir = args.at.directory()?;
    // Checked before the directory is listed, which may take minutes.
    let pace = args.pace.checked(1)?;
    let chosen = chosen(&dir, args, &choice)?;
    let bytes = chosen.iter().map(|chunk| chunk.len).sum();
    if !args.yes {
        return RmOutcome { chunks: chosen.len() as u64, bytes }.print(args);
    }
    // Chunks that were really removed. A tier that has the directory open may have evicted some
    // since they were listed.
    let gone = AtomicU64::new(0);
    let remove = |chunk: &ChunkName| {
        // A slow run may come to a chunk that was saved again since it was chosen.
        if !choice.takes(&chunk.label(), || written_s(&dir, chunk)) {
            return Ok(());
        }
        let so_far = gone.load(Ordering::Relaxed);
        let removed = dir.remove(chunk);
        let removed = removed.with_context(|| {
            format!("removed {so_far} chunks, then cannot remove {}", chunk.label())
        })?;
        gone.fetch_add(removed.into(), Ordering::Relaxed);
        Ok(())
    };
    let removed = pace.each(&chosen, |chunk| chunk.len, remove);
    // Also after an error: what was removed must leave the ledger.
    let finished = dir.finish();
    removed?;
    let gone = gone.into_inner();
    finished.with_context(|| {
        format!("removed {gone} chunks; open tiers find them missing when they load them")
    })?;
    RmOutcome { chunks: gone, bytes }.print(args)
}

fn chosen(dir: &Directory, args: &RmArgs, choice: &Choice) -> Result<Vec<ChunkName>> {
    if dir.layout() == Layout::Kvtier
        // A better error than that no such chunk exists.
        && let Some(bad) = choice.keys.iter().find(|text| Digest::from_hex(text).is_none())
    {
        let what = format!("--key {bad}: not 64 hexadecimal digits; take them from `kvtier ls`");
        return Err(BadInput(what).into());
    }
    let mut chosen = listed(dir, &args.at.path)?;
    let labels: Vec<String> = if choice.keys.is_empty() {
        Vec::new()
    } else {
        chosen.iter().map(ChunkName::label).collect()
    };
    choice.check_keys(labels.iter().map(String::as_str))?;
    chosen.retain(|chunk| choice.takes(&chunk.label(), || written_s(dir, chunk)));
    // Model and namespace are in the files. Names and ages alone need no file to be read.
    if !choice.needs_info() {
        return Ok(chosen);
    }
    let reader = InfoReader::new(dir);
    let progress = Progress::start(ProgressUnit::Chunks, chosen.len() as u64, args.pace.progress)?;
    let mut kept = Vec::new();
    for chunk in chosen {
        progress.add(1);
        crate::interrupt::check()?;
        if choice.takes_info(&reader.read(&chunk)?) {
            kept.push(chunk);
        }
    }
    progress.finish();
    Ok(kept)
}
