use std::fmt;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kvtier_mem::cuda::Gpu;

use super::api::{Api, Loaded, Properties};
use super::storage::KINDS;

/// The opened driver: one for the process, which is never closed, since closing it closes it for
/// every library in the process.
#[derive(Clone, Copy)]
pub struct Driver(&'static Opened);

struct Opened {
    library: Loaded,
    version: i32,
    targets: u32,
}

/// Whether it was opened before, and if that failed, why it is not tried again.
static DRIVER: Mutex<Option<Result<Driver, String>>> = Mutex::new(None);

impl Driver {
    /// Opens the driver, or says why it cannot be. What a driver that was reached answers, or that
    /// it never does, holds for the rest of the process: to open it once more has been seen to
    /// harm. A library that is not found is looked for again by who names another.
    pub fn open(library: Option<&Path>, gpu: &Gpu, wait: Duration) -> Result<Self, String> {
        let mut driver = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*driver {
            return known.clone();
        }
        let (library, gpu) = (Loaded::load(library)?, gpu.clone());
        // It has been seen to spin for ever.
        let opened =
            watched("cuFileDriverOpen (see cufile.log)", wait, move || Self::opened(library, &gpu));
        driver.insert(opened.and_then(|opened| opened)).clone()
    }

    fn opened(library: Loaded, gpu: &Gpu) -> Result<Self, String> {
        // Some versions do not open without a context.
        let _entered = gpu.enter().map_err(|e| e.to_string())?;
        let (api, mut version, mut properties) = (&library.api, 0, Properties::default());
        // SAFETY: functions without demands but for room for their answers, which there is; of
        // properties more than any version writes.
        unsafe {
            (api.version)(&mut version).check("cuFileGetVersion").map_err(|e| e.to_string())?;
            (api.driver_open)().check("cuFileDriverOpen").map_err(|e| e.to_string())?;
            let got = (api.properties)(&mut properties).check("cuFileDriverGetProperties");
            got.map_err(|e| e.to_string())?;
        }
        Ok(Driver(Box::leak(Box::new(Opened { library, version, targets: properties.targets }))))
    }

    pub(super) fn api(&self) -> &'static Api {
        &self.0.library.api
    }

    /// The kinds of storage that it reaches directly, a bit for each of [`KINDS`].
    pub fn targets(&self) -> u32 {
        self.0.targets
    }

    /// Whether it reaches any storage without going through host memory; otherwise it is in
    /// compatibility mode.
    pub fn is_direct(&self) -> bool {
        self.0.targets != 0
    }

    /// Which library, which version, which storage.
    pub fn describe(&self) -> String {
        let Opened { library, version, targets } = self.0;
        let names = KINDS
            .iter()
            .enumerate()
            .filter(|(bit, _)| targets >> bit & 1 == 1)
            .map(|(_, name)| *name);
        let (major, minor, names) =
            (version / 1000, version % 1000 / 10, names.collect::<Vec<_>>().join(", "));
        format!(
            "{} {major}.{minor}, direct for {}",
            library.name,
            if names.is_empty() { "nothing" } else { &names }
        )
    }
}

/// What `work` answers, on a thread of its own that is given up when it takes longer than `wait`.
pub fn watched<T: Send + 'static>(
    what: &str,
    wait: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (tell, hear) = sync_channel(1);
    let run = move || drop(tell.send(work()));
    std::thread::Builder::new()
        .name("cufile-watched".into())
        .spawn(run)
        .map_err(|e| format!("no thread: {e}"))?;
    hear.recv_timeout(wait).map_err(|e| match e {
        RecvTimeoutError::Timeout => format!(
            "{what} has not returned within {} s, and a thread of this process is lost to it",
            wait.as_secs_f32()
        ),
        RecvTimeoutError::Disconnected => format!("{what} ended its thread"),
    })
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Driver({})", self.describe())
    }
}
