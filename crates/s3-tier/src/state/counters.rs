//! What the tier counts.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($name:ident),* $(,)?) => {
        /// What the tier counts; every field only grows.
        #[derive(Debug, Default)]
        pub struct Counters { $(pub $name: AtomicU64,)* }

        impl Counters {
            /// All counters by name, in a fixed order.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters!(
    hits,
    misses_absent,
    misses_corrupt,
    misses_length,
    misses_unverified,
    misses_codec,
    misses_key,
    misses_too_large,
    loaded_bytes,
    unverified,
    stored,
    present,
    shed,
    saved_bytes,
    evicted,
    delete_requests,
    delete_failures,
    corrupt_objects,
    deleted_externally,
    added_externally,
    listed,
    listed_lookups,
    sweeps,
    restored,
    journaled,
    merged,
    snapshots,
    uploads_aborted,
    heads,
    loads_in_ranges,
    saves_in_parts,
    conditional_puts,
    copied_bounce_bytes,
    summed_save_bytes,
    encoded_chunks,
    encoded_raw_bytes,
    encoded_stored_bytes,
    encode_refused_chunks,
    decoded_chunks,
    decoded_arriving_bytes,
    copied_encoded_bytes,
    errors,
);

/// Adds to a counter.
pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_grows_by_what_is_added() {
        let counters = Counters::default();
        [2, 3].iter().for_each(|n| add(&counters.hits, *n));
        let all = counters.all();
        assert!(all.contains(&("hits", 5)) && all.iter().map(|(_, n)| n).sum::<u64>() == 5);
    }
}
