//! From a spec to a tier.

use kvtier_core::{Error, ErrorKind};
use kvtier_s3::creds::find;
use kvtier_s3::{BucketAddress, Config, Credentials, Endpoint, RootCerts};
use kvtier_s3_tier::{S3Tier, TierConfig};

use super::spec::S3Spec;
use crate::config::secrets::mask_address;

impl S3Spec {
    /// The endpoint that it means, with what the environment says where it says nothing itself
    /// (`AWS_ENDPOINT_URL_S3`, `AWS_REGION`).
    pub fn resolve(&self) -> Result<Endpoint, Error> {
        let mut place = BucketAddress::default();
        (place.url, place.bucket) = (self.endpoint.clone(), self.bucket.clone());
        (place.region, place.style, place.provider) =
            (self.region.clone(), self.style, self.provider);
        place.tls = Some(self.tls).filter(|tls| !tls);
        let written =
            match (self.place.is_empty(), self.endpoint.as_deref().or(self.bucket.as_deref())) {
                (false, Some(text)) => format!("{} = {:?}: ", self.place, mask_address(text)),
                (false, None) => format!("{}: ", self.place),
                (true, _) => String::new(),
            };
        let texts = [self.endpoint.as_deref(), self.bucket.as_deref(), self.region.as_deref()];
        // Templates have names such as `{bucket}`. As a host it would fail with an error of DNS.
        if let Some(text) = texts.into_iter().flatten().find(|text| text.contains(['{', '}'])) {
            let what = format!(
                "{}: {written}{:?} holds a placeholder in braces; write the real name",
                self.name,
                mask_address(text)
            );
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        // What is written outranks the environment.
        let resolved = place.or_env(variable).resolve();
        resolved.map_err(|e| self.invalid(&format!("{written}the endpoint does not resolve"), e))
    }

    /// The client's settings, signed by its own credentials, or those of the environment or the
    /// shared files.
    pub fn client(&self) -> Result<Config, Error> {
        let credentials = match &self.credentials {
            Some(own) => Some(own.clone()),
            None => match find(variable) {
                // A profile with a role or a process: the chain resolves it.
                Err(e)
                    if cfg!(feature = "aws-config")
                        && e.kind() == kvtier_s3::ErrorKind::Unsupported =>
                {
                    None
                }
                found => found.map_err(|e| self.invalid("no credentials", e))?,
            },
        };
        match credentials {
            Some(credentials) => self.client_of(credentials),
            None => self.chain(),
        }
    }

    fn client_of(&self, credentials: Credentials) -> Result<Config, Error> {
        self.finish(Config::new(self.resolve()?, credentials))
    }

    /// The chain of the AWS SDKs, where it is built in.
    #[cfg(feature = "aws-config")]
    fn chain(&self) -> Result<Config, Error> {
        let endpoint = self.resolve()?;
        let instance_metadata =
            self.instance_metadata.unwrap_or_else(|| endpoint.provider().is_aws());
        let chain = super::lazy_chain::CredentialChain::new(instance_metadata);
        self.finish(Config::with_provider(endpoint, std::sync::Arc::new(chain)))
    }

    #[cfg(not(feature = "aws-config"))]
    fn chain(&self) -> Result<Config, Error> {
        let next = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or aws_access_key_id and its secret in the configuration; \
                    credentials of an instance's metadata need the feature aws-config: build with it";
        Err(Error::new(ErrorKind::Invalid, format!("{}: no credentials; {next}", self.name)))
    }

    fn finish(&self, mut config: Config) -> Result<Config, Error> {
        config.http2 = self.http2;
        (config.requests_max, config.deadline) = (self.requests_max, self.deadline);
        config.checksum = self.checksum.unwrap_or(config.checksum);
        if let Some(path) = &self.ca_bundle {
            config.root_certs = RootCerts::PemFile(path.clone());
            config.root_certs.check().map_err(|e| self.invalid("ca_bundle cannot be used", e))?;
        }
        Ok(config)
    }

    /// The tier's settings around a client's. Where the client is another than [`S3Spec::client`]
    /// gives, such as one with another resolver, [`S3Tier::open`] opens the tier.
    ///
    /// # Errors
    /// `Invalid`: a key of its encoding that cannot be read.
    pub fn tier(&self, client: Config) -> Result<TierConfig, Error> {
        let mut config =
            TierConfig::new(client).with_prefix(self.prefix.as_str()).with_layout(self.layout);
        (config.name, config.capacity_bytes, config.verify) =
            (self.name.clone(), self.capacity_bytes, self.verify);
        config.sync.evictor = self.evictor;
        config.storage_class.clone_from(&self.storage_class);
        (config.chunk_bytes, config.whole_chunks) = (self.chunk_bytes, self.whole_chunks);
        config.namespace = self.namespace.clone();
        (config.high_mark, config.batch_max, config.compat) =
            (self.high_mark, self.batch_max, self.compat);
        if !self.encoding.is_empty() {
            config = config.with_encoding(self.encoding.open()?);
        }
        if let Some(bytes) = self.encoding.memory_bytes()? {
            config = config.with_encode_bytes(bytes);
        }
        Ok(config.with_policy(self.policy).with_quotas(self.quotas.clone()))
    }

    pub(in crate::config) fn open(&self) -> Result<S3Tier, Error> {
        S3Tier::open(self.tier(self.client()?)?)
    }

    fn invalid(&self, what: &str, source: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error::new(ErrorKind::Invalid, format!("{}: {what}", self.name)).with_source(source)
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
