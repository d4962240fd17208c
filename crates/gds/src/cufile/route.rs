//! Which way cuFile moved bytes, as it counts them itself: a driver that reaches some storage directly need not reach that of a directory.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard};

use kvtier_mem::cuda::Gpu;

use super::Driver;
use super::api::Counters;

/// Which way the probe's bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Straight between the storage and the GPU.
    Direct,
    /// Through the host's memory.
    Host,
    /// This version does not say.
    Untold,
}

/// The level of counters that has some for each GPU.
const EACH_GPU: c_int = 3;
/// Room for all counters, in words: more than any version writes.
const WORDS: usize = 8192;
/// Where what a GPU moved stands among its counters, in words after its UUID: all, by PCI P2PDMA, by nvidia-fs, through host memory.
const READS: [usize; 4] = [4, 5, 6, 7];
const WRITES: [usize; 4] = [17, 18, 19, 20];

/// How often a GPU's bytes were moved.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    all: u64,
    direct: u64,
    host: u64,
}

/// Held by who watches: of two at a time neither could tell whose bytes went which way.
static WATCHED: Mutex<()> = Mutex::new(());

/// Watches which way cuFile moves a GPU's bytes. The counters are the process's: they count what they did before when this is dropped.
pub struct Routes {
    /// Let go last.
    _one: MutexGuard<'static, ()>,
    counters: &'static Counters,
    uuid: [u8; 16],
    level: c_int,
    before: Moved,
}

impl Routes {
    /// Begins to count, if this version does and nobody counts now.
    pub fn watch(driver: Driver, gpu: &Gpu) -> Option<Self> {
        let _one = WATCHED.try_lock().ok()?;
        let (counters, uuid) = (driver.counters()?, gpu.uuid().ok()?);
        let mut level = 0;
        // SAFETY: `level` can be written.
        unsafe { (counters.level)(&mut level) }.check("cuFileGetStatsLevel").ok()?;
        let mut routes = Routes { _one, counters, uuid, level, before: Moved::default() };
        routes.count()?;
        routes.before = routes.moved()?;
        Some(routes)
    }

    fn count(&self) -> Option<()> {
        if self.level >= EACH_GPU {
            return Some(());
        }
        // SAFETY: functions without demands, of a driver that is open.
        unsafe {
            (self.counters.set_level)(EACH_GPU).check("cuFileSetStatsLevel").ok()?;
            (self.counters.start)().check("cuFileStatsStart").ok()
        }
    }

    /// Which way it went meanwhile. What went both ways, another's perhaps, is no proof against the direct one.
    pub fn taken(&self) -> Route {
        let Some(after) = self.moved() else { return Route::Untold };
        let grew = |of: fn(&Moved) -> u64| of(&after) > of(&self.before);
        match (grew(|m| m.all), grew(|m| m.direct), grew(|m| m.host)) {
            (true, true, _) => Route::Direct,
            (true, false, true) => Route::Host,
            _ => Route::Untold,
        }
    }

    /// What the counters say. Newer versions have more of them before those of each GPU, which are found by its UUID.
    fn moved(&self) -> Option<Moved> {
        let mut words = vec![0_u64; WORDS];
        // SAFETY: there is room for more than any version writes, aligned as its counters are.
        unsafe { (self.counters.get)(words.as_mut_ptr().cast()) }.check("cuFileGetStatsL3").ok()?;
        let (first, second) = self.uuid.split_at(8);
        let uuid = [first, second].map(|half| half.try_into().map(u64::from_ne_bytes).unwrap_or_default());
        let at = words.windows(2).position(|pair| pair == uuid)?;
        let of_gpu = words.get(at + 2..)?;
        let [mut all, mut direct, mut host] = [0_u64; 3];
        for [total, p2p, nvfs, posix] in [READS, WRITES] {
            let count = |at: usize| of_gpu.get(at).copied();
            all = count(total)?.saturating_add(all);
            direct = count(p2p)?.saturating_add(count(nvfs)?).saturating_add(direct);
            host = count(posix)?.saturating_add(host);
        }
        Some(Moved { all, direct, host })
    }
}

impl Drop for Routes {
    fn drop(&mut self) {
        if self.level >= EACH_GPU {
            return;
        }
        // SAFETY: functions without demands. That they fail costs counting.
        unsafe {
            if self.level == 0 {
                let _ = (self.counters.stop)();
            }
            let _ = (self.counters.set_level)(self.level);
        }
    }
}

impl Route {
    /// What a probe that took it found, or why it is worth nothing; `compat` where it is wanted all the same.
    pub fn found(self, compat: bool) -> Result<&'static str, String> {
        match self {
            Route::Direct => Ok("64 KiB written and read back, straight between the file and the GPU"),
            Route::Untold => Ok("64 KiB written and read back; which way they went cuFile did not say"),
            Route::Host if compat => Ok("64 KiB written and read back through host memory, as configured"),
            Route::Host => Err("cuFile moved a file of this directory through host memory, which is slower than pinned memory of our own: \
                 it does not reach this storage directly; cufile.log says why"
                .into()),
        }
    }
}
