//! The conformance suite over NVIDIA's own libcufile in compatibility mode, over the stand-in for
//! the driver. `cargo xtask ci --only cufile` installs it. `KVTIER_CUFILE` is its path; without it
//! the tests are skipped with a message.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod common;

use common::{Bench, LEN, device, machine};
use kvtier_fakegpu::{Fakes, Report};
use kvtier_gds::{CufileMode, GdsConfig, GdsTier};
use kvtier_testkit::conformance::Fixture;

const CAPACITY: u64 = 16 << 20;

fn library() -> Option<String> {
    std::env::var("KVTIER_CUFILE").ok()
}

/// Uses it in compatibility mode, since it has no direct transfers here.
fn real(config: &mut GdsConfig, root: &tempfile::TempDir) {
    config.cufile = CufileMode::Require;
    config.compat = true;
    config.cufile_library = library().map(Into::into);
    config.system_root = root.path().to_owned();
    // Its first call examines the whole machine.
    config.open_timeout = std::time::Duration::from_secs(60);
}

/// Runs `body` in a child over it. The library releases its own resources only at the end, so only
/// device memory is checked for leaks: all of that is the tier's.
fn over_it(name: &str, body: &dyn Fn()) {
    if library().is_none() {
        return eprintln!("not tried: KVTIER_CUFILE does not say where libcufile is");
    }
    let mut fakes = Fakes::new().without_cufile().await_only_device_memory();
    fakes = fakes.with("CUFILE_LOGFILE_PATH", "/dev/null".into());
    if let Ok(preload) = std::env::var("KVTIER_CUFILE_PRELOAD") {
        fakes = fakes.with("LD_PRELOAD", preload);
    }
    let check = |report: &Report| {
        let left = report.leaks();
        assert!(left.iter().all(|(what, _)| what != "device_bytes"), "{left:?}");
    };
    fakes.run(name, body, check);
}

#[test]
fn every_byte_of_a_load_by_cufile_is_verified() {
    over_it("every_byte_of_a_load_by_cufile_is_verified", &|| {
        let root = machine();
        let it = Bench::with(|config| real(config, &root));
        it.round_trip(1, LEN);
        it.round_trip(2, 4096);
        let status = kvtier_core::Observe::status(&it.tier);
        assert!(it.counter("direct_bytes") >= (LEN / 4096 * 4096) as u64, "{status:?}");
        assert_eq!(
            (it.counter("direct_failed"), it.counter("unverified_loads")),
            (0, 0),
            "{}",
            it.reasons()
        );
        // The same with registered memory.
        let registered = it.tier.register_gpu(&it.arena);
        assert!(registered.bytes > 0, "{registered:?}");
        it.round_trip(3, LEN);
        assert_eq!(it.counter("direct_failed"), 0, "{}", it.reasons());
        assert_eq!(
            it.counter("verified_gpu_bytes"),
            it.counter("direct_bytes"),
            "{}",
            it.reasons()
        );
    });
}

#[test]
fn the_status_names_a_disk_without_direct_transfers() {
    over_it("the_status_names_a_disk_without_direct_transfers", &|| {
        let dir = tempfile::tempdir().unwrap();
        let root = machine();
        common::disk_of(dir.path(), root.path(), "vda");
        let mut config = common::config(dir.path());
        real(&mut config, &root);
        let found = kvtier_gds::diagnose(&config, 0);
        let probe =
            found.iter().find(|step| step.name == "probe").unwrap_or_else(|| panic!("{found:?}"));
        assert!(probe.passed && probe.detail.contains("through host memory"), "{found:?}");
    });
}

mod suite {
    use super::*;

    fn make() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let root = machine();
        let mut config = common::config(dir.path());
        config.disk.capacity_bytes = CAPACITY;
        real(&mut config, &root);
        device(Fixture::new(GdsTier::open(config).unwrap()).with_capacity(CAPACITY).with_keep(dir))
    }

    fn around(name: &str, body: &dyn Fn()) {
        let (_, name) = name.split_once("::").unwrap();
        over_it(name, body);
    }

    kvtier_testkit::conformance!(make, around);
}
