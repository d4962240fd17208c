//! What the tiers count, in one table: `docs/METRICS.md` is written from it. For Prometheus as
//! text, served or not, and through the `metrics` facade.

mod document;
mod expose;
#[cfg(feature = "metrics")]
mod facade;
mod grafana;
mod measured;
mod price;
mod serve;

use std::fmt;

pub use document::markdown;
pub use expose::{Sample, Shown, prometheus, prometheus_name, samples, tenant_label};
#[cfg(feature = "metrics")]
pub use facade::record;
pub use grafana::dashboard;
pub use measured::{Measured, Meter, Times};
pub use price::Prices;
pub use serve::Server;

/// What a counter counts.
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

/// Whether a counter's name and meaning may still change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Stability {
    /// Only with a new major version.
    Stable,
    /// With any version; the changelog says so.
    Experimental,
}

/// One counter. All of them only grow, and begin at 0 when the tier opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Metric {
    /// The kind of tier that has it: `host`, `file`, `gds`, `s3` or `stack`.
    pub tier: &'static str,
    /// Its name in [`Status::counters`](kvtier_core::Status).
    pub name: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// Whether it may change.
    pub stability: Stability,
    /// What it means.
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

/// Counters that come from a table: the fields, and what [`Status`](kvtier_core::Status) shows, in
/// its order.
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
    Stable Ops misses_absent "loads of keys that are not here",
    Stable Ops misses_corrupt "loads whose bytes failed their checksums; the chunk was dropped",
    Stable Ops misses_length "loads into memory that is too small",
    Stable Bytes loaded_bytes "payload of the hits, each byte copied once",
    Stable Chunks stored "chunks kept by a save",
    Stable Ops present "saves of what was already here",
    Stable Ops shed "saves not taken for want of room",
    Stable Bytes saved_bytes "payload of the chunks stored",
    Stable Chunks evicted "chunks dropped for room",
    Experimental Chunks spill_dropped "chunks dropped for room that the tier below was to get: too much of what went before waits there",
    Experimental Bytes copied_save_bytes "copy ledger: payload that saves copied into the arena",
    Experimental Bytes shared_save_bytes "copy ledger: payload kept where it lay, without a copy",
}

counters! { StackCounters, "stack":
    Stable Ops hits "loads that some tier answered with bytes",
    Stable Ops misses "loads that no tier had",
    Stable Ops corrupt "loads for which some tier held bytes that failed their checks",
    Stable Ops joined "loads that waited for another load of the same key",
    Stable Chunks promoted "copies of chunks kept by a faster tier after a hit below it",
    Stable Ops tier_errors "answers of single tiers that were errors",
    Stable Chunks not_admitted "chunks found below that a faster tier was not offered",
    Stable Chunks written_behind "chunks that a lower tier got after the save was answered, or when a tier above gave them up",
    Stable Chunks lost_behind "chunks on their way to a lower tier that did not get there: no room for what waits, or the tier did not take them",
    Stable Ops dirty_full "saves that waited for a lower tier because too much waited to be written",
    Stable Chunks spilled "chunks that a tier gave up and the tier below it was to get",
    Stable Micros queue_us "time that batches waited for the stack's thread",
    Stable Ops too_slow "chunks that were there but would have taken longer to load than to compute",
}

const FILE: &[Metric] = metrics! { "file":
    Stable Ops hits "loads answered with bytes",
    Stable Ops misses_absent "loads of keys that are not here",
    Stable Ops misses_corrupt "loads of files that failed a check",
    Stable Ops misses_length "loads into memory of the wrong size",
    Stable Ops misses_unverified "loads refused because the chunk has no facts and `verify: strict` demands them",
    Stable Ops unverified "loads that met a chunk without facts, in a foreign layout; refused or not",
    Stable Chunks facts_not_kept "chunks saved in a foreign layout whose facts the file system could not keep",
    Stable Bytes loaded_bytes "payload of the hits",
    Stable Chunks stored "chunks written and published",
    Stable Ops present "saves of what was already here",
    Stable Ops shed "saves not taken for want of room",
    Stable Bytes saved_bytes "payload of the chunks stored",
    Stable Chunks evicted "chunks that went for room",
    Stable Ops medium_full "times the file system had no room although the cap had; chunks went for it",
    Stable Chunks recycled "evicted chunks whose files were written over instead of deleted",
    Stable Chunks set_aside "files set aside because they failed a check, but for those that a crash of the machine explains",
    Stable Chunks torn_by_crash "files set aside because they failed a check that were written before a crash of the machine",
    Stable Ops io_errors "transfers or system calls that failed",
    Experimental Bytes copied_tail_bytes "copy ledger: last partial pages, at most 4095 bytes a chunk",
    Experimental Bytes copied_bounce_bytes "copy ledger: payload that went through bounce memory, because the caller's was not aligned",
    Experimental Bytes summed_save_bytes "copy ledger: payload summed for saves; none when the view knew its sums",
    Experimental Ops fixed_requests "reads and writes through memory that is registered with io_uring",
    Experimental Ops unfixed_requests "reads and writes through other memory",
    Experimental Bytes registered_bytes "memory that was registered with io_uring",
    Stable Micros queue_us "time that steps of ops waited for one of the tier's threads",
    Stable Ops throttled "ops turned away because too much was in flight",
    Stable Ops stranded "ops past their deadline whose memory the medium still held",
};

const GDS: &[Metric] = metrics! { "gds":
    Stable Bytes uploaded_bytes "payload loaded into GPU memory through pinned memory",
    Stable Bytes direct_bytes "payload loaded into GPU memory by cuFile",
    Stable Ops direct_failed "reads by cuFile that failed; the bytes went through pinned memory",
    Stable Bytes verified_host_bytes "payload loaded by cuFile and verified in host memory",
    Stable Bytes verified_gpu_bytes "payload loaded by cuFile and verified on the GPU",
    Stable Ops unverified_loads "loads by cuFile that were not verified, as `proof` allows",
    Stable Bytes fetched_bytes "payload brought from GPU memory to be saved",
    Stable Ops event_waits "times that work on a GPU waited for an event of the caller's",
};

const S3: &[Metric] = metrics! { "s3":
    Stable Ops hits "loads answered with bytes",
    Stable Ops misses_absent "loads of keys that are not here",
    Stable Ops misses_corrupt "loads of objects that failed a check",
    Stable Ops misses_length "loads into memory of the wrong size",
    Stable Ops misses_unverified "loads refused because the chunk has no facts and `verify: strict` demands them",
    Stable Bytes loaded_bytes "payload of the hits",
    Stable Ops unverified "loads that were hits although the chunk has no facts, in a foreign layout",
    Stable Chunks stored "chunks written",
    Stable Ops present "saves of what was already here",
    Stable Ops shed "saves not taken for want of room",
    Stable Bytes saved_bytes "payload of the chunks stored",
    Stable Chunks evicted "chunks deleted for room",
    Stable Ops delete_requests "requests that delete, of many objects or one",
    Stable Chunks delete_failures "chunks that the store did not delete when it was asked to",
    Stable Chunks condemned "objects found damaged: misses until the next save writes over them",
    Stable Chunks vanished "chunks that somebody else deleted, as found out",
    Stable Chunks discovered "chunks that somebody else wrote, as found out",
    Experimental Chunks listed "objects of ours that listings showed",
    Experimental Ops listed_lookups "lookups answered by one listing instead of a request for each key",
    Experimental Ops sweeps "listings of the whole bucket",
    Experimental Chunks restored "chunks that the snapshot told of at the start",
    Experimental Ops journaled "uses and changes written to this node's journal",
    Experimental Ops merged "uses and changes read from the journals of others",
    Experimental Ops snapshots "snapshots written",
    Stable Ops uploads_aborted "uploads that nobody finished, given up for the store's sake",
    Experimental Ops heads "objects asked for without their bytes",
    Experimental Ops loads_in_ranges "loads by several ranges at once",
    Experimental Ops saves_in_parts "saves in several parts",
    Experimental Ops conditional_puts "saves that asked the store to keep what is there",
    Experimental Bytes copied_bounce_bytes "copy ledger: payload that went through bounce memory, because it lay in pieces",
    Experimental Bytes summed_save_bytes "copy ledger: payload summed for saves; none when the view knew its sums",
    Stable Ops errors "answers that were errors of the store or the way to it",
    Stable Ops throttled "ops turned away because too much was in flight",
    Stable Ops stranded "ops past their deadline whose memory was still in use",
    Stable Ops retries "requests sent again after a failure of the store or the way to it",
    Stable Ops requests_put "requests that write, retries included, as they are charged",
    Stable Ops requests_list "requests that list, likewise",
    Stable Ops requests_get "requests that read, likewise",
    Stable Ops requests_head "requests that ask without reading, likewise",
    Stable Ops requests_delete "requests that delete, likewise",
};

/// Every counter of every kind of tier, in the order in which the tier shows them. A `gds` tier has
/// those of `file` besides its own, but for those of io_uring.
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
