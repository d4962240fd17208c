//! The tier's suite against a real server, where the environment names one as for `real.rs`; else
//! against the one in memory.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::atomic::{AtomicU32, Ordering};

use kvtier_s3::creds::from_env;
use kvtier_s3::{BucketAddress, Client, Conditional, Config, List, Provider};
use kvtier_s3_tier::{Evictor, S3Tier, TierConfig};
use kvtier_testkit::conformance::Fixture;
use support::*;

const CAPACITY: u64 = 16 << 20;

fn var(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A bucket of one test's own; dropped, it is emptied and deleted.
struct Bucket(String);

impl Bucket {
    fn config(&self) -> Option<Config> {
        let region = var("AWS_REGION").unwrap_or_else(|| "us-east-1".into());
        let provider =
            var("S3_PROVIDER").map_or(Provider::Other, |name| Provider::named(&name).unwrap());
        let place = BucketAddress::new(var("S3_ENDPOINT")?)
            .bucket(&self.0)
            .region(region)
            .provider(provider);
        Some(Config::new(place.resolve().unwrap(), from_env(var).unwrap().unwrap()))
    }

    fn client(&self) -> Option<(Client, tokio::runtime::Runtime)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Some((Client::new(self.config()?), runtime))
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        let Some((client, runtime)) = self.client() else { return };
        runtime.block_on(async {
            while let Ok(page) = client.list(&List::default(), None).await
                && !page.entries.is_empty()
            {
                let keys: Vec<_> = page.entries.iter().map(|entry| entry.key.as_str()).collect();
                drop(client.delete_many(&keys).await);
            }
            drop(client.delete_bucket().await);
        });
    }
}

fn make() -> Fixture {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let bucket = Bucket(format!(
        "kvtier-tier-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    ));
    let of = |config: Config| {
        // Where nodes cannot agree on who evicts, one is configured to.
        let alone = !matches!(
            config.endpoint.provider().conditional(),
            Conditional::Honoured | Conditional::Unknown
        );
        let mut config = TierConfig::new(config).with_capacity(CAPACITY).with_prefix("kv");
        config.sync.evictor = if alone { Evictor::Single } else { Evictor::Lease };
        S3Tier::open(config).unwrap()
    };
    let Some((client, runtime)) = bucket.client() else {
        let server = server(|_| {});
        return Fixture::new(of(config(&server))).with_capacity(CAPACITY).with_keep(server);
    };
    runtime.block_on(client.create_bucket()).unwrap();
    Fixture::new(of(bucket.config().unwrap())).with_capacity(CAPACITY).with_keep(bucket)
}

kvtier_testkit::conformance!(make);
