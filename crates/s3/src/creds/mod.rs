//! Credentials that sign requests, and their sources.

#[cfg(feature = "aws-config")]
mod aws_sdk_chain;
pub(crate) mod cache;
mod env;
mod local_sources;
mod profile;
mod refusal_backoff;
pub(crate) mod signing_credentials;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zeroize::Zeroizing;

use crate::error::Result;
use crate::sign::{Keyring, Parts, Scope, authorize};
use crate::time_formats::Stamp;

#[cfg(feature = "aws-config")]
pub use aws_sdk_chain::{AwsChain, ChainConfig, discover};
pub use env::from_env;
pub use local_sources::{Source, find, locate};
pub use profile::from_profile;

/// A key pair, with a session token where it is temporary. Clones share it; the secrets are wiped
/// when the last one drops.
///
/// ```
/// use kvtier_s3::Credentials;
///
/// let lasting = Credentials::new("AKIAEXAMPLE", "secret");
/// let session = Credentials::temporary("ASIAEXAMPLE", "secret", Some("token".into()), Some(1_790_000_000));
/// assert_eq!((lasting.access_key(), lasting.expires()), ("AKIAEXAMPLE", None));
/// assert!(!format!("{session:?}").contains("secret"), "`Debug` shows no secret");
/// ```
#[derive(Clone)]
pub struct Credentials(Arc<Secret>);

struct Secret {
    access_key: String,
    secret_key: Zeroizing<String>,
    token: Option<Zeroizing<String>>,
    expires: Option<i64>,
    ring: Keyring,
    /// Whether a request that they signed was a success, since the store last refused them.
    worked: AtomicBool,
}

impl Credentials {
    /// A key pair that does not expire.
    pub fn new(access_key: impl Into<String>, secret_key: impl Into<String>) -> Self {
        Self::temporary(access_key, secret_key, None, None)
    }

    /// A key pair with its session token and the time (seconds since 1970) at which both end.
    pub fn temporary(
        access_key: impl Into<String>,
        secret_key: impl Into<String>,
        token: Option<String>,
        expires: Option<i64>,
    ) -> Self {
        let secret_key = Zeroizing::new(secret_key.into());
        let token = token.map(Zeroizing::new);
        Credentials(Arc::new(Secret {
            access_key: access_key.into(),
            secret_key,
            token,
            expires,
            ring: Keyring::default(),
            worked: AtomicBool::new(false),
        }))
    }

    /// The public half.
    pub fn access_key(&self) -> &str {
        &self.0.access_key
    }

    /// When they end, in seconds since 1970.
    pub fn expires(&self) -> Option<i64> {
        self.0.expires
    }

    /// Appends the `authorization` value that these credentials give the request; `place` is region
    /// and service.
    pub(crate) fn authorize(
        &self,
        out: &mut Vec<u8>,
        parts: &Parts<'_>,
        place: (&str, &str),
        stamp: &Stamp,
    ) {
        let scope = Scope { access_key: &self.0.access_key, region: place.0, service: place.1 };
        let key = self.0.ring.key(&self.0.secret_key, &scope, stamp);
        authorize(out, parts, &scope, stamp, &key);
    }

    /// The session token, where they are temporary. A secret: it goes into one header and nowhere
    /// else.
    pub(crate) fn token(&self) -> Option<&str> {
        self.0.token.as_ref().map(|token| token.as_str())
    }

    /// A request that they signed was a success.
    pub(crate) fn note_worked(&self) {
        if !self.0.worked.load(Ordering::Relaxed) {
            self.0.worked.store(true, Ordering::Relaxed);
        }
    }

    /// Whether they worked; from now on they have not.
    pub(crate) fn take_worked(&self) -> bool {
        self.0.worked.swap(false, Ordering::Relaxed)
    }

    /// Whether the other is a clone of this.
    pub(crate) fn is(&self, other: &Credentials) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    #[cfg(test)]
    pub(crate) fn secret_key(&self) -> &str {
        &self.0.secret_key
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({}, redacted)", self.0.access_key)
    }
}

/// What a [`Provide`] answers with.
pub type Provided<'a> = Pin<Box<dyn Future<Output = Result<Credentials>> + Send + 'a>>;

/// Where credentials come from. Called once at first use and again, one call at a time, before they
/// expire or when the store calls them expired; what it returned last stays in use while it fails.
pub trait Provide: fmt::Debug + Send + Sync + 'static {
    /// The credentials of this moment.
    fn provide(&self) -> Provided<'_>;
}

impl Provide for Credentials {
    fn provide(&self) -> Provided<'_> {
        let own = self.clone();
        Box::pin(async move { Ok(own) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_printed() {
        let credentials = Credentials::temporary("AKID", "hush", Some("quiet".into()), Some(1));
        let shown = format!("{credentials:?}");
        assert_eq!(shown, "Credentials(AKID, redacted)");
    }
}
