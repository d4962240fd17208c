//! `kvtier bench s3`: how fast the S3 client is on a bucket.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kvtier::mem::{Arena, ArenaConfig, Lease};
use kvtier::s3::{Client, Config, Get, Put};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::BadInput;
use crate::interrupt::Interrupted;
use crate::json::json;
use crate::store::{StoreArgs, failed};
use crate::usage::{cpu_s, percentile, rss_mib};

/// The most objects that lie in the bucket at a time: operations go round them, so that no store must hold all that is moved.
const OBJECTS_MAX: u64 = 256;
/// One operation may take this long.
const OP_MAX: Duration = Duration::from_secs(120);

/// `kvtier bench s3`.
#[derive(clap::Args)]
pub struct S3Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Operations, in order: put, get, head; a first get or head finds what was written unmeasured.
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
    /// Threads that the client runs on.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
pub fn run(args: &S3Args) -> Result<()> {
    if let Some(op) = args.op.iter().find(|op| !["put", "get", "head"].contains(&op.as_str())) {
        return Err(BadInput(format!("no operation {op:?}; choose put, get, head")).into());
    }
    let grid = grid(args)?;
    crate::interrupt::watch()?;
    let runtime = runtime(args.threads)?;
    let (store, mut cells) = (args.store.find(&runtime)?, Vec::new());
    for (size, concurrency) in grid {
        let load = Load { ops: &args.op, size, concurrency, gb: args.gb };
        measure(store.config(), &runtime, &load, &mut cells)?;
    }
    print(&cells, args.json)
}

/// What a client runs on.
pub fn runtime(threads: usize) -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads.max(1)).enable_all().build();
    runtime.context("cannot start the client's threads")
}

/// Every size with every concurrency.
fn grid(args: &S3Args) -> Result<Vec<(usize, usize)>> {
    let mut cells = Vec::new();
    for text in &args.size {
        let size = crate::replay::size("--size", text)? as usize;
        cells.extend(args.concurrency.iter().map(|concurrency| (size, *concurrency)));
    }
    if cells.iter().any(|(size, concurrency)| *size == 0 || *concurrency == 0) || args.gb.is_nan() || args.gb <= 0.0 {
        return Err(BadInput("--size, --concurrency and --gb must be more than 0".into()).into());
    }
    Ok(cells)
}

/// The cells as one JSON object or as a table.
fn print(cells: &[Value], as_json: bool) -> Result<()> {
    if as_json {
        return crate::out::line(&json!({ "cells": cells }).to_string());
    }
    crate::out::line(&format!(
        "{:<4} {:>10} {:>5} {:>10} {:>10} {:>12} {:>10} {:>9} {:>9} {:>9}",
        "op", "size", "conc", "MB/s", "ops/s", "CPU s/GB", "CPU us/op", "p50 ms", "p99 ms", "RSS MiB"
    ))?;
    cells.iter().try_for_each(|c| {
        let f = |name: &str| c[name].as_f64().unwrap_or(0.0);
        // A head moves no bytes.
        let moved = |name: &str, digits: usize| match c["op"] == "head" {
            true => "-".to_owned(),
            false => format!("{:.digits$}", f(name)),
        };
        let size = kvtier::bytes::format(c["size"].as_u64().unwrap_or(0));
        crate::out::line(&format!(
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

/// What the workers of a cell share.
struct Job {
    client: Client,
    arena: Arena,
    prefix: String,
    size: usize,
    count: u64,
    objects: u64,
    next: AtomicU64,
}

/// What to do to one size with one concurrency.
pub struct Load<'a> {
    pub ops: &'a [String],
    pub size: usize,
    pub concurrency: usize,
    pub gb: f64,
}

/// The cells of one load, over one fresh set of objects.
pub fn measure(mut config: Config, runtime: &Runtime, load: &Load<'_>, cells: &mut Vec<Value>) -> Result<()> {
    let Load { ops, size, concurrency, gb } = *load;
    let count = ((gb * 1e9 / size as f64).ceil() as u64).max(1);
    let objects = count.min(OBJECTS_MAX);
    config.requests_max = concurrency;
    let client = Client::new(config).within(OP_MAX);
    let memory = ArenaConfig::huge(concurrency * size.next_multiple_of(4096));
    let arena = Arena::new(memory).context("no memory for the objects in flight")?;
    // Keys of this run alone: what an earlier one left behind must not be found.
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    let prefix = format!("kvtier-bench/{nanos:x}-{}/", std::process::id());
    let job = |count| {
        let (client, arena, prefix) = (client.clone(), arena.clone(), prefix.clone());
        Arc::new(Job { client, arena, prefix, size, count, objects, next: AtomicU64::new(0) })
    };
    let mut cell = |op: &String| -> Result<()> {
        let (began, cpu) = (Instant::now(), cpu_s());
        let mut ms = runtime.block_on(each(concurrency, op, &job(count)))?;
        let (wall, cpu, gb) = (began.elapsed().as_secs_f64(), cpu_s() - cpu, count as f64 * size as f64 / 1e9);
        let moves = op != "head";
        cells.push(json!({
            "op": op, "size": size, "concurrency": concurrency,
            "mb_per_s": if moves { gb * 1e3 / wall } else { 0.0 }, "cpu_s_per_gb": moves.then_some(cpu / gb),
            "p50_ms": percentile(&mut ms, 0.5), "p99_ms": percentile(&mut ms, 0.99), "rss_mib": rss_mib(),
            "ops_per_s": count as f64 / wall, "cpu_us_per_op": cpu * 1e6 / count as f64,
        }));
        Ok(())
    };
    // A first get or head needs something to find; this put is not measured.
    let filled = ops.first().is_none_or(|op| op == "put");
    let before = if filled { Ok(Vec::new()) } else { runtime.block_on(each(concurrency, "put", &job(objects))) };
    let measured = before.and_then(|_| ops.iter().try_for_each(&mut cell));
    let keys: Vec<String> = (0..objects).map(|n| format!("{prefix}{n}")).collect();
    let refused = runtime.block_on(client.delete_many(&keys)).map_err(failed).context("cannot remove the objects");
    measured?;
    match refused?.first() {
        Some(refused) => bail!("{} was not removed ({}): remove {prefix} by hand", refused.key, refused.code),
        None => Ok(()),
    }
}

/// Does the job with `concurrency` requests at once; the time of each, in ms.
async fn each(concurrency: usize, op: &str, job: &Arc<Job>) -> Result<Vec<f64>> {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..concurrency {
        let (job, op) = (Arc::clone(job), op.to_owned());
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

impl Job {
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
                let got = self.client.get(&key, &mut lease, &Get::default()).await.map_err(failed)?;
                got.with_context(|| format!("{key} is gone: does something else delete in this bucket?"))?;
                let right = self.start(n);
                if lease.as_host().is_none_or(|bytes| !bytes.starts_with(&right)) {
                    bail!("a wrong byte came back for {key}");
                }
            }
            _ => {
                let found = self.client.head(&key).await.map_err(failed)?;
                found.with_context(|| format!("{key} is gone: does something else delete in this bucket?"))?;
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
        lease.as_host_mut().into_iter().for_each(|bytes| bytes[..start.len()].copy_from_slice(&start));
        lease.assume_filled(self.size);
    }
}
