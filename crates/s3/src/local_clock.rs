//! The clocks of this machine: the one by which this crate decides, and the time of day. The
//! estimate of the store's clock is in `store_clock.rs`.

#[cfg(feature = "simulate")]
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg(feature = "simulate")]
use crate::simulated_machine::SimulatedMachine;

/// The runtime's clock. All that decides by time goes by it, so that tests can pause it and
/// let it jump (`tokio::time::pause`); a deadline of a caller is converted where it comes in.
pub(crate) use tokio::time::Instant;

/// The time of day by the local clock. It takes no memory, except in a simulation.
#[derive(Clone, Debug, Default)]
pub struct WallClock {
    #[cfg(feature = "simulate")]
    pub machine: Option<Arc<dyn SimulatedMachine>>,
}

impl WallClock {
    /// The time since 1970.
    pub fn since_1970(&self) -> Duration {
        #[cfg(feature = "simulate")]
        if let Some(machine) = &self.machine {
            return machine.wall().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        }
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
    }

    /// Seconds since 1970.
    pub fn unix_s(&self) -> i64 {
        i64::try_from(self.since_1970().as_secs()).unwrap_or(i64::MAX)
    }
}
