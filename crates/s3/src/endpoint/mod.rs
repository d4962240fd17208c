//! The address of a bucket, parsed from all forms in which people write it.

mod aws;
mod known_hosts;
mod parse;
mod provider_defaults;

use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::http::Target;

use aws::AwsHost;
pub use provider_defaults::{Conditional, Provider};

/// Where the bucket's name goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Style {
    /// Into the path: `host/bucket/key`.
    Path,
    /// Before the host: `bucket.host/key`.
    Virtual,
}

/// The address of a bucket as configured. Fields that are `None` follow from the others.
///
/// ```
/// use kvtier_s3::{BucketAddress, Style};
///
/// let aws = BucketAddress::new("s3://kv-cache").region("eu-central-1").resolve()?;
/// assert_eq!((aws.bucket(), aws.region()), ("kv-cache", "eu-central-1"));
///
/// // A store of your own, with the bucket in the path.
/// let own = BucketAddress::new("http://10.0.0.7:9000").bucket("kv").region("us-east-1");
/// assert_eq!(own.style(Style::Path).resolve()?.bucket(), "kv");
///
/// // What is not set comes from AWS_REGION and the other variables.
/// let from_env = BucketAddress::new("s3://kv-cache").or_env(|name| std::env::var(name).ok());
/// # let _ = from_env;
/// # Ok::<(), kvtier_s3::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct BucketAddress {
    /// `s3://bucket`, `https://host[:port][/bucket]`, `bucket.s3.region.amazonaws.com`, `10.0.0.1:9000`, ... or nothing for AWS.
    pub url: Option<String>,
    /// The bucket, where the url does not name it.
    pub bucket: Option<String>,
    /// The region to sign for.
    pub region: Option<String>,
    /// Where the bucket's name goes.
    pub style: Option<Style>,
    /// Whose service it is.
    pub provider: Option<Provider>,
    /// Whether to use TLS, where the url has no `http://` or `https://`.
    pub tls: Option<bool>,
}

impl BucketAddress {
    /// The address that `url` names.
    pub fn new(url: impl Into<String>) -> Self {
        BucketAddress { url: Some(url.into()), ..BucketAddress::default() }
    }

    /// With this bucket.
    pub fn bucket(mut self, bucket: impl Into<String>) -> Self {
        self.bucket = Some(bucket.into());
        self
    }

    /// With this region.
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.region = Some(region.into());
        self
    }

    /// With this style.
    pub fn style(mut self, style: Style) -> Self {
        self.style = Some(style);
        self
    }

    /// With the profile of this provider.
    pub fn provider(mut self, provider: Provider) -> Self {
        self.provider = Some(provider);
        self
    }

    /// With or without TLS.
    pub fn tls(mut self, tls: bool) -> Self {
        self.tls = Some(tls);
        self
    }

    /// With what the usual variables say (`AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `AWS_REGION`,
    /// `AWS_DEFAULT_REGION`, asked of `lookup`), where it says nothing itself. `s3://bucket`
    /// names a bucket, which may be at that endpoint.
    pub fn or_env(mut self, lookup: impl Fn(&str) -> Option<String>) -> Self {
        let first = |names: [&str; 2]| {
            names.into_iter().find_map(|name| lookup(name).filter(|value| !value.is_empty()))
        };
        let plain = self.url.as_deref().and_then(|url| url.trim().strip_prefix("s3://"));
        let plain = plain
            .map(|bucket| bucket.trim_end_matches('/'))
            .filter(|bucket| !bucket.contains(['.', ':', '/']));
        let free = self.url.as_deref().is_none_or(str::is_empty) || plain.is_some();
        if let Some(url) = first(["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]).filter(|_| free) {
            if let (None, Some(bucket)) = (&self.bucket, plain) {
                self.bucket = Some(bucket.to_owned());
            }
            self.url = Some(url);
        }
        self.region = self.region.or_else(|| first(["AWS_REGION", "AWS_DEFAULT_REGION"]));
        self
    }

    /// The endpoint of this address.
    ///
    /// # Errors
    /// `Invalid` with the part that is missing or contradictory.
    pub fn resolve(&self) -> Result<Endpoint> {
        parse::resolve(self)
    }
}

/// One bucket at one service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    pub(crate) tls: bool,
    /// Without the bucket; an IPv6 address without brackets.
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
    pub(crate) bucket: String,
    pub(crate) region: String,
    pub(crate) style: Style,
    pub(crate) provider: Provider,
}

impl Endpoint {
    /// The bucket.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The region that requests are signed for, until the store names another.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Where the bucket's name goes.
    pub fn style(&self) -> Style {
        self.style
    }

    /// The provider whose profile is used.
    pub fn provider(&self) -> Provider {
        self.provider
    }

    /// The server that requests for the bucket go to.
    pub fn target(&self) -> Target {
        match self.style {
            Style::Path => Target::new(self.tls, &self.host, self.port),
            Style::Virtual => {
                Target::new(self.tls, &format!("{}.{}", self.bucket, self.host), self.port)
            }
        }
    }

    /// Whether both name one bucket of one service, however each is spelled: the bucket in the host
    /// or in the path, the usual port written or not, any host of AWS, whose buckets have one
    /// name in all regions.
    pub fn is_same_bucket(&self, other: &Endpoint) -> bool {
        let is_aws = |endpoint: &Endpoint| {
            endpoint.provider == Provider::Aws && AwsHost::parse(&endpoint.host).is_some()
        };
        let port = |endpoint: &Endpoint| {
            endpoint.port.filter(|port| *port != if endpoint.tls { 443 } else { 80 })
        };
        let is_same_host =
            || self.host.eq_ignore_ascii_case(&other.host) && port(self) == port(other);
        self.bucket == other.bucket && ((is_aws(self) && is_aws(other)) || is_same_host())
    }

    /// The signing name of the service.
    pub fn service(&self) -> &'static str {
        if self.provider == Provider::Express { "s3express" } else { "s3" }
    }

    /// Where directory buckets are made and deleted: a host of its own at AWS, where the bucket is
    /// in the path.
    pub(crate) fn control(&self) -> Endpoint {
        let host = known_hosts::control_host(&self.host, &self.region)
            .unwrap_or_else(|| self.host.clone());
        Endpoint { host, style: Style::Path, ..self.clone() }
    }

    /// The zone that a directory bucket has in its name.
    pub(crate) fn zone(&self) -> Option<&str> {
        parse::zone(&self.bucket)
    }

    /// The region of the url or host to which a store sends us, if that is the same service of AWS:
    /// no other host is followed.
    pub(crate) fn region_at(&self, place: &str) -> Option<String> {
        let rest = place.split_once("://").map_or(place, |(_, rest)| rest);
        let host = rest.split(['/', '?', '#', ':']).next().unwrap_or_default();
        let is_own = |host: &AwsHost| !host.is_express() && host.region.is_some();
        let of = |host: &str| AwsHost::parse(host).filter(is_own);
        of(host)?.region.filter(|_| self.provider == Provider::Aws && of(&self.host).is_some())
    }

    /// The same bucket as another region of the same service has it. `None` where there is no such
    /// region, or this endpoint was chosen for what no other is: FIPS, a private network, a
    /// zone.
    pub(crate) fn in_region(&self, region: &str) -> Option<Endpoint> {
        let sane = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let host = match AwsHost::parse(&self.host) {
            Some(aws) => aws.in_region(region)?,
            // At a store of one's own a region is only a word that is signed.
            None if (1..=64).contains(&region.len()) && region.bytes().all(sane) => {
                self.host.clone()
            }
            None => return None,
        };
        Some(Endpoint { host, region: region.to_owned(), ..self.clone() })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.style {
            Style::Path => write!(f, "{}/{}", self.target(), self.bucket),
            Style::Virtual => write!(f, "{}", self.target()),
        }
    }
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, what.into())
}

#[cfg(test)]
mod tests;
