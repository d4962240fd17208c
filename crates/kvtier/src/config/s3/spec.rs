//! The specification of an S3 tier.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvtier_core::Namespace;
use kvtier_evict::PolicyKind;
use kvtier_index::Quotas;
use kvtier_s3::{Checksum, Credentials, Http2, Provider, Style};
use kvtier_s3_tier::{Compat, Evictor, Layout, Verify};

use crate::config::encoding::EncodingSpec;

/// Eviction goes down to this share of the cap, where nothing else is said.
pub(super) const HIGH_MARK: f64 = 0.98;
/// A batch of victims is at most this share of the cap.
pub(super) const BATCH_MAX: f64 = 0.005;

/// Objects of a bucket.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct S3Spec {
    /// `s3://bucket`, `bucket.host`, `https://host:port/bucket`, ...; `None` for AWS.
    pub endpoint: Option<String>,
    /// The bucket, where the endpoint does not name it.
    pub bucket: Option<String>,
    /// The region to sign for.
    pub region: Option<String>,
    /// The provider, if the host does not determine it.
    pub provider: Option<Provider>,
    /// How URLs name the bucket, if the host does not determine it.
    pub style: Option<Style>,
    /// Whether to use TLS, where the endpoint has no `http://` or `https://`.
    pub tls: bool,
    /// Whether HTTP/2 is spoken.
    pub http2: Http2,
    /// The credentials; `None`: the default chain.
    pub credentials: Option<Credentials>,
    /// Whether the usual chain asks the metadata service of the instance; `None`: at AWS it does,
    /// elsewhere not.
    pub instance_metadata: Option<bool>,
    /// A file of certificates (PEM) to trust instead of the system's.
    pub ca_bundle: Option<PathBuf>,
    /// The checksum that the store verifies; `None`: what the provider takes.
    pub checksum: Option<Checksum>,
    /// The most requests in flight, and so the most connections.
    pub requests_max: usize,
    /// How long an operation may take, retries included.
    pub deadline: Duration,
    /// The cap in bytes; `None`: none.
    pub capacity_bytes: Option<u64>,
    /// The share of the cap down to which eviction goes.
    pub high_mark: f64,
    /// The largest share of the cap that one batch of victims is.
    pub batch_max: f64,
    /// Eviction as LMCache does it, in place of the two above.
    pub compat: Option<Compat>,
    /// Which chunks go first, where there is a cap.
    pub policy: PolicyKind,
    /// How much each tenant (cache salt) may have; needs a cap.
    pub quotas: Quotas,
    /// The prefix of every object name.
    pub prefix: String,
    /// What the objects are called.
    pub layout: Layout,
    /// What is made of objects that nothing proves.
    pub verify: Verify,
    /// Which of the nodes on the bucket evicts.
    pub evictor: Evictor,
    /// The storage class of chunks, such as `INTELLIGENT_TIERING`; `None`: that of the bucket.
    pub storage_class: Option<String>,
    /// Bytes of a full chunk; `None`: as the namespace says, else as the longest save says.
    pub chunk_bytes: Option<u64>,
    /// Whether chunks shorter than full ones are refused, whatever the namespace says.
    pub whole_chunks: bool,
    /// How chunks are encoded, in layout `kvtier`; by default they are stored as they are.
    pub encoding: EncodingSpec,
    /// The tier's name.
    pub name: String,
    /// Where the bucket is written, for errors: a file and a setting. Empty where it is not read
    /// from a file.
    pub place: String,
    /// The namespace of chunks under LMCache's names; `None`: that of the first key. It is not a
    /// setting of files: the program that opens the tier sets it.
    pub namespace: Option<Arc<Namespace>>,
}

impl S3Spec {
    /// A bucket at this endpoint, with defaults for the rest.
    pub fn new(endpoint: impl Into<String>) -> Self {
        S3Spec {
            endpoint: Some(endpoint.into()),
            bucket: None,
            region: None,
            provider: None,
            style: None,
            tls: true,
            http2: Http2::Off,
            credentials: None,
            instance_metadata: None,
            ca_bundle: None,
            checksum: None,
            requests_max: 64,
            deadline: Duration::from_secs(30),
            capacity_bytes: None,
            high_mark: HIGH_MARK,
            batch_max: BATCH_MAX,
            compat: None,
            policy: PolicyKind::Default,
            quotas: Quotas::new(),
            prefix: String::new(),
            layout: Layout::Kvtier,
            verify: Verify::Lenient,
            evictor: Evictor::Lease,
            storage_class: None,
            chunk_bytes: None,
            whole_chunks: false,
            encoding: EncodingSpec::default(),
            name: "s3".into(),
            place: String::new(),
            namespace: None,
        }
    }
}
