use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use kvtier_mem::{Lease, View};
use reqwest::Client;
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};

use super::{BUCKET, KEY, LeaseWriter, Peer, REGION, SECRET};
use crate::job::RunArgs;

const VALID: Duration = Duration::from_secs(3600);

/// `rusty-s3` signs, `reqwest` sends.
pub struct Rusty {
    http: Client,
    bucket: Bucket,
    who: Credentials,
}

impl Rusty {
    pub fn new(args: &RunArgs) -> Result<Self> {
        let http = match (args.http2, args.tls()) {
            (false, _) => Client::builder().http1_only(),
            (true, true) => Client::builder(),
            (true, false) => Client::builder().http2_prior_knowledge(),
        };
        Ok(Rusty {
            http: http.build()?,
            bucket: Bucket::new(args.endpoint.parse()?, UrlStyle::Path, BUCKET, REGION)?,
            who: Credentials::new(KEY, SECRET),
        })
    }
}

impl Peer for Rusty {
    async fn get(&self, key: &str, into: &mut Lease) -> Result<()> {
        let url = self.bucket.get_object(Some(&self.who), key).sign(VALID);
        let mut answer = self.http.get(url).send().await?.error_for_status()?;
        let mut filling = LeaseWriter::new(into)?;
        while let Some(piece) = answer.chunk().await? {
            filling.push(&piece)?;
        }
        filling.finish()
    }

    async fn put(&self, key: &str, from: &View) -> Result<()> {
        let url = self.bucket.put_object(Some(&self.who), key).sign(VALID);
        self.http
            .put(url)
            .body(Bytes::from_owner(from.clone()))
            .send()
            .await?
            .error_for_status()?;
        Ok(())
    }

    async fn head(&self, key: &str, len: u64) -> Result<()> {
        let url = self.bucket.head_object(Some(&self.who), key).sign(VALID);
        let answer = self.http.head(url).send().await?.error_for_status()?;
        let found = answer
            .headers()
            .get("content-length")
            .and_then(|value| value.to_str().ok()?.parse().ok());
        ensure!(found == Some(len), "wrong length");
        Ok(())
    }
}
