//! The index in the bucket, so that a start need not wait for a listing: parts of kvtier-index's
//! snapshot format, and a manifest that says which belong together.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvtier_index::snapshot::{self as format, FRAME_CHUNKS_MAX, SnapshotEncoder};
use kvtier_index::{Chunk, InsertOutcome, ReadEnd, TenantId};
use kvtier_key::Digest;
use kvtier_s3::Put;
use tokio::task::JoinHandle;

use crate::background::journal::last_writes::Heard;
use crate::background::journal::time_range::{Last, When};
use crate::background::manifest::Manifest;
use crate::background::reconcile::{SOME, Slots, make_recent};
use crate::background::{manifest, objects};
use crate::state::catalog::Books;
use crate::state::counters::add;
use crate::state::shared::Shared;

/// A part has at most so many chunks, in 4 MiB.
const PART_CHUNKS: usize = 4 * FRAME_CHUNKS_MAX;
/// A part is never longer.
pub const PART_BYTES_MAX: usize = 5 << 20;
/// How many parts are on their way at a time while a snapshot is read.
const AHEAD: usize = 4;

/// Writes the index as it is now, in the order of use. It is locked for some chunks at a time.
/// Answers when that was; `None` where another node evicts by now: nothing was replaced.
pub async fn write(shared: &Shared) -> kvtier_s3::Result<Option<u64>> {
    let _one = shared.truth.snapshotting.lock().await;
    let at_ms = shared.truth.server_ms(&shared.client);
    let mut order = shared.books().index.eviction_order();
    order.reverse();
    let mut manifest =
        Manifest { layout: shared.layout.name().to_owned(), at_ms, ..Manifest::default() };
    for (number, slots) in order.chunks(PART_CHUNKS).take(manifest::LINES_MAX).enumerate() {
        let (mut writer, mut part, mut count) = (SnapshotEncoder::new(at_ms), Vec::new(), 0);
        for some in slots.chunks(SOME) {
            let chunks: Vec<Chunk> = shared.books().index.chunks_at(some).collect();
            count += chunks.len();
            if !chunks.is_empty() {
                writer.write(&chunks, &mut part);
            }
        }
        writer.finish(&mut part);
        let name = format!("{at_ms:016x}-{number:04x}");
        objects::put(&shared.client, &shared.truth.paths.part(&name), part, &Put::default())
            .await?;
        manifest.parts.push((name, count));
    }
    // Whoever took over meanwhile writes another, which is not to be replaced.
    if !shared.truth.may_evict(shared.now_ms()) {
        return Ok(None);
    }
    objects::put(
        &shared.client,
        &shared.truth.paths.snapshot(),
        manifest.encode(),
        &Put::default(),
    )
    .await?;
    add(&shared.counters.snapshots, 1);
    tidy(shared, &manifest).await?;
    Ok(Some(at_ms))
}

/// Deletes the parts of older snapshots. Younger ones are of somebody else's, which is being
/// written.
async fn tidy(shared: &Shared, manifest: &Manifest) -> kvtier_s3::Result<()> {
    let paths = &shared.truth.paths;
    let (entries, _) = objects::list(&shared.client, &paths.snapshots()).await?;
    let kept: HashSet<String> = manifest.parts.iter().map(|(part, _)| paths.part(part)).collect();
    let own = paths.part(&format!("{:016x}", manifest.at_ms));
    let old = |name: &&str| !kept.contains(*name) && **name < *own;
    let old: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).filter(old).collect();
    for some in old.chunks(1000) {
        shared.client.delete_many(some).await?;
    }
    Ok(())
}

/// Enters what the last snapshot tells, unless it is the one taken at `known_ms`: its order is that
/// of the index then, and what was there and is not in it comes behind, as it was. Answers when it
/// was taken; `None` when there is none, or none that can be read, which is said.
pub async fn read(
    shared: &Arc<Shared>,
    known_ms: Option<u64>,
    heard: &Heard,
) -> kvtier_s3::Result<Option<Read>> {
    for _ in 0..2 {
        let Some(bytes) =
            objects::get(&shared.client, &shared.truth.paths.snapshot(), manifest::BYTES_MAX)
                .await?
        else {
            return Ok(None);
        };
        let manifest = match Manifest::decode(&bytes) {
            Ok(manifest) if manifest.layout == shared.layout.name() => manifest,
            Ok(manifest) => {
                return Ok(ignored(shared, format!("it is of layout {}", manifest.layout)));
            }
            Err(why) => return Ok(ignored(shared, why.to_string())),
        };
        let read = Read { at_ms: manifest.at_ms, names_tenants: manifest::names_tenants(&bytes) };
        if known_ms == Some(manifest.at_ms) {
            return Ok(Some(read));
        }
        let before = shared.books().index.eviction_order();
        let mut base = Base { heard, taken: taken(shared, &manifest), slots: Slots::default() };
        let entered = enter(shared, &manifest, &mut base).await;
        // Of one that was read in part the least recent came last: all is as it was before.
        let is_whole = matches!(entered, Ok(Ok(())));
        let stays: Vec<u32> =
            before.into_iter().filter(|slot| !is_whole || !base.slots.has(*slot)).collect();
        stays.chunks(SOME).for_each(|slots| make_recent(&mut shared.books().index, slots));
        match entered? {
            Ok(()) => return Ok(Some(read)),
            // A newer one took its place while it was read, and its parts are gone.
            Err(Missing) => continue,
        }
    }
    Ok(ignored(shared, "parts of it are missing".into()))
}

fn ignored(shared: &Shared, why: String) -> Option<Read> {
    let what = format!(
        "the snapshot of the index in the bucket was ignored: {why}; the listing tells all but the order of use"
    );
    shared.truth.told().snapshot = Some(what);
    None
}

/// A snapshot that was read.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// When it was taken, Unix time in milliseconds by the store's clock.
    pub at_ms: u64,
    /// It has the names of tenants in it, as earlier builds wrote them.
    pub names_tenants: bool,
}

/// A part is not there.
struct Missing;

/// When a snapshot was taken. What went shortly before may be in it: its writer had not heard of
/// that.
fn taken(shared: &Shared, manifest: &Manifest) -> When {
    let every_ms = shared.truth.config.journal_every.as_millis() as u64;
    When::between(shared, manifest.at_ms.saturating_sub(every_ms), manifest.at_ms)
}

/// A snapshot on its way into the index.
struct Base<'a> {
    heard: &'a Heard,
    taken: When,
    /// Of the chunks that are in it.
    slots: Slots,
}

impl Base<'_> {
    /// Whether a chunk that is in it and unknown here went since, as far as can be told.
    fn is_gone(&self, shared: &Shared, books: &Books, digest: &Digest) -> bool {
        let absent = books.absent_for(digest).map(|ago| When::ago(shared, ago));
        let went = absent
            .into_iter()
            .chain(self.heard.gone(digest))
            .any(|when| self.taken.against(&when) != Last::This);
        // A listing that began clearly later would have shown it.
        let listed = When::at(shared.truth.listed_ms.load(Ordering::Relaxed));
        went || self.taken.against(&listed) == Last::Other
    }

    /// Enters a part's chunks as the most recent; whether it was whole.
    fn enter(&mut self, shared: &Shared, bytes: &[u8]) -> bool {
        let mut pieces = format::decode(bytes);
        let chunks: Vec<Vec<Chunk>> = pieces.by_ref().collect();
        let all: Vec<&Chunk> = chunks.iter().flatten().collect();
        let mut restored = 0;
        for some in all.rchunks(SOME) {
            let mut books = shared.books();
            some.iter()
                .rev()
                .for_each(|chunk| restored += u64::from(self.one(shared, &mut books, chunk)));
        }
        add(&shared.counters.restored, restored);
        pieces.end() == Some(ReadEnd::Clean)
    }

    /// Enters one; whether it was unknown.
    fn one(&mut self, shared: &Shared, books: &mut Books, chunk: &Chunk) -> bool {
        let digest = &chunk.digest;
        // What is known already was learned since: the order is taken over, and what a listing does
        // not tell.
        if let Some(known) = books.index.known(digest) {
            self.slots.add(known.slot);
            make_recent(&mut books.index, &[known.slot]);
            let told = completed(known.chunk, chunk);
            if told != known.chunk && !books.index.is_evicting(digest) {
                let _ = books.index.insert(told);
            }
            return false;
        }
        // What has no name yet comes with the listing.
        if !shared.names.is_own() || books.watch.has(digest) || self.is_gone(shared, books, digest)
        {
            return false;
        }
        let InsertOutcome::New(slot) = books.hear_of(*chunk) else { return false };
        self.slots.add(slot);
        true
    }
}

/// What is known of a chunk, with whose it is and where in its chain as a snapshot tells, where
/// nobody else did.
fn completed(mut known: Chunk, told: &Chunk) -> Chunk {
    if known.tenant == TenantId::NONE {
        known.tenant = told.tenant;
    }
    if known.parent.is_none() && known.depth == 0 {
        (known.parent, known.depth) = (told.parent, told.depth);
    }
    known
}

type Part = JoinHandle<kvtier_s3::Result<Option<Vec<u8>>>>;

/// Reads the parts, the least recent first, some of them ahead.
async fn enter(
    shared: &Arc<Shared>,
    manifest: &Manifest,
    base: &mut Base<'_>,
) -> kvtier_s3::Result<Result<(), Missing>> {
    let mut names = manifest.parts.iter().rev().map(|(part, _)| shared.truth.paths.part(part));
    let fetch = |name: String| -> Part {
        let client = shared.client.clone();
        tokio::spawn(async move { objects::get(&client, &name, PART_BYTES_MAX).await })
    };
    let mut ahead: VecDeque<Part> = names.by_ref().take(AHEAD).map(fetch).collect();
    while let Some(part) = ahead.pop_front() {
        let bytes = part
            .await
            .map_err(|_| kvtier_s3::Error::new(kvtier_s3::ErrorKind::Io, "the tier is ending"))??;
        let Some(bytes) = bytes else { return Ok(Err(Missing)) };
        ahead.extend(names.next().map(fetch));
        if !base.enter(shared, &bytes) {
            ignored(shared, "some of it is damaged or of a newer build".into());
        }
    }
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use kvtier_index::{ChainPlace, DigestTag};

    use super::*;

    #[test]
    fn a_snapshot_completes_what_a_listing_told_and_changes_nothing_else() {
        let digest = Digest::derive("test", b"1");
        let place = |n: u32| {
            ChainPlace::new(
                Some(DigestTag::from_digest(&Digest::derive("parent", &n.to_le_bytes()))),
                n,
            )
        };
        let (listed, told) = (
            Chunk::new(digest, 5, 6),
            Chunk::new(digest, 9, 9).with_tenant(TenantId(7)).with_place(place(3)),
        );
        assert_eq!(completed(listed, &told), listed.with_tenant(TenantId(7)).with_place(place(3)));
        let own = listed.with_tenant(TenantId(1)).with_place(place(2));
        assert_eq!(completed(own, &told), own);
        assert_eq!(completed(own, &listed), own);
    }
}
