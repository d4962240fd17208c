//! The bytes of the directory, and the saves that wait for some of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::full_device_status::FullDevice;
use crate::ledger::Ledger;
use crate::ledger::validity::LedgerValidity;
use crate::relist_throttle::RelistThrottle;
use crate::wait_queue::WaitQueue;

/// The bytes of the directory below the cap. Each field has a lock of its own, or none.
#[derive(Debug)]
pub struct SpaceState {
    /// The total of all processes, in a file with a lock that all processes share.
    pub ledger: Ledger,
    /// Whether the total may be wrong. Its lock [`moving`](LedgerValidity::moving) is held while files
    /// change and the ledger follows.
    pub ledger_validity: LedgerValidity,
    /// Bytes in quarantine, as counted last. The ledger counts them too.
    pub quarantine_bytes: AtomicU64,
    /// The index has more than the cap, and its chunks could not be deleted.
    pub is_eviction_due: AtomicBool,
    /// Saves that wait for space below the cap.
    pub queue: WaitQueue,
    /// Bounds how often the directory is scanned to correct the total.
    pub relist_throttle: RelistThrottle,
    /// When the device was full last, below the cap.
    pub full_device: FullDevice,
    /// Cloned by each save that has evicted chunks and has not yet reserved what they freed.
    evicting_saves: Arc<()>,
}

/// A save that has evicted chunks for itself, until it has reserved their bytes or given up.
#[derive(Debug)]
pub struct EvictingSave {
    _counted: Arc<()>,
}

impl SpaceState {
    pub fn new(ledger: Ledger, ledger_validity: LedgerValidity, quarantine_bytes: u64) -> Self {
        SpaceState {
            ledger,
            ledger_validity,
            quarantine_bytes: AtomicU64::new(quarantine_bytes),
            is_eviction_due: AtomicBool::new(false),
            queue: WaitQueue::default(),
            relist_throttle: RelistThrottle::default(),
            full_device: FullDevice::default(),
            evicting_saves: Arc::default(),
        }
    }

    /// Counts a save that is about to evict chunks for itself.
    pub fn begin_evicting(&self) -> EvictingSave {
        EvictingSave { _counted: Arc::clone(&self.evicting_saves) }
    }

    /// Whether a save has evicted chunks and will reserve what they freed. Exact while the index is
    /// locked.
    pub fn has_evicting_saves(&self) -> bool {
        Arc::strong_count(&self.evicting_saves) > 1
    }
}
