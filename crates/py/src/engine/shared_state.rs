//! The state that the class shares with its jobs, and that of a request.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier::core::{Digest, Hint, Tier};

use super::chunk_events::EventLog;
use super::jobs::{ChainEnds, JobEnd};
use super::keys::{EngineKey, KeySpace, Tenant};
use super::load_counts::LoadCounts;
use super::lookups::Lookups;
use super::registered_memory::RegisteredMemory;
use crate::borrow::BatchBorrow;

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
    pub registered: Arc<RegisteredMemory>,
    pub lookups: Lookups,
    pub events: Option<Arc<EventLog>>,
    /// The deadlines of the loads in flight, by job.
    pub loads: HashMap<u64, Instant>,
    /// The memory of the saves in flight, by job.
    pub saves: HashMap<u64, BatchBorrow>,
    /// The memory of jobs that ended for the engine before a medium returned it.
    pub late_memory: Vec<BatchBorrow>,
    /// The number of the last call of an engine that waits for its jobs.
    last_job: u64,
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
    /// The number of the next call of an engine that waits for its jobs.
    pub fn next_job(&mut self) -> u64 {
        self.last_job += 1;
        self.last_job
    }

    /// Records what a job that ended shows. Chunks that failed may be tried again after
    /// `retry_failed`; without it only when they were stored.
    pub fn record_end(&mut self, tier: &dyn Tier, end: &JobEnd, retry_failed: Option<Duration>) {
        let Outcome { failed, stored } = Outcome::new(end);
        let until = retry_failed.and_then(|after| Instant::now().checked_add(after));
        self.lookups.mark_failed(failed, until);
        self.lookups.mark_stored(stored);
        self.load_counts.add(&end.loads);
        for key in &end.present {
            let found = || tier.lookup_in_memory(std::slice::from_ref(key));
            let is_there = || found().first().is_some_and(|found| found.is_hit());
            self.events.iter().for_each(|events| events.present(key.digest(), is_there));
        }
        self.loads.remove(&end.job);
        // The job has ended for the engine, but the kernel may still read its rows: `drain`, after
        // which the engine may unmap them, waits for these too.
        self.late_memory.extend(self.saves.remove(&end.job));
        self.forget_returned();
    }

    /// Forgets memory that was returned.
    // It needs no waker: this runs whenever jobs end, and while a drain waits.
    pub fn forget_returned(&mut self) {
        self.late_memory.retain(|borrow| !borrow.is_returned());
    }
}

/// What the end of a job says about its chunks.
struct Outcome {
    /// The chunks that must be misses from now on.
    failed: Vec<Digest>,
    stored: Vec<Digest>,
}

impl Outcome {
    fn new(end: &JobEnd) -> Self {
        let at = |places: &mut dyn Iterator<Item = usize>| -> Vec<Digest> {
            places.filter_map(|at| end.digests.get(at).copied().flatten()).collect()
        };
        let done = &mut (0..end.done.len()).filter(|at| end.done[*at]);
        // A save that the tier declined is no failure: the chunk is absent, and a lookup says so.
        if !end.is_load {
            return Outcome { failed: at(&mut end.failed_saves.iter().copied()), stored: at(done) };
        }
        let missed = &mut (0..end.done.len()).filter(|at| !end.done[*at]);
        Outcome { failed: at(missed), stored: Vec::new() }
    }
}
