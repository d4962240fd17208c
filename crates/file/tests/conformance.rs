//! The suite over the file tier, with each engine.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use kvtier_disk::kvtier_codec::{
    Aes256Gcm, Chain, Decoder, Keyring, MasterKey, Stage, stage_by_name,
};
use kvtier_file::{EngineKind, FileConfig, FileTier, Layout, TierEncoding};
use kvtier_testkit::conformance::Fixture;

const CAPACITY: u64 = 16 << 20;

fn tier(engine: EngineKind) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let tier = FileTier::open(FileConfig::new(dir.path(), CAPACITY).with_engine(engine)).unwrap();
    Fixture::new(tier).with_capacity(CAPACITY).with_keep(dir)
}

/// What the probe of this machine chooses: io_uring wherever the kernel lets us.
mod probed {
    use super::*;

    fn make() -> Fixture {
        tier(EngineKind::Auto)
    }

    kvtier_testkit::conformance!(make);
}

mod threads {
    use super::*;

    fn make() -> Fixture {
        tier(EngineKind::Threads)
    }

    kvtier_testkit::conformance!(make);
}

/// A tier that encodes, by the stages of these names and by encryption with a key.
fn encoding(names: &[&str], encrypts: bool) -> Fixture {
    let keys = Arc::new(Keyring::new());
    keys.insert(MasterKey::new(1, &[7; 32]).unwrap());
    let aes: Arc<dyn Stage> = Arc::new(Aes256Gcm::new(keys, 1));
    let mut stages: Vec<_> = names.iter().map(|name| stage_by_name(name).unwrap()).collect();
    stages.extend(encrypts.then(|| Arc::clone(&aes)));
    let decoder = Decoder::new().with_stage(aes);
    let encoding = TierEncoding::new(Chain::new(stages).unwrap(), decoder);
    let dir = tempfile::tempdir().unwrap();
    let config = FileConfig::new(dir.path(), CAPACITY).with_encoding(Arc::new(encoding));
    let tier = FileTier::open(config).unwrap();
    Fixture::new(tier).with_capacity(CAPACITY).with_keep(dir)
}

mod zstd {
    use super::*;

    fn make() -> Fixture {
        encoding(&["zstd"], false)
    }

    kvtier_testkit::conformance!(make);
}

mod encrypted {
    use super::*;

    fn make() -> Fixture {
        encoding(&["zstd"], true)
    }

    kvtier_testkit::conformance!(make);
}

/// The layouts of other programs: their names have no place for a namespace, and each has keys of
/// one mode.
fn foreign(layout: Layout) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let mut config = FileConfig::new(dir.path(), CAPACITY).with_layout(layout);
    if layout.has_headers() {
        // A byte a token.
        config = config.with_chunk_shape("1x1x65536x1".parse().unwrap());
    }
    let tier = FileTier::open(config).unwrap();
    let fixture = Fixture::new(tier).with_capacity(CAPACITY).with_keep(dir).with_one_namespace();
    match layout {
        Layout::LmcacheMp => fixture,
        Layout::VllmFs => fixture.with_vllm_keys(),
        _ => fixture.with_engine_keys(),
    }
}

mod lmcache_mp {
    use super::*;

    fn make() -> Fixture {
        foreign(Layout::LmcacheMp)
    }

    kvtier_testkit::conformance!(make);
}

mod lmcache {
    use super::*;

    fn make() -> Fixture {
        foreign(Layout::Lmcache)
    }

    kvtier_testkit::conformance!(make);
}

mod lmcache_gds {
    use super::*;

    fn make() -> Fixture {
        foreign(Layout::LmcacheGds)
    }

    kvtier_testkit::conformance!(make);
}

mod vllm_fs {
    use super::*;

    fn make() -> Fixture {
        foreign(Layout::VllmFs)
    }

    kvtier_testkit::conformance!(make);
}

#[test]
fn the_last_event_of_a_key_matches_the_state() {
    kvtier_testkit::conformance::observe::the_last_event_of_a_key_matches_the_state(&tier(
        EngineKind::Auto,
    ));
    kvtier_testkit::conformance::observe::the_last_event_of_a_key_matches_the_state(&foreign(
        Layout::Lmcache,
    ));
}
