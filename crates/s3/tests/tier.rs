//! The tier over servers in memory: the suite, and what a bucket's own dangers do to it.
#![allow(clippy::unwrap_used)]

mod support;

use kvtier_s3::tier::{S3Tier, TierConfig};
use kvtier_testkit::conformance::Fixture;
use support::*;

const CAPACITY: u64 = 16 << 20;

fn fixture(bucket: &'static str) -> Fixture {
    let server = server(|setup| setup.bucket = bucket.into());
    let config = TierConfig::new(config_of(endpoint(&server, bucket))).with_capacity(CAPACITY).with_prefix("kv");
    Fixture::new(S3Tier::open(config).unwrap()).with_capacity(CAPACITY).with_keep(server)
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
