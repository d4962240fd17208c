use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What a directory tier counts; every field only grows.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        impl Counters {
            /// All counters by name, in a fixed order.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Loads answered with bytes.
    hits,
    /// Loads of keys that are not stored.
    misses_absent,
    /// Loads of files that failed a check.
    misses_corrupt,
    /// Loads into memory of the wrong size.
    misses_length,
    /// Loads refused because the chunk has no facts and `verify: strict` demands them.
    misses_unverified,
    /// Loads of chunks in an encoding that this build or configuration does not decode, or in clear
    /// where only encrypted ones are taken.
    misses_codec,
    /// Loads of chunks whose encryption key is not loaded.
    misses_key,
    /// Loads of encoded chunks that are larger than the memory for decoding.
    misses_too_large,
    /// Loads that met a chunk without facts, in a foreign layout; refused or not.
    unverified,
    /// Saves whose facts the file system could not keep, in a foreign layout.
    facts_write_failed,
    /// Payload bytes loaded.
    loaded_bytes,
    /// Chunks written and published.
    stored,
    /// Saves of chunks that were stored already.
    present,
    /// Chunks encoded for a save.
    encoded_chunks,
    /// Payload bytes of the chunks that were encoded.
    encoded_raw_bytes,
    /// Bytes that the same chunks have encoded.
    encoded_stored_bytes,
    /// Chunks that no encoding made smaller, and that were saved as they are.
    encode_refused_chunks,
    /// Loaded chunks that were decoded.
    decoded_chunks,
    /// Saves dropped because of a limit.
    shed,
    /// Payload bytes saved.
    saved_bytes,
    /// Chunks evicted for space.
    evicted,
    /// Writes that found the device full below the cap.
    device_full,
    /// Evicted chunks whose files were written over instead of deleted.
    recycled,
    /// Files quarantined because they failed a check, except those that a crash of the machine explains.
    quarantined,
    /// Files quarantined because they failed a check that were written before a crash of the machine.
    torn_by_crash,
    /// Transfers or system calls that failed.
    io_errors,
    /// Copy ledger: bytes of last partial pages that moved through a footer's page pair (at most 4095 a chunk).
    copied_tail_bytes,
    /// Copy ledger: bytes that moved through bounce memory because the caller's was not aligned.
    copied_bounce_bytes,
    /// Copy ledger: bytes of checksum passes made for saves (none when the view has its checksums already).
    summed_save_bytes,
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
