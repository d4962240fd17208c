//! `kvtier ls|stat|verify|rm`: a directory or bucket looked at from outside.

mod info;
mod rm;
mod verify;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kvtier::bytes::format;
use kvtier::file::inspect::{ChunkName, Directory};

use crate::BadInput;
use crate::bucket::{self, Bucket};
use crate::bucket_args::BucketArgs;
use crate::chunk_info::{GroupBy, Groups, LONG_HEAD};
use crate::json::json;

pub use info::{InfoReader, written_s};
pub use rm::{Choice, Outcome, RmArgs, rm};
pub use verify::{VerifyArgs, verify};

/// The directory and its layout.
#[derive(clap::Args)]
pub struct Where {
    /// The directory, or `s3://bucket/prefix`.
    path: PathBuf,
    /// Its layout, where the manifest does not state it: lmcache-mp, lmcache or lmcache-gds.
    /// In a bucket: only chunks of this layout.
    #[arg(long)]
    layout: Option<String>,
    #[command(flatten)]
    store: BucketArgs,
}

impl Where {
    /// The bucket, if it is one.
    fn bucket(&self) -> Result<Option<Bucket>> {
        let bucket = Bucket::open(
            self.path.to_str().unwrap_or_default(),
            self.layout.as_deref(),
            &self.store,
        )?;
        if let Some(flag) = self.store.first_given().filter(|_| bucket.is_none()) {
            return Err(BadInput(format!(
                "{flag}: {} is no bucket; leave {flag} out",
                self.path.display()
            ))
            .into());
        }
        Ok(bucket)
    }
}

/// `kvtier ls`.
#[derive(clap::Args)]
pub struct LsArgs {
    #[command(flatten)]
    at: Where,
    /// Print bytes, age, last use, tenant and model before each name. `-` is what is not known,
    /// `>2h` a use at least so long ago. Tenants are digits of a digest, of the cache salt
    /// where there is one. Reads a footer, or asks for an object's metadata, for each chunk.
    #[arg(long)]
    long: bool,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

/// `kvtier stat`.
#[derive(clap::Args)]
pub struct StatArgs {
    #[command(flatten)]
    at: Where,
    /// Print chunks and bytes of payload by this instead. Reads a footer, or asks for an object's
    /// metadata, for each chunk.
    #[arg(long, value_enum)]
    by: Option<GroupBy>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn open(at: &Where) -> Result<Directory> {
    open_as(&at.path, at.layout.as_deref())
}

/// Opens a directory in the layout of its manifest, of the arguments, or of its file names.
pub fn open_as(path: &Path, layout: Option<&str>) -> Result<Directory> {
    if let Some(layout) = layout {
        let layout = layout.parse().map_err(crate::cannot_open)?;
        return Ok(Directory::open_as(path, layout).map_err(crate::cannot_open)?);
    }
    if !path.exists() {
        return Err(BadInput(format!("{} does not exist; check the path", path.display())).into());
    }
    let guessed = if path.join(".kvtier").exists() {
        None
    } else {
        Directory::detect_layout(path).ok().flatten()
    };
    let Some(layout) = guessed else {
        return Ok(Directory::open(path).map_err(crate::cannot_open)?);
    };
    eprintln!(
        "kvtier: {} has no manifest; its names are those of layout {layout} (--layout says otherwise)",
        path.display()
    );
    Ok(Directory::open_as(path, layout).map_err(crate::cannot_open)?)
}

/// The chunks of a directory, in no order.
pub fn listed(dir: &Directory, path: &Path) -> Result<Vec<ChunkName>> {
    dir.chunks().with_context(|| format!("cannot list {}", path.display()))
}

/// Lists chunks: digest, payload bytes.
pub fn ls(args: &LsArgs) -> Result<()> {
    if let Some(bucket) = args.at.bucket()? {
        return bucket::ls(&bucket, args.long, args.json);
    }
    let dir = open(&args.at)?;
    let mut chunks = listed(&dir, &args.at.path)?;
    chunks.sort_unstable();
    if args.long {
        return ls_long(&dir, &chunks, args);
    }
    for chunk in chunks {
        let line = if args.json {
            json!({ "key": chunk.label(), "bytes": chunk.len }).to_string()
        } else {
            format!("{} {}", chunk.label(), chunk.len)
        };
        crate::out::line(&line)?;
    }
    Ok(())
}

fn ls_long(dir: &Directory, chunks: &[ChunkName], args: &LsArgs) -> Result<()> {
    let reader = InfoReader::with_uses(dir, &args.at.path)?;
    if !args.json {
        crate::out::line(LONG_HEAD)?;
    }
    for chunk in chunks {
        let info = reader.read(chunk)?;
        let label = chunk.label();
        let line = if args.json {
            info.json(&label, chunk.len).to_string()
        } else {
            info.line(&label, chunk.len)
        };
        crate::out::line(&line)?;
    }
    Ok(())
}

/// Summarizes a directory.
pub fn stat(args: &StatArgs) -> Result<()> {
    if let Some(bucket) = args.at.bucket()? {
        return match args.by {
            Some(by) => bucket::stat_by(&bucket, by, args.json),
            None => bucket::stat(&bucket, args.json),
        };
    }
    if let Some(by) = args.by {
        return stat_by(&open(&args.at)?, by, args);
    }
    let sum = open(&args.at)?
        .summary()
        .with_context(|| format!("cannot read {}", args.at.path.display()))?;
    let quarantine: Vec<_> = sum
        .quarantine
        .iter()
        .map(|(name, bytes)| json!({ "name": name, "bytes": bytes }))
        .collect();
    let unknown: Vec<_> = sum.unknown.iter().map(|(path, _)| path.display().to_string()).collect();
    if args.json {
        let all = json!({
            "layout": sum.layout.name(), "chunks": sum.chunks, "bytes": sum.bytes, "payload_bytes": sum.payload_bytes, "ledger_bytes": sum.ledger_bytes,
            "unfinished": sum.unfinished, "quarantine": quarantine, "quarantine_bytes": sum.quarantine_bytes, "capacity_bytes": sum.capacity_bytes, "strangers": unknown,
            "living": sum.living, "dead": sum.dead, "snapshot": sum.snapshot,
        });
        return crate::out::line(&all.to_string());
    }
    let mut lines = vec![
        format!("layout       {}", sum.layout),
        format!(
            "chunks       {} in {} of files ({} of payload)",
            sum.chunks,
            format(sum.bytes),
            format(sum.payload_bytes)
        ),
        format!(
            "ledger       {}",
            sum.ledger_bytes.map_or("none: the next start counts".to_owned(), format)
        ),
        format!("open by      {}", or_none(&sum.living)),
        format!(
            "ended badly  {} (the next start clears {} unfinished files)",
            or_none(&sum.dead),
            sum.unfinished
        ),
        format!(
            "order of use {}",
            if sum.snapshot { "in a snapshot and journals" } else { "in journals only" }
        ),
        format!("cap          {}", sum.capacity_bytes.map_or("none noted".to_owned(), format)),
        format!(
            "quarantine   {} files that failed a check, {}",
            sum.quarantine.len(),
            format(sum.quarantine_bytes)
        ),
    ];
    lines.extend(
        sum.quarantine
            .iter()
            .map(|(name, bytes)| format!("             {name} ({})", format(*bytes))),
    );
    lines.extend(sum.unknown.iter().map(|(path, _)| format!("unknown      {}", path.display())));
    lines.iter().try_for_each(|line| crate::out::line(line))
}

fn or_none(names: &[String]) -> String {
    if names.is_empty() { "no process".into() } else { names.join(", ") }
}

fn stat_by(dir: &Directory, by: GroupBy, args: &StatArgs) -> Result<()> {
    let reader = if by.needs_uses() {
        InfoReader::with_uses(dir, &args.at.path)?
    } else {
        InfoReader::new(dir)
    };
    let mut groups = Groups::new(by);
    for chunk in listed(dir, &args.at.path)? {
        groups.add(&reader.read(&chunk)?, chunk.len);
    }
    groups.print(args.json)
}
