//! The encoding of the tier's chunks: memory for encoded bytes, and how many chunks are encoded or
//! decoded at a time.

use std::num::NonZero;
use std::sync::{Arc, Mutex, PoisonError};

use kvtier_codec::TierEncoding;
use kvtier_core::{Error, ErrorKind};
use kvtier_mem::{Arena, ArenaConfig, BackingKind, Lease};
use tokio::sync::Semaphore;

use crate::config::TierConfig;

/// How chunks are encoded and decoded. Whole chunks are on threads of their own; blocks of a chunk
/// that arrives on the thread that reads it. Saves and loads have memory and threads of their own, so
/// that loads never wait for saves.
#[derive(Debug)]
pub struct Encoding {
    pub tier: Arc<TierEncoding>,
    pub saves: EncodingResources,
    pub loads: EncodingResources,
}

impl Encoding {
    /// From the configuration.
    pub fn new(config: &TierConfig) -> Self {
        let half = config.encode_bytes / 2;
        Encoding {
            tier: Arc::clone(&config.encoding),
            saves: EncodingResources::new(half),
            loads: EncodingResources::new(half),
        }
    }

    /// The memory that a chunk of `raw_len` bytes needs to be encoded.
    ///
    /// # Errors
    /// `Invalid` for a chunk that no memory of this tier holds.
    pub fn bound(&self, raw_len: u64) -> Result<usize, Error> {
        let what = "the chunk is too long to be encoded; save shorter chunks";
        let too_long = || Error::new(ErrorKind::Invalid, what);
        let raw_len = usize::try_from(raw_len).map_err(|e| too_long().with_source(e))?;
        let bound = self.tier.bound(raw_len).map_err(|e| too_long().with_source(e))?;
        self.saves.check(bound as u64).map(|()| bound)
    }
}

/// Memory for encoded bytes, and the right to encode or decode.
#[derive(Debug)]
pub struct EncodingResources {
    bytes: usize,
    /// Mapped with the first lease: many tiers never see an encoded chunk.
    arena: Mutex<Option<Arena>>,
    /// One permit for each core.
    threads: Semaphore,
}

impl EncodingResources {
    fn new(bytes: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        EncodingResources { bytes, arena: Mutex::default(), threads: Semaphore::new(cores) }
    }

    /// The memory, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether `len` bytes are no more than all of it.
    pub fn fits(&self, len: u64) -> bool {
        self.check(len).is_ok()
    }

    fn check(&self, len: u64) -> Result<(), Error> {
        if len <= self.bytes as u64 {
            return Ok(());
        }
        let what = format!(
            "an encoded chunk needs {len} bytes of memory, more than the {} that it may have; raise encode_bytes",
            self.bytes
        );
        Err(Error::new(ErrorKind::Invalid, what))
    }

    /// Waits for `len` bytes of memory, which hold leftovers.
    ///
    /// # Errors
    /// `Invalid` for more than all of it; `Full` where the machine has none.
    pub async fn lease(&self, len: u64) -> Result<Lease, Error> {
        self.check(len)?;
        let arena = self.arena()?;
        // Rounded to whole pages the memory may still be too short.
        let lease = arena.lease_waiting(usize::try_from(len).unwrap_or(usize::MAX)).await;
        lease.map_err(|e| {
            Error::new(ErrorKind::Invalid, "no memory for an encoded chunk; raise encode_bytes")
                .with_source(e)
        })
    }

    fn arena(&self) -> Result<Arena, Error> {
        let mut arena = self.arena.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(arena) = &*arena {
            return Ok(arena.clone());
        }
        let mut config = ArenaConfig::heap(self.bytes.max(1));
        // Pages are allocated when they are touched.
        config.kind = BackingKind::Mapped;
        let made = Arena::new(config).map_err(|e| {
            Error::new(ErrorKind::Full, "no memory for encoded chunks; lower encode_bytes")
                .with_source(e)
        })?;
        Ok(arena.insert(made).clone())
    }

    /// Runs CPU work of one chunk, as soon as fewer chunks than cores are being worked on. The
    /// runtime's other tasks go on meanwhile on another thread.
    ///
    /// The work borrows the caller's memory and cannot be dropped half-way, so that memory always
    /// comes back.
    pub async fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let _permit = self.threads.acquire().await;
        tokio::task::block_in_place(work)
    }

    /// Runs a small part of the CPU work of one chunk now, on this thread; nothing where as many
    /// chunks as cores are being worked on.
    pub fn try_run<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let _permit = self.threads.try_acquire().ok()?;
        Some(work())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_the_memory_fits_and_no_more() {
        let resources = EncodingResources::new(100);
        assert!(resources.fits(100) && resources.check(100).is_ok());
        assert!(!resources.fits(101));
        assert_eq!(resources.check(101).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn small_work_is_done_now_unless_all_cores_work() {
        let resources = EncodingResources::new(100);
        assert_eq!(resources.try_run(|| 7), Some(7));
        let cores = resources.threads.available_permits() as u32;
        let all = resources.threads.try_acquire_many(cores).unwrap();
        assert_eq!(resources.try_run(|| 7), None);
        drop(all);
        assert_eq!(resources.try_run(|| 7), Some(7));
    }
}
