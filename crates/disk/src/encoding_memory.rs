//! Memory for encoded chunks between the medium and the callers' memory, and who waits for it.

use std::sync::{Mutex, PoisonError};

use kvtier_core::{Error, ErrorKind};
use kvtier_mem::{Arena, ArenaConfig, Lease};

use crate::wait_queue::WaitQueue;

/// The bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;

/// Memory for the encoded chunks of saves, or of loads. Each kind has its own, so that loads never
/// wait for saves.
#[derive(Debug)]
pub struct EncodingMemory {
    bytes: usize,
    /// Allocated with the first lease: many tiers never see an encoded chunk.
    arena: Mutex<Option<Arena>>,
    /// Operations that wait for some of it.
    pub queue: WaitQueue,
}

/// Why there is no memory for an encoded chunk.
#[derive(Debug)]
pub enum NoEncodingMemory {
    /// Others use it now.
    Busy,
    /// The chunk needs more than all of it.
    TooLarge(Error),
    /// The machine has none.
    Failed(Error),
}

impl EncodingMemory {
    /// At most `bytes` of memory.
    pub fn new(bytes: usize) -> Self {
        EncodingMemory { bytes, arena: Mutex::default(), queue: WaitQueue::default() }
    }

    /// Leases `len` bytes, aligned for direct I/O. They hold leftovers.
    ///
    /// # Errors
    /// `TooLarge` with `Invalid` for more than all of it; `Failed` with `Full` where the machine has
    /// no memory.
    pub fn lease(&self, len: u64) -> Result<Lease, NoEncodingMemory> {
        let Some(len) = usize::try_from(len).ok().filter(|len| *len <= self.bytes) else {
            let what = format!(
                "{len} bytes for an encoded chunk, more than the {} of memory for it; raise encode_bytes",
                self.bytes
            );
            return Err(NoEncodingMemory::TooLarge(Error::new(ErrorKind::Invalid, what)));
        };
        self.arena()?.lease(len).map_err(|_| NoEncodingMemory::Busy)
    }

    fn arena(&self) -> Result<Arena, NoEncodingMemory> {
        let mut arena = self.arena.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(arena) = &*arena {
            return Ok(arena.clone());
        }
        // Huge pages round up: a small bound is kept to the byte.
        let config = match self.bytes < HUGE_PAGE {
            true => ArenaConfig::heap(self.bytes),
            false => ArenaConfig::huge(self.bytes),
        };
        let made = Arena::new(config).map_err(|e| {
            let what = "no memory for encoded chunks; lower encode_bytes";
            NoEncodingMemory::Failed(Error::new(ErrorKind::Full, what).with_source(e))
        })?;
        Ok(arena.insert(made).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_fits_is_refused_and_the_rest_waits() {
        let memory = EncodingMemory::new(8192);
        let first = memory.lease(8192).unwrap();
        assert!(matches!(memory.lease(1), Err(NoEncodingMemory::Busy)));
        let Err(NoEncodingMemory::TooLarge(error)) = memory.lease(8193) else { panic!("it fits") };
        assert!(error.to_string().contains("raise encode_bytes"), "{error}");
        drop(first);
        memory.lease(1).unwrap();
        assert!(matches!(EncodingMemory::new(0).lease(1), Err(NoEncodingMemory::TooLarge(_))));
    }
}
