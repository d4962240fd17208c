//! Exports metrics through the `metrics` facade.

use super::{MonitoredTier, samples};

/// Passes the current values of the tiers to the recorder that the program installed. Call it
/// periodically, for instance every few seconds. Histograms are not included.
pub fn record(tiers: &[MonitoredTier]) {
    for sample in samples(tiers) {
        let labels: Vec<_> = sample
            .labels
            .into_iter()
            .map(|(name, value)| ::metrics::Label::new(name, value))
            .collect();
        match sample.is_counter {
            // Counters of the facade are integers: dollars are recorded in millionths.
            true if sample.name.ends_with("_dollars_total") => {
                let name = sample.name.replace("_dollars_", "_microdollars_");
                ::metrics::counter!(name, labels).absolute((sample.value * 1e6) as u64);
            }
            true if sample.name.ends_with("_seconds_total") => {
                let name = sample.name.replace("_seconds_", "_microseconds_");
                ::metrics::counter!(name, labels).absolute((sample.value * 1e6) as u64);
            }
            true => ::metrics::counter!(sample.name, labels).absolute(sample.value as u64),
            false => ::metrics::gauge!(sample.name, labels).set(sample.value),
        }
    }
}
