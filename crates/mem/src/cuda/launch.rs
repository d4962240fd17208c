use std::ffi::{CStr, c_void};
use std::fmt;

use super::{Gpu, GpuStream};
use crate::{Error, ErrorKind};

/// A function that a GPU runs, out of PTX, which the driver compiles for it.
pub struct GpuKernel {
    gpu: Gpu,
    module: usize,
    function: usize,
}

impl Gpu {
    /// Compiles `ptx` and finds the function `name` in it. Nothing of it runs by that.
    pub fn kernel(&self, ptx: &CStr, name: &CStr) -> Result<GpuKernel, Error> {
        let api = self.api();
        let _entered = self.enter()?;
        let mut module = 0;
        // SAFETY: `module` can be written, and the text ends with a zero byte.
        api.check(unsafe { (api.module)(&mut module, ptx.as_ptr()) }, "cuModuleLoadData")?;
        let mut kernel = GpuKernel { gpu: self.clone(), module, function: 0 };
        // SAFETY: as above, and the module is loaded.
        let code = unsafe { (api.function)(&mut kernel.function, module, name.as_ptr()) };
        api.check(code, "cuModuleGetFunction")?;
        Ok(kernel)
    }
}

impl GpuStream {
    /// Runs `kernel` in `blocks` blocks of `threads` threads, after all that the stream was given
    /// before, and waits until it is done. An argument of less than eight bytes is the lower
    /// ones of its word. `Invalid` for a kernel of another GPU.
    ///
    /// # Safety
    /// There are as many `args` as the function declares, and of these kinds; whatever device
    /// memory it touches by them is alive, and nothing else uses what it writes meanwhile.
    pub unsafe fn launch(
        &self,
        kernel: &GpuKernel,
        blocks: u32,
        threads: u32,
        args: &[u64],
    ) -> Result<(), Error> {
        if kernel.gpu != *self.gpu() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a kernel of one GPU was to run on another; load it there too",
            ));
        }
        let mut places: Vec<*const c_void> =
            args.iter().map(|arg| std::ptr::from_ref(arg).cast()).collect();
        let api = self.gpu().api();
        let shape = [blocks, 1, 1, threads, 1, 1];
        self.and_wait(|handle| {
            let [x, y, z, of_x, of_y, of_z] = shape;
            let places = places.as_mut_ptr();
            // SAFETY: the function is loaded as long as `kernel`; the driver copies the arguments
            // before it returns; the rest is the caller's promise, and the stream is
            // waited for before this returns.
            let code = unsafe {
                (api.launch)(
                    kernel.function,
                    x,
                    y,
                    z,
                    of_x,
                    of_y,
                    of_z,
                    0,
                    handle,
                    places,
                    std::ptr::null(),
                )
            };
            api.check(code, "cuLaunchKernel")
        })
    }
}

impl Drop for GpuKernel {
    fn drop(&mut self) {
        let _entered = self.gpu.enter();
        // SAFETY: loaded in `Gpu::kernel`; what ran of it was waited for.
        unsafe { (self.gpu.api().unload)(self.module) };
    }
}

impl fmt::Debug for GpuKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({:?})", self.gpu)
    }
}
