//! Replays requests through a tier, some at once.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use kvtier::config::Opened;
use kvtier::core::key::{ChunkHash, KeyId, KvRank, ObjectKey};
use kvtier::core::{Chain, Class, Ctx, Digest, Done, Hold, Key, Load, Loaded, Mode, Namespace, Save};
use kvtier::mem::{Arena, ArenaConfig, Lease};
use kvtier::{Tier, TierExt};

use super::peer::Peer;
use super::{content, trace::Request};

/// How long any one step may take.
const STEP_MAX: Duration = Duration::from_secs(60);
/// Blocks loaded or saved in one batch.
const BATCH: usize = 16;

/// What a replay found.
#[derive(Debug, Default)]
pub struct Outcome {
    pub requests: u64,
    pub blocks: u64,
    pub prefix_hits: u64,
    pub loads: u64,
    pub peer_loads: u64,
    pub wrong_bytes: u64,
    pub failures: u64,
    pub wall_s: f64,
    pub cpu_s: f64,
}

struct Replay<'a> {
    top: &'a dyn Tier,
    ns: Arc<Namespace>,
    chunk: usize,
    arena: Arena,
    peer: Option<Mutex<Peer>>,
    blocks: AtomicU64,
    prefix_hits: AtomicU64,
    loads: AtomicU64,
    peer_loads: AtomicU64,
    wrong: AtomicU64,
    failures: AtomicU64,
}

/// The namespace of replayed blocks of `chunk` bytes; one process's and its peer's are the same.
pub fn namespace(chunk: usize) -> Arc<Namespace> {
    let layout = Digest::of("kvtier replay layout", &(chunk as u64).to_le_bytes());
    Arc::new(Namespace::new("replay", layout).with_chunk_bytes(0, chunk as u64).with_partial(false))
}

/// The key of block `id`.
pub fn key(ns: &Arc<Namespace>, id: u64) -> Key {
    let hash = ChunkHash::new(Digest::of("kvtier replay block", &id.to_le_bytes()).as_bytes());
    let id = ObjectKey { model: "replay".into(), rank: KvRank(0), group: 0, hash, salt: "".into() };
    Key::new(Arc::clone(ns), KeyId::Object(id))
}

/// Replays `requests` with `concurrency` of them at once.
pub fn replay(
    requests: &[Request],
    opened: &Opened,
    (chunk, concurrency): (usize, usize),
    peer: Option<Peer>,
) -> Result<Outcome> {
    let arena = Arena::new(ArenaConfig::heap(concurrency * BATCH * chunk.next_multiple_of(4096)));
    let replay = Replay {
        top: &*opened.top,
        ns: namespace(chunk),
        chunk,
        arena: arena.context("no memory for the blocks in flight; lower --concurrency")?,
        peer: peer.map(Mutex::new),
        blocks: AtomicU64::new(0),
        prefix_hits: AtomicU64::new(0),
        loads: AtomicU64::new(0),
        peer_loads: AtomicU64::new(0),
        wrong: AtomicU64::new(0),
        failures: AtomicU64::new(0),
    };
    let style =
        ProgressStyle::with_template("{bar:40} {pos}/{len} requests {elapsed} (eta {eta})").context("template")?;
    let bar = ProgressBar::new(requests.len() as u64).with_style(style);
    let (began, cpu, next) = (Instant::now(), crate::usage::cpu_s(), AtomicUsize::new(0));
    let work = || -> Result<()> {
        while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
            replay.request(request)?;
            bar.inc(1);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..concurrency).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|w| w.join().map_err(|_| anyhow!("a worker panicked"))?)
    })?;
    bar.finish_and_clear();
    Ok(Outcome {
        requests: requests.len() as u64,
        blocks: replay.blocks.into_inner(),
        prefix_hits: replay.prefix_hits.into_inner(),
        loads: replay.loads.into_inner(),
        peer_loads: replay.peer_loads.into_inner(),
        wrong_bytes: replay.wrong.into_inner(),
        failures: replay.failures.into_inner(),
        wall_s: began.elapsed().as_secs_f64(),
        cpu_s: crate::usage::cpu_s() - cpu,
    })
}

impl Replay<'_> {
    /// One request: how far the prefix reaches, load that far, save the rest. A load that misses after all ends the prefix there.
    fn request(&self, ids: &[u64]) -> Result<()> {
        let keys: Arc<[Key]> = ids.iter().map(|id| key(&self.ns, *id)).collect();
        self.blocks.fetch_add(ids.len() as u64, Ordering::Relaxed);
        let ctx = Ctx::within(STEP_MAX);
        let found = self
            .top
            .lookup(&ctx, Arc::clone(&keys), Mode::Prefix, Hold::For(STEP_MAX))
            .wait()
            .context("lookup failed")?;
        let promised = found.prefix_len();
        let mut loaded = 0;
        while loaded < promised {
            let end = promised.min(loaded + BATCH);
            let good = self.load(&ids[loaded..end], &keys[loaded..end])?;
            loaded += good;
            if loaded < end {
                break;
            }
        }
        found.hold.into_iter().for_each(|hold| self.top.release(hold));
        self.prefix_hits.fetch_add(loaded as u64, Ordering::Relaxed);
        for start in (loaded..ids.len()).step_by(BATCH) {
            let end = ids.len().min(start + BATCH);
            let parent = start.checked_sub(1).map(|i| *keys[i].digest());
            self.save(&ids[start..end], &keys[start..end], Chain { parent, depth: start as u32 })?;
        }
        Ok(())
    }

    /// Loads and verifies blocks; answers how many from the first are hits.
    fn load(&self, ids: &[u64], keys: &[Key]) -> Result<usize> {
        let n = self.loads.fetch_add(ids.len() as u64, Ordering::Relaxed);
        if let Some(peer) = self.peer.as_ref().filter(|_| (n / BATCH as u64) % 2 == 1) {
            let answers = peer.lock().unwrap_or_else(PoisonError::into_inner).load(ids)?;
            self.peer_loads.fetch_add(ids.len() as u64, Ordering::Relaxed);
            self.wrong.fetch_add(answers.iter().flatten().sum(), Ordering::Relaxed);
        }
        let leases = (0..ids.len()).map(|_| self.arena.lease(self.chunk)).collect::<Result<Vec<Lease>, _>>()?;
        let ops = keys.iter().zip(leases).map(|(key, lease)| Load { key: key.clone(), into: vec![lease] }).collect();
        let answers = wait(self.top.load_waiting(&Ctx::within(STEP_MAX), ops));
        let mut good = 0;
        for (i, (Done { op, result }, id)) in answers.into_iter().zip(ids).enumerate() {
            match result {
                Ok(Loaded::Hit { .. }) => {
                    let bytes = op.into.first().and_then(Lease::as_host).unwrap_or_default();
                    let missing = self.chunk.abs_diff(bytes.len()) as u64;
                    self.wrong.fetch_add(content::wrong(*id, bytes) + missing, Ordering::Relaxed);
                    good += usize::from(good == i);
                }
                Ok(_) => {}
                Err(_) => drop(self.failures.fetch_add(1, Ordering::Relaxed)),
            }
        }
        Ok(good)
    }

    fn save(&self, ids: &[u64], keys: &[Key], chain: Chain) -> Result<()> {
        let mut ops = Vec::with_capacity(ids.len());
        for (id, key) in ids.iter().zip(keys) {
            let mut lease = self.arena.lease(self.chunk)?;
            lease.as_host_mut().map(|bytes| content::fill(*id, bytes)).context("memory of the CPU's")?;
            lease.assume_filled(self.chunk);
            ops.push(Save { key: key.clone(), from: vec![lease.freeze()] });
        }
        let ctx = Ctx::within(STEP_MAX).with_class(Class::Write).with_chain(chain);
        let answers = wait(self.top.save_waiting(&ctx, ops));
        for Done { result, .. } in answers {
            match result {
                Ok(_) => {}
                Err(e) if e.kind() == kvtier::core::ErrorKind::Full => return Err(e.into()),
                Err(_) => drop(self.failures.fetch_add(1, Ordering::Relaxed)),
            }
        }
        Ok(())
    }
}

/// Drives a future on this thread.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(value) => return value,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}
