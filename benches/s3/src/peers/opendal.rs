use anyhow::{Result, ensure};
use bytes::Bytes;
use kvtier_mem::{Lease, View};
use opendal::Operator;
use opendal::services::S3;

use super::{BUCKET, KEY, LeaseWriter, Peer, REGION, SECRET};
use crate::job::RunArgs;

/// OpenDAL on reqwest.
pub struct Dal(Operator);

impl Dal {
    pub fn new(args: &RunArgs) -> Result<Self> {
        opendal::install_default();
        let s3 = S3::default().endpoint(&args.endpoint).bucket(BUCKET).region(REGION);
        let s3 = s3
            .access_key_id(KEY)
            .secret_access_key(SECRET)
            .disable_config_load()
            .disable_ec2_metadata();
        Ok(Dal(Operator::new(s3)?))
    }
}

impl Peer for Dal {
    async fn get(&self, key: &str, into: &mut Lease) -> Result<()> {
        let pieces = self.0.read_with(key).range(0..into.len() as u64).await?;
        let mut filling = LeaseWriter::new(into)?;
        for piece in pieces {
            filling.push(&piece)?;
        }
        filling.finish()
    }

    async fn put(&self, key: &str, from: &View) -> Result<()> {
        self.0.write(key, Bytes::from_owner(from.clone())).await?;
        Ok(())
    }

    async fn head(&self, key: &str, len: u64) -> Result<()> {
        ensure!(self.0.stat(key).await?.content_length() == len, "wrong length");
        Ok(())
    }
}
