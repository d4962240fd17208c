//! Configuration of the tier.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use kvtier_codec::TierEncoding;
use kvtier_core::{Error, ErrorKind, Namespace};
use kvtier_evict::PolicyKind;
use kvtier_index::Quotas;
use kvtier_s3::Config;

use crate::sync_config::SyncConfig;

/// How objects are named.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Layout {
    /// Layout of kvtier: `<prefix>/<two digits of the digest>/<digest>`. An object without facts is
    /// corrupt.
    #[default]
    Kvtier,
    /// LMCache's multi-process mode: `<prefix>/<model>@<rank>@<group>@<hash>[@<salt>]`. The older
    /// `<model>@<rank>@<hash>` is read.
    LmcacheMp,
    /// LMCache's in-process mode, `<prefix>/` and the key's text with `/` as `_`.
    Lmcache,
}

impl Layout {
    /// All of them.
    pub const ALL: [Layout; 3] = [Layout::Kvtier, Layout::LmcacheMp, Layout::Lmcache];

    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Kvtier => "kvtier",
            Layout::LmcacheMp => "lmcache-mp",
            Layout::Lmcache => "lmcache",
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Layout {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Layout::ALL.into_iter().find(|layout| layout.name() == text).ok_or_else(|| {
            let what =
                format!("no layout is called {text:?}; choose kvtier, lmcache-mp or lmcache");
            Error::new(ErrorKind::Invalid, what)
        })
    }
}

/// How objects without facts are treated in LMCache's layouts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Verify {
    /// They are served if their length is exactly right, and counted as `unverified`.
    #[default]
    Lenient,
    /// They are misses, and the next save overwrites them.
    Strict,
}

/// Eviction exactly as in LMCache: once a second, while the bucket is filled to the watermark, a
/// share of all chunks is evicted at once.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Compat {
    /// The share of the cap from which chunks are evicted, from 0 to 1. LMCache's
    /// `trigger_watermark`.
    pub watermark: f64,
    /// The share of all chunks that is evicted then, at least one chunk unless it is 0. LMCache's
    /// `eviction_ratio`.
    pub ratio: f64,
}

/// Configuration of a tier in a bucket. [`TierConfig::new`] sets defaults.
///
/// ```
/// # let server = kvtier_testkit::s3::Server::start(Default::default())?;
/// # let url = server.url();
/// use kvtier_s3::{BucketAddress, Config, Credentials};
/// use kvtier_s3_tier::{S3Tier, TierConfig};
///
/// let endpoint = BucketAddress::new(url).bucket("bucket").region("us-east-1").resolve()?;
/// let client = Config::new(endpoint, Credentials::new("AKIDTEST", "secret/test+key"));
/// let tier = S3Tier::open(TierConfig::new(client).with_prefix("kv").with_capacity(1 << 30))?;
/// # use kvtier_core::Tier;
/// # tier.close().wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct TierConfig {
    /// The tier's name in errors, metrics and reports.
    pub name: String,
    /// The client's settings: bucket, credentials, limits (`requests_max` is the most requests in
    /// flight).
    pub client: Config,
    /// The cap in bytes of objects; `None` for no cap: nothing is evicted and usage is unknown.
    pub capacity_bytes: Option<u64>,
    /// Eviction goes down to this share of the cap, above 0 and at most `reject_mark`. LMCache's
    /// `trigger_watermark`.
    pub high_mark: f64,
    /// Above this share of the cap saves wait for space, at most `space_wait_max`, and are then
    /// shed; above 0 and at most 1. Loads are never shed.
    pub reject_mark: f64,
    /// One batch of victims is at most this share of the cap, above 0 and at most 1. LMCache's
    /// `eviction_ratio`.
    pub batch_max: f64,
    /// Eviction as LMCache does it; `None`, the default, evicts just in time. With it the marks and
    /// batches above have no effect, and what does not fit below the cap is shed until the next
    /// second.
    pub compat: Option<Compat>,
    /// The eviction policy, if there is a cap.
    pub policy: PolicyKind,
    /// Quotas of tenants. They need a cap. A node that does not evict enforces them as far as it
    /// can count.
    pub quotas: Quotas,
    /// How long a save waits for space before it is shed. Less than a second, so that no writer
    /// stalls longer.
    pub space_wait_max: Duration,
    /// The namespace of the chunks. Names of LMCache's layouts do not contain it: such a tier has
    /// one namespace, and with `None` that of the first key. One with salts as tenants stands for
    /// those of all salts.
    pub namespace: Option<Arc<Namespace>>,
    /// The beginning of every name; slashes at its ends do not matter.
    pub prefix: String,
    /// How objects are named.
    pub layout: Layout,
    /// How objects without facts are treated.
    pub verify: Verify,
    /// Bytes of a full chunk where the namespace does not declare them; `None`: the longest save of
    /// its kind.
    pub chunk_bytes: Option<u64>,
    /// Whether chunks shorter than full ones are rejected, whatever their namespace allows.
    pub whole_chunks: bool,
    /// The storage class of chunks (`x-amz-storage-class`); `None` for that of the client, else of
    /// the bucket. The tier's own small objects below `.kvtier` are overwritten often and stay in
    /// the bucket's class.
    pub storage_class: Option<String>,
    /// Whether a save asks the store to keep an existing object (`If-None-Match`), unless it was
    /// found corrupt. Not sent where the store is known not to honour it.
    pub if_absent: bool,
    /// Whether, in layout `lmcache-mp`, a missing chunk of group 0 is looked up under the older
    /// name of three fields too, even if no listing showed such a name.
    pub old_names: bool,
    /// How long a chunk that was seen is a hit without a new request, from the moment when this node began to
    /// ask for it, or the end of its save; zero to ask each time.
    pub fresh_hit_max: Duration,
    /// How long a missing chunk is a miss without a new request, from the time of its request. What
    /// another node saves is found within this time and one HEAD. Zero to ask each time.
    pub fresh_miss_max: Duration,
    /// Longer chunks are saved in parts, several at a time; `u64::MAX` for none.
    pub multipart_above_bytes: u64,
    /// Chunks at least this long, whose length is known and equals that of the memory, are loaded
    /// by several ranges at a time: more requests, lower latency. `u64::MAX`, the default, for
    /// none.
    pub ranges_above_bytes: u64,
    /// The size of a part or range in bytes, at least 5 MiB.
    pub part_bytes: usize,
    /// Parts or ranges of one chunk in flight.
    pub parts_max: usize,
    /// The most operations in flight.
    pub ops_max: u32,
    /// The most bytes in flight.
    pub inflight_bytes_max: u64,
    /// Memory for chunks that are saved from several pieces, in bytes.
    pub bounce_bytes: usize,
    /// How chunks are encoded when they are saved, and decoded when they are loaded. Only layout
    /// `kvtier` encodes.
    pub encoding: Arc<TierEncoding>,
    /// The most memory for encoded chunks on their way, in bytes: half of it for saves, half for
    /// loads. It is mapped with the first encoded chunk.
    pub encode_bytes: usize,
    /// Threads of the runtime.
    pub threads: usize,
    /// How the tier follows changes by other nodes and programs.
    pub sync: SyncConfig,
}

impl TierConfig {
    /// The defaults for a bucket.
    pub fn new(client: Config) -> Self {
        TierConfig {
            name: "s3".into(),
            client,
            capacity_bytes: None,
            high_mark: 0.98,
            reject_mark: 1.0,
            batch_max: 0.005,
            compat: None,
            policy: PolicyKind::Default,
            quotas: Quotas::new(),
            space_wait_max: Duration::from_millis(500),
            namespace: None,
            prefix: String::new(),
            layout: Layout::Kvtier,
            verify: Verify::Lenient,
            chunk_bytes: None,
            whole_chunks: false,
            storage_class: None,
            if_absent: false,
            old_names: false,
            fresh_hit_max: Duration::from_secs(60),
            fresh_miss_max: Duration::from_millis(500),
            multipart_above_bytes: 64 << 20,
            ranges_above_bytes: u64::MAX,
            part_bytes: 16 << 20,
            parts_max: 4,
            ops_max: 1024,
            inflight_bytes_max: 4 << 30,
            bounce_bytes: 64 << 20,
            encoding: Arc::default(),
            encode_bytes: 256 << 20,
            threads: 2,
            sync: SyncConfig::default(),
        }
    }

    /// Sets the cap in bytes; 0 for none.
    pub fn with_capacity(mut self, bytes: u64) -> Self {
        self.capacity_bytes = Some(bytes).filter(|bytes| *bytes > 0);
        self
    }

    /// Sets the eviction policy.
    pub fn with_policy(mut self, policy: PolicyKind) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the quotas of tenants.
    pub fn with_quotas(mut self, quotas: Quotas) -> Self {
        self.quotas = quotas;
        self
    }

    /// Sets the beginning of every name.
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets how objects are named.
    pub fn with_layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// Sets the namespace of the chunks.
    pub fn with_namespace(mut self, namespace: Arc<Namespace>) -> Self {
        self.namespace = Some(namespace);
        self
    }

    /// Sets how chunks are encoded when they are saved, and decoded when they are loaded. By default
    /// they are saved as they are, and those that other nodes encoded without a key are decoded.
    pub fn with_encoding(mut self, encoding: Arc<TierEncoding>) -> Self {
        self.encoding = encoding;
        self
    }

    /// Sets the most memory for encoded chunks on their way: half of it for saves, half for loads. A
    /// chunk that does not fit into its half is refused.
    pub fn with_encode_bytes(mut self, bytes: usize) -> Self {
        self.encode_bytes = bytes;
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// `Invalid`, with the name of the wrong setting and a fix.
    pub fn check(&self) -> Result<(), Error> {
        let share = |share: f64| share > 0.0 && share <= 1.0;
        let rules = [
            (self.threads > 0, "threads is 0; the S3 tier needs at least one"),
            (self.ops_max > 0, "ops_max is 0; raise it to at least 1"),
            (
                self.inflight_bytes_max > 0,
                "inflight_bytes_max is 0; raise it to the size of a chunk or more",
            ),
            (self.capacity_bytes != Some(0), "capacity_bytes is 0; leave it out for no cap"),
            (
                share(self.reject_mark),
                "reject_mark is not between 0 and 1; set it above 0 and at most 1",
            ),
            (
                share(self.high_mark) && self.high_mark <= self.reject_mark,
                "high_mark is no share, or above reject_mark; set it above 0 and at most reject_mark",
            ),
            (share(self.batch_max), "batch_max is no share; set it above 0 and at most 1"),
            (
                self.compat.is_none_or(|compat| {
                    [compat.watermark, compat.ratio].iter().all(|n| (0.0..=1.0).contains(n))
                }),
                "compat has a watermark or ratio that is no share; set both from 0 to 1",
            ),
            (
                self.quotas.is_empty() || self.capacity_bytes.is_some(),
                "quotas are set and capacity_bytes is not; quotas need a cap: set one",
            ),
            (
                self.quotas.is_empty() || self.compat.is_none(),
                "quotas and compat are set; LMCache's eviction has no tenants: leave one out",
            ),
            (
                self.part_bytes >= 5 << 20,
                "part_bytes is less than the 5 MiB that stores demand; raise it",
            ),
            (self.parts_max > 0, "parts_max is 0; raise it to at least 1"),
            (
                self.storage_class.as_deref().is_none_or(Self::is_readable_class),
                "storage_class is not a storage class, or one whose objects cannot be read without a restore (GLACIER, DEEP_ARCHIVE); choose another",
            ),
            (
                self.layout == Layout::Kvtier || !self.encoding.is_on(),
                "encode is set and the layout is LMCache's, whose objects hold chunks as they are; leave encode out, or choose layout kvtier",
            ),
            (self.client.requests_max > 0, "requests_max is 0; raise it to at least 1"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, what)) => Err(Error::new(ErrorKind::Invalid, *what)),
            None => self.sync.check(),
        }
    }

    /// Whether a storage class is a word of S3 whose objects can be read without a restore; others
    /// are rejected.
    pub fn is_readable_class(name: &str) -> bool {
        let is_word = !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
        is_word && !matches!(name, "GLACIER" | "DEEP_ARCHIVE")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_settings_are_named() {
        let config = || {
            let endpoint =
                kvtier_s3::BucketAddress::new("http://127.0.0.1:1").bucket("b").resolve().unwrap();
            TierConfig::new(Config::new(endpoint, kvtier_s3::Credentials::new("a", "b")))
        };
        assert!(config().check().is_ok());
        assert_eq!(config().with_capacity(0).capacity_bytes, None);
        let refused = |change: &dyn Fn(&mut TierConfig)| {
            let mut config = config();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(refused(&|c| c.high_mark = 1.5).contains("high_mark"));
        assert!(refused(&|c| c.reject_mark = 0.5).contains("high_mark"));
        assert!(refused(&|c| c.batch_max = f64::NAN).contains("batch_max"));
        assert!(
            refused(&|c| c.compat = Some(Compat { watermark: 0.8, ratio: 2.0 })).contains("compat")
        );
        let both = |c: &mut TierConfig| {
            (c.capacity_bytes, c.policy) = (Some(1 << 30), PolicyKind::IsolatedLru);
            c.quotas = Quotas::new().with("a", 1);
            c.compat = Some(Compat { watermark: 0.8, ratio: 0.2 });
        };
        assert!(refused(&both).contains("quotas and compat"));
        assert!(refused(&|c| c.quotas = Quotas::new().with("a", 1)).contains("capacity_bytes"));
        assert!(refused(&|c| c.part_bytes = 1).contains("part_bytes"));
        for class in ["DEEP_ARCHIVE", "GLACIER", "", "A B", "x\r\ny"] {
            assert!(
                refused(&|c| c.storage_class = Some(class.into())).contains("storage_class"),
                "{class:?}"
            );
        }
        let mut cold = config();
        cold.storage_class = Some("GLACIER_IR".into());
        assert!(cold.check().is_ok());
        assert!(refused(&|c| c.threads = 0).contains("threads"));
        assert!("s3".parse::<Layout>().unwrap_err().to_string().contains("lmcache-mp"));
        for layout in Layout::ALL {
            assert_eq!(layout.to_string().parse::<Layout>().unwrap(), layout);
        }
    }
}
