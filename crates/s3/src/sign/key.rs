//! The derived key and what it is bound to.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use zeroize::Zeroizing;

use super::hmac::hmac;
use crate::time_formats::Stamp;

/// Who signs, where and for what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scope<'a> {
    /// The public half of the credentials.
    pub access_key: &'a str,
    /// The region in the scope.
    pub region: &'a str,
    /// `s3` or `s3express`.
    pub service: &'a str,
}

impl Scope<'_> {
    /// Appends `DATE/REGION/SERVICE/aws4_request`.
    pub(super) fn write(&self, stamp: &Stamp, out: &mut Vec<u8>) {
        out.extend_from_slice(stamp.day());
        for part in ["/", self.region, "/", self.service, "/aws4_request"] {
            out.extend_from_slice(part.as_bytes());
        }
    }
}

/// Keeps the last derived key of one secret. It is derived anew when the day, the region or the
/// service changes.
#[derive(Default)]
pub struct Keyring(RwLock<Option<Arc<Derived>>>);

struct Derived {
    day: [u8; 8],
    region: String,
    service: String,
    key: Zeroizing<[u8; 32]>,
}

impl Keyring {
    /// The signing key of `secret` for the scope on the stamp's day.
    pub fn key(&self, secret: &str, scope: &Scope<'_>, stamp: &Stamp) -> Zeroizing<[u8; 32]> {
        let fits = |derived: &Derived| {
            derived.day == *stamp.day()
                && derived.region == scope.region
                && derived.service == scope.service
        };
        let kept = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(derived) = kept.as_ref().filter(|derived| fits(derived)) {
            return derived.key.clone();
        }
        drop(kept);
        let key = derive(secret, scope, stamp);
        let derived = Derived {
            day: *stamp.day(),
            region: scope.region.to_owned(),
            service: scope.service.to_owned(),
            key: key.clone(),
        };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(derived));
        key
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keyring(redacted)")
    }
}

fn derive(secret: &str, scope: &Scope<'_>, stamp: &Stamp) -> Zeroizing<[u8; 32]> {
    let first = Zeroizing::new([b"AWS4", secret.as_bytes()].concat());
    let day = Zeroizing::new(hmac(&first, stamp.day()));
    let region = Zeroizing::new(hmac(day.as_slice(), scope.region.as_bytes()));
    let service = Zeroizing::new(hmac(region.as_slice(), scope.service.as_bytes()));
    Zeroizing::new(hmac(service.as_slice(), b"aws4_request"))
}
