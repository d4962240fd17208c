use std::time::Duration;

use kvtier_core::{Error, ErrorKind};

use crate::Config;

/// What the objects are called, and whose they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Layout {
    /// Our own: `<prefix>/<two digits of the digest>/<digest>`. An object without facts is corrupt.
    #[default]
    Kvtier,
    /// LMCache's multi-process mode: `<prefix>/<model>@<rank>@<group>@<hash>[@<salt>]`.
    LmcacheMp,
    /// LMCache's in-process mode, `/` as `_`.
    Lmcache,
}

/// What is made of objects without facts in LMCache's layouts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Verify {
    /// They are served if their length is exactly right, and counted as `unverified`.
    #[default]
    Known,
    /// They are misses.
    Strict,
}

/// A tier in a bucket. Made with [`TierConfig::new`]; every field has a sensible value then.
#[derive(Debug)]
#[non_exhaustive]
pub struct TierConfig {
    /// The tier's name in errors, metrics and reports.
    pub name: String,
    /// The client's settings: the bucket, who signs, limits.
    pub client: Config,
    /// The cap in bytes; `None`: as much as the bucket takes.
    pub capacity_bytes: Option<u64>,
    /// What stands before every name; slashes at its ends do not matter.
    pub prefix: String,
    /// What the objects are called.
    pub layout: Layout,
    /// What is made of objects without facts.
    pub verify: Verify,
    /// Whether a save asks the store to keep an object that is there already (`If-None-Match`), except over one found corrupt.
    pub if_absent: bool,
    /// How long a chunk that was seen counts as there without asking again.
    pub fresh_hit_max: Duration,
    /// How long a chunk that was not there counts as absent without asking again.
    pub fresh_miss_max: Duration,
    /// The most ops in flight.
    pub ops_max: u32,
    /// The most bytes in flight.
    pub inflight_bytes_max: u64,
    /// Memory for chunks that come in several pieces, in bytes.
    pub bounce_bytes: usize,
    /// The runtime's threads.
    pub threads: usize,
}

impl TierConfig {
    /// The defaults for a bucket.
    pub fn new(client: Config) -> Self {
        TierConfig {
            name: "s3".into(),
            client,
            capacity_bytes: None,
            prefix: String::new(),
            layout: Layout::Kvtier,
            verify: Verify::Known,
            if_absent: false,
            fresh_hit_max: Duration::from_secs(60),
            fresh_miss_max: Duration::from_secs(1),
            ops_max: 1024,
            inflight_bytes_max: 4 << 30,
            bounce_bytes: 64 << 20,
            threads: 2,
        }
    }

    /// Sets the cap in bytes.
    pub fn with_capacity(mut self, bytes: u64) -> Self {
        self.capacity_bytes = Some(bytes);
        self
    }

    /// Sets what stands before every name.
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets what the objects are called.
    pub fn with_layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let wrong = |what: &'static str| Err(Error::new(ErrorKind::Invalid, what));
        match self {
            TierConfig { threads: 0, .. } => wrong("threads is 0; the S3 tier needs at least one"),
            TierConfig { ops_max: 0, .. } => wrong("ops_max is 0; let at least one op in"),
            TierConfig { capacity_bytes: Some(0), .. } => wrong("the cap is 0 bytes; leave it out for no cap"),
            _ => Ok(()),
        }
    }
}
