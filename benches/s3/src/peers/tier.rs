//! kvtier's S3 tier, used as an inference engine does. Chunks are verified, so the server stores their metadata.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kvtier_core::{Ctx, Key, Load, Loaded, Namespace, Save, Saved, Tier};
use kvtier_key::{ChunkHash, Digest, KeyId, KvRank, ObjectKey};
use kvtier_mem::Lease;
use kvtier_s3::{Config, Credentials, BucketAddress};
use kvtier_s3_tier::{S3Tier, TierConfig};

use super::{BUCKET, KEY, SECRET};
use crate::job::{Measured, Op, RunArgs, Stopwatch, arena};
use crate::usage;

/// Loads cycle through this number of chunks, which are saved before the measurement.
const CHUNKS: u64 = 64;

/// A tier and the operations to measure.
pub struct TierRun {
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
    let expected = crate::bytes::stream(args.size);
    let mut leases = leases(args, &expected)?;
    usage::mark();
    let run_state = Rc::new(TierRun::new(args)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        leases = run_state.warm(leases, &expected).await?;
        let requests = run_state.tier.client().counts().requests;
        let clock = Stopwatch::start();
        let workers: Vec<_> = leases
            .drain(..)
            .map(|lease| tokio::task::spawn_local(work(Rc::clone(&run_state), lease)))
            .collect();
        for worker in workers {
            worker.await.context("a worker panicked")??;
        }
        let mut measured = clock.stop(run_state.ms.take());
        let requests = run_state.tier.client().counts().requests - requests;
        measured.requests = Some(requests as f64 / run_state.count as f64);
        Ok(measured)
    })
}

/// Memory for all operations in flight, filled with the objects' bytes.
pub fn leases(args: &RunArgs, expected: &[u8]) -> Result<Vec<Lease>> {
    let arena = arena(args)?;
    let lease = |_| {
        let mut lease = arena.lease(args.size)?;
        lease.write_at(0, expected)?;
        Ok(lease)
    };
    (0..args.concurrency).map(lease).collect()
}

impl TierRun {
    pub fn new(args: &RunArgs) -> Result<Self> {
        let endpoint = BucketAddress::new(&args.endpoint).bucket(BUCKET).resolve()?;
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
        let next = Cell::new(0);
        let ms = RefCell::default();
        let count = usize::try_from(args.count)?;
        Ok(TierRun { tier, op: args.op, keys, next, count, ms })
    }

    /// Opens connections, saves the chunks to load, and compares every byte of one chunk.
    pub async fn warm(&self, mut leases: Vec<Lease>, expected: &[u8]) -> Result<Vec<Lease>> {
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
        ensure!(lease.as_host_mut().context("host memory")? == expected, "wrong bytes were loaded");
        leases.push(lease);
        Ok(leases)
    }

    fn load(&self, key: &Key, into: Option<Lease>) -> impl Future<Output = Result<Lease>> + use<> {
        let ticket = self
            .tier
            .load(&ctx(), vec![Load { key: key.clone(), into: into.into_iter().collect() }]);
        async move {
            let mut done = ticket.await.pop().context("one result")?;
            match done.result? {
                Loaded::Hit { .. } => done.op.into.pop().context("the operation returns the lease"),
                other => bail!("{other:?}"),
            }
        }
    }

    /// Saves a view without known checksums, so that computing them is measured too.
    fn save(&self, key: &Key, from: Option<Lease>) -> impl Future<Output = Result<Lease>> + use<> {
        let from = from.into_iter().map(Lease::freeze).collect();
        let ticket = self.tier.save(&ctx(), vec![Save { key: key.clone(), from }]);
        async move {
            let mut done = ticket.await.pop().context("one result")?;
            match done.result? {
                Saved::Stored => {
                    let view = done.op.from.pop().context("the operation returns the view")?;
                    view.into_lease().ok().context("the view has another owner")
                }
                other => bail!("{other:?}"),
            }
        }
    }
}

async fn work(run_state: Rc<TierRun>, mut lease: Lease) -> Result<()> {
    loop {
        let n = run_state.next.get();
        if n >= run_state.count {
            return Ok(());
        }
        run_state.next.set(n + 1);
        let key = &run_state.keys[run_state.keys.len() - 1 - n % run_state.keys.len()];
        let began = Instant::now();
        lease = match run_state.op {
            Op::Put => run_state.save(key, Some(lease)).await?,
            _ => run_state.load(key, Some(lease)).await?,
        };
        run_state.ms.borrow_mut().push(began.elapsed().as_secs_f64() * 1e3);
    }
}

pub fn ctx() -> Ctx {
    Ctx::within(Duration::from_secs(120))
}
