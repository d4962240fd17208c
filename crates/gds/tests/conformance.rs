//! The conformance suite over the GPU tier: with host memory, and with GPU memory of the stand-ins.
#![allow(clippy::unwrap_used)]

mod common;

use common::device;
use kvtier_fakegpu::{Fakes, Report};
use kvtier_gds::{CufileMode, GdsConfig, GdsTier, Layout};
use kvtier_testkit::conformance::Fixture;

const CAPACITY: u64 = 16 << 20;
const MIB: usize = 1 << 20;

/// Small pieces, so that the suite's chunks have several, and pinned memory for a few of them.
fn config(dir: &std::path::Path) -> GdsConfig {
    let mut config = GdsConfig::new(dir, CAPACITY);
    config.piece_bytes = 64 << 10;
    config.buffer_bytes = MIB;
    config.staging_bytes = 4 * MIB;
    config
}

fn host(layout: Layout) -> Fixture {
    with(layout, |_| {})
}

fn with(layout: Layout, change: impl FnOnce(&mut GdsConfig)) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.disk.layout = layout;
    change(&mut config);
    if layout.has_headers() {
        // One byte per token.
        config.disk.chunk_shape = Some("1x1x65536x1".parse().unwrap());
    }
    let fixture =
        Fixture::new(GdsTier::open(config).unwrap()).with_capacity(CAPACITY).with_keep(dir);
    match layout {
        Layout::Kvtier => fixture,
        Layout::LmcacheMp => fixture.with_one_namespace(),
        _ => fixture.with_one_namespace().with_engine_keys(),
    }
}

/// Runs a test over the stand-ins in a child, and checks for leaks.
fn over_fakes(name: &str, body: &dyn Fn()) {
    let (_, name) = name.split_once("::").unwrap();
    Fakes::new().run(name, body, Report::assert_clean);
}

mod host_memory {
    use super::*;

    fn make() -> Fixture {
        host(Layout::Kvtier)
    }

    kvtier_testkit::conformance!(make);
}

mod gpu_memory {
    use super::*;

    fn make() -> Fixture {
        device(host(Layout::Kvtier))
    }

    kvtier_testkit::conformance!(make, over_fakes);
}

mod gpu_memory_lmcache_mp {
    use super::*;

    fn make() -> Fixture {
        device(host(Layout::LmcacheMp))
    }

    kvtier_testkit::conformance!(make, over_fakes);
}

mod gpu_memory_lmcache_gds {
    use super::*;

    fn make() -> Fixture {
        device(host(Layout::LmcacheGds))
    }

    kvtier_testkit::conformance!(make, over_fakes);
}

mod gpu_memory_lmcache_gds_by_cufile {
    use super::*;

    fn make() -> Fixture {
        by_cufile(Layout::LmcacheGds)
    }

    kvtier_testkit::conformance!(make, over_fakes);
}

mod gpu_memory_by_cufile {
    use super::*;

    fn make() -> Fixture {
        by_cufile(Layout::Kvtier)
    }

    kvtier_testkit::conformance!(make, over_fakes);
}

/// GPU memory with a required cuFile, on a machine with all its prerequisites.
fn by_cufile(layout: Layout) -> Fixture {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("proc")).unwrap();
    std::fs::write(root.path().join("proc/modules"), "").unwrap();
    std::fs::create_dir_all(root.path().join("run/udev/data")).unwrap();
    device(with(layout, |config| {
        config.cufile = CufileMode::Require;
        config.system_root = root.path().to_owned();
    }))
}
