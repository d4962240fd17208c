//! This repository's tier in a bucket, driven as an engine would: chunks are proven, so the server keeps what it is told of each.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kvtier_core::{Ctx, Key, Load, Loaded, Namespace, Save, Saved, Tier};
use kvtier_key::{ChunkHash, Digest, KeyId, KvRank, ObjectKey};
use kvtier_mem::Lease;
use kvtier_s3_tier::{S3Tier, TierConfig};
use kvtier_s3::{Config, Credentials, Place};

use super::{BUCKET, KEY, SECRET};
use crate::job::{Clock, Measured, Op, RunArgs, arena};
use crate::usage;

/// Loads go round so many chunks, which are saved before the clock starts.
const CHUNKS: u64 = 64;

/// A tier, and what is done with it.
pub struct World {
    pub tier: S3Tier,
    op: Op,
    pub keys: Vec<Key>,
    next: Cell<usize>,
    count: usize,
    ms: RefCell<Vec<f64>>,
}

/// Measures the tier.
pub fn run(args: &RunArgs) -> Result<Measured> {
    ensure!(args.op != Op::Head, "a tier has no heads");
    let right = crate::bytes::stream(args.size);
    let mut leases = leases(args, &right)?;
    usage::mark();
    let world = Rc::new(World::new(args)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        leases = world.warm(leases, &right).await?;
        let (requests, clock) = (world.tier.client().counts().requests, Clock::start());
        let workers: Vec<_> =
            leases.drain(..).map(|lease| tokio::task::spawn_local(work(Rc::clone(&world), lease))).collect();
        for worker in workers {
            worker.await.context("a worker panicked")??;
        }
        let mut measured = clock.stop(world.ms.take());
        let requests = world.tier.client().counts().requests - requests;
        measured.requests = Some(requests as f64 / world.count as f64);
        Ok(measured)
    })
}

/// Memory for all that is in flight, with the objects' bytes in it.
pub fn leases(args: &RunArgs, right: &[u8]) -> Result<Vec<Lease>> {
    let arena = arena(args)?;
    let lease = |_| {
        let mut lease = arena.lease(args.size)?;
        lease.write_at(0, right)?;
        Ok(lease)
    };
    (0..args.concurrency).map(lease).collect()
}

impl World {
    pub fn new(args: &RunArgs) -> Result<Self> {
        let endpoint = Place::of(&args.endpoint).bucket(BUCKET).resolve()?;
        let mut client = Config::new(endpoint, Credentials::new(KEY, SECRET));
        client.requests_max = args.concurrency;
        let tier = S3Tier::open(TierConfig::new(client))?;
        let first = args.concurrency as u64;
        let chunks = match args.op {
            Op::Put => first + args.count,
            Op::Delete => args.count,
            _ => CHUNKS.min(args.count).max(first),
        };
        let namespace = Arc::new(Namespace::new("bench", Digest::default()));
        let key = |n: u64| {
            let hash = [n.to_be_bytes(); 4].concat();
            let id = ObjectKey::new("bench", KvRank(0), 0, ChunkHash::new(&hash), "")?;
            Ok(Key::new(Arc::clone(&namespace), KeyId::Object(id)))
        };
        let keys = (0..chunks).map(key).collect::<Result<_>>()?;
        let (next, ms, count) = (Cell::new(0), RefCell::default(), usize::try_from(args.count)?);
        Ok(World { tier, op: args.op, keys, next, count, ms })
    }

    /// Connections, and what is to be loaded; of one chunk every byte is compared.
    pub async fn warm(&self, mut leases: Vec<Lease>, right: &[u8]) -> Result<Vec<Lease>> {
        let first = if self.op == Op::Put { leases.len() } else { self.keys.len() };
        for keys in self.keys[..first].chunks(leases.len()) {
            let saves: Vec<_> = keys.iter().map(|key| self.save(key, leases.pop())).collect();
            for save in saves {
                leases.push(save.await?);
            }
        }
        if self.op == Op::Put {
            return Ok(leases);
        }
        let mut lease = self.load(&self.keys[0], leases.pop()).await?;
        ensure!(lease.as_host_mut().context("host memory")? == right, "wrong bytes came back");
        leases.push(lease);
        Ok(leases)
    }

    fn load(&self, key: &Key, into: Option<Lease>) -> impl Future<Output = Result<Lease>> + use<> {
        let ticket = self.tier.load(&ctx(), vec![Load { key: key.clone(), into: into.into_iter().collect() }]);
        async move {
            let mut done = ticket.await.pop().context("one answer")?;
            match done.result? {
                Loaded::Hit { .. } => done.op.into.pop().context("the lease comes back"),
                other => bail!("{other:?}"),
            }
        }
    }

    /// Of a view that nobody summed before: its sums are part of what is measured.
    fn save(&self, key: &Key, from: Option<Lease>) -> impl Future<Output = Result<Lease>> + use<> {
        let from = from.into_iter().map(Lease::freeze).collect();
        let ticket = self.tier.save(&ctx(), vec![Save { key: key.clone(), from }]);
        async move {
            let mut done = ticket.await.pop().context("one answer")?;
            match done.result? {
                Saved::Stored => {
                    let view = done.op.from.pop().context("the view comes back")?;
                    view.into_lease().ok().context("nobody else has it")
                }
                other => bail!("{other:?}"),
            }
        }
    }
}

async fn work(world: Rc<World>, mut lease: Lease) -> Result<()> {
    loop {
        let n = world.next.get();
        if n >= world.count {
            return Ok(());
        }
        world.next.set(n + 1);
        let (key, began) = (&world.keys[world.keys.len() - 1 - n % world.keys.len()], Instant::now());
        lease = match world.op {
            Op::Put => world.save(key, Some(lease)).await?,
            _ => world.load(key, Some(lease)).await?,
        };
        world.ms.borrow_mut().push(began.elapsed().as_secs_f64() * 1e3);
    }
}

pub fn ctx() -> Ctx {
    Ctx::within(Duration::from_secs(120))
}
