//! Arguments that name a bucket, and its credentials.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use kvtier::s3::creds::{Provide, Source};
use kvtier::s3::{
    BucketAddress, Checksum, Config, Credentials, Endpoint, Error, ErrorKind, Http2, Provider,
    RootCerts, Style,
};
use tokio::runtime::Runtime;

use crate::BadInput;

/// Where the flags of buckets stand in help texts.
pub const S3_OPTIONS: &str = "S3 options";

/// The bucket and how to connect to it. Credentials come from the environment, the shared files and
/// the other sources of the AWS SDKs.
#[derive(clap::Args, Clone)]
pub struct BucketArgs {
    /// http://host:port, https://host, s3://bucket, ...; without it `AWS_ENDPOINT_URL_S3` or AWS itself.
    #[arg(long, help_heading = S3_OPTIONS)]
    endpoint: Option<String>,
    /// The bucket, unless the endpoint names it.
    #[arg(long, help_heading = S3_OPTIONS)]
    bucket: Option<String>,
    /// The region to sign for; without it `AWS_REGION`, or what the provider takes.
    #[arg(long, help_heading = S3_OPTIONS)]
    region: Option<String>,
    /// How URLs name the bucket: path or virtual.
    #[arg(long, help_heading = S3_OPTIONS)]
    style: Option<String>,
    /// aws, express, coreweave, ceph, swift, garage, minio, gcs, r2 or other.
    #[arg(long, help_heading = S3_OPTIONS)]
    provider: Option<String>,
    /// Certificates (PEM) to trust instead of the system's.
    #[arg(long, help_heading = S3_OPTIONS)]
    ca_bundle: Option<PathBuf>,
    /// The checksum to send and verify: none, crc32c, crc64nvme or sha256; without it what the
    /// provider takes.
    #[arg(long, help_heading = S3_OPTIONS)]
    checksum: Option<String>,
    /// Ask the instance's metadata service for credentials, also for stores outside AWS.
    #[arg(long, help_heading = S3_OPTIONS)]
    instance_metadata: bool,
    /// Whether HTTP/2 is spoken: off (the default), auto (over TLS, where the server chooses it)
    /// or prior-knowledge.
    #[arg(long, help_heading = S3_OPTIONS)]
    http2: Option<String>,
}

/// A bucket and its credentials, resolved once for all clients.
pub struct BucketAccess {
    endpoint: Endpoint,
    signer: Arc<dyn Provide>,
    root_certs: RootCerts,
    checksum: Option<Checksum>,
    http2: Http2,
    /// The source of the credentials.
    pub source: Source,
    /// Their public half.
    pub access_key: String,
    /// When they end, in seconds since 1970.
    pub expires: Option<i64>,
}

impl BucketAccess {
    /// A configuration with the client's defaults and what the arguments say.
    pub fn config(&self) -> Config {
        let mut config = Config::with_provider(self.endpoint.clone(), Arc::clone(&self.signer));
        (config.root_certs, config.http2) = (self.root_certs.clone(), self.http2);
        // `with_provider` has chosen the one that is best for the store.
        config.checksum = self.checksum.unwrap_or(config.checksum);
        config
    }
}

fn lookup(name: &str) -> Option<String> {
    // An empty variable counts as unset, as in the AWS SDKs.
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl BucketArgs {
    /// The first flag that was given, for commands that have no bucket to use it for.
    pub fn first_given(&self) -> Option<&'static str> {
        let given = [
            ("--endpoint", self.endpoint.is_some()),
            ("--bucket", self.bucket.is_some()),
            ("--region", self.region.is_some()),
            ("--style", self.style.is_some()),
            ("--provider", self.provider.is_some()),
            ("--ca-bundle", self.ca_bundle.is_some()),
            ("--checksum", self.checksum.is_some()),
            ("--instance-metadata", self.instance_metadata),
            ("--http2", self.http2.is_some()),
        ];
        given.into_iter().find_map(|(flag, given)| given.then_some(flag))
    }

    /// The endpoint, resolved.
    pub fn endpoint(&self) -> Result<Endpoint> {
        let mut place = BucketAddress::default();
        place.url.clone_from(&self.endpoint);
        place.bucket.clone_from(&self.bucket);
        place.region.clone_from(&self.region);
        place.style = self.style.as_deref().map(style).transpose()?;
        place.provider = self.provider.as_deref().map(provider).transpose()?;
        place.or_env(lookup).resolve().map_err(failed)
    }

    /// Resolves the bucket and finds credentials for it.
    pub fn find(&self, runtime: &Runtime) -> Result<BucketAccess> {
        // Bad arguments are reported before any source of credentials is asked.
        let endpoint = self.endpoint()?;
        let root_certs = self.root_certs()?;
        let checksum = self.checksum.as_deref().map(checksum).transpose()?;
        let http2 = self.http2.as_deref().unwrap_or("off");
        let http2 = Http2::named(http2).ok_or_else(|| {
            BadInput(format!("no --http2 {http2:?}; choose off, auto or prior-knowledge"))
        })?;
        // Roles are taken in the bucket's region where no other is named; stores of others have
        // regions that AWS does not know.
        let at_aws = endpoint.provider().is_aws();
        let region = |name: &str| {
            let fitting = || (name == "AWS_REGION" && at_aws).then(|| endpoint.region().to_owned());
            lookup(name).or_else(fitting)
        };
        let (signer, now, source) =
            runtime.block_on(signer(region, at_aws || self.instance_metadata))?;
        let access_key = now.access_key().to_owned();
        let expires = now.expires();
        Ok(BucketAccess {
            endpoint,
            signer,
            root_certs,
            checksum,
            http2,
            source,
            access_key,
            expires,
        })
    }

    /// The file of certificates, if one is named.
    pub fn ca_bundle(&self) -> Option<&str> {
        self.ca_bundle.as_deref()?.to_str()
    }

    fn root_certs(&self) -> Result<RootCerts> {
        let Some(path) = &self.ca_bundle else { return Ok(RootCerts::System) };
        let refused =
            |e| BadInput(format!("{} cannot be read: {e}; check --ca-bundle", path.display()));
        Ok(RootCerts::Pem(std::fs::read(path).map_err(refused)?))
    }

    /// The configuration for the bucket of a path `s3://bucket/...`, which may also be a host.
    pub fn config_for(&self, bucket: &str, runtime: &Runtime) -> Result<Config> {
        if let Some(other) = self.bucket.as_deref().filter(|other| *other != bucket) {
            return Err(BadInput(format!(
                "--bucket {other} and s3://{bucket} are two buckets; name one"
            ))
            .into());
        }
        let mut named = self.clone();
        // `s3://bucket.host` is LMCache's way to name both. Without a dot it is a bucket's name
        // alone.
        let is_host = bucket.contains(['.', ':']) && self.endpoint.is_none();
        if is_host {
            named.endpoint = Some(format!("s3://{bucket}"))
        } else {
            named.bucket = Some(bucket.to_owned())
        }
        Ok(named.find(runtime)?.config())
    }

    /// The same bucket arguments with another endpoint or region.
    pub fn elsewhere(&self, endpoint: Option<&str>, region: Option<&str>) -> Self {
        let mut other = self.clone();
        // The settings of one bucket do not apply to the other.
        if endpoint.is_some() {
            (other.bucket, other.style, other.provider) = (None, None, None);
        }
        other.endpoint = endpoint.map(str::to_owned).or(other.endpoint);
        other.region = region.map(str::to_owned).or(other.region);
        other
    }
}

type Signer = (Arc<dyn Provide>, Credentials, Source);

#[cfg(feature = "aws-config")]
async fn signer(
    lookup: impl Fn(&str) -> Option<String>,
    instance_metadata: bool,
) -> Result<Signer> {
    kvtier::s3::creds::discover(lookup, instance_metadata).await.map_err(failed)
}

#[cfg(not(feature = "aws-config"))]
async fn signer(lookup: impl Fn(&str) -> Option<String>, _: bool) -> Result<Signer> {
    let missing = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; \
                  those of an instance's metadata need the feature aws-config: build with it";
    let found = kvtier::s3::creds::locate(lookup).map_err(|e| match e.kind() {
        // Only another build or another source mends it.
        ErrorKind::Unsupported => BadInput(e.to_string()).into(),
        _ => failed(e),
    })?;
    let (found, source) = found.ok_or_else(|| BadInput(missing.into()))?;
    Ok((Arc::new(found.clone()), found, source))
}

/// The error of the store or the client; bad input if only other arguments can help.
pub fn failed(error: Error) -> anyhow::Error {
    let bad = matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Denied | ErrorKind::NotFound);
    let error = anyhow::Error::from(error);
    // A wrong argument ends with another exit code than a store that fails.
    if bad { BadInput(format!("{error:#}")).into() } else { error }
}

fn checksum(name: &str) -> Result<Checksum> {
    let found = Checksum::named(name);
    found.ok_or_else(|| {
        BadInput(format!("no checksum {name:?}; choose none, crc32c, crc64nvme or sha256")).into()
    })
}

fn style(name: &str) -> Result<Style> {
    match name {
        "path" => Ok(Style::Path),
        "virtual" => Ok(Style::Virtual),
        other => Err(BadInput(format!("no style {other:?}; choose path or virtual")).into()),
    }
}

fn provider(name: &str) -> Result<Provider> {
    let all = || Provider::ALL.map(Provider::name).join(", ");
    Provider::named(name)
        .ok_or_else(|| BadInput(format!("no provider {name:?}; choose one of {}", all())).into())
}
