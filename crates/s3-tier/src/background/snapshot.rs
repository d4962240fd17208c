//! The index in the bucket, so that a start need not wait for a listing: parts in kvtier-index's
//! snapshot format, and a manifest that lists them.
//!
//! Parts have names that no other snapshot uses, and the manifest is written last, with one PUT. A
//! reader therefore finds a whole snapshot or the one before. A writer that dies leaves parts
//! without a manifest, which the next writer deletes. Only parts older than the own ones are
//! deleted: younger parts belong to a snapshot of another node that is being written.
//!
//! Before the manifest is written the lease is checked once more. A node that lost it meanwhile
//! replaces nothing.
//!
//! A snapshot is older than the index it is merged into. A chunk is not restored if this process, a
//! journal or a listing shows that it was deleted after the snapshot, or may have been. Restored
//! chunks count as unseen: a lookup asks the bucket before it reports a hit.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvtier_index::snapshot::{self as format, FRAME_CHUNKS_MAX, SnapshotEncoder};
use kvtier_index::{Chunk, InsertOutcome, ReadEnd, TenantId};
use kvtier_key::Digest;
use kvtier_s3::Put;
use tokio::task::JoinHandle;

use crate::background::peer_journals::event_time::{EventTime, Newer};
use crate::background::peer_journals::last_writes::LastWrites;
use crate::background::reconcile::{CHUNKS_PER_LOCK, SlotSet, make_recent};
use crate::background::snapshot_manifest::SnapshotManifest;
use crate::background::{own_objects, snapshot_manifest};
use crate::state::catalog::{Catalog, UNKNOWN_LEN};
use crate::state::counters::add;
use crate::state::machine::of_process;
use crate::state::shared::Shared;

/// Chunks in a part, at most: 4 MiB.
const PART_CHUNKS: usize = 4 * FRAME_CHUNKS_MAX;
/// The most bytes of a part.
pub const PART_BYTES_MAX: usize = 5 << 20;
/// Parts that are fetched ahead while a snapshot is read.
const AHEAD: usize = 4;

/// Writes the index in its order of use, and locks it for some chunks at a time. Returns when the
/// snapshot was taken; `None` if another node evicts by now, and nothing was replaced.
pub async fn write(shared: &Shared) -> kvtier_s3::Result<Option<u64>> {
    let _one = shared.node.snapshot_write.lock().await;
    let at_ms = shared.node.server_ms(&shared.client);
    let mut order = shared.catalog().index.eviction_order();
    // The most recent first: the limit on parts cuts off the least useful.
    order.reverse();
    let mut manifest = SnapshotManifest {
        layout: shared.layout.name().to_owned(),
        at_ms,
        ..SnapshotManifest::default()
    };
    for (number, slots) in order.chunks(PART_CHUNKS).take(snapshot_manifest::LINES_MAX).enumerate()
    {
        let mut writer = SnapshotEncoder::new(at_ms);
        let mut part = Vec::new();
        let mut count = 0;
        for some in slots.chunks(CHUNKS_PER_LOCK) {
            // Slots that were freed since the order was taken give nothing, and reused ones another
            // chunk, which is fine.
            let chunks: Vec<Chunk> = shared.catalog().index.chunks_at(some).collect();
            count += chunks.len();
            if !chunks.is_empty() {
                writer.write(&chunks, &mut part);
            }
        }
        writer.finish(&mut part);
        let name = format!("{at_ms:016x}-{number:04x}");
        own_objects::put(&shared.client, &shared.node.own_names.part(&name), part, &Put::default())
            .await?;
        manifest.parts.push((name, count));
    }
    // A node that took over meanwhile writes its own, which must stay.
    if !shared.node.may_evict(shared.now_ms()) {
        return Ok(None);
    }
    own_objects::put(
        &shared.client,
        &shared.node.own_names.snapshot(),
        manifest.encode(),
        &Put::default(),
    )
    .await?;
    add(&shared.counters.snapshots, 1);
    delete_old_parts(shared, &manifest).await?;
    Ok(Some(at_ms))
}

/// Deletes the parts of older snapshots. Younger parts belong to another node's snapshot that is
/// being written.
async fn delete_old_parts(shared: &Shared, manifest: &SnapshotManifest) -> kvtier_s3::Result<()> {
    let paths = &shared.node.own_names;
    let listing = own_objects::list(&shared.client, &paths.snapshots()).await?;
    let kept: HashSet<String> = manifest.parts.iter().map(|(part, _)| paths.part(part)).collect();
    let own = paths.part(&format!("{:016x}", manifest.at_ms));
    let old = |name: &&str| !kept.contains(*name) && **name < *own;
    let old: Vec<&str> =
        listing.entries.iter().map(|entry| entry.key.as_str()).filter(old).collect();
    for some in old.chunks(1000) {
        shared.client.delete_many(some).await?;
    }
    Ok(())
}

/// Merges the last snapshot into the index, unless it is the one taken at `known_ms`. Its order
/// becomes that of the index; chunks that it lacks follow behind. Returns what was read; `None`
/// when there is no readable snapshot, which the status reports.
pub async fn read(
    shared: &Arc<Shared>,
    known_ms: Option<u64>,
    last_writes: &LastWrites,
) -> kvtier_s3::Result<Option<SnapshotInfo>> {
    // A second attempt, since the evictor may replace the snapshot and delete its parts during the
    // first.
    for _ in 0..2 {
        let Some(bytes) = own_objects::get(
            &shared.client,
            &shared.node.own_names.snapshot(),
            snapshot_manifest::BYTES_MAX,
        )
        .await?
        else {
            return Ok(None);
        };
        let manifest = match SnapshotManifest::decode(&bytes) {
            Ok(manifest) if manifest.layout == shared.layout.name() => manifest,
            Ok(manifest) => {
                return Ok(ignored(shared, format!("it is of layout {}", manifest.layout)));
            }
            Err(why) => return Ok(ignored(shared, why.to_string())),
        };
        let read = SnapshotInfo {
            at_ms: manifest.at_ms,
            names_tenants: snapshot_manifest::names_tenants(&bytes),
        };
        // This process wrote it, or read it before.
        if known_ms == Some(manifest.at_ms) {
            return Ok(Some(read));
        }
        // The order before the merge. Chunks that the snapshot lacks are behind it afterwards, and
        // a failed merge restores it.
        let before = shared.catalog().index.eviction_order();
        let mut merge = SnapshotMerge {
            last_writes,
            taken: taken(shared, &manifest),
            slots: SlotSet::default(),
        };
        let entered = apply_parts(shared, &manifest, &mut merge).await;
        // After a read in part the least recent chunks would come last: the order before is
        // restored.
        // Chunks that the snapshot has were made the most recent one by one; those that it lacks go
        // behind them.
        let is_whole = matches!(entered, Ok(Ok(())));
        let stays: Vec<u32> =
            before.into_iter().filter(|slot| !is_whole || !merge.slots.has(*slot)).collect();
        stays
            .chunks(CHUNKS_PER_LOCK)
            .for_each(|slots| make_recent(&mut shared.catalog().index, slots));
        match entered? {
            Ok(()) => return Ok(Some(read)),
            // A newer snapshot replaced it during the read, and its parts are gone.
            Err(MissingPart) => continue,
        }
    }
    Ok(ignored(shared, "parts of it are missing".into()))
}

fn ignored(shared: &Shared, why: String) -> Option<SnapshotInfo> {
    let what = format!(
        "the snapshot of the index in the bucket was ignored: {why}; the listing restores all but the order of use"
    );
    shared.node.notes().snapshot = Some(what);
    None
}

/// A snapshot that was read.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotInfo {
    /// When it was taken, in Unix milliseconds by the store's clock.
    pub at_ms: u64,
    /// It contains names of tenants, as earlier builds wrote them.
    pub names_tenants: bool,
}

/// A part does not exist.
struct MissingPart;

/// When a snapshot was taken. It may contain chunks deleted shortly before, of which its writer had
/// no journal yet.
fn taken(shared: &Shared, manifest: &SnapshotManifest) -> EventTime {
    let every_ms = shared.node.config.journal_every.as_millis() as u64;
    EventTime::between(shared, manifest.at_ms.saturating_sub(every_ms), manifest.at_ms)
}

/// A snapshot that is being merged.
struct SnapshotMerge<'a> {
    last_writes: &'a LastWrites,
    taken: EventTime,
    /// The slots of its chunks.
    slots: SlotSet,
}

impl SnapshotMerge<'_> {
    /// Whether a chunk that the index lacks was deleted since, or may have been.
    fn is_gone(&self, shared: &Shared, catalog: &Catalog, digest: &Digest) -> bool {
        let absent = catalog.absent_for(digest).map(|ago| EventTime::ago(shared, ago));
        let went = absent
            .into_iter()
            .chain(self.last_writes.gone(digest))
            .any(|when| self.taken.compare(&when) != Newer::This);
        // A listing that began clearly later would have found it.
        let listed = EventTime::at(shared.node.listed_ms.load(Ordering::Relaxed));
        went || self.taken.compare(&listed) == Newer::Other
    }

    /// Inserts a part's chunks as the most recent; whether it was whole.
    fn apply_part(&mut self, shared: &Shared, bytes: &[u8]) -> bool {
        let mut pieces = format::decode(bytes);
        let chunks: Vec<Vec<Chunk>> = pieces.by_ref().collect();
        let all: Vec<&Chunk> = chunks.iter().flatten().collect();
        let mut restored = 0;
        // From the least recent to the most recent, so that each insert is the most recent at its
        // time.
        for some in all.rchunks(CHUNKS_PER_LOCK) {
            let mut catalog = shared.catalog();
            some.iter().rev().for_each(|chunk| {
                restored += u64::from(self.apply_chunk(shared, &mut catalog, chunk))
            });
            drop(catalog);
            shared.listeners.notify();
        }
        add(&shared.counters.restored, restored);
        pieces.end() == Some(ReadEnd::Clean)
    }

    /// Inserts one chunk; whether it was new.
    fn apply_chunk(&mut self, shared: &Shared, catalog: &mut Catalog, chunk: &Chunk) -> bool {
        let digest = &chunk.digest;
        // The index is newer: only the order is taken, and what listings lack.
        // Loads and saves went on while the snapshot was fetched.
        if let Some(known) = catalog.index.known(digest) {
            self.slots.add(known.slot);
            make_recent(&mut catalog.index, &[known.slot]);
            let stored = completed(known.chunk, chunk);
            if stored != known.chunk && !catalog.index.is_evicting(digest) {
                let _ = catalog.index.insert(stored);
            }
            return false;
        }
        // A chunk whose name cannot be known comes with the listing.
        if !shared.names.admits_unnamed()
            || catalog.changed_keys.has(digest)
            || self.is_gone(shared, catalog, digest)
        {
            return false;
        }
        let InsertOutcome::New(slot) = catalog.insert_unseen(*chunk) else { return false };
        shared.report_stored(catalog, chunk);
        self.slots.add(slot);
        true
    }
}

/// The known chunk, with raw length, tenant and chain position from the snapshot where they were
/// unknown.
fn completed(mut known: Chunk, stored: &Chunk) -> Chunk {
    if known.tenant == TenantId::NONE {
        known.tenant = stored.tenant;
    }
    if known.len == UNKNOWN_LEN && known.bytes == stored.bytes {
        known.len = stored.len;
    }
    if known.parent.is_none() && known.depth == 0 {
        (known.parent, known.depth) = (stored.parent, stored.depth);
    }
    known
}

type Part = JoinHandle<kvtier_s3::Result<Option<Vec<u8>>>>;

/// Reads the parts, least recent first, some of them ahead.
async fn apply_parts(
    shared: &Arc<Shared>,
    manifest: &SnapshotManifest,
    merge: &mut SnapshotMerge<'_>,
) -> kvtier_s3::Result<Result<(), MissingPart>> {
    let mut names = manifest.parts.iter().rev().map(|(part, _)| shared.node.own_names.part(part));
    let fetch = |name: String| -> Part {
        let client = shared.client.clone();
        let part = async move { own_objects::get(&client, &name, PART_BYTES_MAX).await };
        tokio::spawn(of_process(&shared.client, part))
    };
    let mut ahead: VecDeque<Part> = names.by_ref().take(AHEAD).map(fetch).collect();
    while let Some(part) = ahead.pop_front() {
        let bytes = part
            .await
            .map_err(|_| kvtier_s3::Error::new(kvtier_s3::ErrorKind::Io, "the tier is ending"))??;
        let Some(bytes) = bytes else { return Ok(Err(MissingPart)) };
        // The next request is sent before this part is applied, so the network and the index work
        // at the same time.
        ahead.extend(names.next().map(fetch));
        if !merge.apply_part(shared, &bytes) {
            ignored(shared, "a part is damaged or of a newer build".into());
        }
    }
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use kvtier_index::{ChainPlace, DigestTag};

    use super::*;

    #[test]
    fn a_snapshot_completes_listed_chunks_and_changes_nothing_else() {
        let digest = Digest::derive("test", b"1");
        let place = |n: u32| {
            ChainPlace::new(
                Some(DigestTag::from_digest(&Digest::derive("parent", &n.to_le_bytes()))),
                n,
            )
        };
        let listed = Chunk::new(digest, 5, 6);
        let stored = Chunk::new(digest, 9, 9).with_tenant(TenantId(7)).with_place(place(3));
        assert_eq!(
            completed(listed, &stored),
            listed.with_tenant(TenantId(7)).with_place(place(3))
        );
        let own = listed.with_tenant(TenantId(1)).with_place(place(2));
        assert_eq!(completed(own, &stored), own);
        assert_eq!(completed(own, &listed), own);
    }
}
