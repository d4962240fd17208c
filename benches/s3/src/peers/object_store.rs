use anyhow::{Result, ensure};
use bytes::Bytes;
use futures::StreamExt;
use kvtier_mem::{Lease, View};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStoreExt, PutPayload};

use super::{BUCKET, KEY, LeaseWriter, Peer, REGION, SECRET};
use crate::job::RunArgs;

/// The `object_store` crate.
pub struct Store(AmazonS3);

impl Store {
    pub fn new(args: &RunArgs) -> Result<Self> {
        let builder = AmazonS3Builder::new()
            .with_endpoint(&args.endpoint)
            .with_bucket_name(BUCKET)
            .with_region(REGION);
        let builder = builder
            .with_access_key_id(KEY)
            .with_secret_access_key(SECRET)
            .with_unsigned_payload(true);
        let options = ClientOptions::new().with_allow_http(true);
        let options =
            if args.http2 { options.with_http2_only() } else { options.with_http1_only() };
        Ok(Store(builder.with_client_options(options).build()?))
    }
}

impl Peer for Store {
    async fn get(&self, key: &str, into: &mut Lease) -> Result<()> {
        let mut pieces = self.0.get(&Path::from(key)).await?.into_stream();
        let mut filling = LeaseWriter::new(into)?;
        while let Some(piece) = pieces.next().await {
            filling.push(&piece?)?;
        }
        filling.finish()
    }

    async fn put(&self, key: &str, from: &View) -> Result<()> {
        let body = PutPayload::from_bytes(Bytes::from_owner(from.clone()));
        self.0.put(&Path::from(key), body).await?;
        Ok(())
    }

    async fn head(&self, key: &str, len: u64) -> Result<()> {
        ensure!(self.0.head(&Path::from(key)).await?.size == len, "wrong length");
        Ok(())
    }
}
