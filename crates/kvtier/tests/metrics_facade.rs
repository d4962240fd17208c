//! The tiers' numbers reach whatever recorder a program gave the `metrics` facade, all of them,
//! whole and once.
#![allow(clippy::unwrap_used)]
#![cfg(all(feature = "metrics", feature = "config", feature = "file"))]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use kvtier::metrics::{MonitoredTier, record, samples};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString,
    Unit, with_local_recorder,
};

/// What was recorded: name and labels, as in Prometheus.
type Book = Arc<Mutex<BTreeMap<String, f64>>>;

#[derive(Default)]
struct Writer {
    counters: Book,
    gauges: Book,
}

/// One line of a book.
struct Line(String, Book);

impl Line {
    fn change(&self, change: impl FnOnce(f64) -> f64) {
        let mut book = self.1.lock().unwrap();
        let value = book.entry(self.0.clone()).or_default();
        *value = change(*value);
    }
}

impl CounterFn for Line {
    fn increment(&self, by: u64) {
        self.change(|old| old + by as f64);
    }

    fn absolute(&self, value: u64) {
        self.change(|old| old.max(value as f64));
    }
}

impl GaugeFn for Line {
    fn increment(&self, by: f64) {
        self.change(|old| old + by);
    }

    fn decrement(&self, by: f64) {
        self.change(|old| old - by);
    }

    fn set(&self, value: f64) {
        self.change(|_| value);
    }
}

fn line(name: &str, labels: impl Iterator<Item = (String, String)>) -> String {
    let labels: Vec<String> = labels.map(|(name, value)| format!("{name}={value}")).collect();
    format!("{name}{{{}}}", labels.join(","))
}

fn line_of(key: &Key) -> String {
    line(key.name(), key.labels().map(|label| (label.key().to_owned(), label.value().to_owned())))
}

impl Recorder for Writer {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::new(Line(line_of(key), Arc::clone(&self.counters))))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::new(Line(line_of(key), Arc::clone(&self.gauges))))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        panic!("{}: histograms are not given", key.name())
    }
}

/// What a recorder holds after it received the counts of these tiers.
fn recorded(
    writer: &Writer,
    shown: &[MonitoredTier],
) -> (BTreeMap<String, f64>, BTreeMap<String, f64>) {
    with_local_recorder(writer, || record(shown));
    (writer.counters.lock().unwrap().clone(), writer.gauges.lock().unwrap().clone())
}

#[test]
fn every_number_is_recorded_under_its_name_and_labels() {
    let dir = tempfile::tempdir().unwrap();
    let json = format!(
        r#"{{"tiers":[{{"type":"host","bytes":"1MiB"}},{{"type":"file","path":{:?},"bytes":"8MiB"}}]}}"#,
        dir.path()
    );
    let opened = kvtier::config::Config::from_json(&json, "x.json").unwrap().open().unwrap();
    let arena = common::arena();
    let writer = Writer::default();
    (0..20).for_each(|n| _ = common::save(&*opened.top, &arena, n, 100_000));
    (0..20).for_each(|n| {
        assert_eq!(common::load(&*opened.top, &arena, n, 100_000), common::hit(100_000))
    });
    assert_eq!(common::load(&*opened.top, &arena, 99, 100_000), common::ABSENT);
    let (counters, gauges) = recorded(&writer, opened.monitored());
    let of = |name: &str| counters.get(name).or_else(|| gauges.get(name)).copied();
    assert_eq!(of("kvtier_hits_total{tier=stack}"), Some(20.0));
    assert_eq!(of("kvtier_misses_total{tier=file,reason=absent}"), Some(1.0));
    assert_eq!(of("kvtier_stored_total{tier=file}"), Some(20.0));
    assert_eq!(gauges.get("kvtier_healthy{tier=host}"), Some(&1.0));
    assert_eq!(gauges.get("kvtier_capacity_bytes{tier=host}"), Some(&1_048_576.0));
    // Each sample is there; what is no whole number goes in millionths, under a name that says so.
    for sample in samples(opened.monitored()) {
        let (name, value) = match sample.name.strip_suffix("_seconds_total") {
            Some(name) => (format!("{name}_microseconds_total"), None),
            None => (sample.name.clone(), Some(sample.value)),
        };
        let name = line(
            &name,
            sample.labels.iter().map(|(name, value)| ((*name).to_owned(), value.clone())),
        );
        let book = if sample.is_counter { &counters } else { &gauges };
        let recorded = book.get(&name);
        // Time goes on between the two looks.
        assert!(
            recorded.is_some() && value.is_none_or(|value| recorded == Some(&value)),
            "{name}: {recorded:?}, not {value:?}"
        );
    }
    assert!(counters.keys().all(|name| !name.contains("_seconds_total")), "{counters:?}");

    // Counters are reported whole each time, and do not add up.
    (0..5).for_each(|n| {
        assert_eq!(common::load(&*opened.top, &arena, n, 100_000), common::hit(100_000))
    });
    let (counters, _) = recorded(&writer, opened.monitored());
    assert_eq!(counters["kvtier_hits_total{tier=stack}"], 25.0);
    assert_eq!(recorded(&writer, opened.monitored()).0["kvtier_hits_total{tier=stack}"], 25.0);
}

/// A tier that counts what a bucket charges for: its dollars go in millionths.
#[cfg(feature = "s3")]
#[test]
fn dollars_are_recorded_in_millionths() {
    use kvtier::metrics::Prices;
    use kvtier::s3::{BucketAddress, Config, Credentials};
    use kvtier::s3_tier::{S3Tier, TierConfig};
    let server = kvtier_testkit::s3::Server::start(Default::default()).unwrap();
    let endpoint =
        BucketAddress::new(server.url()).bucket("bucket").region("us-east-1").resolve().unwrap();
    let client = Config::new(endpoint, Credentials::new("AKIDTEST", "secret/test+key"));
    let tier: Arc<dyn kvtier::Tier> = Arc::new(S3Tier::open(TierConfig::new(client)).unwrap());
    let arena = common::arena();
    assert_eq!(common::save(&*tier, &arena, 1, 100_000), kvtier::core::Saved::Stored);
    let shown = [MonitoredTier::new(tier).with_prices(Prices::new().with_traffic(0.0, 1000.0))];
    let (counters, _) = recorded(&Writer::default(), &shown);
    // A tenth of a megabyte at a thousand dollars a GB.
    assert_eq!(counters["kvtier_cost_microdollars_total{tier=s3}"], 100_000.0);
    assert!(
        counters
            .keys()
            .all(|name| !name.contains("dollars_total") || name.contains("microdollars"))
    );
}
