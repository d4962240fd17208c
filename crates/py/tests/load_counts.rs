//! What became of the chunks of loads. The file needs no interpreter, which a Rust test program does
//! not have, so it is compiled into this one.

use kvtier::core::{Error, ErrorKind, MissReason};

#[path = "../src/engine/load_counts.rs"]
mod load_counts;

use load_counts::LoadCounts;

/// The misses of two jobs that each have these.
fn of_two(job: &LoadCounts) -> Vec<(&'static str, u64)> {
    let mut all = LoadCounts::default();
    all.add(job);
    all.add(job);
    assert_eq!(all.hits, 2 * job.hits);
    all.misses().into_iter().filter(|(_, n)| *n > 0).collect()
}

#[test]
fn each_miss_counts_by_its_own_reason() {
    let reasons = [
        (MissReason::Absent, "absent"),
        (MissReason::Corrupt, "corrupt"),
        (MissReason::Length, "length"),
        (MissReason::Unverified, "unverified"),
        (MissReason::Slow, "slow"),
        (MissReason::Codec, "codec"),
        (MissReason::KeyMissing, "key"),
        (MissReason::TooLarge, "too_large"),
    ];
    for (reason, name) in reasons {
        let mut job = LoadCounts { hits: 3, ..LoadCounts::default() };
        job.miss(reason);
        assert_eq!(of_two(&job), [(name, 2)]);
    }
}

#[test]
fn an_error_counts_as_late_or_failed() {
    for (kind, name) in [(ErrorKind::Timeout, "late"), (ErrorKind::Io, "failed")] {
        let mut job = LoadCounts::default();
        job.error(&Error::new(kind, "the medium"));
        assert_eq!(of_two(&job), [(name, 2)]);
    }
}
