//! The tier over servers in memory: the suite, and what a bucket's own dangers do to it.
#![allow(clippy::unwrap_used)]

mod support;

use kvtier_s3_tier::{S3Tier, TierConfig};
use kvtier_testkit::conformance::Fixture;
use support::*;

const CAPACITY: u64 = 16 << 20;

fn fixture(bucket: &'static str) -> Fixture {
    fixture_of(bucket, |config| config)
}

fn fixture_of(bucket: &'static str, change: impl FnOnce(TierConfig) -> TierConfig) -> Fixture {
    let server = server(|setup| setup.bucket = bucket.into());
    let config = TierConfig::new(config_of(endpoint(&server, bucket)))
        .with_capacity(CAPACITY)
        .with_prefix("kv");
    Fixture::new(S3Tier::open(change(config)).unwrap()).with_capacity(CAPACITY).with_keep(server)
}

mod plain {
    fn make() -> super::Fixture {
        super::fixture("bucket")
    }

    kvtier_testkit::conformance!(make);
}

mod express {
    fn make() -> super::Fixture {
        super::fixture("kv--use1-az4--x-s3")
    }

    kvtier_testkit::conformance!(make);
}

mod lmcache_mp {
    use kvtier_s3_tier::Layout;

    fn make() -> super::Fixture {
        super::fixture_of("bucket", |config| config.with_layout(Layout::LmcacheMp))
            .with_one_namespace()
    }

    kvtier_testkit::conformance!(make);
}

mod lmcache {
    use kvtier_s3_tier::Layout;

    fn make() -> super::Fixture {
        super::fixture_of("bucket", |config| config.with_layout(Layout::Lmcache))
            .with_one_namespace()
            .with_engine_keys()
    }

    kvtier_testkit::conformance!(make);
}

mod in_parts_and_if_absent {
    fn make() -> super::Fixture {
        super::fixture_of("bucket", |mut config| {
            (config.multipart_above_bytes, config.ranges_above_bytes, config.if_absent) =
                (1 << 16, 1 << 16, true);
            config
        })
    }

    kvtier_testkit::conformance!(make);
}

/// HTTP/2, over TLS.
mod http2 {
    use kvtier_s3::{Http2, RootCerts};
    use kvtier_s3_tier::{S3Tier, TierConfig};
    use kvtier_testkit::conformance::Fixture;
    use kvtier_testkit::s3::{Server, Setup, ca_pem};

    use super::support::{config_of, endpoint};

    fn make() -> Fixture {
        let server = Server::start_http2(Setup::default()).unwrap();
        let mut client = config_of(endpoint(&server, "bucket"));
        (client.http2, client.root_certs) =
            (Http2::PriorKnowledge, RootCerts::Pem(ca_pem().into()));
        let config = TierConfig::new(client).with_capacity(super::CAPACITY).with_prefix("kv");
        Fixture::new(S3Tier::open(config).unwrap()).with_capacity(super::CAPACITY).with_keep(server)
    }

    kvtier_testkit::conformance!(make);
}

mod tls {
    use kvtier_s3::{BucketAddress, RootCerts};
    use kvtier_s3_tier::{S3Tier, TierConfig};
    use kvtier_testkit::conformance::Fixture;

    use super::support::front::Front;
    use super::support::{config_of, server};

    fn make() -> Fixture {
        let server = server(|_| {});
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let front = runtime.block_on(Front::before(&server));
        let place = BucketAddress::new(format!("https://{}", front.address))
            .bucket("bucket")
            .region("us-east-1");
        let mut client = config_of(place.resolve().unwrap());
        client.root_certs = RootCerts::Pem(front.ca.into_bytes());
        let config = TierConfig::new(client).with_capacity(super::CAPACITY).with_prefix("kv");
        Fixture::new(S3Tier::open(config).unwrap())
            .with_capacity(super::CAPACITY)
            .with_keep((server, runtime))
    }

    kvtier_testkit::conformance!(make);
}

#[test]
fn the_last_event_of_a_key_matches_the_tier() {
    kvtier_testkit::conformance::observe::the_last_event_of_a_key_matches_the_state(&fixture(
        "bucket",
    ));
}
