//! `kvtier bench`: how fast a tier is here.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kvtier::Tier;
use kvtier::core::key::{ChunkHash, KeyId, KvRank, ObjectKey};
use kvtier::core::{Ctx, Digest, Key, Load, Loaded, Namespace, Save, Saved};
use kvtier::file::{FileConfig, FileTier};
use kvtier::mem::{Arena, ArenaConfig};
use serde_json::{Value, json};

use crate::BadInput;
use crate::interrupt::Interrupted;
use crate::usage::{cpu_s, percentile, rss_mib};

/// What to measure.
#[derive(clap::Subcommand)]
pub enum What {
    /// The file tier in a directory.
    File(FileArgs),
}

/// `kvtier bench file`.
#[derive(clap::Args)]
pub struct FileArgs {
    /// The directory; what the bench writes there it removes.
    #[arg(long)]
    path: PathBuf,
    /// Operations, in order; a get reads what the put before it wrote, a first get what was written unmeasured.
    #[arg(long, value_delimiter = ',', default_value = "put,get")]
    op: Vec<String>,
    /// Chunk sizes.
    #[arg(long, value_delimiter = ',', default_value = "32MiB")]
    size: Vec<String>,
    /// Chunks in flight.
    #[arg(long, value_delimiter = ',', default_value = "8")]
    concurrency: Vec<usize>,
    /// GB to move in each cell.
    #[arg(long, default_value_t = 4.0)]
    gb: f64,
    /// auto, uring or threads.
    #[arg(long, default_value = "auto")]
    engine: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
pub fn run(What::File(args): What) -> Result<()> {
    if let Some(op) = args.op.iter().find(|op| !matches!(op.as_str(), "put" | "get")) {
        return Err(BadInput(format!("no operation {op:?}; choose put, get")).into());
    }
    crate::interrupt::watch()?;
    let mut cells = Vec::new();
    for text in &args.size {
        let size = crate::replay::size("--size", text)? as usize;
        for concurrency in &args.concurrency {
            if size == 0 || *concurrency == 0 || args.gb <= 0.0 {
                return Err(BadInput("--size, --concurrency and --gb must be more than 0".into()).into());
            }
            measure(&args, (size, *concurrency), &mut cells)?;
        }
    }
    if args.json {
        println!("{}", json!({ "cells": cells }));
        return Ok(());
    }
    println!(
        "{:<4} {:>10} {:>5} {:>10} {:>12} {:>9} {:>9} {:>9}",
        "op", "size", "conc", "MB/s", "CPU s/GB", "p50 ms", "p99 ms", "RSS MiB"
    );
    for c in &cells {
        let f = |name: &str| c[name].as_f64().unwrap_or(0.0);
        let size = kvtier::bytes::format(c["size"].as_u64().unwrap_or(0));
        println!(
            "{:<4} {size:>10} {:>5} {:>10.0} {:>12.4} {:>9.2} {:>9.2} {:>9.0}",
            c["op"].as_str().unwrap_or_default(),
            c["concurrency"],
            f("mb_per_s"),
            f("cpu_s_per_gb"),
            f("p50_ms"),
            f("p99_ms"),
            f("rss_mib")
        );
    }
    Ok(())
}

/// The cells of one size and concurrency, over one fresh set of chunks.
fn measure(args: &FileArgs, (size, concurrency): (usize, usize), cells: &mut Vec<Value>) -> Result<()> {
    let count = ((args.gb * 1e9 / size as f64).ceil() as u64).max(1);
    let capacity = (count + 16) * (size as u64 + 8192) * 11 / 10;
    let engine = args.engine.parse().map_err(|e: kvtier::file::EngineError| BadInput(e.to_string()))?;
    let tier = FileTier::open(FileConfig::new(&args.path, capacity).with_engine(engine)).map_err(crate::cannot_open)?;
    let arena = Arena::new(ArenaConfig::huge(concurrency * size.next_multiple_of(4096)))
        .context("no memory for the chunks in flight")?;
    tier.register(&arena)?;
    // Keys of this run alone: what an earlier one left behind must not be found.
    let run =
        Digest::of("kvtier bench", format!("{:?}{}", std::time::SystemTime::now(), std::process::id()).as_bytes());
    let ns = Arc::new(Namespace::new("bench", run));
    let key = |n: u64| {
        let hash = ChunkHash::new(&n.to_be_bytes());
        Key::new(
            Arc::clone(&ns),
            KeyId::Object(ObjectKey { model: "bench".into(), rank: KvRank(0), group: 0, hash, salt: "".into() }),
        )
    };
    let clear = || {
        let all: Arc<[Key]> = (0..count).map(key).collect();
        let removed = tier.remove(&Ctx::within(Duration::from_secs(600)), all).wait();
        removed.context("cannot remove the bench's chunks").map(drop)
    };
    // A first get needs something to read; this put is not measured.
    let filled = args.op.first().is_none_or(|op| op == "put");
    let before =
        if filled { Ok(Vec::new()) } else { each(concurrency, count, |n| one(&tier, &arena, ("put", size), key(n))) };
    let mut cell = |op: &String| -> Result<()> {
        if op == "put" {
            clear()?;
        }
        let (began, cpu) = (Instant::now(), cpu_s());
        let mut ms = each(concurrency, count, |n| one(&tier, &arena, (op, size), key(n)))?;
        let (wall, cpu, gb) = (began.elapsed().as_secs_f64(), cpu_s() - cpu, count as f64 * size as f64 / 1e9);
        cells.push(json!({
            "op": op, "size": size, "concurrency": concurrency, "engine": format!("{:?}", tier.engine()),
            "mb_per_s": gb * 1e3 / wall, "cpu_s_per_gb": cpu / gb,
            "p50_ms": percentile(&mut ms, 0.5), "p99_ms": percentile(&mut ms, 0.99), "rss_mib": rss_mib(),
        }));
        Ok(())
    };
    let measured = before.and_then(|_| args.op.iter().try_for_each(&mut cell));
    clear()?;
    measured
}

/// Runs `work` for 0..count, `concurrency` at once; the time of each, in ms.
fn each(concurrency: usize, count: u64, work: impl Fn(u64) -> Result<f64> + Sync) -> Result<Vec<f64>> {
    let (next, times) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let thread = || -> Result<()> {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= count {
                return Ok(());
            }
            if crate::interrupt::asked() {
                return Err(Interrupted.into());
            }
            let ms = work(n)?;
            times.lock().unwrap_or_else(PoisonError::into_inner).push(ms);
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..concurrency).map(|_| scope.spawn(thread)).collect();
        threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| bail!("a worker panicked")))
    })?;
    Ok(times.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn one(tier: &FileTier, arena: &Arena, (op, size): (&str, usize), key: Key) -> Result<f64> {
    let ctx = Ctx::within(Duration::from_secs(120));
    let mut lease = arena.lease(size)?;
    if op == "put" {
        // Every chunk differs in its first page; what the rest holds is of no matter here.
        lease.as_host_mut().into_iter().for_each(|bytes| {
            let n = size.min(32);
            bytes[..n].copy_from_slice(&key.digest().as_bytes()[..n]);
        });
        lease.assume_filled(size);
        let began = Instant::now();
        let done = tier.save(&ctx, vec![Save { key, from: vec![lease.freeze()] }]).wait();
        match done.into_iter().next().map(|d| d.result) {
            Some(Ok(Saved::Stored)) => Ok(began.elapsed().as_secs_f64() * 1e3),
            Some(Err(e)) => Err(e.into()),
            other => bail!("a put was not stored: {other:?}"),
        }
    } else {
        let began = Instant::now();
        let done = tier.load(&ctx, vec![Load { key, into: vec![lease] }]).wait();
        match done.into_iter().next().map(|d| d.result) {
            Some(Ok(Loaded::Hit { .. })) => Ok(began.elapsed().as_secs_f64() * 1e3),
            Some(Err(e)) => Err(e.into()),
            other => bail!("a get found nothing (put first): {other:?}"),
        }
    }
}
