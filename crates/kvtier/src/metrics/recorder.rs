//! For programs that use the `metrics` facade.

use super::{MonitoredTier, samples};

/// Gives the tiers' numbers, as they are now, to the recorder that the program installed. Call it
/// as often as they are to be fresh: every few seconds, say. Histograms are not among them.
pub fn record(tiers: &[MonitoredTier]) {
    for sample in samples(tiers) {
        let labels: Vec<_> = sample
            .labels
            .into_iter()
            .map(|(name, value)| ::metrics::Label::new(name, value))
            .collect();
        match sample.is_counter {
            // Counters there are whole: dollars are given in millionths.
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
