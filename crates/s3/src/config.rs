use std::sync::Arc;
use std::time::Duration;

use crate::checksum::Checksum;
use crate::creds::{Credentials, Provide};
use crate::endpoint::Endpoint;
use crate::http::{Resolve, RootCerts, SystemResolver};
use crate::local_clock::WallClock;

/// Longer documents are not parsed on a thread of the runtime: 8 MiB take from a tenth of a second to
/// almost one.
pub(crate) const READ_HERE_MAX: usize = 64 * 1024;

/// Whether HTTP/2 is used. It is never the default: it costs a copy, and two to four times the
/// CPU, for bulk bodies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Http2 {
    /// No: HTTP/1.1 only.
    #[default]
    Off,
    /// Over TLS, when the server chooses it; otherwise HTTP/1.1. Over plain HTTP never.
    Auto,
    /// As [`Http2::Auto`] over TLS; over plain HTTP without asking, since the server is known to
    /// speak it.
    PriorKnowledge,
}

impl Http2 {
    /// The one of that name in configurations: `off`, `auto` or `prior-knowledge`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "off" => Some(Http2::Off),
            "auto" => Some(Http2::Auto),
            "prior-knowledge" => Some(Http2::PriorKnowledge),
            _ => None,
        }
    }
}

/// When a second request is sent because the first is slow.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct Hedge {
    /// How long to wait for the first answer.
    pub after: Duration,
    /// The most hedges, as a share of all GETs in percent.
    pub percent_max: u32,
}

impl Hedge {
    /// After this long, for at most five percent of the GETs.
    pub fn after(after: Duration) -> Self {
        Hedge { after, percent_max: 5 }
    }
}

/// How a client behaves. Made with [`Config::new`]; every field has a sensible value then.
///
/// ```
/// use std::time::Duration;
/// use kvtier_s3::{BucketAddress, Checksum, Client, Config, Credentials};
///
/// let endpoint = BucketAddress::new("s3://kv-cache").region("eu-central-1").resolve()?;
/// let mut config = Config::new(endpoint, Credentials::new("AKIAEXAMPLE", "secret"));
/// config.checksum = Checksum::Crc32c;
/// config.deadline = Duration::from_secs(5);
/// config.requests_max = 64;
/// let client = Client::new(config);
/// assert_eq!(client.checksum(), Checksum::Crc32c);
/// # Ok::<(), kvtier_s3::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Config {
    /// The bucket.
    pub endpoint: Endpoint,
    /// The credentials that sign requests.
    pub credentials: Arc<dyn Provide>,
    /// Resolves host names.
    pub resolver: Box<dyn Resolve>,
    /// The certificate authorities that TLS accepts.
    pub root_certs: RootCerts,
    /// Whether HTTP/2 is used.
    pub http2: Http2,
    /// Whether records of TLS 1.3 are sealed and opened by us, straight from and into the caller's
    /// memory, with the keys that rustls agreed on: a large GET costs a quarter less CPU time.
    /// Off, rustls does it, as it does for other versions and ciphers in any case. A custom
    /// cryptography provider is then used for the handshake only: AWS-LC encrypts the records.
    #[cfg(feature = "tls-direct")]
    pub tls_direct: bool,
    /// The most requests in flight, and so the most connections. Of these deletes and listings
    /// have a quarter each at most. One request for a session of S3 Express, and one probe of an
    /// endpoint, are allowed in addition. So are up to 16 requests of each kind (loads, uploads,
    /// deletes, listings) in place of as many that hang, which may do so until [`Config::stall_max`].
    pub requests_max: usize,
    /// How long an operation may take, with queueing, retries and the last byte.
    pub deadline: Duration,
    /// How long one address may take to accept a connection, with TLS.
    pub connect_max: Duration,
    /// How long a connection may make no progress.
    pub stall_max: Duration,
    /// How long a connection is kept without use.
    pub idle_max: Duration,
    /// The most retries after transient failures.
    pub retries_max: u32,
    /// The checksum to send with objects; if there is one, those that come back are verified.
    pub checksum: Checksum,
    /// The storage class that uploads ask for (`x-amz-storage-class`), such as
    /// `INTELLIGENT_TIERING`, unless a [`crate::ops::Put`] names another; `None`: that of the
    /// bucket.
    pub storage_class: Option<String>,
    /// Whether the body's SHA-256 is signed from the start. Otherwise only once the store insists.
    pub sign_bodies: bool,
    /// Whether and when slow GETs are hedged.
    pub hedge: Option<Hedge>,
    /// On S3 Express: whether a session for reading is enough.
    pub read_only: bool,
    /// The simulated machine on which the client runs; `None` for this one.
    #[cfg(feature = "simulate")]
    pub machine: Option<Arc<dyn crate::simulated_machine::SimulatedMachine>>,
}

impl Config {
    /// The defaults for an endpoint, signed by these credentials.
    pub fn new(endpoint: Endpoint, credentials: Credentials) -> Self {
        Config::with_provider(endpoint, Arc::new(credentials))
    }

    /// The defaults for an endpoint, signed with the credentials of a provider.
    pub fn with_provider(endpoint: Endpoint, credentials: Arc<dyn Provide>) -> Self {
        let idle_max = endpoint.provider().idle_max();
        let checksum = endpoint.provider().checksum();
        Config {
            endpoint,
            credentials,
            resolver: Box::new(SystemResolver),
            root_certs: RootCerts::System,
            http2: Http2::Off,
            #[cfg(feature = "tls-direct")]
            tls_direct: false,
            requests_max: 64,
            deadline: Duration::from_secs(30),
            connect_max: Duration::from_secs(3),
            stall_max: Duration::from_secs(15),
            idle_max,
            retries_max: 5,
            checksum,
            storage_class: None,
            sign_bodies: false,
            hedge: None,
            read_only: false,
            #[cfg(feature = "simulate")]
            machine: None,
        }
    }

    /// The machine's time of day.
    pub(crate) fn wall_clock(&self) -> WallClock {
        WallClock {
            #[cfg(feature = "simulate")]
            machine: self.machine.clone(),
        }
    }

    /// The longest document that is read on a thread of the runtime. A simulation has no other.
    pub(crate) fn read_here_max(&self) -> usize {
        #[cfg(feature = "simulate")]
        if self.machine.is_some() {
            return usize::MAX;
        }
        READ_HERE_MAX
    }

    /// Whether records of TLS are sealed and opened by us.
    pub(crate) fn is_direct(&self) -> bool {
        #[cfg(feature = "tls-direct")]
        return self.tls_direct;
        #[cfg(not(feature = "tls-direct"))]
        false
    }
}
