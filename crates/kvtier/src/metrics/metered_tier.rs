//! A decorator that measures how long the batches of a tier take.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvtier_core::{
    Ctx, Done, Error, Hold, Key, Load, Loaded, LookedUp, Mode, Observe, Presence, Removed, Save,
    Saved, Status, Ticket, Tier, delegate_tier,
};

/// The upper ends of the buckets: powers of four from 16 µs to 17 s.
const BUCKET_ENDS: [Duration; 11] = {
    let mut ends = [Duration::from_micros(16); 11];
    let mut at = 1;
    while at < ends.len() {
        ends[at] = Duration::from_micros(16 << (2 * at));
        at += 1;
    }
    ends
};

/// A histogram of the latency of one op.
#[derive(Debug, Default)]
pub struct LatencyHistogram {
    /// One for each bucket, and one for longer batches.
    counts: [AtomicU64; BUCKET_ENDS.len() + 1],
    sum_us: AtomicU64,
}

/// The latency of a tier's batches, from the call to the answer, and the hits of its lookups.
#[derive(Debug, Default)]
pub struct Meter {
    lookup: LatencyHistogram,
    load: LatencyHistogram,
    save: LatencyHistogram,
    remove: LatencyHistogram,
    lookup_keys: AtomicU64,
    lookup_hits: AtomicU64,
}

/// Measures a tier, and passes every call on.
#[derive(Debug)]
pub struct Metered {
    inner: Arc<dyn Tier>,
    meter: Arc<Meter>,
}

impl Metered {
    /// Wraps a tier; the second part holds the measurements.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use kvtier::metrics::Metered;
    /// use kvtier::{Blocking, HostConfig, HostTier, Key, Namespace};
    ///
    /// let (tier, meter) = Metered::wrap(Arc::new(HostTier::open(HostConfig::new(1 << 20))?));
    /// tier.save_bytes(&Key::from_name(&Namespace::from_name("model"), "a"), vec![1; 4096])?;
    /// let saves = meter.ops().into_iter().find(|(op, _)| *op == "save").unwrap().1;
    /// assert_eq!(saves.count(), 1);
    /// # Ok::<(), kvtier::core::Error>(())
    /// ```
    pub fn wrap(inner: Arc<dyn Tier>) -> (Arc<dyn Tier>, Arc<Meter>) {
        let meter = Arc::<Meter>::default();
        (Arc::new(Metered { inner, meter: Arc::clone(&meter) }), meter)
    }

    fn timed<T: 'static>(
        &self,
        times: fn(&Meter) -> &LatencyHistogram,
        ask: impl FnOnce(&dyn Tier) -> Ticket<T>,
    ) -> Ticket<T> {
        let began = Instant::now();
        let meter = Arc::clone(&self.meter);
        ask(&*self.inner).inspect(move |_| times(&meter).add(began.elapsed()))
    }
}

impl LatencyHistogram {
    fn add(&self, took: Duration) {
        // Relaxed: the counters order nothing. A scrape may see a count without its sum, which
        // differs by one batch at most.
        let bucket = BUCKET_ENDS.iter().position(|end| took <= *end).unwrap_or(BUCKET_ENDS.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }

    /// The number of batches.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// The sum of their latencies.
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_us.load(Ordering::Relaxed))
    }

    /// A Prometheus histogram; `labels` without braces.
    fn expose(&self, name: &str, labels: &str, out: &mut String) {
        let mut below = 0;
        for (count, end) in self.counts.iter().zip(BUCKET_ENDS.iter().map(Some).chain([None])) {
            // Buckets of Prometheus are cumulative: each counts all that were at most this long.
            below += count.load(Ordering::Relaxed);
            let end = end.map_or_else(|| "+Inf".to_owned(), |end| end.as_secs_f64().to_string());
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{end}\"}} {below}");
        }
        let _ = writeln!(
            out,
            "{name}_sum{{{labels}}} {}\n{name}_count{{{labels}}} {below}",
            self.sum().as_secs_f64()
        );
    }
}

impl Meter {
    /// The histograms by op.
    pub fn ops(&self) -> [(&'static str, &LatencyHistogram); 4] {
        [
            ("lookup", &self.lookup),
            ("load", &self.load),
            ("save", &self.save),
            ("remove", &self.remove),
        ]
    }

    /// Counts a lookup's keys. Unknown keys, such as those behind the end of a prefix, were not
    /// answered.
    fn looked_up(&self, found: &[Presence]) {
        let hits = found.iter().filter(|one| one.is_hit()).count() as u64;
        let misses = found.iter().filter(|one| **one == Presence::Miss).count() as u64;
        self.lookup_keys.fetch_add(hits + misses, Ordering::Relaxed);
        self.lookup_hits.fetch_add(hits, Ordering::Relaxed);
    }

    /// The counters of lookups by name: answered keys and hits.
    pub fn lookups(&self) -> [(&'static str, u64); 2] {
        let [keys, hits] =
            [&self.lookup_keys, &self.lookup_hits].map(|count| count.load(Ordering::Relaxed));
        [("lookup_keys", keys), ("lookup_hits", hits)]
    }

    pub(super) fn expose(&self, name: &str, labels: &str, out: &mut String) {
        for (verb, times) in self.ops() {
            times.expose(name, &format!("{labels},op=\"{verb}\""), out);
        }
    }
}

impl Tier for Metered {
    delegate_tier!(inner: caps touch release release_keys ready peek spill_to atomic_set_of);
    delegate_tier!(inner: set_quota close);

    fn lookup(
        &self,
        ctx: &Ctx,
        keys: Arc<[Key]>,
        mode: Mode,
        hold: Hold,
    ) -> Ticket<Result<LookedUp, Error>> {
        let meter = Arc::clone(&self.meter);
        let ticket = self.timed(|meter| &meter.lookup, |tier| tier.lookup(ctx, keys, mode, hold));
        ticket
            .inspect(move |answer| answer.iter().for_each(|answer| meter.looked_up(&answer.found)))
    }

    fn lookup_in_memory(&self, keys: &[Key]) -> Vec<Presence> {
        let found = self.inner.lookup_in_memory(keys);
        self.meter.looked_up(&found);
        found
    }

    fn load(&self, ctx: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
        self.timed(|meter| &meter.load, |tier| tier.load(ctx, ops))
    }

    fn save(&self, ctx: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>> {
        self.timed(|meter| &meter.save, |tier| tier.save(ctx, ops))
    }

    fn remove(&self, ctx: &Ctx, keys: Arc<[Key]>) -> Ticket<Result<Removed, Error>> {
        self.timed(|meter| &meter.remove, |tier| tier.remove(ctx, keys))
    }
}

impl Observe for Metered {
    delegate_tier!(inner: usage keys listen);

    /// Adds the counters of lookups.
    fn status(&self) -> Status {
        let mut status = self.inner.status();
        status.counters.extend(self.meter.lookups());
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_passed_on() {
        kvtier_testkit::passes_everything_on(|inner| Metered::wrap(inner).0);
    }

    #[test]
    fn lookups_count_the_keys_that_were_answered() {
        let meter = Meter::default();
        meter.looked_up(&[
            Presence::Hit { len: 1 },
            Presence::Miss,
            Presence::Unknown,
            Presence::Unknown,
        ]);
        meter.looked_up(&[Presence::Hit { len: 1 }]);
        assert_eq!(meter.lookups(), [("lookup_keys", 3), ("lookup_hits", 2)]);
    }

    #[test]
    fn buckets_add_up() {
        let times = LatencyHistogram::default();
        [5, 16, 17, 1 << 40].into_iter().for_each(|us| times.add(Duration::from_micros(us)));
        let mut out = String::new();
        times.expose("x", "tier=\"t\"", &mut out);
        let of = |end: &str| {
            let line = out.lines().find(|line| line.contains(&format!("le=\"{end}\""))).unwrap();
            line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()
        };
        assert_eq!(
            (of("0.000016"), of("0.000064"), of("+Inf"), times.count()),
            (2, 3, 4, 4),
            "{out}"
        );
    }
}
