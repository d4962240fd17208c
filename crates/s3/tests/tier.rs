//! The tier over servers in memory: the suite, and what a bucket's own dangers do to it.
#![allow(clippy::unwrap_used)]

mod support;

use kvtier_s3::tier::{S3Tier, TierConfig};
use kvtier_testkit::conformance::Fixture;
use support::*;

const CAPACITY: u64 = 16 << 20;

fn fixture(bucket: &'static str) -> Fixture {
    fixture_of(bucket, |config| config)
}

fn fixture_of(bucket: &'static str, change: impl FnOnce(TierConfig) -> TierConfig) -> Fixture {
    let server = server(|setup| setup.bucket = bucket.into());
    let config = TierConfig::new(config_of(endpoint(&server, bucket))).with_capacity(CAPACITY).with_prefix("kv");
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
    use kvtier_s3::tier::Layout;

    fn make() -> super::Fixture {
        super::fixture_of("bucket", |config| config.with_layout(Layout::LmcacheMp)).with_one_namespace()
    }

    kvtier_testkit::conformance!(make);
}

mod lmcache {
    use kvtier_s3::tier::Layout;

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
            (config.multipart_above_bytes, config.ranges_above_bytes, config.if_absent) = (1 << 16, 1 << 16, true);
            config
        })
    }

    kvtier_testkit::conformance!(make);
}
