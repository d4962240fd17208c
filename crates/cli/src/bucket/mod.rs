//! `kvtier ls|stat|verify|rm` on `s3://bucket/prefix`: a bucket looked at from outside.

mod info;
mod rm;
mod verify;

use anyhow::Result;
use kvtier::bytes::format;
use kvtier::s3::{Client, Entry, List};
use kvtier::s3_tier::{Layout, inspect};
use tokio::runtime::Runtime;

pub use rm::rm;
pub use verify::verify;

use crate::bucket_args::{BucketArgs, failed};
use crate::chunk_info::{GroupBy, Groups, LONG_HEAD};
use crate::json::json;

/// A bucket, and the prefix under which a tier's chunks are.
pub struct Bucket {
    client: Client,
    runtime: Runtime,
    /// Empty, or ending in a slash.
    root: String,
    layout: Option<Layout>,
}

/// One chunk of a bucket.
#[derive(Clone)]
pub struct Chunk {
    /// The object's name behind the prefix; in our own layout the digest.
    pub label: String,
    /// The object's whole name.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// When it was written, in seconds since 1970 by the store's clock; `None` where the store did
    /// not say.
    written_s: Option<i64>,
}

/// All objects under the prefix.
struct Contents {
    chunks: Vec<Chunk>,
    /// What tiers keep for themselves.
    own_bytes: u64,
    unknown: Vec<Entry>,
}

impl Bucket {
    /// The bucket that `path` names, if it names one.
    pub fn open(path: &str, layout: Option<&str>, store: &BucketArgs) -> Result<Option<Self>> {
        let Some(rest) = path.strip_prefix("s3://") else { return Ok(None) };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let layout = layout.map(str::parse).transpose().map_err(crate::cannot_open)?;
        let prefix = prefix.trim_matches('/');
        let root = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        // Before the client's threads: they must inherit which signals are not theirs.
        crate::interrupt::watch()?;
        let runtime = crate::bench::s3::runtime(1)?;
        let client = Client::new(store.config_for(bucket, &runtime)?);
        Ok(Some(Bucket { client, runtime, root, layout }))
    }

    /// The client, and the runtime it wants.
    pub fn client(&self) -> (&Client, &Runtime) {
        (&self.client, &self.runtime)
    }

    /// What stands before every name: empty, or ending in a slash.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The only layout that is looked at, if that was said.
    pub fn layout(&self) -> Option<Layout> {
        self.layout
    }

    /// The layout that was said, else what is there.
    pub fn layout_name(&self) -> String {
        self.layout.map_or_else(|| "bucket".to_owned(), |layout| layout.to_string())
    }

    /// All chunks.
    pub fn chunks(&self) -> Result<Vec<Chunk>> {
        Ok(self.contents()?.chunks)
    }

    fn contents(&self) -> Result<Contents> {
        let mut found = Contents { chunks: Vec::new(), own_bytes: 0, unknown: Vec::new() };
        let list = List::under(self.root.as_str());
        let mut next = None;
        loop {
            crate::interrupt::check()?;
            let page =
                self.runtime.block_on(self.client.list(&list, next.as_deref())).map_err(failed)?;
            page.entries.into_iter().for_each(|entry| self.sort(entry, &mut found));
            next = page.next;
            if next.is_none() {
                break;
            }
        }
        found.chunks.sort_unstable_by(|a, b| a.label.cmp(&b.label));
        Ok(found)
    }

    fn sort(&self, entry: Entry, found: &mut Contents) {
        let rest = entry.key.strip_prefix(&self.root).unwrap_or(&entry.key);
        match inspect::layout_of(rest) {
            Some(layout) if self.layout.is_none_or(|only| only == layout) => {
                let label =
                    if layout == Layout::Kvtier { rest[3..].to_owned() } else { rest.to_owned() };
                let written_s = Some(entry.modified).filter(|at_s| *at_s > 0);
                found.chunks.push(Chunk { label, bytes: entry.bytes, written_s, name: entry.key });
            }
            _ if rest.starts_with(".kvtier/") => found.own_bytes += entry.bytes,
            _ => found.unknown.push(entry),
        }
    }
}

/// Lists chunks: digest or name, and bytes; with `long` what else is known.
pub fn ls(bucket: &Bucket, long: bool, as_json: bool) -> Result<()> {
    let chunks = bucket.chunks()?;
    if !long {
        return chunks.iter().try_for_each(|chunk| {
            let line = json!({ "key": chunk.label, "bytes": chunk.bytes }).to_string();
            crate::out::line(&if as_json {
                line
            } else {
                format!("{} {}", chunk.label, chunk.bytes)
            })
        });
    }
    if !as_json {
        crate::out::line(LONG_HEAD)?;
    }
    for (info, chunk) in info::infos(bucket, &chunks, info::Asking::default())?.iter().zip(&chunks)
    {
        let label = chunk.label.as_str();
        let bytes = chunk.bytes;
        crate::out::line(&if as_json {
            info.json(label, bytes).to_string()
        } else {
            info.line(label, bytes)
        })?;
    }
    Ok(())
}

/// Sums chunks up by model, tenant or namespace.
pub fn stat_by(bucket: &Bucket, by: GroupBy, as_json: bool) -> Result<()> {
    let chunks = bucket.chunks()?;
    let mut groups = Groups::new(by);
    let asking = info::Asking { uses: by.needs_uses(), ..info::Asking::default() };
    let infos = info::infos(bucket, &chunks, asking)?;
    infos.iter().zip(&chunks).for_each(|(info, chunk)| groups.add(info, chunk.bytes));
    groups.print(as_json)
}

/// Sums a bucket up.
pub fn stat(bucket: &Bucket, as_json: bool) -> Result<()> {
    let found = bucket.contents()?;
    let bytes: u64 = found.chunks.iter().map(|chunk| chunk.bytes).sum();
    let foreign: u64 = found.unknown.iter().map(|entry| entry.bytes).sum();
    if as_json {
        let all = json!({
            "chunks": found.chunks.len(), "bytes": bytes, "own_bytes": found.own_bytes, "strangers": found.unknown.len(),
            "strangers_bytes": foreign,
        });
        return crate::out::line(&all.to_string());
    }
    let lines = [
        format!("bucket       {} under {:?}", bucket.client.endpoint(), bucket.root),
        format!("chunks       {} in {}", found.chunks.len(), format(bytes)),
        format!("kvtier's own {}", format(found.own_bytes)),
        format!("unknown      {} objects, {}", found.unknown.len(), format(foreign)),
    ];
    lines.iter().try_for_each(|line| crate::out::line(line))
}
