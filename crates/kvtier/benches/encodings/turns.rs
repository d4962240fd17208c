//! Turns of operations: their throughput and CPU time, and the medians of all turns.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// What a turn gave, or the medians of several.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    pub mb_per_s: f64,
    /// CPU seconds of the whole process.
    pub cpu_s_per_gb: f64,
}

/// The turns of two tiers.
pub type Turns = [Vec<Speed>; 2];

/// Lets two tiers take turns that are short against what else the machine does: `work` gets the
/// number of the tier and of its turn. Who begins changes.
pub fn take_turns(count: u64, mut work: impl FnMut(usize, u64) -> Speed) -> Turns {
    let mut turns = Turns::default();
    for turn in 0..count {
        let first = usize::from(turn % 2 == 1);
        for place in [first, 1 - first] {
            turns[place].push(work(place, turn));
        }
    }
    turns
}

/// Runs `work` for each of `count` chunks of `len` bytes, `inflight` at once.
pub fn run(count: u64, inflight: usize, len: usize, work: impl Fn(u64) + Sync) -> Speed {
    let next = AtomicU64::new(0);
    let (began, cpu) = (Instant::now(), cpu_s());
    std::thread::scope(|scope| {
        for _ in 0..inflight {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        return;
                    }
                    work(n);
                }
            });
        }
    });
    let gb = count as f64 * len as f64 / 1e9;
    Speed { mb_per_s: gb * 1e3 / began.elapsed().as_secs_f64(), cpu_s_per_gb: (cpu_s() - cpu) / gb }
}

/// The median of each number.
pub fn median(turns: &[Speed]) -> Speed {
    let of = |number: fn(&Speed) -> f64| {
        let mut all: Vec<f64> = turns.iter().map(number).collect();
        all.sort_unstable_by(f64::total_cmp);
        all[all.len() / 2]
    };
    Speed { mb_per_s: of(|turn| turn.mb_per_s), cpu_s_per_gb: of(|turn| turn.cpu_s_per_gb) }
}

/// CPU time of this process.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap();
    Duration::from(time).as_secs_f64()
}
