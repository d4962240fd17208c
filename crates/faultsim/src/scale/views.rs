//! How late followers learn what other nodes did.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvtier_core::{Event, Listener};
use kvtier_key::Digest;

use super::Lag;
use crate::world::World;

/// When chunks were saved and deleted, and when followers learned it.
#[derive(Debug)]
pub struct Views {
    world: Arc<World>,
    is_watching: AtomicBool,
    samples: Mutex<usize>,
    saves: Mutex<Changes>,
    deletes: Mutex<Changes>,
}

#[derive(Debug, Default)]
struct Changes {
    /// The first node that reported it made the change.
    first: HashMap<Digest, Duration>,
    lags: Vec<Duration>,
}

/// What one node reports.
#[derive(Debug)]
pub struct NodeEvents {
    pub views: Arc<Views>,
    pub is_sample: bool,
}

impl Views {
    pub fn new(world: &Arc<World>) -> Arc<Self> {
        Arc::new(Views {
            world: Arc::clone(world),
            is_watching: AtomicBool::new(false),
            samples: Mutex::default(),
            saves: Mutex::default(),
            deletes: Mutex::default(),
        })
    }

    /// From now on changes count.
    pub fn watch(&self) {
        self.is_watching.store(true, Ordering::Relaxed);
    }

    /// The lags of saves and of deletes.
    pub fn lags(&self) -> (Lag, Lag) {
        let samples = *lock(&self.samples);
        (lock(&self.saves).lag(samples), lock(&self.deletes).lag(samples))
    }
}

impl Changes {
    fn note(&mut self, digest: Digest, now: Duration, is_sample: bool) {
        let first = *self.first.entry(digest).or_insert(now);
        if first != now && is_sample {
            self.lags.push(now - first);
        }
    }

    fn lag(&mut self, samples: usize) -> Lag {
        self.lags.sort_unstable();
        let at = |share: f64| {
            let at = (self.lags.len() as f64 * share) as usize;
            self.lags.get(at).map_or(0.0, Duration::as_secs_f64)
        };
        // Of each change one node is no follower.
        let all = (self.first.len() * samples).max(1);
        Lag { median_s: at(0.5), p99_s: at(0.99), learned: self.lags.len() as f64 / all as f64 }
    }
}

impl Listener for NodeEvents {
    fn on_events(&self, events: &[Event]) {
        let views = &self.views;
        if !views.is_watching.load(Ordering::Relaxed) {
            return;
        }
        let now = views.world.elapsed();
        for event in events {
            match event {
                Event::Stored { key, .. } => lock(&views.saves).note(*key, now, self.is_sample),
                Event::Gone { key, .. } => lock(&views.deletes).note(*key, now, self.is_sample),
                _ => {}
            }
        }
    }
}

impl Views {
    /// One more follower is compared.
    pub fn add_sample(&self) {
        *lock(&self.samples) += 1;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
