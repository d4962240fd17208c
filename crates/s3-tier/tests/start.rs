//! How fast a tier starts on a large bucket, and what a chunk costs in memory. Nothing else runs
//! here: memory is counted.
#![allow(clippy::unwrap_used)]

mod support;

use std::alloc::System;
use std::io::Write;
use std::time::{Duration, Instant};

use kvtier_core::{Observe, Tier};
use kvtier_index::snapshot::SnapshotEncoder;
use kvtier_index::{Chunk, TenantId};
use kvtier_key::{BlockSums, Digest};
use kvtier_s3_tier::{S3Tier, TierConfig};
use kvtier_testkit::s3::{Fault, Rule, Server};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use support::{config_of, endpoint, server};

#[global_allocator]
static MEMORY: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The most chunks in a part of a snapshot.
const PART: usize = 65_536;

fn chunks() -> usize {
    if std::env::var("KVTIER_NIGHTLY").is_ok_and(|on| on == "1") { 1_000_000 } else { 200_000 }
}

fn live_bytes() -> usize {
    let stats = MEMORY.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

/// A snapshot of this many chunks, as an evictor leaves it: the format is public, and this is it.
fn leave_snapshot(server: &Server, chunks: usize) {
    let at_ms = 1_700_000_000_000u64;
    let mut manifest = format!("kvtier bucket snapshot\nformat: 1\nlayout: kvtier\nat: {at_ms}\n");
    for (number, first) in (0..chunks).step_by(PART).enumerate() {
        let chunk =
            |n: usize| Chunk::new(Digest::derive("test", &n.to_le_bytes()), 1 << 20, 1 << 20);
        let some: Vec<Chunk> =
            (first..chunks.min(first + PART)).map(|n| chunk(n).with_tenant(TenantId(7))).collect();
        let mut writer = SnapshotEncoder::new(at_ms);
        let mut part = Vec::new();
        writer.write(&some, &mut part);
        writer.finish(&mut part);
        server.put_object(&format!("kv/.kvtier/snapshot/{at_ms:016x}-{number:04x}"), part);
        manifest.push_str(&format!("part: {at_ms:016x}-{number:04x} {}\n", some.len()));
    }
    manifest.push_str("tenant: 7 alice\n");
    let crc = BlockSums::from_bytes(manifest.as_bytes()).whole();
    server.put_object(
        "kv/.kvtier/snapshot/current",
        format!("{manifest}crc: {crc:08x}\n").into_bytes(),
    );
}

#[test]
fn a_start_takes_seconds_and_a_chunk_takes_a_hundred_bytes() {
    let chunks = chunks();
    // No listing is answered: the start is on the snapshot alone.
    let server = server(|_| {});
    leave_snapshot(&server, chunks);
    server.script(
        Rule::next(Fault::Stall(Duration::from_secs(300)))
            .containing("list-type=2")
            .times(1_000_000),
    );
    let before = live_bytes();
    let begun = Instant::now();
    let mut config = TierConfig::new(config_of(endpoint(&server, "bucket")))
        .with_capacity(1 << 50)
        .with_prefix("kv");
    // Memory of its own that is the same however many chunks there are.
    config.bounce_bytes = 4096;
    let tier = S3Tier::open(config).unwrap();
    while tier.status().counter("restored") < chunks as u64 {
        assert!(begun.elapsed() < Duration::from_secs(600), "{:?}", tier.status());
        std::thread::sleep(Duration::from_millis(1));
    }
    let took = begun.elapsed();
    // What was needed to read it is given back soon. What a tier has without any chunk counts too,
    // and the table has space to grow.
    let each = || (live_bytes() - before) as f64 / chunks as f64;
    let fixed = 4 << 20;
    let fits = || each() <= 100.0 + f64::from(fixed) / chunks as f64;
    let given_back = Instant::now();
    while !fits() && given_back.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(10));
    }
    writeln!(std::io::stderr(), "{chunks} chunks after {took:?}, {:.1} bytes each", each())
        .unwrap();
    // No listing ends for minutes.
    assert!(took < Duration::from_secs(120), "{took:?}");
    assert!(fits(), "{} bytes a chunk", each());
    let usage = tier.usage();
    assert_eq!((usage.chunks, usage.used_bytes), (chunks as u64, Some((chunks as u64) << 20)));
    assert_eq!(usage.tenants[0].tenant, format!("~{}", TenantId(7)));
    drop(tier.close());
}
