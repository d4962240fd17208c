//! A clock that stands still when this machine does.
#![allow(dead_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kvtier_core::Loaded;

use super::tier::World;

/// More beats than this a second never has.
pub const BEATS_PER_S: u64 = 200;

const LEN: usize = 10_000;
const PAUSE: Duration = Duration::from_millis(1000 / BEATS_PER_S);

/// Counts loads of a tier over a store without faults, with a pause after each. Where this machine
/// is slow, so are they: what ends within a second on an idle machine ends within [`BEATS_PER_S`] of
/// them on any.
pub struct Pace {
    beats: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Pace {
    pub fn start() -> Self {
        let (beats, is_over) = (Arc::default(), Arc::default());
        let thread = std::thread::spawn({
            let (beats, is_over) = (Arc::clone(&beats), Arc::clone(&is_over));
            move || beat(&beats, &is_over)
        });
        Pace { beats, is_over, thread: Some(thread) }
    }

    /// How many there were so far.
    pub fn beats(&self) -> u64 {
        self.beats.load(Ordering::SeqCst)
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Where a load failed, the test fails.
        let ended = self.thread.take().map_or(Ok(()), JoinHandle::join);
        assert!(ended.is_ok() || std::thread::panicking(), "a tier without faults failed");
    }
}

fn beat(beats: &AtomicU64, is_over: &AtomicBool) {
    let world = World::new();
    let key = world.suite.key(1);
    world.save(&key, LEN);
    while !is_over.load(Ordering::SeqCst) {
        assert_eq!(world.load(&key, LEN), Loaded::Hit { len: LEN as u64 });
        beats.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(PAUSE);
    }
}
