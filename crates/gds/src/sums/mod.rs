//! Checksums taken on the GPU: what cuFile brought there is proven without bringing it back.

mod summer;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvtier_mem::cuda::Gpu;

pub use self::summer::{RANGE_BYTES_MAX, Summer, UNIT};
use crate::cufile::watched;

/// A summer, or why there is none; `None` while it is made.
type Made = Option<Result<Arc<Summer>, String>>;

/// Those of all GPUs that somebody asked for.
#[derive(Debug)]
pub struct Summers {
    all: Mutex<Vec<(Gpu, Made)>>,
    /// How many ranges of a GPU are summed at once.
    at_once: usize,
    /// The longest that making one may take.
    wait: Duration,
}

impl Summers {
    pub fn new(at_once: usize, wait: Duration) -> Self {
        Summers { all: Mutex::default(), at_once, wait }
    }

    /// The one of a GPU, made now if nobody asked before; `None` where the GPU cannot sum, which is
    /// logged once, and as long as another makes it.
    pub fn of(&self, gpu: &Gpu) -> Option<Arc<Summer>> {
        let mut all = self.all();
        if let Some((_, made)) = all.iter().find(|(known, _)| known == gpu) {
            return made.as_ref()?.as_ref().ok().cloned();
        }
        all.push((gpu.clone(), None));
        // It may take its time: neither a status nor another load waits for it.
        drop(all);
        let (theirs, at_once) = (gpu.clone(), self.at_once);
        let made = watched("the kernel that takes checksums", self.wait, move || {
            Summer::new(&theirs, at_once)
        });
        let made = made.and_then(|made| made.map(Arc::new).map_err(|e| e.to_string()));
        if let Err(why) = &made {
            tracing::info!(
                "GPU {} takes no checksums, loads by cuFile are copied back for them: {why}",
                gpu.ordinal()
            );
        }
        let summer = made.as_ref().ok().cloned();
        if let Some((_, place)) = self.all().iter_mut().find(|(known, _)| known == gpu) {
            *place = Some(made);
        }
        summer
    }

    /// Who takes the checksums, and why not all GPUs do; `None` before one was made.
    pub fn describe(&self) -> Option<String> {
        let all = self.all();
        let failed = all
            .iter()
            .find_map(|(gpu, made)| Some((gpu.ordinal(), made.as_ref()?.as_ref().err()?)));
        let done = all
            .iter()
            .any(|(_, made)| made.is_some())
            .then(|| "checksums taken on the GPU".to_owned());
        failed.map(|(n, why)| format!("copied back from GPU {n} for checksums: {why}")).or(done)
    }

    /// Lets go of all.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.all());
        drop(all);
    }

    fn all(&self) -> MutexGuard<'_, Vec<(Gpu, Made)>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
