//! Counts what became of the chunks of loads.

use kvtier::core::{Error, ErrorKind, MissReason};

/// What became of the chunks that the engine wanted to load. Each chunk counts once, so that hits and
/// misses together are all of them, whichever tiers were asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadCounts {
    pub hits: u64,
    /// Misses by their reason.
    pub absent: u64,
    pub corrupt: u64,
    pub length: u64,
    pub unverified: u64,
    pub slow: u64,
    /// The chunk is encoded in a way that is not decoded here, or not encrypted where it must be.
    pub codec: u64,
    /// The key of its encryption is not loaded.
    pub key: u64,
    /// Decoding it needs more memory than the tier may use.
    pub too_large: u64,
    /// The deadline passed.
    pub late: u64,
    /// The medium or the tier answered with another error.
    pub failed: u64,
    /// The key or the memory is invalid.
    pub invalid: u64,
}

impl LoadCounts {
    /// Counts a miss.
    pub fn miss(&mut self, reason: MissReason) {
        *match reason {
            MissReason::Corrupt => &mut self.corrupt,
            MissReason::Length => &mut self.length,
            MissReason::Unverified => &mut self.unverified,
            MissReason::Slow => &mut self.slow,
            MissReason::Codec => &mut self.codec,
            MissReason::KeyMissing => &mut self.key,
            MissReason::TooLarge => &mut self.too_large,
            _ => &mut self.absent,
        } += 1;
    }

    /// Counts a load that ended with an error.
    pub fn error(&mut self, error: &Error) {
        let is_late = error.kind() == ErrorKind::Timeout;
        *(if is_late { &mut self.late } else { &mut self.failed }) += 1;
    }

    /// The misses, by the name of their reason.
    pub fn misses(&self) -> [(&'static str, u64); 11] {
        let LoadCounts {
            hits: _,
            absent,
            corrupt,
            length,
            unverified,
            slow,
            codec,
            key,
            too_large,
            late,
            failed,
            invalid,
        } = *self;
        [
            ("absent", absent),
            ("corrupt", corrupt),
            ("length", length),
            ("unverified", unverified),
            ("slow", slow),
            ("codec", codec),
            ("key", key),
            ("too_large", too_large),
            ("late", late),
            ("failed", failed),
            ("invalid", invalid),
        ]
    }

    /// Adds the counts of a job.
    pub fn add(&mut self, other: &LoadCounts) {
        self.hits += other.hits;
        self.absent += other.absent;
        self.corrupt += other.corrupt;
        self.length += other.length;
        self.unverified += other.unverified;
        self.slow += other.slow;
        self.codec += other.codec;
        self.key += other.key;
        self.too_large += other.too_large;
        self.late += other.late;
        self.failed += other.failed;
        self.invalid += other.invalid;
    }
}
