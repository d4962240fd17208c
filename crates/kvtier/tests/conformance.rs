//! The suite over the host tier and over stacks.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use kvtier::prelude::*;
use kvtier_testkit::conformance::Fixture;
use kvtier_testkit::{FaultTier, Faults, ModelConfig, ModelTier};

const CAPACITY: u64 = 16 << 20;

fn host(bytes: u64) -> Arc<HostTier> {
    Arc::new(HostTier::open(HostConfig::new(bytes)).unwrap())
}

fn stack(tiers: Vec<Arc<dyn Tier>>) -> Fixture {
    Fixture::new(Stack::new("stack", tiers).unwrap()).with_capacity(CAPACITY)
}

mod host_alone {
    use super::*;

    fn make() -> Fixture {
        Fixture::new(HostTier::open(HostConfig::new(CAPACITY)).unwrap()).with_capacity(CAPACITY)
    }

    kvtier_testkit::conformance!(make);
}

mod host_over_host {
    use super::*;

    fn make() -> Fixture {
        stack(vec![host(4 << 20), host(CAPACITY)])
    }

    kvtier_testkit::conformance!(make);
}

mod host_over_a_healed_fault_tier {
    use super::*;

    fn make() -> Fixture {
        let model =
            Arc::new(ModelTier::open(ModelConfig::default().with_capacity(CAPACITY)).unwrap());
        stack(vec![host(2 << 20), Arc::new(FaultTier::new(model, Faults::none(), 1).unwrap())])
    }

    kvtier_testkit::conformance!(make);
}

#[cfg(feature = "file")]
mod host_over_file {
    use super::*;

    fn make() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let file =
            kvtier::file::FileTier::open(kvtier::file::FileConfig::new(dir.path(), CAPACITY))
                .unwrap();
        stack(vec![host(4 << 20), Arc::new(file)]).with_keep(dir)
    }

    kvtier_testkit::conformance!(make);
}

#[cfg(all(feature = "config", feature = "file"))]
mod host_over_encoded_file {
    use super::*;

    fn make() -> Fixture {
        let encoding = kvtier::codec::TierEncoding::new(
            kvtier::codec::Chain::new(vec![kvtier::codec::stage_by_name("zstd").unwrap()]).unwrap(),
            kvtier::codec::Decoder::new(),
        );
        let dir = tempfile::tempdir().unwrap();
        let config =
            kvtier::file::FileConfig::new(dir.path(), CAPACITY).with_encoding(encoding.into());
        let file = kvtier::file::FileTier::open(config).unwrap();
        stack(vec![host(4 << 20), Arc::new(file)]).with_keep(dir)
    }

    kvtier_testkit::conformance!(make);
}

/// A stack in a stack is a tier like any other.
mod nested {
    use super::*;

    fn make() -> Fixture {
        let low = Stack::new("low", vec![host(8 << 20) as Arc<dyn Tier>, host(CAPACITY)]).unwrap();
        stack(vec![host(2 << 20), Arc::new(low)])
    }

    kvtier_testkit::conformance!(make);
}

#[test]
fn the_last_event_of_a_key_matches_the_state() {
    kvtier_testkit::conformance::observe::the_last_event_of_a_key_matches_the_state(&{
        Fixture::new(HostTier::open(HostConfig::new(CAPACITY)).unwrap()).with_capacity(CAPACITY)
    });
}
