//! The suite over the model tier.
#![allow(clippy::unwrap_used)]

use kvtier_testkit::conformance::Fixture;
use kvtier_testkit::{ModelConfig, ModelTier};

const CAPACITY: u64 = 8 << 20;

fn make() -> Fixture {
    Fixture::new(ModelTier::open(ModelConfig::default().with_capacity(CAPACITY)).unwrap())
        .with_capacity(CAPACITY)
}

kvtier_testkit::conformance!(make);
