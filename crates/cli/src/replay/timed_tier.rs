//! A tier that measures the tier inside it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use kvtier::Tier;
use kvtier::core::{
    Ctx, Digest, Done, Error, ErrorKind, Hint, Hold, Key, Load, Loaded, LookedUp, Mode, Observe,
    Op, Presence, Save, Saved, Ticket, delegate_tier,
};

use crate::process_usage::thread_cpu_s;

/// The measurements of one tier.
#[derive(Clone, Debug, Default)]
pub struct TierStats {
    /// Loads that were hits.
    pub hits: u64,
    /// Loads that were not.
    pub misses: u64,
    /// Payload bytes of the hits.
    pub bytes_loaded: u64,
    /// Payload bytes of the saves that stored.
    pub bytes_saved: u64,
    /// How long each batch of loads with a hit took, in ms.
    pub load_ms: Vec<f64>,
    /// CPU seconds that callers spent in the tier's calls; its own threads not counted.
    pub calls_cpu_s: f64,
    /// Loads and saves that ended with an error.
    pub errors: u64,
    /// The last of them.
    pub last_error: Option<String>,
    /// The first that no retry can help: no space, no permission.
    pub fatal: Option<String>,
}

impl TierStats {
    fn record_error(&mut self, error: &Error) {
        let causes =
            std::iter::successors(std::error::Error::source(error), |cause| cause.source());
        let text = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
        self.errors += 1;
        if matches!(error.kind(), ErrorKind::Full | ErrorKind::Denied) {
            self.fatal.get_or_insert_with(|| text.clone());
        }
        self.last_error = Some(text);
    }
}

/// Times batches of loads and counts what came of them. Saves are counted when the batch is
/// answered.
#[derive(Debug)]
pub struct Timed {
    inner: Arc<dyn Tier>,
    measured: Arc<Mutex<TierStats>>,
}

impl Timed {
    /// Wraps a tier; [`take`] reads the second part.
    pub fn wrap(inner: Arc<dyn Tier>) -> (Self, Arc<Mutex<TierStats>>) {
        let measured = Arc::<Mutex<TierStats>>::default();
        (Timed { inner, measured: Arc::clone(&measured) }, measured)
    }

    /// Makes a call, and counts what it costs the caller.
    fn call<T>(&self, call: impl FnOnce(&dyn Tier) -> T) -> T {
        // CPU time of this thread: it does not count waiting, and not the tier's own threads.
        let before = thread_cpu_s();
        let answer = call(&*self.inner);
        self.measured.lock().unwrap_or_else(PoisonError::into_inner).calls_cpu_s +=
            thread_cpu_s() - before;
        answer
    }
}

/// The first error of any tier that no retry can help.
pub fn fatal(all: &[Arc<Mutex<TierStats>>]) -> Option<String> {
    all.iter().find_map(|m| m.lock().unwrap_or_else(PoisonError::into_inner).fatal.clone())
}

/// A copy of what was measured.
pub fn take(measured: &Mutex<TierStats>) -> TierStats {
    measured.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl Tier for Timed {
    delegate_tier!(inner: caps remove release release_keys ready peek spill_to atomic_set_of);
    delegate_tier!(inner: set_quota close);

    fn lookup(
        &self,
        ctx: &Ctx,
        keys: Arc<[Key]>,
        mode: Mode,
        hold: Hold,
    ) -> Ticket<Result<LookedUp, Error>> {
        self.call(|tier| tier.lookup(ctx, keys, mode, hold))
    }

    fn lookup_in_memory(&self, keys: &[Key]) -> Vec<Presence> {
        self.call(|tier| tier.lookup_in_memory(keys))
    }

    fn touch(&self, keys: &[Digest], hint: &Hint) {
        self.call(|tier| tier.touch(keys, hint));
    }

    fn load(&self, ctx: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
        let began = Instant::now();
        let measured = Arc::clone(&self.measured);
        self.call(|tier| tier.load(ctx, ops)).inspect(move |answers: &Vec<Done<Load, Loaded>>| {
            let mut m = measured.lock().unwrap_or_else(PoisonError::into_inner);
            let before = m.hits;
            for done in answers {
                match &done.result {
                    Ok(Loaded::Hit { len }) => {
                        m.hits += 1;
                        m.bytes_loaded += len;
                    }
                    // Not counted: the caller asks again, and that answer counts.
                    Ok(Loaded::Throttled) => {}
                    Ok(_) => m.misses += 1,
                    Err(e) => m.record_error(e),
                }
            }
            // A batch of misses returns at once and would only lower the latencies.
            if m.hits > before {
                m.load_ms.push(began.elapsed().as_secs_f64() * 1e3);
            }
        })
    }

    fn save(&self, ctx: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>> {
        let measured = Arc::clone(&self.measured);
        self.call(|tier| tier.save(ctx, ops)).inspect(move |answers: &Vec<Done<Save, Saved>>| {
            let stored = answers.iter().filter(|d| matches!(d.result, Ok(Saved::Stored)));
            let bytes = stored.map(|d| d.op.bytes()).sum::<u64>();
            let mut m = measured.lock().unwrap_or_else(PoisonError::into_inner);
            m.bytes_saved += bytes;
            answers.iter().filter_map(|d| d.result.as_ref().err()).for_each(|e| m.record_error(e));
        })
    }
}

impl Observe for Timed {
    delegate_tier!(inner: usage keys listen status);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_else_is_the_tiers_own() {
        kvtier_testkit::passes_everything_on(|inner| Arc::new(Timed::wrap(inner).0));
    }

    #[test]
    fn the_last_error_has_all_its_causes() {
        let refused = Error::new(ErrorKind::Io, "the store cannot be reached")
            .with_source("connection refused");
        let mut measured = TierStats::default();
        measured
            .record_error(&Error::new(ErrorKind::Io, "the request failed").with_source(refused));
        let last = measured.last_error.expect("an error was recorded");
        assert_eq!(last, "the request failed: the store cannot be reached: connection refused");
    }
}
