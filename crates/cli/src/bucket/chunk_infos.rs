use std::sync::Arc;

use anyhow::{Context, Result};
use kvtier::core::{Digest, Key, Namespace};
use kvtier::s3::Object;
use kvtier::s3_tier::inspect::{LastUses, canonical_of, facts_of, ids_of, last_uses};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{Bucket, BucketChunk, HEADS};
use crate::bucket_args::failed;
use crate::chunk_info::ChunkInfo;
use crate::progress::{Progress, ProgressUnit};
use crate::stored_form::StoredForm;

/// How chunks are asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    /// How many at a time.
    pub at_once: usize,
    /// Whether progress is printed where standard error is no terminal.
    pub lines: bool,
    /// Whether the last uses are read too, which are in snapshot and journals.
    pub uses: bool,
}

impl Default for Asking {
    fn default() -> Self {
        Asking { at_once: HEADS, lines: false, uses: true }
    }
}

/// What is known of each chunk, in the order of `chunks`: one HEAD for each chunk.
pub fn infos(bucket: &Bucket, chunks: &[BucketChunk], how: Asking) -> Result<Vec<ChunkInfo>> {
    let progress = Progress::start(ProgressUnit::Chunks, chunks.len() as u64, how.lines)?;
    // One read for all chunks: the order of use is in snapshots and journals, not in the objects.
    let uses = if how.uses { read_uses(bucket)? } else { LastUses::default() };
    let permits = Arc::new(Semaphore::new(how.at_once));
    let mut found = vec![ChunkInfo::default(); chunks.len()];
    bucket.runtime.block_on(async {
        let mut heads = JoinSet::new();
        for (at, chunk) in chunks.iter().enumerate() {
            crate::interrupt::check()?;
            let client = bucket.client.clone();
            let name = chunk.name.clone();
            // Waits here, so that at most that many requests exist, whatever the number of chunks.
            let permit = Arc::clone(&permits).acquire_owned().await?;
            heads.spawn(async move {
                let object = client.head(&name).await.map_err(failed)?;
                drop(permit);
                anyhow::Ok((at, object))
            });
            // Finished ones are taken at once: results of a million requests would fill memory.
            while let Some(head) = heads.try_join_next() {
                let (at, object) = head.context("a request was dropped")??;
                found[at] = info(bucket, &chunks[at], object.as_ref(), &uses);
                progress.add(1);
            }
        }
        while let Some(head) = heads.join_next().await {
            let (at, object) = head.context("a request was dropped")??;
            found[at] = info(bucket, &chunks[at], object.as_ref(), &uses);
            progress.add(1);
        }
        anyhow::Ok(())
    })?;
    progress.finish();
    Ok(found)
}

/// When chunks were used last. Says which objects could not be read.
fn read_uses(bucket: &Bucket) -> Result<LastUses> {
    let found = bucket.runtime.block_on(last_uses(&bucket.client, &bucket.root)).map_err(failed);
    let found =
        found.with_context(|| format!("cannot read the order of use under {:?}", bucket.root))?;
    if let Some(first) = found.unread.first() {
        let more = match found.unread.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        eprintln!(
            "kvtier: some last uses are missing: {first}{more}; the next snapshot of a node replaces such objects"
        );
    }
    Ok(found.uses)
}

/// What an object's head and name say. The namespace is in the facts; the key is in the metadata of
/// our own layout, and in the name of LMCache's.
fn info(
    bucket: &Bucket,
    chunk: &BucketChunk,
    object: Option<&Object>,
    uses: &LastUses,
) -> ChunkInfo {
    let written_s = chunk.written_s;
    let form = object.and_then(|object| head_form(chunk, object)).unwrap_or(chunk.form.clone());
    let rest = chunk.name.strip_prefix(&bucket.root).unwrap_or(&chunk.name);
    let ids = ids_of(rest);
    let Some(facts) = object.and_then(facts_of).and_then(Result::ok) else {
        let unknown = Arc::new(Namespace::new("", Digest::default()));
        // A name that can be read in several ways, as that of a model with `/` in its name, says
        // nothing for sure.
        let key = <[_; 1]>::try_from(ids).ok().map(|[id]| Key::new(unknown, id));
        return ChunkInfo {
            namespace: None,
            written_s,
            form,
            ..key.as_ref().map(ChunkInfo::of_key).unwrap_or_default()
        };
    };
    let ns = Arc::new(Namespace::known_by(facts.namespace));
    let key = ids
        .into_iter()
        .map(|id| Key::new(Arc::clone(&ns), id))
        .find(|key| *key.digest() == facts.key);
    let info = match key {
        Some(key) => ChunkInfo::of_key(&key),
        None => {
            let canonical = object.and_then(canonical_of);
            // The object's metadata may name another key than its facts. Only one with the right
            // digest is shown.
            let canonical =
                canonical.filter(|bytes| Key::digest_of(&facts.namespace, bytes) == facts.key);
            canonical.as_deref().map(ChunkInfo::of_canonical).unwrap_or_default()
        }
    };
    let namespace = Some(facts.namespace);
    ChunkInfo { namespace, written_s, form, ..info.with_use(uses.get(&facts.key)) }
}

/// How an object is stored, by its facts. `None` where it has none, or those of other bytes.
fn head_form(chunk: &BucketChunk, object: &Object) -> Option<StoredForm> {
    let facts = facts_of(object)?.ok()?;
    let is_its_own = match chunk.digest() {
        Some(digest) => facts.key == digest,
        // The objects of LMCache's layouts are the raw bytes.
        None => facts.is_plain(),
    };
    (is_its_own && facts.stored_len() == object.total()).then(|| StoredForm::of_facts(&facts))
}

/// What journals and snapshots say of raw lengths, for chunks whose length a listing does not show:
/// a few requests in all. Where they cannot be read, these stay unknown.
pub fn add_raw_lengths(bucket: &Bucket, chunks: &mut [BucketChunk]) {
    if chunks.iter().all(|chunk| chunk.form.raw_bytes.is_some()) {
        return;
    }
    let found = match bucket.runtime.block_on(last_uses(&bucket.client, &bucket.root)) {
        Ok(found) => found.lengths,
        Err(e) => {
            eprintln!("kvtier: raw lengths are not known: {:#}", failed(e));
            return;
        }
    };
    for chunk in chunks {
        let known = chunk.digest().and_then(|digest| found.get(&digest));
        // Another stored length is that of an earlier object.
        if let Some(known) = known.filter(|known| known.stored == chunk.bytes) {
            chunk.form.raw_bytes = Some(known.raw);
        }
    }
}
