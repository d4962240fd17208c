use std::pin::pin;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use kvtier_mem::{Lease, View};
use mountpoint_s3_client::config::{
    AddressingStyle, Allocator, CredentialsProvider, CredentialsProviderStaticOptions,
    EndpointConfig, S3ClientAuthConfig, S3ClientConfig, TlsConfig, Uri,
};
use mountpoint_s3_client::types::{GetObjectParams, HeadObjectParams, PutObjectSingleParams};
use mountpoint_s3_client::{ObjectClient, S3CrtClient};

use super::{BUCKET, KEY, LeaseWriter, Peer, REGION, SECRET};
use crate::job::RunArgs;

/// Mountpoint's client: AWS's in C, with threads of its own.
pub struct Mountpoint(S3CrtClient);

impl Mountpoint {
    pub fn new(args: &RunArgs) -> Result<Self> {
        let memory = Allocator::default();
        let who = CredentialsProviderStaticOptions {
            access_key_id: KEY,
            secret_access_key: SECRET,
            session_token: None,
        };
        let endpoint = Uri::new_from_str(&memory, &args.endpoint)?;
        let endpoint =
            EndpointConfig::new(REGION).endpoint(endpoint).addressing_style(AddressingStyle::Path);
        let mut config = S3ClientConfig::new().endpoint_config(endpoint).auth_config(
            S3ClientAuthConfig::Provider(CredentialsProvider::new_static(&memory, who)?),
        );
        if args.tls() {
            let path =
                std::env::var("SSL_CERT_FILE").context("SSL_CERT_FILE names no certificate")?;
            config = config.tls_config(TlsConfig::new().with_trust_store_path(path));
        }
        Ok(Mountpoint(S3CrtClient::new(config)?))
    }
}

impl Peer for Mountpoint {
    async fn get(&self, key: &str, into: &mut Lease) -> Result<()> {
        let mut pieces = pin!(self.0.get_object(BUCKET, key, &GetObjectParams::new()).await?);
        let mut filling = LeaseWriter::new(into)?;
        while let Some(piece) = pieces.next().await {
            filling.push(&piece?.data)?;
        }
        filling.finish()
    }

    async fn put(&self, key: &str, from: &View) -> Result<()> {
        self.0.put_object_single(BUCKET, key, &PutObjectSingleParams::new(), from.clone()).await?;
        Ok(())
    }

    async fn head(&self, key: &str, len: u64) -> Result<()> {
        let found = self.0.head_object(BUCKET, key, &HeadObjectParams::new()).await?;
        ensure!(found.size == len, "wrong length");
        Ok(())
    }
}
