//! Throughput between files and a GPU, measured for each data path.

mod baselines;
mod tier;

use std::path::Path;
use std::time::Instant;

use kvtier_core::{Error, ErrorKind};
use kvtier_mem::Arena;
use kvtier_mem::cuda::{Gpu, GpuStream};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use crate::incompressible_bytes::fill_random;
use crate::{CufileMode, GdsConfig};

/// Chunks in flight.
const CONCURRENCY: usize = 8;

/// What [`measure`] measures.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BenchConfig {
    /// The tier. The bench writes to its directory and deletes what it wrote.
    pub tier: GdsConfig,
    /// Ordinal of the GPU.
    pub gpu: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: usize,
    /// Number of chunks.
    pub chunks: usize,
    /// How often each data path is measured; the medians are reported.
    pub rounds: usize,
}

impl BenchConfig {
    /// 64 chunks of 32 MiB between the directory `path` and GPU 0, in one round.
    pub fn new(path: &Path) -> Self {
        BenchConfig {
            tier: GdsConfig::new(path, 0),
            gpu: 0,
            chunk_bytes: 32 << 20,
            chunks: 64,
            rounds: 1,
        }
    }
}

/// The throughput of one data path.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Throughput {
    /// Name of the data path.
    pub data_path: String,
    /// From the GPU to the file, or to host memory, in bytes per second.
    pub to_file_per_s: f64,
    /// From the file, or from host memory, to the GPU, in bytes per second.
    pub to_gpu_per_s: f64,
    /// CPU seconds per 10^9 bytes loaded into the GPU.
    pub cpu_s_per_gb: f64,
    /// Which method was used, or why the data path could not be measured.
    pub note: String,
}

/// Measures each data path: copies between pinned host memory and the GPU, the disk alone, the tier
/// through pinned memory, the tier by cuFile, checksums on the GPU, and a plain read with a copy.
///
/// Every round measures each path once; the result holds the medians. A path that cannot be
/// measured is listed with the reason in its note.
///
/// # Errors
/// `Unsupported` if the GPU cannot be opened, or cannot allocate the memory for the chunks.
pub fn measure(config: &BenchConfig) -> Result<Vec<Throughput>, Error> {
    let failed = |e: kvtier_mem::Error| {
        Error::new(ErrorKind::Unsupported, "cannot use the GPU").with_source(e)
    };
    let gpu = Gpu::open(config.gpu).map_err(failed)?;
    let stream = gpu.stream().map_err(failed)?;
    // As many chunks as are in flight; the bytes are the same in each, since only throughput
    // counts.
    let memory = Arena::device(&gpu, CONCURRENCY * config.chunk_bytes.next_multiple_of(4096))
        .map_err(failed)?;
    let bench = Bench { config, gpu, stream, memory };
    bench.fill().map_err(failed)?;
    // Round by round and not path by path: a slow minute of the machine then hits all paths alike.
    let rounds = (0..config.rounds.max(1))
        .map(|_| bench.round())
        .collect::<Result<Vec<_>, _>>()
        .map_err(failed)?;
    Ok((0..rounds[0].len())
        .map(|path| median_of(rounds.iter().map(|round| &round[path])))
        .collect())
}

/// The median of each figure of one data path, with the note of the last round.
fn median_of<'a>(rounds: impl Iterator<Item = &'a Throughput> + Clone) -> Throughput {
    let of = |figure: fn(&Throughput) -> f64| median(rounds.clone().map(figure).collect());
    let (data_path, note) = rounds
        .clone()
        .last()
        .map_or_else(Default::default, |rate| (rate.data_path.clone(), rate.note.clone()));
    Throughput {
        data_path,
        to_file_per_s: of(|rate| rate.to_file_per_s),
        to_gpu_per_s: of(|rate| rate.to_gpu_per_s),
        cpu_s_per_gb: of(|rate| rate.cpu_s_per_gb),
        note,
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

fn unmeasured(data_path: &str, e: &dyn std::error::Error) -> Throughput {
    let note = e.source().map_or_else(|| e.to_string(), |source| format!("{e}: {source}"));
    Throughput {
        data_path: data_path.into(),
        to_file_per_s: 0.0,
        to_gpu_per_s: 0.0,
        cpu_s_per_gb: 0.0,
        note,
    }
}

struct Bench<'a> {
    config: &'a BenchConfig,
    gpu: Gpu,
    stream: GpuStream,
    memory: Arena,
}

/// Measures elapsed time and CPU time of this process.
struct Stopwatch {
    started: Instant,
    cpu_s: f64,
}

/// What a [`Stopwatch`] measured.
struct Speed {
    bytes_per_s: f64,
    cpu_s_per_gb: f64,
}

fn cpu_s() -> f64 {
    let used = getrusage(UsageWho::RUSAGE_SELF);
    used.map_or(0.0, |used| (used.user_time() + used.system_time()).num_microseconds() as f64 / 1e6)
}

impl Stopwatch {
    fn start() -> Self {
        Stopwatch { started: Instant::now(), cpu_s: cpu_s() }
    }

    /// The speed at which `bytes` moved since the start.
    fn stop(self, bytes: usize) -> Speed {
        let elapsed_s = self.started.elapsed().as_secs_f64();
        let cpu_s = cpu_s() - self.cpu_s;
        Speed {
            bytes_per_s: bytes as f64 / elapsed_s.max(1e-9),
            cpu_s_per_gb: cpu_s / (bytes as f64 / 1e9),
        }
    }
}

impl Bench<'_> {
    /// Measures each data path once.
    fn round(&self) -> Result<Vec<Throughput>, kvtier_mem::Error> {
        // The copies come first: without them no other path can work either, so their error is the
        // caller's.
        let mut rates = vec![self.copies()?];
        rates.push(self.disk().unwrap_or_else(|e| unmeasured("file to pinned memory", &*e)));
        let tiers = [
            ("pinned memory", CufileMode::Off, false),
            ("cuFile", CufileMode::Require, false),
            ("cuFile as it is", CufileMode::Require, true),
        ];
        rates.extend(tiers.into_iter().map(|(path, mode, compat)| {
            self.tier(mode, compat).map_or_else(
                |e| unmeasured(path, &e),
                |rate| Throughput { data_path: path.into(), ..rate },
            )
        }));
        rates.push(self.checksums().unwrap_or_else(|e| unmeasured("checksums on the GPU", &*e)));
        rates.push(self.plain().unwrap_or_else(|e| unmeasured("plain read and copy", &e)));
        Ok(rates)
    }

    fn bytes(&self) -> usize {
        self.config.chunks * self.config.chunk_bytes
    }

    /// Fills the GPU's memory with incompressible bytes.
    fn fill(&self) -> Result<(), kvtier_mem::Error> {
        let mut bytes = vec![0; self.config.chunk_bytes];
        fill_random(&mut bytes);
        let mut leases: Vec<_> =
            (0..CONCURRENCY).map(|_| self.memory.lease(bytes.len())).collect::<Result<_, _>>()?;
        leases.iter_mut().try_for_each(|lease| self.stream.upload(&bytes, lease, 0, || ()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_one_of_the_figures() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![5.0]), 5.0);
        assert_eq!(median(vec![]), 0.0);
    }
}
