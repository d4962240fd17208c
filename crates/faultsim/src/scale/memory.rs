//! The memory of one real node by its number of chunks.

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::Observe;
use kvtier_index::Chunk;
use kvtier_index::snapshot::SnapshotEncoder;
use kvtier_key::{BlockSums, Digest};
use tokio::time::sleep;

use super::node::{PREFIX, ScaleNode};
use super::views::Views;
use super::{CHUNK_BYTES, ScaleSetup, runtime};
use crate::world::{EPOCH_S, World};

/// The most chunks in a part of a snapshot.
const PART_CHUNKS: usize = 65_536;
/// How long the start may take.
const START_MAX: Duration = Duration::from_secs(600);

/// The bytes that a node allocates for this number of chunks, counted by `live_bytes`: the tier reads them from the snapshot
/// that an evictor leaves. `None` if it does not.
///
/// Runs on the calling thread, which must not be one of a tokio runtime.
pub fn node_memory(chunks: u64, live_bytes: fn() -> u64) -> Option<u64> {
    runtime(7).block_on(restore(chunks, live_bytes))
}

async fn restore(chunks: u64, live_bytes: fn() -> u64) -> Option<u64> {
    let world = Arc::new(World::new(7, false));
    leave_snapshot(&world, chunks);
    let before = live_bytes();
    let setup = ScaleSetup::new(1, chunks);
    let node = ScaleNode::start(&world, &setup, 0, &Views::new(&world));
    while node.tier.status().counter("restored") < chunks {
        if world.elapsed() > START_MAX {
            return None;
        }
        sleep(Duration::from_millis(1)).await;
    }
    // The listing would find that no chunk is there.
    world.lock().conditions.is_down = true;
    // What was needed to read the snapshot is given back.
    sleep(Duration::from_secs(5)).await;
    let all = node.tier.usage().chunks == chunks;
    all.then(|| live_bytes().saturating_sub(before))
}

/// A snapshot of this many chunks, as an evictor leaves it.
fn leave_snapshot(world: &World, chunks: u64) {
    let at_ms = EPOCH_S * 1000;
    let mut manifest = format!("kvtier bucket snapshot\nformat: 2\nlayout: kvtier\nat: {at_ms}\n");
    let mut state = world.lock();
    let mut put = |name: &str, bytes: Vec<u8>| {
        state.bucket.put_foreign(&format!("{PREFIX}/.kvtier/snapshot/{name}"), bytes, at_ms);
    };
    for (number, first) in (0..chunks).step_by(PART_CHUNKS).enumerate() {
        let digest = |n: u64| Digest::derive("kvtier faultsim scale", &n.to_le_bytes());
        let chunk = |n: u64| Chunk::new(digest(n), CHUNK_BYTES, CHUNK_BYTES);
        let some: Vec<Chunk> = (first..chunks.min(first + PART_CHUNKS as u64)).map(chunk).collect();
        let mut writer = SnapshotEncoder::new(at_ms);
        let mut part = Vec::new();
        writer.write(&some, &mut part);
        writer.finish(&mut part);
        let name = format!("{at_ms:016x}-{number:04x}");
        manifest.push_str(&format!("part: {name} {}\n", some.len()));
        put(&name, part);
    }
    let crc = BlockSums::from_bytes(manifest.as_bytes()).whole();
    put("current", format!("{manifest}crc: {crc:08x}\n").into_bytes());
}
