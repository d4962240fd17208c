use std::fmt;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kvtier_mem::cuda::Gpu;

use super::api::{Api, Loaded, Properties};
use super::storage::KINDS;

/// The open driver, one per process. It is never closed, because that would close it for every
/// library in the process.
#[derive(Clone, Copy)]
pub struct Driver(&'static OpenDriver);

struct OpenDriver {
    library: Loaded,
    version: i32,
    targets: u32,
}

/// The result of the first attempt to open the driver.
static DRIVER: Mutex<Option<Result<Driver, String>>> = Mutex::new(None);

impl Driver {
    /// Opens the driver. The driver's result, or its timeout, holds for the rest of the process,
    /// because opening it again was seen to crash. If no library was found, the next call searches
    /// again.
    ///
    /// # Errors
    /// The reason why the driver cannot be opened, with the remedy.
    pub fn open(library: Option<&Path>, gpu: &Gpu, timeout: Duration) -> Result<Self, String> {
        // Held over the attempt: other tiers of the process wait for its result, and no second
        // attempt runs beside it.
        let mut driver = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*driver {
            return known.clone();
        }
        // Not kept: the library may be installed while the process runs.
        let library = Loaded::load(library)?;
        let gpu = gpu.clone();
        // It was seen to spin for ever.
        let opened = with_timeout("cuFileDriverOpen (see cufile.log)", timeout, move || {
            Self::opened(library, &gpu)
        });
        driver.insert(opened.and_then(|opened| opened)).clone()
    }

    fn opened(library: Loaded, gpu: &Gpu) -> Result<Self, String> {
        // Some versions do not open without a context.
        let _entered = gpu.enter().map_err(|e| e.to_string())?;
        let api = &library.api;
        let mut version = 0;
        let mut properties = Properties::default();
        // SAFETY: the functions only write their results, for which there is enough memory;
        // `properties` is larger than that of any version.
        unsafe {
            (api.version)(&mut version).check("cuFileGetVersion").map_err(|e| e.to_string())?;
            (api.driver_open)().check("cuFileDriverOpen").map_err(|e| e.to_string())?;
            let got = (api.properties)(&mut properties).check("cuFileDriverGetProperties");
            got.map_err(|e| e.to_string())?;
        }
        Ok(Driver(Box::leak(Box::new(OpenDriver {
            library,
            version,
            targets: properties.targets,
        }))))
    }

    pub(super) fn api(&self) -> &'static Api {
        &self.0.library.api
    }

    /// The kinds of storage with direct transfers, one bit for each of [`KINDS`].
    pub fn targets(&self) -> u32 {
        self.0.targets
    }

    /// Whether any storage has transfers without host memory; otherwise the driver is in
    /// compatibility mode.
    pub fn is_direct(&self) -> bool {
        self.0.targets != 0
    }

    /// The library, its version and its direct storage.
    pub fn describe(&self) -> String {
        let OpenDriver { library, version, targets } = self.0;
        let names = KINDS
            .iter()
            .enumerate()
            .filter(|(bit, _)| targets >> bit & 1 == 1)
            .map(|(_, name)| *name);
        let major = version / 1000;
        let minor = version % 1000 / 10;
        let names = names.collect::<Vec<_>>().join(", ");
        format!(
            "{} {major}.{minor}, direct for {}",
            library.name,
            if names.is_empty() { "nothing" } else { &names }
        )
    }
}

/// Runs `work` on a thread of its own.
///
/// # Errors
/// After `timeout` the thread is abandoned: a call of NVIDIA's libraries may never return.
pub fn with_timeout<T: Send + 'static>(
    what: &str,
    timeout: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    // With space for the result, so a thread that ends after the timeout does not block on the
    // send.
    let (sender, receiver) = sync_channel(1);
    let run = move || drop(sender.send(work()));
    std::thread::Builder::new()
        .name("cufile-watched".into())
        .spawn(run)
        .map_err(|e| format!("cannot start a thread: {e}"))?;
    receiver.recv_timeout(timeout).map_err(|e| match e {
        RecvTimeoutError::Timeout => format!(
            "{what} has not returned within {} s and blocks a thread of this process",
            timeout.as_secs_f32()
        ),
        RecvTimeoutError::Disconnected => format!("{what} ended its thread"),
    })
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver({})", self.describe())
    }
}
