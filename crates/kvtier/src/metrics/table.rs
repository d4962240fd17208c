//! The table of all metrics.

use std::fmt;

/// The unit of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unit {
    /// Operations.
    Ops,
    /// Chunks.
    Chunks,
    /// Bytes.
    Bytes,
    /// Microseconds; seconds in Prometheus.
    Micros,
}

/// Whether a counter's name and meaning may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Stability {
    /// It changes only with a major version.
    Stable,
    /// It may change with any version; the changelog lists it.
    Experimental,
}

/// One counter. Counters start at 0 when the tier opens and only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Metric {
    /// The kind of tier that has it: `host`, `file`, `gds`, `s3` or `stack`.
    pub tier: &'static str,
    /// Its name in [`Status::counters`](kvtier_core::Status).
    pub name: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// Whether it may change.
    pub stability: Stability,
    /// Its meaning.
    pub help: &'static str,
}

macro_rules! metrics {
    ($tier:literal: $($stability:ident $unit:ident $name:ident $help:literal,)*) => {
        &[$(Metric {
            tier: $tier,
            name: stringify!($name),
            unit: Unit::$unit,
            stability: Stability::$stability,
            help: $help,
        }),*]
    };
}

/// Counters from a table: the fields, and the list for [`Status`](kvtier_core::Status) in the order
/// of the table.
macro_rules! counters {
    ($type:ident, $tier:literal: $($stability:ident $unit:ident $name:ident $help:literal,)*) => {
        #[derive(Debug, Default)]
        pub(crate) struct $type {
            $(pub $name: std::sync::atomic::AtomicU64,)*
        }

        impl $type {
            pub const TABLE: &'static [Metric] = metrics!($tier: $($stability $unit $name $help,)*);

            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(std::sync::atomic::Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! { HostCounters, "host":
    Stable Ops hits "loads answered with bytes",
    Stable Ops misses_absent "loads of keys that are not in the tier",
    Stable Ops misses_corrupt "loads whose bytes failed their checksums; the chunk was dropped",
    Stable Ops misses_length "loads into memory that is too small",
    Stable Bytes loaded_bytes "payload of the hits, each byte copied once",
    Stable Chunks stored "chunks stored by a save",
    Stable Ops present "saves of chunks that the tier already had",
    Stable Ops shed "saves not accepted for lack of space",
    Stable Bytes saved_bytes "payload of the chunks stored",
    Stable Chunks evicted "chunks evicted to free space",
    Experimental Chunks spill_dropped "evicted chunks that the tier below did not get, because too many evicted chunks already waited for it",
    Experimental Bytes copied_save_bytes "copy ledger: payload that saves copied into the arena",
    Experimental Bytes shared_save_bytes "copy ledger: payload that was already in the arena and was kept without a copy",
}

counters! { StackCounters, "stack":
    Stable Ops hits "loads that some tier answered with bytes",
    Stable Ops misses "loads of keys that no tier had",
    Stable Ops corrupt "loads for which some tier held bytes that failed their checks",
    Stable Ops coalesced "loads that waited for another load of the same key",
    Stable Chunks promoted "copies of chunks that a faster tier stored after a hit below it",
    Stable Ops tier_errors "ops that ended with an error in one of the tiers",
    Stable Chunks not_admitted "chunks found below that were not offered to a faster tier",
    Stable Chunks written_behind "chunks written to a lower tier after the save was answered, or after the tier above evicted them",
    Stable Chunks writeback_dropped "chunks that were to be written to a lower tier and were not: the write-back queue was full, or the tier did not accept them",
    Stable Ops dirty_full "saves that waited for a lower tier because the write-back queue was full",
    Stable Chunks spilled "evicted chunks passed to the tier below",
    Stable Micros queue_us "time that batches waited for the stack's thread",
    Stable Ops skipped_slow "chunks that a tier has but that would take longer to load than to compute",
}

const FILE: &[Metric] = metrics! { "file":
    Stable Ops hits "loads answered with bytes",
    Stable Ops misses_absent "loads of keys that are not in the tier",
    Stable Ops misses_corrupt "loads of files that failed a check",
    Stable Ops misses_length "loads into memory of the wrong size",
    Stable Ops misses_unverified "loads refused because the chunk has no facts and `verify` is `strict`",
    Stable Ops misses_codec "loads of chunks in an encoding that is not decoded here, or in clear where only encrypted chunks are taken",
    Stable Ops misses_key "loads of chunks whose encryption key is not loaded",
    Stable Ops misses_too_large "loads of encoded chunks that are larger than half of `encode_bytes`, and so not decoded here",
    Stable Ops unverified "loads, refused or not, of a chunk without facts in a foreign layout",
    Stable Chunks facts_write_failed "chunks saved in a foreign layout whose facts the file system could not store",
    Stable Bytes loaded_bytes "payload of the hits",
    Stable Chunks stored "chunks written and published",
    Stable Ops present "saves of chunks that the tier already had",
    Stable Chunks encoded_chunks "chunks encoded when they were saved",
    Stable Bytes encoded_raw_bytes "payload of the encoded chunks",
    Stable Bytes encoded_stored_bytes "the same chunks as stored",
    Stable Chunks encode_refused_chunks "chunks that no encoding made smaller, stored as they are",
    Stable Chunks decoded_chunks "chunks decoded when they were loaded",
    Stable Ops shed "saves not accepted for lack of space",
    Stable Bytes saved_bytes "payload of the chunks stored",
    Stable Chunks evicted "chunks evicted to free space",
    Stable Ops device_full "writes that found the file system full below the cap; chunks were evicted for them",
    Stable Chunks recycled "evicted chunks whose files were overwritten instead of deleted",
    Stable Chunks quarantined "files quarantined because they failed a check, except those counted as `torn_by_crash`",
    Stable Chunks torn_by_crash "files quarantined because they failed a check that were written before a crash of the machine",
    Stable Ops io_errors "transfers or system calls that failed",
    Experimental Bytes copied_tail_bytes "copy ledger: last partial pages, at most 4095 bytes a chunk",
    Experimental Bytes copied_bounce_bytes "copy ledger: payload that went through bounce memory, because the caller's memory was not aligned",
    Experimental Bytes summed_save_bytes "copy ledger: payload read to compute checksums for saves; none where the view already had them",
    Experimental Ops fixed_requests "reads and writes through memory that is registered with io_uring",
    Experimental Ops unfixed_requests "reads and writes through other memory",
    Experimental Bytes registered_bytes "memory registered with io_uring",
    Stable Micros queue_us "time that steps of ops waited for one of the tier's threads",
    Stable Ops throttled "ops rejected because too much was in flight",
    Stable Ops stranded "ops past their deadline whose memory the kernel still used",
};

const GDS: &[Metric] = metrics! { "gds":
    Stable Bytes uploaded_bytes "payload copied into GPU memory from host memory: pinned, or where encoded chunks are decoded",
    Stable Bytes direct_bytes "payload loaded into GPU memory by cuFile",
    Stable Ops direct_failed "reads by cuFile that failed; the bytes went through pinned memory",
    Stable Bytes verified_host_bytes "payload loaded by cuFile and copied back to host memory to verify its checksums",
    Stable Bytes verified_gpu_bytes "payload loaded by cuFile whose checksums the GPU computed",
    Stable Ops unverified_loads "loads by cuFile that were not verified, as `proof` allows",
    Stable Bytes fetched_bytes "payload copied from GPU memory to be saved",
    Stable Ops event_waits "times that work on a GPU waited for an event of the caller",
};

const S3: &[Metric] = metrics! { "s3":
    Stable Ops hits "loads answered with bytes",
    Stable Ops misses_absent "loads of keys that are not in the tier",
    Stable Ops misses_corrupt "loads of objects that failed a check",
    Stable Ops misses_length "loads into memory of the wrong size",
    Stable Ops misses_unverified "loads refused because the chunk has no facts and `verify` is `strict`",
    Stable Ops misses_codec "loads of chunks in an encoding that is not decoded here, or in clear where only encrypted chunks are taken",
    Stable Ops misses_key "loads of chunks whose encryption key is not loaded",
    Stable Ops misses_too_large "loads of encoded chunks that are larger than half of `encode_bytes`, and so not decoded here",
    Stable Bytes loaded_bytes "payload of the hits",
    Stable Ops unverified "loads that were hits although the chunk has no facts, in a foreign layout",
    Stable Chunks stored "chunks written",
    Stable Ops present "saves of chunks that the tier already had",
    Stable Ops shed "saves not accepted for lack of space",
    Stable Bytes saved_bytes "payload of the chunks stored",
    Stable Chunks evicted "chunks deleted to free space",
    Stable Ops delete_requests "delete requests, for one object or many",
    Stable Chunks delete_failures "chunks that the store did not delete on request",
    Stable Chunks corrupt_objects "objects found corrupt: misses until the next save overwrites them",
    Stable Chunks deleted_externally "chunks found deleted by another program or node",
    Stable Chunks added_externally "chunks found written by another program or node",
    Experimental Chunks listed "kvtier objects seen in listings",
    Experimental Ops listed_lookups "lookups answered by one listing instead of a request for each key",
    Experimental Ops sweeps "listings of the whole bucket",
    Experimental Chunks restored "chunks read from the snapshot at the start",
    Experimental Ops journaled "uses and changes written to this node's journal",
    Experimental Ops merged "uses and changes read from the journals of other nodes",
    Experimental Ops snapshots "snapshots written",
    Stable Ops uploads_aborted "abandoned uploads that were aborted",
    Experimental Ops heads "HEAD requests for objects",
    Experimental Ops loads_in_ranges "loads that used several range requests at once",
    Experimental Ops saves_in_parts "saves uploaded in several parts",
    Experimental Ops conditional_puts "PUT requests with `If-None-Match`",
    Experimental Bytes copied_bounce_bytes "copy ledger: payload that went through bounce memory, because the caller's memory was in pieces",
    Experimental Bytes summed_save_bytes "copy ledger: payload read to compute checksums for saves; none where the view already had them",
    Stable Chunks encoded_chunks "chunks encoded when they were saved",
    Stable Bytes encoded_raw_bytes "payload of the encoded chunks",
    Stable Bytes encoded_stored_bytes "the same chunks as stored",
    Stable Chunks encode_refused_chunks "chunks that no encoding made smaller, stored as they are",
    Stable Chunks decoded_chunks "chunks decoded when they were loaded",
    Experimental Bytes decoded_arriving_bytes "payload that was decoded before the last byte of its chunk arrived; that of reads that began again too",
    Experimental Bytes copied_encoded_bytes "copy ledger: encoded bytes that arrived in the memory of a load and were copied before they were decoded, because the tier did not yet know that the object is encoded",
    Stable Ops errors "requests that failed after all retries, with an error of the store or the network",
    Stable Ops throttled "ops rejected because too much was in flight",
    Stable Ops stranded "ops past their deadline whose memory was still in use",
    Stable Ops retries "requests sent again after a failure of the store or the network",
    Stable Ops requests_put "write requests, retries included, as they are billed",
    Stable Ops requests_list "list requests, retries included, as they are billed",
    Stable Ops requests_get "GET requests, retries included, as they are billed",
    Stable Ops requests_head "HEAD requests, retries included, as they are billed",
    Stable Ops requests_delete "delete requests, retries included, as they are billed",
};

/// The histogram of batch latencies.
pub(super) const TIMES: &str = "kvtier_op_seconds";

/// Metrics that are not counters of a tier: name, unit, meaning.
pub(super) const OTHER: [(&str, &str, &str); 9] = [
    ("kvtier_healthy", "1 or 0", "whether the tier accepts work"),
    ("kvtier_chunks", "chunks", "chunks stored"),
    ("kvtier_used_bytes", "bytes", "bytes stored, by any program or node; absent while unknown"),
    ("kvtier_capacity_bytes", "bytes", "the cap; absent without a cap"),
    (
        "kvtier_tenant_used_bytes",
        "bytes",
        "bytes stored for one tenant (cache salt); label `tenant`: 32 digits of a digest of its name",
    ),
    (
        "kvtier_cost_dollars_total",
        "dollars",
        "cost of requests and traffic by the price table; absent without one",
    ),
    (
        "kvtier_lookup_keys_total",
        "keys",
        "keys whose lookup was answered with hit or miss; in a stack each tier is asked for the keys that the tiers above do not have; `lookup_keys` in `status()`",
    ),
    (
        "kvtier_lookup_hits_total",
        "keys",
        "keys whose lookup was a hit; `lookup_hits` in `status()`",
    ),
    (TIMES, "seconds", "histogram: time of a batch from the call to the answer; label `op`"),
];

/// Every counter of every kind of tier, in the order of `status()`. A `gds` tier has its own and
/// those of `file`, except those of io_uring.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    HostCounters::TABLE.iter().chain(FILE).chain(GDS).chain(S3).chain(StackCounters::TABLE)
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unit::Ops => "ops",
            Unit::Chunks => "chunks",
            Unit::Bytes => "bytes",
            Unit::Micros => "µs",
        })
    }
}

impl fmt::Display for Stability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stability::Stable => "stable",
            Stability::Experimental => "experimental",
        })
    }
}
