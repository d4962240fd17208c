use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kvtier_mem::{Lease, View};
use kvtier_s3::{Client, Config, Credentials, Get, Http2, BucketAddress, Put};

use super::{BUCKET, KEY, Peer, SECRET};
use crate::job::RunArgs;

/// This repository's client.
pub struct Kvtier(Client);

impl Kvtier {
    pub fn new(args: &RunArgs) -> Result<Self> {
        let endpoint = BucketAddress::new(&args.endpoint).bucket(BUCKET).resolve()?;
        let mut config = Config::new(endpoint, Credentials::new(KEY, SECRET));
        config.tls_direct = args.peer == "kvtier-direct";
        config.requests_max = args.concurrency;
        config.http2 = if args.http2 { Http2::PriorKnowledge } else { Http2::Off };
        Ok(Kvtier(Client::new(config).within(Duration::from_secs(120))))
    }
}

impl Peer for Kvtier {
    async fn get(&self, key: &str, into: &mut Lease) -> Result<()> {
        self.0.get(key, into, &Get::default()).await?.context("no such object")?;
        Ok(())
    }

    async fn put(&self, key: &str, from: &View) -> Result<()> {
        self.0.put(key, from, &Put::default()).await?;
        Ok(())
    }

    async fn head(&self, key: &str, len: u64) -> Result<()> {
        let object = self.0.head(key).await?.context("no such object")?;
        ensure!(object.len() == len, "wrong length");
        Ok(())
    }
}
