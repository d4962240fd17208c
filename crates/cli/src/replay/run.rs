//! Replays requests through a tier, some at once.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use indicatif::{ProgressBar, ProgressStyle};
use kvtier::core::{Chain, Class, Ctx, Done, Hold, Key, Load, Loaded, LookedUp, Mode, Save};
use kvtier::mem::{Arena, ArenaConfig, Lease};
use kvtier::{Tier, TierExt};

use super::block_keys::Keys;
use super::block_on::{BATCH_MAX, wait};
use super::content;
use super::peer::Peer;
use super::timed_tier::{self, TierStats};
use crate::BadInput;
use crate::interrupt::Interrupted;
use crate::trace::Request;

/// How long any one step may take.
// Also the life of a hold: it must outlast all loads and saves of a request.
const STEP_MAX: Duration = Duration::from_secs(60);
/// The most memory for blocks in flight; a batch of one block a worker is always allowed.
const FLIGHT_BYTES_MAX: usize = 256 << 20;

/// What a replay found.
#[derive(Debug, Default)]
pub struct ReplayOutcome {
    pub requests: u64,
    pub blocks: u64,
    pub prefix_hits: u64,
    /// Of the blocks that lookups promised, how many each tier has, the fastest that has a block.
    pub found: Vec<u64>,
    pub loads: u64,
    pub peer_loads: u64,
    pub wrong_bytes: u64,
    pub failures: u64,
    pub wall_s: f64,
    pub cpu_s: f64,
}

/// What to replay on, and how.
pub struct ReplayJob<'a> {
    pub top: &'a dyn Tier,
    pub meters: &'a [Arc<Mutex<TierStats>>],
    /// The keys of the blocks.
    pub keys: Keys,
    /// Bytes of a block.
    pub chunk: usize,
    /// Requests at once.
    pub concurrency: usize,
    /// Load whatever is there and save nothing.
    pub verify_only: bool,
}

struct Replay<'a> {
    job: ReplayJob<'a>,
    batch: usize,
    arena: Arena,
    peer: Option<Mutex<Peer>>,
    blocks: AtomicU64,
    prefix_hits: AtomicU64,
    found: Vec<AtomicU64>,
    loads: AtomicU64,
    peer_loads: AtomicU64,
    wrong: AtomicU64,
    failures: AtomicU64,
}

/// Replays `requests`, some of them at once.
pub fn replay(
    requests: &[Request],
    job: ReplayJob<'_>,
    peer: Option<Peer>,
) -> Result<ReplayOutcome> {
    let chunk = job.chunk;
    let concurrency = job.concurrency;
    let slot = chunk.next_multiple_of(4096);
    // Large blocks and many workers share a bounded arena.
    let batch = (FLIGHT_BYTES_MAX / (concurrency * slot)).clamp(1, BATCH_MAX);
    let arena = Arena::new(ArenaConfig::huge(concurrency * batch * slot));
    let found = job.meters.iter().map(|_| AtomicU64::new(0)).collect();
    let replay = Replay {
        job,
        batch,
        arena: arena.context("no memory for the blocks in flight; lower --concurrency")?,
        peer: peer.map(Mutex::new),
        blocks: AtomicU64::new(0),
        prefix_hits: AtomicU64::new(0),
        found,
        loads: AtomicU64::new(0),
        peer_loads: AtomicU64::new(0),
        wrong: AtomicU64::new(0),
        failures: AtomicU64::new(0),
    };
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} requests {elapsed} (eta {eta})")
        .context("template")?;
    let bar = ProgressBar::new(requests.len() as u64).with_style(style);
    let began = Instant::now();
    let cpu = crate::process_usage::cpu_s();
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        // Workers take the next request of the trace. Its times are not replayed: the point is
        // load.
        while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
            if crate::interrupt::asked() {
                return Err(Interrupted.into());
            }
            replay.request(request)?;
            // A full disk fails every save. Going on would only repeat the error.
            if let Some(what) = timed_tier::fatal(replay.job.meters) {
                return Err(BadInput(format!(
                    "{what}; free space or fix permissions, or use another --path"
                ))
                .into());
            }
            bar.inc(1);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..concurrency).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|w| w.join().map_err(|_| anyhow!("a worker panicked"))?)
    })?;
    bar.finish_and_clear();
    Ok(ReplayOutcome {
        requests: requests.len() as u64,
        blocks: replay.blocks.into_inner(),
        prefix_hits: replay.prefix_hits.into_inner(),
        found: replay.found.into_iter().map(AtomicU64::into_inner).collect(),
        loads: replay.loads.into_inner(),
        peer_loads: replay.peer_loads.into_inner(),
        wrong_bytes: replay.wrong.into_inner(),
        failures: replay.failures.into_inner(),
        wall_s: began.elapsed().as_secs_f64(),
        cpu_s: crate::process_usage::cpu_s() - cpu,
    })
}

impl Replay<'_> {
    /// One request: how far the prefix reaches, load that far, save the rest. A load that misses
    /// after all ends the prefix there.
    fn request(&self, ids: &[u64]) -> Result<()> {
        let keys: Arc<[Key]> = ids.iter().map(|id| self.job.keys.key(*id)).collect();
        self.blocks.fetch_add(ids.len() as u64, Ordering::Relaxed);
        let ctx = Ctx::within(STEP_MAX);
        // An engine uses the prefix alone. A verification wants every block that is there.
        let mode = if self.job.verify_only { Mode::Each } else { Mode::Prefix };
        let found = self.job.top.lookup(&ctx, Arc::clone(&keys), mode, Hold::For(STEP_MAX)).wait();
        let found = found.context("lookup failed")?;
        let promised = found.prefix_len();
        // Before the loads: they promote blocks to other tiers.
        self.note_who(&found, promised);
        let mut loaded = 0;
        while loaded < promised {
            let end = promised.min(loaded + self.batch);
            let good = self.load(&ids[loaded..end], &keys[loaded..end])?;
            // The prefix ends at the first block that is a miss after all.
            loaded += good;
            if loaded < end {
                break;
            }
        }
        if self.job.verify_only {
            // Blocks behind a gap are no prefix, but their bytes must be right all the same.
            let beyond: Vec<usize> =
                (promised..ids.len()).filter(|i| found.found[*i].is_hit()).collect();
            for some in beyond.chunks(self.batch) {
                let (ids, keys): (Vec<u64>, Vec<Key>) =
                    some.iter().map(|i| (ids[*i], keys[*i].clone())).unzip();
                self.load(&ids, &keys)?;
            }
        }
        self.prefix_hits.fetch_add(loaded as u64, Ordering::Relaxed);
        let saved = if self.job.verify_only { Ok(()) } else { self.save_rest(ids, &keys, loaded) };
        // Until the request is over, so that what it saves does not push out what it stands on.
        found.hold.into_iter().for_each(|hold| self.job.top.release(hold));
        saved
    }

    /// Counts which tiers answer for the blocks that a lookup promised; a tier by itself for all.
    fn note_who(&self, found: &LookedUp, promised: usize) {
        for (at, count) in self.found.iter().enumerate() {
            let blocks = match found.tiers.get(at) {
                Some(keys) => keys.iter().take_while(|n| *n < promised).count(),
                None => promised,
            };
            count.fetch_add(blocks as u64, Ordering::Relaxed);
        }
    }

    fn save_rest(&self, ids: &[u64], keys: &[Key], loaded: usize) -> Result<()> {
        for start in (loaded..ids.len()).step_by(self.batch) {
            let end = ids.len().min(start + self.batch);
            // The chain of a later batch continues that of the one before.
            let parent = start.checked_sub(1).map(|i| *keys[i].digest());
            self.save(&ids[start..end], &keys[start..end], Chain { parent, depth: start as u32 })?;
        }
        Ok(())
    }

    /// Has the peer load and verify blocks if it is its turn; answers whether it found them all.
    fn load_by_peer(&self, ids: &[u64]) -> Result<bool> {
        let all = self.loads.load(Ordering::Relaxed);
        let Some(peer) =
            // Every second load or so, so that both processes read what the other wrote.
            self.peer.as_ref().filter(|_| 2 * self.peer_loads.load(Ordering::Relaxed) <= all)
        else {
            return Ok(false);
        };
        let answers = peer.lock().unwrap_or_else(PoisonError::into_inner).load(ids)?;
        let hits = answers.iter().flatten().count();
        self.loads.fetch_add(hits as u64, Ordering::Relaxed);
        self.peer_loads.fetch_add(hits as u64, Ordering::Relaxed);
        self.wrong.fetch_add(answers.iter().flatten().sum(), Ordering::Relaxed);
        Ok(hits == ids.len())
    }

    /// Loads and verifies blocks; answers how many from the first are hits. What the peer does not
    /// find is loaded here.
    fn load(&self, ids: &[u64], keys: &[Key]) -> Result<usize> {
        if self.load_by_peer(ids)? {
            return Ok(ids.len());
        }
        let leases = (0..ids.len())
            .map(|_| self.arena.lease(self.job.chunk))
            .collect::<Result<Vec<Lease>, _>>()?;
        let ops = keys
            .iter()
            .zip(leases)
            .map(|(key, lease)| Load { key: key.clone(), into: vec![lease] })
            .collect();
        let answers = wait(self.job.top.load_waiting(&Ctx::within(STEP_MAX), ops));
        let mut good = 0;
        for (i, (Done { op, result }, id)) in answers.into_iter().zip(ids).enumerate() {
            match result {
                Ok(Loaded::Hit { .. }) => {
                    let bytes = op.into.first().and_then(Lease::as_host).unwrap_or_default();
                    // A block of another length counts as wrong in the difference too.
                    let missing = self.job.chunk.abs_diff(bytes.len()) as u64;
                    self.wrong.fetch_add(content::wrong(*id, bytes) + missing, Ordering::Relaxed);
                    self.loads.fetch_add(1, Ordering::Relaxed);
                    // Counts only while every block so far was a hit.
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
            let mut lease = self.arena.lease(self.job.chunk)?;
            lease
                .as_host_mut()
                .map(|bytes| content::fill(*id, bytes))
                .context("memory of the CPU's")?;
            lease.assume_filled(self.job.chunk);
            ops.push(Save { key: key.clone(), from: vec![lease.freeze()] });
        }
        let ctx = Ctx::within(STEP_MAX).with_class(Class::Write).with_chain(chain);
        let answers = wait(self.job.top.save_waiting(&ctx, ops));
        for Done { result, .. } in answers {
            match result {
                Ok(_) => {}
                Err(_) => drop(self.failures.fetch_add(1, Ordering::Relaxed)),
            }
        }
        Ok(())
    }
}
