//! The timers of a process: on a thread of their own, or among what a simulated process runs later.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::{Clock, Timekeeper};

impl Timekeeper {
    /// Like [`start_on`](Timekeeper::start_on); in a simulated process of `kvtier-os`, which has no
    /// threads, among what it runs later.
    ///
    /// # Errors
    ///
    /// The system's error where it cannot start a thread.
    pub fn of_process(clock: Clock, name: &str) -> io::Result<Arc<Self>> {
        if !kvtier_os::is_simulated() {
            return Timekeeper::start_on(clock, name).map(Arc::new);
        }
        let wakes = Arc::<AtomicU64>::default();
        Ok(Arc::new_cyclic(|timers: &Weak<Timekeeper>| {
            let timers = timers.clone();
            Timekeeper::without_thread(clock, move || {
                let latest = wakes.fetch_add(1, Ordering::Relaxed) + 1;
                let wakes = Arc::clone(&wakes);
                Rounds { timers: timers.clone(), wakes, latest }.run_after(Duration::ZERO);
            })
        }))
    }
}

/// Carries out what is due, until the next wake-up begins rounds of its own.
struct Rounds {
    timers: Weak<Timekeeper>,
    wakes: Arc<AtomicU64>,
    latest: u64,
}

impl Rounds {
    fn run_after(self, after: Duration) {
        kvtier_os::later(after, move || {
            let Some(timers) = self.timers.upgrade() else { return };
            if self.wakes.load(Ordering::Relaxed) != self.latest {
                return;
            }
            if let Some(next) = timers.carry_out_due() {
                self.run_after(next.saturating_duration_since(timers.clock().now()));
            }
        });
    }
}
