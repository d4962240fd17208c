//! The state that the class shares with its jobs, and that of a request.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use kvtier::core::Hint;

use super::chunk_events::EventLog;
use super::jobs::{ChainEnds, JobEnd, LoadCounts};
use super::keys::{EngineKey, KeySpace, Tenant};
use super::lookups::Lookups;
use crate::borrow::BatchBorrow;
use crate::region::Exported;

/// One request of the engine.
#[derive(Debug)]
pub struct RequestState {
    pub keys: Arc<KeySpace>,
    pub tenant: Tenant,
    pub hint: Hint,
    pub ends: Arc<ChainEnds>,
}

impl RequestState {
    /// As [`KeySpace::key`], for the tenant of the request.
    ///
    /// # Errors
    /// If the name is none.
    pub fn key(&self, name: &[u8]) -> Result<EngineKey, String> {
        self.keys.key(&self.tenant, name)
    }
}

/// What the class and its jobs share.
#[derive(Debug, Default)]
pub struct State {
    pub keys: Option<Arc<KeySpace>>,
    pub region: Option<Arc<Exported>>,
    pub lookups: Lookups,
    pub events: Option<Arc<EventLog>>,
    /// The deadlines of the loads in flight, by job.
    pub loads: HashMap<u64, Instant>,
    /// The memory of the saves in flight, by job.
    pub saves: HashMap<u64, BatchBorrow>,
    /// The memory of saves that ended before a medium returned it.
    pub late_saves: Vec<BatchBorrow>,
    pub ended: Vec<JobEnd>,
    /// What became of the chunks of all loads that ended.
    pub load_counts: LoadCounts,
}

impl State {
    /// Whether a load has passed its deadline: a medium does not return its memory, or the load has
    /// ended and was not collected.
    pub fn is_load_overdue(&self) -> bool {
        // Asked for each lookup: the clock is read only while loads are in flight.
        !self.loads.is_empty() && {
            let now = Instant::now();
            self.loads.values().any(|deadline| *deadline < now)
        }
    }

    /// How many loads have passed their deadline.
    pub fn overdue_loads(&self, now: Instant) -> usize {
        self.loads.values().filter(|deadline| **deadline < now).count()
    }
}
