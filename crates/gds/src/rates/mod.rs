//! How fast bytes go between files and a GPU, each way that there is.

mod bare;
mod tiers;

use std::path::Path;
use std::time::Instant;

use kvtier_core::{Error, ErrorKind};
use kvtier_mem::Arena;
use kvtier_mem::cuda::{Gpu, GpuStream};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use crate::{GdsConfig, Mode, noise};

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
    /// How often each way is measured; the medians count.
    pub turns: usize,
}

impl RatesConfig {
    /// 64 chunks of 32 MiB and GPU 0, in `path`, once.
    pub fn new(path: &Path) -> Self {
        RatesConfig {
            tier: GdsConfig::new(path, 0),
            gpu: 0,
            chunk_bytes: 32 << 20,
            chunks: 64,
            turns: 1,
        }
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

/// Measures copies between pinned host memory and the GPU, the disk, the tier through pinned
/// memory, the tier by cuFile, checksums taken on the GPU, and a plain read followed by a copy.
/// Every turn measures all ways once; the answer holds the medians. A way that cannot be measured
/// is in the list with its reason.
pub fn rates(config: &RatesConfig) -> Result<Vec<Rate>, Error> {
    let failed = |e: kvtier_mem::Error| {
        Error::new(ErrorKind::Unsupported, "cannot use the GPU").with_source(e)
    };
    let gpu = Gpu::open(config.gpu).map_err(failed)?;
    let (stream, memory) = (
        gpu.stream().map_err(failed)?,
        Arena::device(&gpu, AT_ONCE * config.chunk_bytes.next_multiple_of(4096)).map_err(failed)?,
    );
    let bench = Bench { config, gpu, stream, memory };
    bench.fill().map_err(failed)?;
    let turns = (0..config.turns.max(1))
        .map(|_| bench.turn())
        .collect::<Result<Vec<_>, _>>()
        .map_err(failed)?;
    Ok((0..turns[0].len()).map(|way| median_of(turns.iter().map(|turn| &turn[way]))).collect())
}

/// The median of each figure of one way; the note is the last one.
fn median_of<'a>(turns: impl Iterator<Item = &'a Rate> + Clone) -> Rate {
    let of = |figure: fn(&Rate) -> f64| median(turns.clone().map(figure).collect());
    let (way, note) = turns
        .clone()
        .last()
        .map_or_else(Default::default, |rate| (rate.way.clone(), rate.note.clone()));
    let (out_per_s, in_per_s) = (of(|rate| rate.out_per_s), of(|rate| rate.in_per_s));
    Rate { way, out_per_s, in_per_s, cpu_s_per_gb: of(|rate| rate.cpu_s_per_gb), note }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

fn none(way: &str, e: &dyn std::error::Error) -> Rate {
    let note = e.source().map_or_else(|| e.to_string(), |source| format!("{e}: {source}"));
    Rate { way: way.into(), out_per_s: 0.0, in_per_s: 0.0, cpu_s_per_gb: 0.0, note }
}

struct Bench<'a> {
    config: &'a RatesConfig,
    gpu: Gpu,
    stream: GpuStream,
    memory: Arena,
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
    /// Each way once.
    fn turn(&self) -> Result<Vec<Rate>, kvtier_mem::Error> {
        let mut rates = vec![self.copies()?];
        rates.push(self.disk().unwrap_or_else(|e| none("file to pinned memory", &*e)));
        let ways = [
            ("pinned memory", Mode::Off, false),
            ("cuFile", Mode::Require, false),
            ("cuFile as it is", Mode::Require, true),
        ];
        rates.extend(ways.into_iter().map(|(way, mode, compat)| {
            self.tier(mode, compat)
                .map_or_else(|e| none(way, &e), |rate| Rate { way: way.into(), ..rate })
        }));
        rates.push(self.sums().unwrap_or_else(|e| none("checksums on the GPU", &*e)));
        rates.push(self.plain().unwrap_or_else(|e| none("plain read and copy", &e)));
        Ok(rates)
    }

    fn bytes(&self) -> usize {
        self.config.chunks * self.config.chunk_bytes
    }

    /// Fills the GPU's memory with what no disk can make less of.
    fn fill(&self) -> Result<(), kvtier_mem::Error> {
        let mut bytes = vec![0; self.config.chunk_bytes];
        noise::fill(&mut bytes);
        let mut leases: Vec<_> =
            (0..AT_ONCE).map(|_| self.memory.lease(bytes.len())).collect::<Result<_, _>>()?;
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
