//! How fast bytes go between files and a GPU, each way that there is.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::key::{ChunkHash, KeyId, KvRank, ObjectKey};
use kvtier_core::{Ctx, Digest, Error, ErrorKind, Key, Load, Loaded, Namespace, Observe, Save, Saved, Tier};
use kvtier_mem::cuda::{Gpu, Stream};
use kvtier_mem::{Arena, ArenaConfig, Lease};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use crate::{GdsConfig, GdsTier, Mode};

/// How many chunks are under way at once.
const AT_ONCE: usize = 8;

/// What to measure with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RatesConfig {
    /// The tier; its directory is used, and emptied of what this wrote.
    pub tier: GdsConfig,
    /// Which GPU.
    pub gpu: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: usize,
    /// How many chunks.
    pub chunks: usize,
}

impl RatesConfig {
    /// 64 chunks of 32 MiB and GPU 0, in `path`.
    pub fn new(path: &Path) -> Self {
        RatesConfig { tier: GdsConfig::new(path, 0), gpu: 0, chunk_bytes: 32 << 20, chunks: 64 }
    }
}

/// A way, and how fast it was.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Rate {
    /// Which way.
    pub way: String,
    /// GPU to file, or to host memory, in bytes a second.
    pub out_per_s: f64,
    /// File, or host memory, to GPU, in bytes a second.
    pub in_per_s: f64,
    /// Seconds of CPU for each 10^9 bytes into the GPU.
    pub cpu_s_per_gb: f64,
    /// What was used, or why it could not be.
    pub note: String,
}

/// Measures copies between pinned host memory and the GPU, the tier through pinned memory, the tier by cuFile, and a plain read followed by a
/// copy. A way that there is not is in the list with its reason.
pub fn rates(config: &RatesConfig) -> Result<Vec<Rate>, Error> {
    let failed = |e: kvtier_mem::Error| Error::new(ErrorKind::Unsupported, "cannot use the GPU").with_source(e);
    let gpu = Gpu::open(config.gpu).map_err(failed)?;
    let (stream, memory) = (
        gpu.stream().map_err(failed)?,
        Arena::device(&gpu, AT_ONCE * config.chunk_bytes.next_multiple_of(4096)).map_err(failed)?,
    );
    let bench = Bench { config, gpu, stream, memory };
    let mut rates = vec![bench.copies().map_err(failed)?];
    let ways = [
        ("pinned memory", Mode::Off, false),
        ("cuFile", Mode::Require, false),
        ("cuFile as it is", Mode::Require, true),
    ];
    rates.extend(ways.into_iter().map(|(way, mode, compat)| {
        bench.tier(mode, compat).map_or_else(|e| none(way, &e), |rate| Rate { way: way.into(), ..rate })
    }));
    rates.push(bench.plain().unwrap_or_else(|e| none("plain read and copy", &e)));
    Ok(rates)
}

fn none(way: &str, e: &dyn std::error::Error) -> Rate {
    let note = e.source().map_or_else(|| e.to_string(), |source| format!("{e}: {source}"));
    Rate { way: way.into(), out_per_s: 0.0, in_per_s: 0.0, cpu_s_per_gb: 0.0, note }
}

struct Bench<'a> {
    config: &'a RatesConfig,
    gpu: Gpu,
    stream: Stream,
    memory: Arena,
}

fn ctx() -> Ctx {
    Ctx::within(Duration::from_secs(120))
}

/// A clock of the wall and of this process.
struct Clock(Instant, f64);

fn cpu_s() -> f64 {
    let used = getrusage(UsageWho::RUSAGE_SELF);
    used.map_or(0.0, |used| (used.user_time() + used.system_time()).num_microseconds() as f64 / 1e6)
}

impl Clock {
    fn start() -> Self {
        Clock(Instant::now(), cpu_s())
    }

    /// Bytes a second, and seconds of CPU for each 10^9 bytes.
    fn stop(self, bytes: usize) -> (f64, f64) {
        let (wall, cpu) = (self.0.elapsed().as_secs_f64(), cpu_s() - self.1);
        (bytes as f64 / wall.max(1e-9), cpu / (bytes as f64 / 1e9))
    }
}

impl Bench<'_> {
    fn bytes(&self) -> usize {
        self.config.chunks * self.config.chunk_bytes
    }

    fn copies(&self) -> Result<Rate, kvtier_mem::Error> {
        let (len, pinned) = (self.config.tier.piece_bytes, self.config.tier.piece_bytes.min(self.config.chunk_bytes));
        let host = Arena::pinned(ArenaConfig::huge(len), &self.gpu)?;
        let (mut host, mut device) = (host.lease(pinned)?, self.memory.lease(pinned)?);
        host.assume_filled(pinned);
        device.assume_filled(pinned);
        let count = self.bytes().div_ceil(pinned);
        let mut copy = || -> Result<(), kvtier_mem::Error> {
            let bytes = host.as_host().unwrap_or_default();
            self.stream.upload(bytes, &mut device, 0, || ())
        };
        copy()?;
        let clock = Clock::start();
        (0..count).try_for_each(|_| copy())?;
        let (in_per_s, cpu_s_per_gb) = clock.stop(count * pinned);
        let clock = Clock::start();
        for _ in 0..count {
            self.stream.download_lease(&device, 0, host.as_host_mut().unwrap_or_default())?;
        }
        let (out_per_s, _) = clock.stop(count * pinned);
        let note = format!("pieces of {pinned} bytes, one at a time");
        Ok(Rate { way: "copies from and to pinned memory".into(), out_per_s, in_per_s, cpu_s_per_gb, note })
    }

    fn key(n: usize) -> Key {
        let hash = ChunkHash::new(Digest::of("kvtier rates", &n.to_le_bytes()).as_bytes());
        let id = ObjectKey { model: "rates".into(), rank: KvRank(0), group: 0, hash, salt: "".into() };
        Key::new(Arc::new(Namespace::new("rates", Digest::default())), KeyId::Object(id))
    }

    fn tier(&self, mode: Mode, compat: bool) -> Result<Rate, Error> {
        let mut config = self.config.tier.clone();
        let dir = config.disk.path.join("kvtier-rates");
        config.disk.path = dir.clone();
        config.disk.capacity_bytes = 2 * (self.bytes() + self.config.chunk_bytes) as u64 + (1 << 20);
        config.staging_bytes = config.staging_bytes.max(2 * self.config.chunk_bytes);
        (config.mode, config.compat, config.gpu) = (mode, compat, Some(self.config.gpu));
        let opened =
            std::fs::create_dir_all(&dir).map_err(|e| Error::new(ErrorKind::Io, "no directory").with_source(e));
        let rate = opened.and_then(|()| GdsTier::open(config)).and_then(|tier| {
            tier.register_gpu(&self.memory);
            self.through(&tier)
        });
        let _ = std::fs::remove_dir_all(&dir);
        rate
    }

    /// All chunks out and in, some at once; before that one more, since the tier makes its pinned memory at the first.
    fn through(&self, tier: &GdsTier) -> Result<Rate, Error> {
        let all = self.config.chunks;
        self.save(tier, all..all + 1)?;
        self.load(tier, all..all + 1)?;
        let clock = Clock::start();
        self.save(tier, 0..all)?;
        let (out_per_s, _) = clock.stop(self.bytes());
        let clock = Clock::start();
        self.load(tier, 0..all)?;
        let (in_per_s, cpu_s_per_gb) = clock.stop(self.bytes());
        let note = tier.status().reasons.into_iter().next().unwrap_or_default();
        Ok(Rate { way: String::new(), out_per_s, in_per_s, cpu_s_per_gb, note })
    }

    fn save(&self, tier: &GdsTier, chunks: Range<usize>) -> Result<(), Error> {
        let save = |n: &usize| {
            let mut lease = self.lease()?;
            lease.assume_filled(self.config.chunk_bytes);
            Ok(Save { key: Self::key(*n), from: vec![lease.freeze()] })
        };
        for some in chunks.collect::<Vec<_>>().chunks(AT_ONCE) {
            for done in tier.save(&ctx(), some.iter().map(save).collect::<Result<_, Error>>()?).wait() {
                match done.result? {
                    Saved::Stored => {}
                    other => return Err(Error::new(ErrorKind::Full, format!("a chunk was not stored: {other:?}"))),
                }
            }
        }
        Ok(())
    }

    fn load(&self, tier: &GdsTier, chunks: Range<usize>) -> Result<(), Error> {
        let load = |n: &usize| Ok(Load { key: Self::key(*n), into: vec![self.lease()?] });
        for some in chunks.collect::<Vec<_>>().chunks(AT_ONCE) {
            for done in tier.load(&ctx(), some.iter().map(load).collect::<Result<_, Error>>()?).wait() {
                match done.result? {
                    Loaded::Hit { .. } => {}
                    other => return Err(Error::new(ErrorKind::Corrupt, format!("a chunk was no hit: {other:?}"))),
                }
            }
        }
        Ok(())
    }

    /// GPU memory for a chunk.
    fn lease(&self) -> Result<Lease, Error> {
        let full = |e: kvtier_mem::Error| Error::new(ErrorKind::Full, "no GPU memory").with_source(e);
        self.memory.lease(self.config.chunk_bytes).map_err(full)
    }

    /// What a program without any of this does: reads through the page cache, copies from memory that is not pinned.
    fn plain(&self) -> std::io::Result<Rate> {
        let path = self.config.tier.disk.path.join("kvtier-rates.bin");
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        std::fs::remove_file(&path)?;
        let mut bytes = vec![7; self.config.chunk_bytes];
        let mut device = self.memory.lease(bytes.len()).map_err(std::io::Error::other)?;
        let at = |n: usize| (n * self.config.chunk_bytes) as u64;
        let clock = Clock::start();
        for n in 0..self.config.chunks {
            self.stream.download_lease(&device, 0, &mut bytes).map_err(std::io::Error::other)?;
            file.write_all_at(&bytes, at(n))?;
        }
        file.sync_data()?;
        let (out_per_s, _) = clock.stop(self.bytes());
        nix::fcntl::posix_fadvise(&file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        let clock = Clock::start();
        for n in 0..self.config.chunks {
            file.read_exact_at(&mut bytes, at(n))?;
            self.stream.upload(&bytes, &mut device, 0, || ()).map_err(std::io::Error::other)?;
        }
        let (in_per_s, cpu_s_per_gb) = clock.stop(self.bytes());
        let note = "one chunk at a time, through the page cache, not pinned".into();
        Ok(Rate { way: "plain read and copy".into(), out_per_s, in_per_s, cpu_s_per_gb, note })
    }
}
