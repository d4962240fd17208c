//! A bucket as the command line names it, and who signs for it.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use kvtier::s3::creds::{Provide, Source};
use kvtier::s3::{Config, Credentials, Endpoint, Error, ErrorKind, Place, Provider, Style, Trust};
use tokio::runtime::Runtime;

use crate::BadInput;

/// Which bucket, and how to reach it. Credentials come from the environment, the shared files, or wherever else the AWS SDKs look.
#[derive(clap::Args, Clone)]
pub struct StoreArgs {
    /// http://host:port, https://host, s3://bucket, ...; without it `AWS_ENDPOINT_URL_S3` or AWS itself.
    #[arg(long)]
    endpoint: Option<String>,
    /// The bucket, unless the endpoint names it.
    #[arg(long)]
    bucket: Option<String>,
    /// The region to sign for; without it `AWS_REGION`, or what the provider takes.
    #[arg(long)]
    region: Option<String>,
    /// Where the bucket's name goes: path or virtual.
    #[arg(long)]
    style: Option<String>,
    /// aws, express, coreweave, ceph, swift, garage, minio, gcs, r2 or other.
    #[arg(long)]
    provider: Option<String>,
    /// Certificates (PEM) to trust instead of the system's.
    #[arg(long)]
    ca_bundle: Option<PathBuf>,
}

fn lookup(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl StoreArgs {
    /// The endpoint, resolved.
    pub fn endpoint(&self) -> Result<Endpoint> {
        let mut place = Place::default();
        place.url.clone_from(&self.endpoint);
        place.bucket.clone_from(&self.bucket);
        place.region.clone_from(&self.region);
        place.style = self.style.as_deref().map(style).transpose()?;
        place.provider = self.provider.as_deref().map(provider).transpose()?;
        place.or_env(lookup).resolve().map_err(failed)
    }

    /// A configuration with the client's defaults, signed by whom the surroundings name.
    pub fn config(&self, runtime: &Runtime) -> Result<Config> {
        Ok(self.config_of(runtime)?.0)
    }

    /// As [`StoreArgs::config`] for the bucket of a path `s3://bucket/...`, which may also be a host.
    pub fn config_for(&self, bucket: &str, runtime: &Runtime) -> Result<Config> {
        if let Some(other) = self.bucket.as_deref().filter(|other| *other != bucket) {
            return Err(BadInput(format!("--bucket {other} and s3://{bucket} are two buckets; name one")).into());
        }
        let mut named = self.clone();
        let is_host = bucket.contains(['.', ':']) && self.endpoint.is_none();
        if is_host {
            named.endpoint = Some(format!("s3://{bucket}"))
        } else {
            named.bucket = Some(bucket.to_owned())
        }
        named.config(runtime)
    }

    /// As [`StoreArgs::config`], and where the credentials were and their public half.
    pub fn config_of(&self, runtime: &Runtime) -> Result<(Config, Source, String)> {
        let (provider, now, source) = runtime.block_on(signer())?;
        let key = now.access_key().to_owned();
        let mut config = Config::with_provider(self.endpoint()?, provider);
        if let Some(path) = &self.ca_bundle {
            let pem = std::fs::read(path)
                .map_err(|e| BadInput(format!("{} cannot be read: {e}; check --ca-bundle", path.display())))?;
            config.trust = Trust::Pem(pem);
        }
        Ok((config, source, key))
    }
}

type Signer = (Arc<dyn Provide>, Credentials, Source);

#[cfg(feature = "aws-config")]
async fn signer() -> Result<Signer> {
    kvtier::s3::creds::discover(lookup).await.map_err(failed)
}

#[cfg(not(feature = "aws-config"))]
async fn signer() -> Result<Signer> {
    let nobody = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE";
    let found = kvtier::s3::creds::locate(lookup).map_err(failed)?;
    let (found, source) = found.ok_or_else(|| BadInput(nobody.into()))?;
    Ok((Arc::new(found.clone()), found, source))
}

/// What the store or the client said. What only other arguments can mend is bad input.
pub fn failed(error: Error) -> anyhow::Error {
    let bad = matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Denied | ErrorKind::NotFound);
    let error = anyhow::Error::from(error);
    if bad { BadInput(format!("{error:#}")).into() } else { error }
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
    Provider::named(name).ok_or_else(|| BadInput(format!("no provider {name:?}; choose one of {}", all())).into())
}
