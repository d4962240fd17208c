//! `kvtier stat`: sums up a directory or bucket.

use anyhow::{Context, Result};
use kvtier::byte_size::format;
use kvtier::file::inspect::Directory;

use crate::bucket::{Asking, Bucket, BucketChunk, add_raw_lengths, infos};
use crate::chunk_groups::{GroupBy, Groups};
use crate::dir::{InfoReader, listed};
use crate::encoding_totals::EncodingTotals;
use crate::json::json;
use crate::location_args::Where;

/// `kvtier stat`.
#[derive(clap::Args)]
pub struct StatArgs {
    #[command(flatten)]
    at: Where,
    /// Print chunks and bytes of payload by this instead. Reads a footer, or asks for an object's
    /// metadata, for each chunk.
    #[arg(long, value_enum)]
    by: Option<GroupBy>,
    /// In a bucket, ask for the metadata of each object: codecs, keys and all raw lengths are known
    /// then. A directory needs no asking.
    #[arg(long, conflicts_with = "by")]
    encodings: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Summarizes a directory.
pub fn stat(args: &StatArgs) -> Result<()> {
    if let Some(bucket) = args.at.bucket()? {
        return match args.by {
            Some(by) => stat_bucket_by(&bucket, by, args.json),
            None => stat_bucket(&bucket, args),
        };
    }
    if let Some(by) = args.by {
        return stat_by(&args.at.directory()?, by, args);
    }
    let sum = args
        .at
        .directory()?
        .summary()
        .with_context(|| format!("cannot read {}", args.at.path.display()))?;
    let quarantine: Vec<_> = sum
        .quarantine
        .iter()
        .map(|(name, bytes)| json!({ "name": name, "bytes": bytes }))
        .collect();
    let unknown: Vec<_> = sum.unknown.iter().map(|(path, _)| path.display().to_string()).collect();
    let encodings = EncodingTotals::of_directory(&sum);
    if args.json {
        let mut all = json!({
            "layout": sum.layout.name(), "chunks": sum.chunks, "bytes": sum.bytes, "payload_bytes": sum.payload_bytes, "ledger_bytes": sum.ledger_bytes,
            "unfinished": sum.unfinished, "quarantine": quarantine, "quarantine_bytes": sum.quarantine_bytes, "capacity_bytes": sum.capacity_bytes, "strangers": unknown,
            "living": sum.living, "dead": sum.dead, "snapshot": sum.snapshot,
        });
        all.as_object_mut().into_iter().for_each(|fields| encodings.add_to(fields, true));
        return crate::stdout::line(&all.to_string());
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
            sum.ledger_bytes.map_or("none: a tier counts when it starts".to_owned(), format)
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
    lines.extend(encodings.lines(true));
    lines.extend(sum.unknown.iter().map(|(path, _)| format!("unknown      {}", path.display())));
    lines.iter().try_for_each(|line| crate::stdout::line(line))
}

fn or_none(names: &[String]) -> String {
    if names.is_empty() { "no process".into() } else { names.join(", ") }
}

fn stat_by(dir: &Directory, by: GroupBy, args: &StatArgs) -> Result<()> {
    // Reading the order of use takes a while in a large directory.
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

/// Sums chunks up by model, tenant or namespace.
fn stat_bucket_by(bucket: &Bucket, by: GroupBy, as_json: bool) -> Result<()> {
    let chunks = bucket.chunks()?;
    let mut groups = Groups::new(by);
    let asking = Asking { uses: by.needs_uses(), ..Asking::default() };
    let infos = infos(bucket, &chunks, asking)?;
    infos.iter().zip(&chunks).for_each(|(info, chunk)| groups.add(info, chunk.bytes));
    groups.print(as_json)
}

/// Sums a bucket up.
fn stat_bucket(bucket: &Bucket, args: &StatArgs) -> Result<()> {
    let mut found = bucket.contents()?;
    let encodings = bucket_encodings(bucket, &mut found.chunks, args.encodings)?;
    let bytes: u64 = found.chunks.iter().map(|chunk| chunk.bytes).sum();
    // Objects that kvtier did not write and will not delete, but that are paid for.
    let foreign: u64 = found.unknown.iter().map(|entry| entry.bytes).sum();
    if args.json {
        let mut all = json!({
            "chunks": found.chunks.len(), "bytes": bytes, "own_bytes": found.own_bytes, "strangers": found.unknown.len(),
            "strangers_bytes": foreign,
        });
        all.as_object_mut().into_iter().for_each(|fields| encodings.add_to(fields, args.encodings));
        return crate::stdout::line(&all.to_string());
    }
    let mut lines = vec![
        format!("bucket       {} under {:?}", bucket.client.endpoint(), bucket.root),
        format!("chunks       {} in {}", found.chunks.len(), format(bytes)),
        format!("kvtier's own {}", format(found.own_bytes)),
        format!("unknown      {} objects, {}", found.unknown.len(), format(foreign)),
    ];
    lines.extend(encodings.lines(args.encodings));
    lines.iter().try_for_each(|line| crate::stdout::line(line))
}

/// How the chunks of a bucket are stored: by the metadata of each object, or without asking for it.
fn bucket_encodings(
    bucket: &Bucket,
    chunks: &mut [BucketChunk],
    ask: bool,
) -> Result<EncodingTotals> {
    let mut totals = EncodingTotals::default();
    if ask {
        let asking = Asking { uses: false, ..Asking::default() };
        infos(bucket, chunks, asking)?.iter().for_each(|info| totals.add(&info.form));
    } else {
        add_raw_lengths(bucket, chunks);
        chunks.iter().for_each(|chunk| totals.add(&chunk.form));
    }
    Ok(totals)
}
