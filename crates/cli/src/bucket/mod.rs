//! A bucket of an S3 tier, `s3://bucket/prefix`, seen from outside.

mod chunk_infos;

use anyhow::{Context, Result};
use kvtier::core::Digest;
use kvtier::s3::{Client, Entry, List, Object};
use kvtier::s3_tier::{Layout, inspect};
use tokio::runtime::Runtime;

pub use chunk_infos::{Asking, add_raw_lengths, infos};

use crate::bucket_args::{BucketArgs, failed};
use crate::location;
use crate::stored_form::StoredForm;

/// How many heads are asked for at a time.
pub const HEADS: usize = 32;

/// A bucket, and the prefix under which a tier's chunks are.
pub struct Bucket {
    /// The client.
    pub client: Client,
    /// The runtime it wants.
    pub runtime: Runtime,
    /// Empty, or ending in a slash.
    pub root: String,
    layout: Option<Layout>,
}

/// One chunk of a bucket.
#[derive(Clone)]
pub struct BucketChunk {
    /// The object's name behind the prefix; in our own layout the digest.
    pub label: String,
    /// The object's whole name.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// When it was written, in seconds since 1970 by the store's clock; `None` where the store did
    /// not say.
    pub written_s: Option<i64>,
    /// How it is stored, as far as the listing shows it: in layout `kvtier` only its stored length.
    pub form: StoredForm,
}

impl BucketChunk {
    /// The digest of its key, where its name has that: in layout `kvtier`.
    pub fn digest(&self) -> Option<Digest> {
        Digest::from_hex(&self.label)
    }
}

/// All objects under the prefix.
pub struct Contents {
    /// The chunks.
    pub chunks: Vec<BucketChunk>,
    /// What tiers keep for themselves.
    pub own_bytes: u64,
    /// Objects that no tier made.
    pub unknown: Vec<Entry>,
}

impl Bucket {
    /// The bucket that `path` names, if it names one.
    pub fn open(path: &str, layout: Option<&str>, store: &BucketArgs) -> Result<Option<Self>> {
        let Some((bucket, prefix)) = location::bucket_and_prefix(path) else { return Ok(None) };
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

    /// The heads of these objects, all at a time; `None` where there is none. For up to [`HEADS`]
    /// names.
    pub fn heads(&self, names: impl Iterator<Item = String>) -> Result<Vec<Option<Object>>> {
        crate::interrupt::check()?;
        let ask = |name: String| {
            let client = self.client.clone();
            self.runtime.spawn(async move { client.head(&name).await })
        };
        let asked: Vec<_> = names.map(ask).collect();
        let answers = asked.into_iter().map(|head| {
            self.runtime.block_on(head).context("a request was dropped")?.map_err(failed)
        });
        answers.collect()
    }

    /// All chunks.
    pub fn chunks(&self) -> Result<Vec<BucketChunk>> {
        Ok(self.contents()?.chunks)
    }

    /// Lists all objects.
    pub fn contents(&self) -> Result<Contents> {
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
                let stored = StoredForm { stored_bytes: Some(entry.bytes), ..Default::default() };
                // In kvtier's layout the name begins with two digits of the digest and a slash,
                // which spread objects. LMCache's objects are the raw bytes.
                let (label, form) = match layout {
                    Layout::Kvtier => (rest[3..].to_owned(), stored),
                    _ => (rest.to_owned(), StoredForm::plain(entry.bytes)),
                };
                let written_s = Some(entry.modified).filter(|at_s| *at_s > 0);
                found.chunks.push(BucketChunk {
                    label,
                    bytes: entry.bytes,
                    written_s,
                    form,
                    name: entry.key,
                });
            }
            // Journals, snapshots and leases of the nodes.
            _ if rest.starts_with(".kvtier/") => found.own_bytes += entry.bytes,
            _ => found.unknown.push(entry),
        }
    }
}
