//! `kvtier bench s3`: how fast the S3 client is on a bucket.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kvtier::mem::{Arena, ArenaConfig, Lease};
use kvtier::s3::{Client, Config, Get, Put};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::leftover_objects;
use crate::BadInput;
use crate::bucket_args::{BucketArgs, failed};
use crate::interrupt::Interrupted;
use crate::json::json;
use crate::process_usage::{cpu_s, percentile, rss_mib};

/// At most this many objects are in the bucket at a time, or as many as hold [`OBJECTS_BYTES_MAX`]
/// if that is more, so that no store must hold everything that is moved.
const OBJECTS_MAX: u64 = 256;
const OBJECTS_BYTES_MAX: u64 = 4 << 30;
/// A warm-up pass has this many operations for each request in flight: connections are open and
/// memory has been written when the clock starts.
const WARM_UP_ROUNDS: u64 = 2;
/// One operation may take this long.
const OP_MAX: Duration = Duration::from_secs(120);

/// `kvtier bench s3`.
#[derive(clap::Args)]
pub struct BenchS3Args {
    #[command(flatten)]
    store: BucketArgs,
    /// Operations, in order: put, get, head. Each begins with a warm-up pass that is not measured;
    /// a first get or head finds what was written unmeasured. A put writes new keys.
    #[arg(long, value_delimiter = ',', default_value = "put,get")]
    op: Vec<String>,
    /// Object sizes.
    #[arg(long, value_delimiter = ',', default_value = "10MiB")]
    size: Vec<String>,
    /// Requests in flight.
    #[arg(long, value_delimiter = ',', default_value = "8")]
    concurrency: Vec<usize>,
    /// GB to move in each cell; a cell of heads makes as many requests as one of gets.
    #[arg(long, default_value_t = 4.0)]
    gb: f64,
    /// Puts overwrite keys that the warm-up pass wrote, in place of writing new keys: the time
    /// that the store takes to grow is then not measured.
    #[arg(long)]
    same_keys: bool,
    /// Threads that the client runs on.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
pub fn run(args: &BenchS3Args) -> Result<()> {
    if let Some(op) = args.op.iter().find(|op| !["put", "get", "head"].contains(&op.as_str())) {
        return Err(BadInput(format!("no operation {op:?}; choose put, get, head")).into());
    }
    let grid = grid(args)?;
    crate::interrupt::watch()?;
    let runtime = runtime(args.threads)?;
    let store = args.store.find(&runtime)?;
    let mut cells = Vec::new();
    // Objects of earlier runs only take space: the measurement goes on where they cannot be listed.
    if let Err(e) = leftover_objects::remove(&Client::new(store.config()).within(OP_MAX), &runtime)
    {
        eprintln!("kvtier: {e:#}");
    }
    for (size, concurrency) in grid {
        let load =
            BenchLoad { ops: &args.op, size, concurrency, gb: args.gb, same_keys: args.same_keys };
        measure(store.config(), &runtime, &load, &mut cells)?;
    }
    print(&cells, args.json)
}

/// What a client runs on.
pub fn runtime(threads: usize) -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads.max(1))
        .enable_all()
        .build();
    runtime.context("cannot start the client's threads")
}

/// Every size with every concurrency.
fn grid(args: &BenchS3Args) -> Result<Vec<(usize, usize)>> {
    let mut cells = Vec::new();
    for text in &args.size {
        let size = crate::replay::size("--size", text)? as usize;
        cells.extend(args.concurrency.iter().map(|concurrency| (size, *concurrency)));
    }
    if cells.iter().any(|(size, concurrency)| *size == 0 || *concurrency == 0)
        || args.gb.is_nan()
        || args.gb <= 0.0
    {
        return Err(BadInput("--size, --concurrency and --gb must be more than 0".into()).into());
    }
    Ok(cells)
}

/// The cells as one JSON object or as a table.
fn print(cells: &[Value], as_json: bool) -> Result<()> {
    if as_json {
        return crate::stdout::line(&json!({ "cells": cells }).to_string());
    }
    crate::stdout::line(&format!(
        "{:<4} {:>10} {:>5} {:>10} {:>10} {:>12} {:>10} {:>9} {:>9} {:>9}",
        "op",
        "size",
        "conc",
        "MB/s",
        "ops/s",
        "CPU s/GB",
        "CPU us/op",
        "p50 ms",
        "p99 ms",
        "RSS MiB"
    ))?;
    cells.iter().try_for_each(|c| {
        let f = |name: &str| c[name].as_f64().unwrap_or(0.0);
        // A head moves no bytes.
        let moved = |name: &str, digits: usize| match c["op"] == "head" {
            true => "-".to_owned(),
            false => format!("{:.digits$}", f(name)),
        };
        let size = kvtier::byte_size::format(c["size"].as_u64().unwrap_or(0));
        crate::stdout::line(&format!(
            "{:<4} {size:>10} {:>5} {:>10} {:>10.0} {:>12} {:>10.1} {:>9.2} {:>9.2} {:>9.0}",
            c["op"].as_str().unwrap_or_default(),
            c["concurrency"].as_u64().unwrap_or(0),
            moved("mb_per_s", 0),
            f("ops_per_s"),
            moved("cpu_s_per_gb", 4),
            f("cpu_us_per_op"),
            f("p50_ms"),
            f("p99_ms"),
            f("rss_mib")
        ))
    })
}

/// What the workers of a pass share.
struct BenchJob {
    client: Client,
    arena: Arena,
    /// What the keys begin with.
    prefix: String,
    size: usize,
    /// Operations of the pass.
    count: u64,
    /// Keys that the operations cycle through.
    objects: u64,
    next: AtomicU64,
}

/// What to do to one size with one concurrency.
pub struct BenchLoad<'a> {
    pub ops: &'a [String],
    pub size: usize,
    pub concurrency: usize,
    pub gb: f64,
    /// Whether puts overwrite keys that exist.
    pub same_keys: bool,
}

impl BenchLoad<'_> {
    /// Memory for the objects in flight, all of it resident.
    fn arena(&self) -> Result<Arena> {
        let memory =
            ArenaConfig::huge(self.concurrency * self.size.next_multiple_of(4096)).with_prefault();
        Arena::new(memory).context("no memory for the objects in flight")
    }

    /// How often the keys are used, and how many there are: at least the operations that `gb` asks
    /// for, in equal rounds.
    fn rounds(&self) -> Rounds {
        let size = self.size as u64;
        let count = ((self.gb * 1e9 / size as f64).ceil() as u64).max(1);
        // Objects are written and read again in rounds, so that a long measurement does not fill
        // the bucket.
        let rounds = count.div_ceil(OBJECTS_MAX.max(OBJECTS_BYTES_MAX / size));
        Rounds { rounds, objects: count.div_ceil(rounds) }
    }
}

/// The operations of a cell: each of `rounds` rounds uses each of `objects` keys once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rounds {
    rounds: u64,
    objects: u64,
}

/// The cells of one load, over one set of objects that nothing else uses.
pub fn measure(
    mut config: Config,
    runtime: &Runtime,
    load: &BenchLoad<'_>,
    cells: &mut Vec<Value>,
) -> Result<()> {
    // The client's own limit must not be what is measured.
    config.requests_max = load.concurrency;
    let client = Client::new(config).within(OP_MAX);
    let arena = load.arena()?;
    // Keys of this run alone: a get must not find what an earlier run left behind.
    let prefix = leftover_objects::prefix();
    let cells_of_load = Cells { client, arena, prefix, runtime, load, shape: load.rounds() };
    let measured = cells_of_load.measure(cells);
    // Also after an error; the error of the measurement is the more important one.
    let removed = cells_of_load.clear();
    measured?;
    removed
}

/// The cells of one load.
struct Cells<'a> {
    client: Client,
    arena: Arena,
    prefix: String,
    runtime: &'a Runtime,
    load: &'a BenchLoad<'a>,
    shape: Rounds,
}

/// What was measured of a cell.
#[derive(Default)]
struct Measured {
    ms: Vec<f64>,
    wall_s: f64,
    cpu_s: f64,
}

impl Cells<'_> {
    fn measure(&self, cells: &mut Vec<Value>) -> Result<()> {
        // A first get or head needs something to find; this put is not measured.
        if self.load.ops.first().is_some_and(|op| op != "put") {
            self.pass("put", self.shape.objects)?;
        }
        for op in self.load.ops {
            cells.push(self.cell(op)?);
        }
        Ok(())
    }

    fn cell(&self, op: &str) -> Result<Value> {
        let &BenchLoad { size, concurrency, same_keys, .. } = self.load;
        let mut measured =
            if op == "put" && !same_keys { self.put_new_keys()? } else { self.repeat(op)? };
        let count = measured.ms.len() as f64;
        let moves = op != "head";
        let gb = count * size as f64 / 1e9;
        Ok(json!({
            "op": op, "size": size, "concurrency": concurrency, "ops": measured.ms.len(),
            "same_keys": (op == "put").then_some(same_keys),
            "mb_per_s": if moves { gb * 1e3 / measured.wall_s } else { 0.0 },
            "cpu_s_per_gb": moves.then_some(measured.cpu_s / gb),
            "p50_ms": percentile(&mut measured.ms, 0.5), "p99_ms": percentile(&mut measured.ms, 0.99), "rss_mib": rss_mib(),
            "ops_per_s": count / measured.wall_s, "cpu_us_per_op": measured.cpu_s * 1e6 / count,
        }))
    }

    /// Puts, none of which overwrites an object: before each round the objects of the round before
    /// are removed.
    fn put_new_keys(&self) -> Result<Measured> {
        self.pass("put", self.warm_up().min(self.shape.objects))?;
        let mut measured = Measured::default();
        // Each round writes new keys. The deletions in between are not measured.
        for _ in 0..self.shape.rounds {
            self.clear()?;
            measured.add(|| self.pass("put", self.shape.objects))?;
        }
        Ok(measured)
    }

    /// Operations on keys that exist.
    fn repeat(&self, op: &str) -> Result<Measured> {
        let Rounds { rounds, objects } = self.shape;
        // The warm-up of a put writes every key.
        self.pass(op, if op == "put" { objects } else { self.warm_up() })?;
        let mut measured = Measured::default();
        measured.add(|| self.pass(op, rounds * objects))?;
        Ok(measured)
    }

    fn warm_up(&self) -> u64 {
        WARM_UP_ROUNDS * self.load.concurrency as u64
    }

    /// Does `count` operations; the time of each in ms.
    fn pass(&self, op: &str, count: u64) -> Result<Vec<f64>> {
        let job = BenchJob {
            client: self.client.clone(),
            arena: self.arena.clone(),
            prefix: self.prefix.clone(),
            size: self.load.size,
            count,
            objects: self.shape.objects,
            next: AtomicU64::new(0),
        };
        self.runtime.block_on(each(self.load.concurrency, op, &Arc::new(job)))
    }

    /// Removes the objects.
    fn clear(&self) -> Result<()> {
        let Cells { client, prefix, .. } = self;
        let keys: Vec<String> = (0..self.shape.objects).map(|n| format!("{prefix}{n}")).collect();
        let refused = self.runtime.block_on(client.delete_many(&keys)).map_err(failed);
        match refused.context("cannot remove the objects")?.first() {
            Some(refused) => {
                bail!("{} was not removed ({}): remove {prefix} by hand", refused.key, refused.code)
            }
            None => Ok(()),
        }
    }
}

impl Measured {
    /// Adds a pass, and the time that it takes.
    fn add(&mut self, pass: impl FnOnce() -> Result<Vec<f64>>) -> Result<()> {
        let began = Instant::now();
        let cpu = cpu_s();
        self.ms.extend(pass()?);
        self.wall_s += began.elapsed().as_secs_f64();
        self.cpu_s += cpu_s() - cpu;
        Ok(())
    }
}

/// Does the job with `concurrency` requests at once; the time of each, in ms.
async fn each(concurrency: usize, op: &str, job: &Arc<BenchJob>) -> Result<Vec<f64>> {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..concurrency {
        let job = Arc::clone(job);
        let op = op.to_owned();
        tasks.spawn(async move {
            let mut times = Vec::new();
            loop {
                let n = job.next.fetch_add(1, Ordering::Relaxed);
                if n >= job.count {
                    return Ok(times);
                }
                if crate::interrupt::asked() {
                    return Err(Interrupted.into());
                }
                // More operations than objects go over the same objects again.
                times.push(job.one(&op, n % job.objects).await?);
            }
        });
    }
    let mut all = Vec::new();
    while let Some(done) = tasks.join_next().await {
        let times: Result<Vec<f64>> = done.context("a worker panicked")?;
        all.extend(times?);
    }
    Ok(all)
}

impl BenchJob {
    async fn one(&self, op: &str, n: u64) -> Result<f64> {
        let key = format!("{}{n}", self.prefix);
        let mut lease = self.arena.lease(self.size)?;
        let began = Instant::now();
        match op {
            "put" => {
                // Every object differs at its start; what the rest holds is of no matter here.
                self.stamp(&mut lease, n);
                self.client.put(&key, &lease.freeze(), &Put::default()).await.map_err(failed)?;
            }
            "get" => {
                let got =
                    self.client.get(&key, &mut lease, &Get::default()).await.map_err(failed)?;
                got.with_context(|| {
                    format!("{key} is gone: does something else delete in this bucket?")
                })?;
                let right = self.start(n);
                // A fast answer with the bytes of another object must not count.
                if lease.as_host().is_none_or(|bytes| !bytes.starts_with(&right)) {
                    bail!("a wrong byte came back for {key}");
                }
            }
            _ => {
                let found = self.client.head(&key).await.map_err(failed)?;
                found.with_context(|| {
                    format!("{key} is gone: does something else delete in this bucket?")
                })?;
            }
        }
        Ok(began.elapsed().as_secs_f64() * 1e3)
    }

    /// The first bytes of an object.
    fn start(&self, n: u64) -> Vec<u8> {
        n.to_be_bytes()[..self.size.min(8)].to_vec()
    }

    fn stamp(&self, lease: &mut Lease, n: u64) {
        let start = self.start(n);
        lease
            .as_host_mut()
            .into_iter()
            .for_each(|bytes| bytes[..start.len()].copy_from_slice(&start));
        lease.assume_filled(self.size);
    }
}

#[cfg(test)]
mod tests {
    use super::super::cold_memory::page_faults;
    use super::*;

    #[test]
    fn rounds_are_equal_and_move_what_was_asked_for() {
        let rounds = |size: usize, gb| {
            BenchLoad { ops: &[], size, concurrency: 1, gb, same_keys: false }.rounds()
        };
        assert_eq!(rounds(10 << 20, 0.01), Rounds { rounds: 1, objects: 1 });
        assert_eq!(rounds(10 << 20, 3.0), Rounds { rounds: 1, objects: 287 });
        assert_eq!(rounds(10 << 20, 16.0), Rounds { rounds: 4, objects: 382 });
        assert_eq!(rounds(64 << 10, 1.0), Rounds { rounds: 1, objects: 15259 });
        assert_eq!(rounds(1, 1e-9), Rounds { rounds: 1, objects: 1 });
    }

    #[test]
    fn memory_is_resident_before_it_is_used() {
        let load = BenchLoad { ops: &[], size: 8 << 20, concurrency: 8, gb: 1.0, same_keys: false };
        let leases = (0..8).map(|_| load.arena().unwrap().lease(load.size).unwrap());
        assert_eq!(page_faults(leases), 0);
    }
}
