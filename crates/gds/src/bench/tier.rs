//! Throughput of the tier itself.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use kvtier_core::key::{ChunkHash, KeyId, KvRank, ObjectKey};
use kvtier_core::{
    Ctx, Digest, Error, ErrorKind, Key, Load, Loaded, Namespace, Observe, Save, Saved, Tier,
};
use kvtier_mem::Lease;

use super::{Bench, CONCURRENCY, Speed, Stopwatch, Throughput};
use crate::{CufileMode, GdsTier};

/// Batches in flight: while the bench waits for one, another moves.
const BATCHES: usize = 2;

fn ctx() -> Ctx {
    Ctx::within(Duration::from_secs(120))
}

impl Bench<'_> {
    fn key(n: usize) -> Key {
        let hash = ChunkHash::new(Digest::derive("kvtier bench", &n.to_le_bytes()).as_bytes());
        let id =
            ObjectKey { model: "bench".into(), rank: KvRank(0), group: 0, hash, salt: "".into() };
        Key::new(Arc::new(Namespace::new("bench", Digest::default())), KeyId::Object(id))
    }

    pub(super) fn tier(&self, mode: CufileMode, compat: bool) -> Result<Throughput, Error> {
        let mut config = self.config.tier.clone();
        let dir = config.disk.path.join("kvtier-bench");
        config.disk.path = dir.clone();
        // Twice the data, so that nothing is evicted during the measurement.
        config.disk.capacity_bytes =
            2 * (self.bytes() + self.config.chunk_bytes) as u64 + (1 << 20);
        // Two chunks, so that one is copied to the host while the other is written.
        config.staging_bytes = config.staging_bytes.max(2 * self.config.chunk_bytes);
        (config.cufile, config.compat, config.gpu) = (mode, compat, Some(self.config.gpu));
        let opened = std::fs::create_dir_all(&dir)
            .map_err(|e| Error::new(ErrorKind::Io, "no directory").with_source(e));
        let rate = opened.and_then(|()| GdsTier::open(config)).and_then(|tier| {
            tier.register_gpu(&self.memory);
            self.save_and_load(&tier)
        });
        // Also after an error: the directory is the operator's.
        let _ = std::fs::remove_dir_all(&dir);
        rate
    }

    /// Saves and loads all chunks. One more chunk goes first, because the tier allocates its pinned
    /// memory for the first transfer.
    fn save_and_load(&self, tier: &GdsTier) -> Result<Throughput, Error> {
        let all = self.config.chunks;
        self.save(tier, all..all + 1)?;
        self.load(tier, all..all + 1)?;
        let watch = Stopwatch::start();
        self.save(tier, 0..all)?;
        let to_file_per_s = watch.stop(self.bytes()).bytes_per_s;
        let watch = Stopwatch::start();
        self.load(tier, 0..all)?;
        let Speed { bytes_per_s: to_gpu_per_s, cpu_s_per_gb } = watch.stop(self.bytes());
        let note = tier.status().reasons.into_iter().next().unwrap_or_default();
        Ok(Throughput { data_path: String::new(), to_file_per_s, to_gpu_per_s, cpu_s_per_gb, note })
    }

    fn save(&self, tier: &GdsTier, chunks: Range<usize>) -> Result<(), Error> {
        let submit = |some: Range<usize>| {
            let save = |n| {
                let mut lease = self.lease()?;
                lease.assume_filled(self.config.chunk_bytes);
                Ok(Save { key: Self::key(n), from: vec![lease.freeze()] })
            };
            Ok(tier.save(&ctx(), some.map(save).collect::<Result<_, Error>>()?))
        };
        batches(chunks, submit, |ticket| {
            ticket.wait().into_iter().try_for_each(|done| match done.result? {
                Saved::Stored => Ok(()),
                other => {
                    Err(Error::new(ErrorKind::Full, format!("a chunk was not stored: {other:?}")))
                }
            })
        })
    }

    fn load(&self, tier: &GdsTier, chunks: Range<usize>) -> Result<(), Error> {
        let submit = |some: Range<usize>| {
            let load = |n| Ok(Load { key: Self::key(n), into: vec![self.lease()?] });
            Ok(tier.load(&ctx(), some.map(load).collect::<Result<_, Error>>()?))
        };
        batches(chunks, submit, |ticket| {
            ticket.wait().into_iter().try_for_each(|done| match done.result? {
                Loaded::Hit { .. } => Ok(()),
                other => {
                    Err(Error::new(ErrorKind::Corrupt, format!("a chunk was no hit: {other:?}")))
                }
            })
        })
    }

    /// GPU memory for a chunk.
    fn lease(&self) -> Result<Lease, Error> {
        let full =
            |e: kvtier_mem::Error| Error::new(ErrorKind::Full, "no GPU memory").with_source(e);
        self.memory.lease(self.config.chunk_bytes).map_err(full)
    }
}

/// Submits all chunks in batches, [`BATCHES`] in flight.
fn batches<T>(
    chunks: Range<usize>,
    submit: impl Fn(Range<usize>) -> Result<T, Error>,
    wait: impl Fn(T) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut in_flight = VecDeque::new();
    for start in chunks.clone().step_by(CONCURRENCY / BATCHES) {
        if in_flight.len() == BATCHES
            && let Some(first) = in_flight.pop_front()
        {
            wait(first)?;
        }
        in_flight.push_back(submit(start..chunks.end.min(start + CONCURRENCY / BATCHES))?);
    }
    in_flight.into_iter().try_for_each(wait)
}
