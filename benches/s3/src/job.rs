//! Measures one client with one operation, size and concurrency.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use kvtier_mem::{Arena, ArenaConfig, Lease, View};
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::LocalSet;

use crate::peers::{self, Peer};
use crate::usage::{self, allocations, cpu_s, rss_mib, threads};

/// `run`.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// Which client.
    #[arg(long)]
    pub peer: String,
    #[arg(long)]
    pub op: Op,
    /// Bytes of an object.
    #[arg(long)]
    pub size: usize,
    /// Requests in flight.
    #[arg(long)]
    pub concurrency: usize,
    /// How many operations to measure.
    #[arg(long)]
    pub count: u64,
    /// http://127.0.0.1:PORT or https://localhost:PORT.
    #[arg(long)]
    pub endpoint: String,
    /// Use HTTP/2, which the endpoint must support. The raw clients do not.
    #[arg(long)]
    pub http2: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Op {
    Get,
    Put,
    Head,
    Delete,
}

impl RunArgs {
    /// The key of an object. It contains the length, so that the server stores nothing.
    pub fn key(&self, n: u64) -> String {
        format!("{}/{n:08}", self.size)
    }

    pub fn tls(&self) -> bool {
        self.endpoint.starts_with("https:")
    }

    /// Host and port.
    pub fn authority(&self) -> &str {
        self.endpoint.split("://").nth(1).unwrap_or(&self.endpoint)
    }
}

/// Runs the measurement.
pub fn run(args: &RunArgs) -> Result<Value> {
    ensure!(
        args.size <= crate::bytes::BYTES_MAX && args.size >= EDGE && args.concurrency > 0,
        "no such size or concurrency"
    );
    let measured = match args.peer.as_str() {
        "raw-blocking" => peers::blocking::run(args)?,
        "raw-uring" => peers::uring::run(args)?,
        _ if args.op == Op::Delete => peers::delete::run(args)?,
        "kvtier-tier" => peers::tier::run(args)?,
        _ => drive_named(args)?,
    };
    let Measured { mut ms, seconds, user_s, system_s, allocations, threads, requests } = measured;
    ms.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| ms.get(((ms.len().max(1) - 1) as f64 * share).round() as usize).copied();
    Ok(json!({
        "ops": ms.len(), "seconds": seconds, "user_s": user_s, "system_s": system_s, "p50_ms": at(0.5), "p99_ms": at(0.99),
        "rss_over_memory_mib": rss_mib() - (args.concurrency * args.size) as f64 / 1048576.0,
        "grown_mib": usage::grown_mib(), "threads": threads, "allocations_per_op": allocations as f64 / args.count as f64,
        "requests_per_op": requests,
    }))
}

fn drive_named(args: &RunArgs) -> Result<Measured> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        match args.peer.as_str() {
            "raw-tokio" => drive(args, peers::raw::Raw::new(args)?).await,
            "kvtier" | "kvtier-direct" => drive(args, peers::kvtier::Kvtier::new(args)?).await,
            #[cfg(feature = "peers")]
            "object_store" => drive(args, peers::object_store::Store::new(args)?).await,
            #[cfg(feature = "peers")]
            "rusty-s3" => drive(args, peers::rusty::Rusty::new(args)?).await,
            #[cfg(feature = "peers")]
            "aws-sdk-s3" => drive(args, peers::aws::Aws::new(args)?).await,
            #[cfg(feature = "peers")]
            "opendal" => drive(args, peers::opendal::Dal::new(args)?).await,
            #[cfg(feature = "mountpoint")]
            "mountpoint-s3-client" => drive(args, peers::mountpoint::Mountpoint::new(args)?).await,
            other => bail!("no client '{other}'"),
        }
    })
}

/// The result of a measurement.
pub struct Measured {
    /// Milliseconds of each operation.
    pub ms: Vec<f64>,
    pub seconds: f64,
    pub user_s: f64,
    pub system_s: f64,
    pub allocations: usize,
    pub threads: Option<u64>,
    /// Requests per operation, if the client counts them.
    pub requests: Option<f64>,
}

/// Measures time, CPU time and allocations from `start` to `stop`.
pub struct Stopwatch {
    started: Instant,
    cpu_s: (f64, f64),
    allocations: usize,
}

impl Stopwatch {
    pub fn start() -> Self {
        Stopwatch { started: Instant::now(), cpu_s: cpu_s(), allocations: allocations() }
    }

    pub fn stop(self, ms: Vec<f64>) -> Measured {
        let (user_s, system_s) = cpu_s();
        Measured {
            ms,
            seconds: self.started.elapsed().as_secs_f64(),
            user_s: user_s - self.cpu_s.0,
            system_s: system_s - self.cpu_s.1,
            allocations: allocations() - self.allocations,
            threads: threads(),
            requests: None,
        }
    }
}

/// The state that the workers share.
struct Shared<P> {
    peer: P,
    args: RunArgs,
    next: Cell<u64>,
    ms: RefCell<Vec<f64>>,
    barrier: Barrier,
    expected: Vec<u8>,
}

/// Memory for all operations in flight, touched before the measurement.
pub fn arena(args: &RunArgs) -> Result<Arena> {
    let slot = args.size.next_multiple_of(4096);
    Ok(Arena::new(ArenaConfig::huge(args.concurrency * slot).with_slots(slot).with_prefault())?)
}

/// Runs one worker per request in flight. Each does one operation before the measurement, which opens its connection.
async fn drive<P: Peer + 'static>(args: &RunArgs, peer: P) -> Result<Measured> {
    let arena = arena(args)?;
    let shared = Rc::new(Shared {
        peer,
        args: args.clone(),
        next: Cell::new(0),
        ms: RefCell::new(Vec::with_capacity(usize::try_from(args.count)?)),
        barrier: Barrier::new(args.concurrency + 1),
        expected: crate::bytes::stream(args.size),
    });
    let mut workers = Vec::new();
    for _ in 0..args.concurrency {
        let lease = arena.lease(args.size)?;
        workers.push(tokio::task::spawn_local(work(Rc::clone(&shared), lease)));
    }
    usage::mark();
    shared.barrier.wait().await;
    let clock = Stopwatch::start();
    for worker in workers {
        worker.await.context("a worker panicked")??;
    }
    Ok(clock.stop(shared.ms.take()))
}

async fn work<P: Peer>(shared: Rc<Shared<P>>, mut lease: Lease) -> Result<()> {
    let Shared { peer, args, expected, .. } = &*shared;
    let mut memory = match args.op {
        Op::Put => {
            lease.as_host_mut().context("host memory")?.copy_from_slice(expected);
            lease.assume_filled(args.size);
            Memory::From(lease.freeze())
        }
        _ => Memory::Into(lease),
    };
    let ready = first(peer, &args.key(0), &mut memory, expected).await;
    // A worker that failed takes part too, since the others wait at the barrier.
    shared.barrier.wait().await;
    ready?;
    loop {
        let n = shared.next.get();
        if n >= args.count {
            return Ok(());
        }
        shared.next.set(n + 1);
        let key = args.key(n);
        let began = Instant::now();
        match &mut memory {
            Memory::From(view) => peer.put(&key, view).await?,
            Memory::Into(_) if args.op == Op::Head => peer.head(&key, args.size as u64).await?,
            Memory::Into(lease) => {
                lease.as_host_mut().context("host memory")?[..EDGE].fill(0);
                peer.get(&key, lease).await?;
                let bytes = lease.as_host().context("host memory")?;
                let last = args.size - EDGE;
                ensure!(
                    bytes[..EDGE] == expected[..EDGE] && bytes[last..] == expected[last..],
                    "wrong bytes were loaded"
                );
            }
        }
        shared.ms.borrow_mut().push(began.elapsed().as_secs_f64() * 1e3);
    }
}

/// Runs one operation and compares every byte.
async fn first<P: Peer>(peer: &P, key: &str, memory: &mut Memory, expected: &[u8]) -> Result<()> {
    match memory {
        Memory::From(view) => peer.put(key, view).await,
        Memory::Into(lease) => {
            peer.get(key, lease).await?;
            ensure!(lease.as_host().context("host memory")? == expected, "wrong bytes were loaded");
            Ok(())
        }
    }
}

/// Bytes at both ends that are compared after each operation.
const EDGE: usize = 16;

/// The memory of a worker.
enum Memory {
    Into(Lease),
    From(View),
}
