//! One client, one operation, one size, one concurrency.

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
    /// Over HTTP/2, which the endpoint speaks. Bare sockets do not.
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
    /// The key of an object; its length is in it, so the server needs no memory.
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

/// Measures.
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
            "kvtier" | "kvtier-direct" => drive(args, peers::ours::Ours::new(args)?).await,
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

/// What came of it.
pub struct Measured {
    /// Of each operation.
    pub ms: Vec<f64>,
    pub seconds: f64,
    pub user_s: f64,
    pub system_s: f64,
    pub allocations: usize,
    pub threads: Option<u64>,
    /// For each operation, where the client counts them.
    pub requests: Option<f64>,
}

/// Measures what happens between its making and its end.
pub struct Clock(Instant, (f64, f64), usize);

impl Clock {
    pub fn start() -> Self {
        Clock(Instant::now(), cpu_s(), allocations())
    }

    pub fn stop(self, ms: Vec<f64>) -> Measured {
        let ((user, system), (user_before, system_before)) = (cpu_s(), self.1);
        let seconds = self.0.elapsed().as_secs_f64();
        let (allocations, threads) = (allocations() - self.2, threads());
        let (user_s, system_s) = (user - user_before, system - system_before);
        Measured { ms, seconds, user_s, system_s, allocations, threads, requests: None }
    }
}

/// What the workers share.
struct Shared<P> {
    peer: P,
    args: RunArgs,
    next: Cell<u64>,
    ms: RefCell<Vec<f64>>,
    barrier: Barrier,
    right: Vec<u8>,
}

/// Memory for all that is in flight, touched before the clock starts.
pub fn arena(args: &RunArgs) -> Result<Arena> {
    let slot = args.size.next_multiple_of(4096);
    Ok(Arena::new(ArenaConfig::huge(args.concurrency * slot).with_slots(slot).with_prefault())?)
}

/// Runs as many workers as requests may be in flight; each does one operation before the clock starts, to have its connection.
async fn drive<P: Peer + 'static>(args: &RunArgs, peer: P) -> Result<Measured> {
    let arena = arena(args)?;
    let shared = Rc::new(Shared {
        peer,
        args: args.clone(),
        next: Cell::new(0),
        ms: RefCell::new(Vec::with_capacity(usize::try_from(args.count)?)),
        barrier: Barrier::new(args.concurrency + 1),
        right: crate::bytes::stream(args.size),
    });
    let mut workers = Vec::new();
    for _ in 0..args.concurrency {
        let lease = arena.lease(args.size)?;
        workers.push(tokio::task::spawn_local(work(Rc::clone(&shared), lease)));
    }
    usage::mark();
    shared.barrier.wait().await;
    let clock = Clock::start();
    for worker in workers {
        worker.await.context("a worker panicked")??;
    }
    Ok(clock.stop(shared.ms.take()))
}

async fn work<P: Peer>(shared: Rc<Shared<P>>, mut lease: Lease) -> Result<()> {
    let Shared { peer, args, right, .. } = &*shared;
    let mut memory = match args.op {
        Op::Put => {
            lease.as_host_mut().context("host memory")?.copy_from_slice(right);
            lease.assume_filled(args.size);
            Memory::From(lease.freeze())
        }
        _ => Memory::Into(lease),
    };
    let ready = first(peer, &args.key(0), &mut memory, right).await;
    // Even one that fails: the others wait for it.
    shared.barrier.wait().await;
    ready?;
    loop {
        let n = shared.next.get();
        if n >= args.count {
            return Ok(());
        }
        shared.next.set(n + 1);
        let (key, began) = (args.key(n), Instant::now());
        match &mut memory {
            Memory::From(view) => peer.put(&key, view).await?,
            Memory::Into(_) if args.op == Op::Head => peer.head(&key, args.size as u64).await?,
            Memory::Into(lease) => {
                lease.as_host_mut().context("host memory")?[..EDGE].fill(0);
                peer.get(&key, lease).await?;
                let bytes = lease.as_host().context("host memory")?;
                let last = args.size - EDGE;
                ensure!(bytes[..EDGE] == right[..EDGE] && bytes[last..] == right[last..], "wrong bytes came back");
            }
        }
        shared.ms.borrow_mut().push(began.elapsed().as_secs_f64() * 1e3);
    }
}

/// One operation, with every byte compared.
async fn first<P: Peer>(peer: &P, key: &str, memory: &mut Memory, right: &[u8]) -> Result<()> {
    match memory {
        Memory::From(view) => peer.put(key, view).await,
        Memory::Into(lease) => {
            peer.get(key, lease).await?;
            ensure!(lease.as_host().context("host memory")? == right, "wrong bytes came back");
            Ok(())
        }
    }
}

/// So many bytes at both ends are compared each time.
const EDGE: usize = 16;

/// Where bytes land, or come from.
enum Memory {
    Into(Lease),
    From(View),
}
