//! The index in the bucket, so that a start need not wait for a listing: parts of kvtier-index's snapshot format, and a manifest that says
//! which belong together.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use kvtier_index::snapshot::{self as format, FRAME_CHUNKS_MAX, Writer};
use kvtier_index::{Chunk, End};
use tokio::task::JoinHandle;

use super::bytes;
use super::manifest::{self, Manifest};
use super::round::{SOME, make_recent};
use crate::Put;
use crate::tier::counters::add;
use crate::tier::shared::Shared;

/// A part has at most so many chunks: 4 MiB.
const PART_CHUNKS: usize = 4 * FRAME_CHUNKS_MAX;
/// A part is never longer.
const PART_BYTES_MAX: usize = PART_CHUNKS * 64 + 4096;
/// How many parts are on their way at a time while a snapshot is read.
const AHEAD: usize = 4;

/// Writes the index as it is now, in the order of use. It is locked for some chunks at a time.
pub async fn write(shared: &Shared) -> crate::Result<()> {
    let at_ms = shared.truth.server_ms(&shared.client);
    let mut order = shared.books().index.order();
    order.reverse();
    let mut manifest = Manifest { layout: shared.layout.name().to_owned(), at_ms, ..Manifest::default() };
    manifest.tenants = shared.books().tenants().take(manifest::LINES_MAX).collect();
    for (number, slots) in order.chunks(PART_CHUNKS).take(manifest::LINES_MAX).enumerate() {
        let (mut writer, mut part, mut count) = (Writer::new(at_ms), Vec::new(), 0);
        for some in slots.chunks(SOME) {
            let chunks: Vec<Chunk> = shared.books().index.chunks_at(some).collect();
            count += chunks.len();
            if !chunks.is_empty() {
                writer.write(&chunks, &mut part);
            }
        }
        writer.finish(&mut part);
        let name = format!("{at_ms:016x}-{number:04x}");
        bytes::put(&shared.client, &shared.truth.paths.part(&name), part, &Put::default()).await?;
        manifest.parts.push((name, count));
    }
    bytes::put(&shared.client, &shared.truth.paths.snapshot(), manifest.encode(), &Put::default()).await?;
    add(&shared.counters.snapshots, 1);
    tidy(shared, &manifest).await
}

/// Deletes the parts of older snapshots.
async fn tidy(shared: &Shared, manifest: &Manifest) -> crate::Result<()> {
    let paths = &shared.truth.paths;
    let (entries, _) = bytes::list(&shared.client, &paths.snapshots()).await?;
    let kept: HashSet<String> = manifest.parts.iter().map(|(part, _)| paths.part(part)).collect();
    let old = |name: &&str| !kept.contains(*name) && **name != *paths.snapshot();
    let old: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).filter(old).collect();
    for some in old.chunks(1000) {
        shared.client.delete_many(some).await?;
    }
    Ok(())
}

/// Enters what the last snapshot tells. Answers when it was taken; `None` when there is none, or none that can be read, which is said.
pub async fn read(shared: &Arc<Shared>) -> crate::Result<Option<u64>> {
    for _ in 0..2 {
        let Some(bytes) = bytes::get(&shared.client, &shared.truth.paths.snapshot(), manifest::BYTES_MAX).await? else {
            return Ok(None);
        };
        let manifest = match Manifest::decode(&bytes) {
            Ok(manifest) if manifest.layout == shared.layout.name() => manifest,
            Ok(manifest) => return Ok(ignored(shared, format!("it is of layout {}", manifest.layout))),
            Err(why) => return Ok(ignored(shared, why.to_string())),
        };
        for (id, name) in &manifest.tenants {
            shared.books().note_tenant(*id, name);
        }
        match enter(shared, &manifest).await? {
            Ok(()) => return Ok(Some(manifest.at_ms)),
            // A newer one took its place while it was read, and its parts are gone.
            Err(Missing) => continue,
        }
    }
    Ok(ignored(shared, "parts of it are missing".into()))
}

fn ignored(shared: &Shared, why: String) -> Option<u64> {
    let what = format!(
        "the snapshot of the index in the bucket was ignored: {why}; the listing tells all but the order of use"
    );
    shared.truth.told().snapshot = Some(what);
    None
}

/// A part is not there.
struct Missing;

type Part = JoinHandle<crate::Result<Option<Vec<u8>>>>;

/// Reads the parts, the least recent first, some of them ahead.
async fn enter(shared: &Arc<Shared>, manifest: &Manifest) -> crate::Result<Result<(), Missing>> {
    let mut names = manifest.parts.iter().rev().map(|(part, _)| shared.truth.paths.part(part));
    let fetch = |name: String| -> Part {
        let client = shared.client.clone();
        tokio::spawn(async move { bytes::get(&client, &name, PART_BYTES_MAX).await })
    };
    let mut ahead: VecDeque<Part> = names.by_ref().take(AHEAD).map(fetch).collect();
    while let Some(part) = ahead.pop_front() {
        let bytes = part.await.map_err(|_| crate::Error::new(crate::ErrorKind::Io, "the tier is ending"))??;
        let Some(bytes) = bytes else { return Ok(Err(Missing)) };
        ahead.extend(names.next().map(fetch));
        if !enter_part(shared, &bytes) {
            ignored(shared, "some of it is damaged or of a newer build".into());
        }
    }
    Ok(Ok(()))
}

/// Enters a part's chunks as the most recent; whether it was whole.
fn enter_part(shared: &Shared, bytes: &[u8]) -> bool {
    let mut pieces = format::decode(bytes);
    let chunks: Vec<Vec<Chunk>> = pieces.by_ref().collect();
    let all: Vec<&Chunk> = chunks.iter().flatten().collect();
    let mut restored = 0;
    for some in all.rchunks(SOME) {
        let mut books = shared.books();
        for chunk in some.iter().rev() {
            // What is known already was learned since, and what has no name yet comes with the listing: the order alone is taken over.
            if books.index.is_known(&chunk.digest) || books.watch.has(&chunk.digest) || !shared.names.is_own() {
                let known = books.index.slot(&chunk.digest);
                make_recent(&mut books.index, known.as_slice());
            } else if matches!(books.hear_of(**chunk), kvtier_index::Inserted::New(_)) {
                restored += 1;
            }
        }
    }
    add(&shared.counters.restored, restored);
    pieces.end() == Some(End::Clean)
}
