//! Work on many chunks: concurrency, bandwidth limit and progress.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::BadInput;
use crate::progress::{Progress, ProgressUnit};

/// The most chunks that are worked on at once.
const CONCURRENCY_MAX: usize = 1024;
/// How often a wait checks for a signal.
const LOOK: Duration = Duration::from_millis(50);

/// Concurrency and bandwidth limit.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct ThroughputArgs {
    /// Chunks at once, 1 to 1024 (default: 8 with a bucket, else 1). In `rm` on a bucket requests
    /// at once, for up to 1,000 chunks each (default: 1).
    #[arg(long, value_name = "N")]
    concurrency: Option<usize>,
    /// The most bytes of chunks a second, such as 200MiB.
    #[arg(long, value_name = "SIZE")]
    bwlimit: Option<String>,
    /// Print progress on standard error also where that is no terminal: a line every 10 seconds
    /// and one at the end.
    #[arg(long)]
    pub progress: bool,
}

/// The same, checked.
#[derive(Debug)]
pub struct Pace {
    workers: usize,
    bytes_per_s: Option<u64>,
    progress: bool,
    /// When the next chunk may begin.
    next: Mutex<Instant>,
}

impl ThroughputArgs {
    /// Chunks at once; `default` where nothing was said.
    pub fn workers(&self, default: usize) -> Result<usize, BadInput> {
        let workers = self.concurrency.unwrap_or(default);
        if (1..=CONCURRENCY_MAX).contains(&workers) {
            return Ok(workers);
        }
        Err(BadInput(format!(
            "--concurrency {workers} is out of range; set it to 1 to {CONCURRENCY_MAX}"
        )))
    }

    /// Checks the arguments. `default`: how many chunks at once without them.
    pub fn checked(&self, default: usize) -> Result<Pace, BadInput> {
        let bytes_per_s = self
            .bwlimit
            .as_deref()
            .map(|text| crate::replay::size("--bwlimit", text))
            .transpose()?;
        if bytes_per_s == Some(0) {
            return Err(BadInput(
                "--bwlimit 0 moves nothing; set it above 0, or leave it out".into(),
            ));
        }
        let workers = self.workers(default)?;
        Ok(Pace { workers, bytes_per_s, progress: self.progress, next: Mutex::new(Instant::now()) })
    }
}

impl Pace {
    /// The most bytes a second, where there is a limit.
    pub fn bytes_per_s(&self) -> Option<u64> {
        self.bytes_per_s
    }

    /// Does `work` for each item, several at once, and shows how many bytes are done. It ends with
    /// the first error, or a signal.
    pub fn each<T: Sync>(
        &self,
        items: &[T],
        bytes: impl Fn(&T) -> u64 + Sync,
        work: impl Fn(&T) -> Result<()> + Sync,
    ) -> Result<()> {
        let progress =
            Progress::start(ProgressUnit::Bytes, items.iter().map(&bytes).sum(), self.progress)?;
        let next = AtomicUsize::new(0);
        let failed = Mutex::new(None);
        let one = |item: &T| {
            // Between items: what was begun is finished, so no half chunk is left.
            crate::interrupt::check()?;
            self.wait(bytes(item))?;
            work(item)
        };
        let run = || {
            while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(e) = one(item) {
                    // The others end with what they have.
                    next.store(items.len(), Ordering::Relaxed);
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                    return;
                }
                progress.add(bytes(item));
            }
        };
        std::thread::scope(|scope| {
            (0..self.workers.min(items.len())).for_each(|_| drop(scope.spawn(run)))
        });
        progress.finish();
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Waits until these bytes may go. The bytes after them wait for as long as these take at the
    /// limit.
    fn wait(&self, bytes: u64) -> Result<()> {
        let Some(rate) = self.bytes_per_s else { return Ok(()) };
        let begin = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            // Each item reserves its time behind the one before, so all workers together keep the
            // rate. Time that was not used is not saved up.
            let begin = (*next).max(Instant::now());
            *next = begin + Duration::from_secs_f64(bytes as f64 / rate as f64);
            begin
        };
        while let Some(left) =
            begin.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
        {
            crate::interrupt::check()?;
            // In short pieces: a large item at a low rate may wait for minutes, and an interrupt
            // must end it.
            std::thread::sleep(left.min(LOOK));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    fn pace(args: ThroughputArgs) -> Pace {
        args.checked(4).unwrap()
    }

    #[test]
    fn every_item_is_worked_on_once_and_the_first_error_ends_it() {
        let items: Vec<u64> = (1..=100).collect();
        let sum = AtomicU64::new(0);
        let add = |n: &u64| {
            sum.fetch_add(*n, Ordering::Relaxed);
            Ok(())
        };
        pace(ThroughputArgs::default()).each(&items, |n| *n, add).unwrap();
        assert_eq!(sum.load(Ordering::Relaxed), 5050);
        let one = ThroughputArgs { concurrency: Some(1), ..ThroughputArgs::default() };
        let done = AtomicU64::new(0);
        let fails = |n: &u64| {
            done.fetch_add(1, Ordering::Relaxed);
            if *n == 3 { Err(anyhow::anyhow!("three")) } else { Ok(()) }
        };
        assert_eq!(pace(one).each(&items, |n| *n, fails).unwrap_err().to_string(), "three");
        assert_eq!(done.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_limit_holds_for_all_workers_together() {
        let limited = ThroughputArgs { bwlimit: Some("10MB".into()), ..ThroughputArgs::default() };
        let began = Instant::now();
        pace(limited).each(&[1_000_000_u64; 6], |n| *n, |_| Ok(())).unwrap();
        // The last begins after the five before it have had their time.
        assert!(began.elapsed() >= Duration::from_millis(500), "{:?}", began.elapsed());
    }

    #[test]
    fn what_is_out_of_range_is_refused() {
        let says = |args: ThroughputArgs| args.checked(1).unwrap_err().0;
        assert!(
            says(ThroughputArgs { concurrency: Some(0), ..ThroughputArgs::default() })
                .contains("1 to 1024")
        );
        assert!(
            says(ThroughputArgs { concurrency: Some(1025), ..ThroughputArgs::default() })
                .contains("1 to 1024")
        );
        assert!(
            says(ThroughputArgs { bwlimit: Some("0".into()), ..ThroughputArgs::default() })
                .contains("above 0")
        );
        assert!(
            says(ThroughputArgs { bwlimit: Some("fast".into()), ..ThroughputArgs::default() })
                .contains("no size")
        );
    }
}
