//! A simulated machine with one process: its name, its wall clock, whether the network reaches it, and
//! whether the process is stopped. A restarted node is a new host.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use crate::open_requests::OpenRequests;
use crate::wall_clock::WallClock;
use crate::world::World;

/// A process on its machine.
#[derive(Debug)]
pub struct Host {
    pub world: Arc<World>,
    name: String,
    clock: Arc<Mutex<WallClock>>,
    /// How much faster than the store's its monotonic clock goes, in millionths.
    monotonic_ppm: AtomicI64,
    is_partitioned: AtomicBool,
    is_killed: AtomicBool,
    pub requests: OpenRequests,
    /// When it was last seen to evict.
    evicted: Mutex<Option<Duration>>,
    process: Mutex<Process>,
}

/// Whether the process may run.
#[derive(Debug, Default)]
struct Process {
    is_stopped: bool,
    /// When it last went on.
    went_on: Duration,
    /// What waits for it to go on, in that order.
    waiting: Vec<Waker>,
}

impl Host {
    /// A machine with a clock of its own.
    pub fn new(world: &Arc<World>, name: String, ahead_ms: i64) -> Arc<Self> {
        let mut clock = WallClock::default();
        clock.jump(world.elapsed(), ahead_ms);
        Host::with_clock(world, name, Arc::new(Mutex::new(clock)))
    }

    /// The machine that the world's clock is of.
    pub fn of_world(world: &Arc<World>, name: String) -> Arc<Self> {
        Host::with_clock(world, name, Arc::clone(world.clock()))
    }

    fn with_clock(world: &Arc<World>, name: String, clock: Arc<Mutex<WallClock>>) -> Arc<Self> {
        let world = Arc::clone(world);
        let (monotonic_ppm, is_partitioned, is_killed, requests) = Default::default();
        let (evicted, process) = Default::default();
        Arc::new(Host {
            world,
            name,
            clock,
            monotonic_ppm,
            is_partitioned,
            is_killed,
            requests,
            evicted,
            process,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn set_partitioned(&self, partitioned: bool) {
        self.is_partitioned.store(partitioned, Ordering::Relaxed);
    }

    /// Its wall clock jumps.
    pub fn set_clock(&self, ahead_ms: i64) {
        self.clock().jump(self.world.elapsed(), ahead_ms);
    }

    /// Its monotonic clock is faster by so much, or slower. Timers go by the store's all the same.
    pub fn set_monotonic_drift(&self, ppm: i64) {
        self.monotonic_ppm.store(ppm, Ordering::Relaxed);
    }

    /// What its monotonic clock counts while `passed` goes by.
    pub fn monotonic(&self, passed: Duration) -> Duration {
        let ppm = self.monotonic_ppm.load(Ordering::Relaxed);
        let nanos = passed.as_nanos() as i128;
        Duration::from_nanos((nanos + nanos * i128::from(ppm) / 1_000_000) as u64)
    }

    /// From now on its wall clock is faster by so much, or slower.
    pub fn set_drift(&self, drift_ppm: i64) {
        self.clock().set_drift(self.world.elapsed(), drift_ppm);
    }

    /// Its tier evicts now.
    pub fn note_evicts(&self, now: Duration) {
        *self.evicted.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// When its tier was last seen to evict.
    pub fn last_evicted(&self) -> Option<Duration> {
        *self.evicted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on no byte leaves or reaches it.
    pub fn kill(&self) {
        self.is_killed.store(true, Ordering::Relaxed);
        self.go_on();
    }

    /// Its process is stopped: nothing of it runs, and its timers are late.
    pub fn stop(&self) {
        self.process().is_stopped = !self.is_killed();
    }

    pub fn is_stopped(&self) -> bool {
        self.process().is_stopped
    }

    /// Its process goes on, if it was stopped.
    pub fn go_on(&self) {
        let waiting = {
            let mut process = self.process();
            if !std::mem::take(&mut process.is_stopped) {
                return;
            }
            process.went_on = self.world.elapsed();
            std::mem::take(&mut process.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Pending while its process is stopped.
    pub fn poll_runs(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut process = self.process();
        if !process.is_stopped {
            return Poll::Ready(());
        }
        if !process.waiting.iter().any(|waiting| waiting.will_wake(cx.waker())) {
            process.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Waits while its process is stopped.
    pub async fn runs(&self) {
        poll_fn(|cx| self.poll_runs(cx)).await;
    }

    /// When its process last went on after a stop.
    pub fn went_on(&self) -> Duration {
        self.process().went_on
    }

    pub fn is_killed(&self) -> bool {
        self.is_killed.load(Ordering::Relaxed)
    }

    /// Whether bytes reach the store and come back.
    pub fn is_connected(&self) -> bool {
        !self.is_killed() && !self.is_partitioned.load(Ordering::Relaxed)
    }

    /// The time of day by its clock.
    pub fn wall(&self) -> SystemTime {
        self.world.time_of_day(*self.clock())
    }

    fn clock(&self) -> MutexGuard<'_, WallClock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
