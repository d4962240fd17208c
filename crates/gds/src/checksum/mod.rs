//! Checksums computed on the GPU, which verify what cuFile loaded without a copy back to the host.

mod kernel;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvtier_mem::cuda::Gpu;

pub use self::kernel::{ChecksumRange, Crc32cKernel, RANGE_BYTES_MAX, UNIT_BYTES};
use crate::cufile::with_timeout;

/// A kernel, or why the GPU cannot run it; `None` while it is loaded.
type LoadedKernel = Option<Result<Arc<Crc32cKernel>, String>>;

/// The checksum kernels of all GPUs that were used.
#[derive(Debug)]
pub struct Crc32cKernels {
    all: Mutex<Vec<(Gpu, LoadedKernel)>>,
    /// Ranges that one GPU checksums concurrently.
    concurrency: usize,
    /// The longest that loading a kernel may take.
    timeout: Duration,
}

impl Crc32cKernels {
    pub fn new(concurrency: usize, timeout: Duration) -> Self {
        Crc32cKernels { all: Mutex::default(), concurrency, timeout }
    }

    /// The kernel of a GPU, loaded on the first call. `None` if the GPU cannot compute checksums,
    /// which is logged once, and while another thread loads the kernel.
    pub fn get(&self, gpu: &Gpu) -> Option<Arc<Crc32cKernel>> {
        let mut all = self.all();
        if let Some((_, loaded)) = all.iter().find(|(known, _)| known == gpu) {
            return loaded.as_ref()?.as_ref().ok().cloned();
        }
        // The entry marks the load as under way: a second caller gets `None` and copies back
        // meanwhile.
        all.push((gpu.clone(), None));
        // Loading is slow: neither the status nor another load waits for it.
        drop(all);
        let own_gpu = gpu.clone();
        let concurrency = self.concurrency;
        // The driver compiles PTX here, and may hang like all of its calls.
        let loaded = with_timeout("the kernel that computes checksums", self.timeout, move || {
            Crc32cKernel::new(&own_gpu, concurrency)
        });
        let loaded = loaded.and_then(|loaded| loaded.map(Arc::new).map_err(|e| e.to_string()));
        if let Err(why) = &loaded {
            tracing::info!(
                "GPU {} cannot compute checksums, loads by cuFile are copied back for them: {why}",
                gpu.ordinal()
            );
        }
        let kernel = loaded.as_ref().ok().cloned();
        if let Some((_, entry)) = self.all().iter_mut().find(|(known, _)| known == gpu) {
            *entry = Some(loaded);
        }
        kernel
    }

    /// Where checksums are computed, and why not on all GPUs; `None` before a kernel was loaded.
    pub fn describe(&self) -> Option<String> {
        let all = self.all();
        let failed = all
            .iter()
            .find_map(|(gpu, loaded)| Some((gpu.ordinal(), loaded.as_ref()?.as_ref().err()?)));
        let done = all
            .iter()
            .any(|(_, loaded)| loaded.is_some())
            .then(|| "checksums computed on the GPU".to_owned());
        failed.map(|(n, why)| format!("copied back from GPU {n} for checksums: {why}")).or(done)
    }

    /// Unloads all kernels.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.all());
        drop(all);
    }

    fn all(&self) -> MutexGuard<'_, Vec<(Gpu, LoadedKernel)>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
