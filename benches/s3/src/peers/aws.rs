use anyhow::{Result, ensure};
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{
    BehaviorVersion, Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation,
};
use aws_sdk_s3::primitives::ByteStream;
use bytes::Bytes;
use kvtier_mem::{Lease, View};

use super::{BUCKET, KEY, LeaseWriter, Peer, REGION, SECRET};
use crate::job::RunArgs;

/// The AWS SDK.
pub struct Aws(Client);

impl Aws {
    pub fn new(args: &RunArgs) -> Result<Self> {
        let config = aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .credentials_provider(Credentials::new(KEY, SECRET, None, None, "bench"))
            .region(Region::new(REGION))
            .endpoint_url(&args.endpoint)
            .force_path_style(true)
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
        Ok(Aws(Client::from_conf(config.build())))
    }
}

impl Peer for Aws {
    async fn get(&self, key: &str, into: &mut Lease) -> Result<()> {
        let mut answer = self.0.get_object().bucket(BUCKET).key(key).send().await?;
        let mut filling = LeaseWriter::new(into)?;
        while let Some(piece) = answer.body.next().await {
            filling.push(&piece?)?;
        }
        filling.finish()
    }

    async fn put(&self, key: &str, from: &View) -> Result<()> {
        let body = ByteStream::from(Bytes::from_owner(from.clone()));
        let put = self.0.put_object().bucket(BUCKET).key(key).body(body);
        put.customize().disable_payload_signing().send().await?;
        Ok(())
    }

    async fn head(&self, key: &str, len: u64) -> Result<()> {
        let found = self.0.head_object().bucket(BUCKET).key(key).send().await?.content_length();
        ensure!(found == Some(len as i64), "wrong length");
        Ok(())
    }
}
