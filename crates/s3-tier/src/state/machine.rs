//! What the tier takes from its machine: threads for its tasks, timers, a name, random bytes. With the
//! feature `simulate` the client's simulated machine can stand in for it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvtier_core::Timekeeper;
use kvtier_s3::Client;
#[cfg(feature = "simulate")]
use kvtier_s3::simulated_machine::{self, SimulatedMachine};
#[cfg(feature = "simulate")]
use tokio::runtime::Handle;
use tokio::runtime::{Builder, Runtime};

use crate::TierConfig;

/// How many tiers this process has opened.
static OPENED: AtomicU64 = AtomicU64::new(0);
/// How long running tasks may take to stop when the tier is dropped.
const STOP_MAX: Duration = Duration::from_secs(1);

/// What runs the tier's tasks.
#[derive(Debug)]
pub enum Executor {
    /// A runtime with threads of its own.
    Own(Runtime),
    /// The runtime of the simulation that opened the tier, and the machine on which it runs.
    #[cfg(feature = "simulate")]
    Given(Handle, Arc<dyn SimulatedMachine>),
}

impl Executor {
    /// Starts the tier's runtime.
    pub fn start(config: &TierConfig) -> io::Result<Self> {
        #[cfg(feature = "simulate")]
        if let Some(machine) = &config.client.machine {
            let handle = Handle::try_current().map_err(io::Error::other)?;
            return Ok(Executor::Given(handle, Arc::clone(machine)));
        }
        Builder::new_multi_thread()
            .worker_threads(config.threads)
            .thread_name(&config.name)
            .enable_all()
            .build()
            .map(Executor::Own)
    }

    /// Runs a task.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self {
            Executor::Own(runtime) => drop(runtime.spawn(task)),
            #[cfg(feature = "simulate")]
            Executor::Given(handle, machine) => {
                drop(handle.spawn(simulated_machine::of_process(Arc::clone(machine), task)))
            }
        }
    }

    /// Stops the tasks, after `last_writes` if this thread may wait for them. A simulated process is
    /// killed without them; its tasks end when they find the tier closed.
    pub fn stop(self, last_writes: Option<impl Future<Output = ()>>) {
        match self {
            // A thread of a runtime must not wait for another runtime.
            Executor::Own(runtime) if tokio::runtime::Handle::try_current().is_ok() => {
                runtime.shutdown_background()
            }
            Executor::Own(runtime) => {
                last_writes.into_iter().for_each(|writes| runtime.block_on(writes));
                runtime.shutdown_timeout(STOP_MAX);
            }
            #[cfg(feature = "simulate")]
            Executor::Given(..) => {}
        }
    }
}

/// A task that runs beside those of the executor: in a simulation it stands still with its process.
#[cfg(not(feature = "simulate"))]
pub fn of_process<T: Future>(_: &Client, task: T) -> T {
    task
}

/// A task that runs beside those of the executor: in a simulation it stands still with its process.
#[cfg(feature = "simulate")]
pub fn of_process<T: Future>(client: &Client, task: T) -> impl Future<Output = T::Output> + use<T> {
    let machine = client.machine().cloned();
    async move {
        match machine {
            Some(machine) => simulated_machine::of_process(machine, task).await,
            None => task.await,
        }
    }
}

/// What the machine's monotonic clock counts while `passed` goes by: in a simulation it may drift.
#[inline]
pub fn monotonic(client: &Client, passed: Duration) -> Duration {
    #[cfg(feature = "simulate")]
    if let Some(machine) = client.machine() {
        return machine.monotonic(passed);
    }
    let _ = client;
    passed
}

/// The timers of the tier.
pub fn timekeeper(config: &TierConfig) -> io::Result<Arc<Timekeeper>> {
    #[cfg(feature = "simulate")]
    if let Some(machine) = &config.client.machine {
        return Ok(simulated::timekeeper(Arc::clone(machine)));
    }
    Timekeeper::start(&config.name).map(Arc::new)
}

/// Host, process, time, number of the tier, and a random number: containers may share all but the
/// last.
pub fn node_name(client: &Client) -> String {
    #[cfg(feature = "simulate")]
    if let Some(machine) = client.machine() {
        let (name, at_ms) = (machine.name(), client.local_ms());
        return format!("{name}.1.{at_ms}.0.{:08x}", fastrand::u32(..));
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let plain = |char: char| if char.is_ascii_alphanumeric() { char } else { '-' };
    let host: String = host.trim().chars().take(64).map(plain).collect();
    let process = std::process::id();
    let opened = OPENED.fetch_add(1, Ordering::Relaxed);
    format!(
        "{}.{process}.{}.{opened}.{:08x}",
        if host.is_empty() { "host" } else { &host },
        client.local_ms(),
        fastrand::u32(..)
    )
}

/// 32 bytes of the system's random source; in a simulation of its seeded one.
pub fn random_bytes(client: &Client) -> [u8; 32] {
    #[cfg(feature = "simulate")]
    if client.machine().is_some() {
        return std::array::from_fn(|_| fastrand::u8(..));
    }
    let _ = client;
    kvtier_core::random_bytes()
}

#[cfg(feature = "simulate")]
mod simulated {
    use std::time::SystemTime;

    use kvtier_core::{Clock, TimeSource};
    use kvtier_s3::simulated_machine::{SimulatedMachine, of_process};
    use tokio::sync::mpsc;
    use tokio::time::{Instant, sleep_until};

    use super::{Arc, Timekeeper};

    /// The runtime's paused clock and the machine's wall clock.
    struct VirtualTime(Arc<dyn SimulatedMachine>);

    impl TimeSource for VirtualTime {
        fn now(&self) -> std::time::Instant {
            Instant::now().into_std()
        }

        fn wall(&self) -> SystemTime {
            self.0.wall()
        }
    }

    /// Timers that a task carries out.
    pub fn timekeeper(machine: Arc<dyn SimulatedMachine>) -> Arc<Timekeeper> {
        let (wake, mut woken) = mpsc::channel(1);
        // A full channel has a wake-up that waits already.
        let process = Arc::clone(&machine);
        let timers = Timekeeper::without_thread(Clock::given(VirtualTime(machine)), move || {
            wake.try_send(()).unwrap_or_default()
        });
        let timers = Arc::new(timers);
        let weak = Arc::downgrade(&timers);
        tokio::spawn(of_process(process, async move {
            while let Some(next) = weak.upgrade().map(|timers| timers.carry_out_due()) {
                let due = async {
                    match next {
                        Some(next) => sleep_until(next.into()).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    woken = woken.recv() => if woken.is_none() { return },
                    () = due => {}
                }
            }
        }));
        timers
    }
}

#[cfg(test)]
mod tests {
    use kvtier_s3::{BucketAddress, Config, Credentials};

    use super::*;

    /// Nodes that share no memory make keys and names with them.
    #[test]
    fn two_nodes_get_other_bytes_and_other_names() {
        let endpoint = BucketAddress::new("http://127.0.0.1:1").bucket("b").resolve().unwrap();
        let client = Client::new(Config::new(endpoint, Credentials::new("a", "b")));
        assert_ne!(random_bytes(&client), random_bytes(&client));
        assert_ne!(node_name(&client), node_name(&client));
    }

    fn stop(writes: &mut bool) {
        let endpoint = BucketAddress::new("http://127.0.0.1:1").bucket("b").resolve().unwrap();
        let mut config = TierConfig::new(Config::new(endpoint, Credentials::new("a", "b")));
        config.threads = 1;
        Executor::start(&config).unwrap().stop(Some(async { *writes = true }));
    }

    #[test]
    fn the_last_writes_are_waited_for() {
        let mut wrote = false;
        stop(&mut wrote);
        assert!(wrote);
    }

    #[tokio::test]
    async fn a_thread_of_another_runtime_does_not_wait_for_the_last_writes() {
        let mut wrote = false;
        stop(&mut wrote);
        assert!(!wrote);
    }
}
