//! Loads by cuFile: the bytes are correct, also after every fault, when pinned memory is used.
#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::fs::FileExt;
use std::time::Duration;

use common::{Bench, LEN, MIB, clean, config, disk_of, foreign_stream, machine, set_later};
use kvtier_core::{ErrorKind, Loaded, MissReason, Removed, Saved, Tier};
use kvtier_fakegpu::{Fakes, HeldStreams, Report};
use kvtier_gds::{CufileMode, GdsTier, Proof};

#[test]
fn loads_by_cufile_use_registered_gpu_memory() {
    let body = || {
        let bench = Bench::direct(|config| config.cufile = CufileMode::Require);
        let registered = bench.tier.register_gpu(&bench.arena);
        assert_eq!(
            (registered.bytes, registered.reason.as_str()),
            (16 * MIB, "registered with cuFile")
        );
        (0..4).for_each(|n| bench.round_trip(n, LEN));
        assert_eq!(
            (bench.counter("direct_bytes"), bench.counter("uploaded_bytes")),
            (4 * MIB as u64, 0)
        );
        let how = ["verified_gpu_bytes", "verified_host_bytes", "unverified_loads"]
            .map(|name| bench.counter(name));
        assert_eq!(how, [4 * MIB as u64, 0, 0]);
        let words = "direct for nvme, checksums computed on the GPU, proof Always";
        assert!(bench.reasons().contains(words), "{}", bench.reasons());
    };
    let check = |report: &Report| {
        report.assert_clean();
        // The probe's memory is not registered: one write and one read.
        assert_eq!((report.counter("unregistered"), report.counter("unaligned")), (2, 0));
        assert_eq!(report.counter("read_bytes"), 4 * MIB as u64 + (64 << 10));
        assert_eq!(report.calls("cuFileDriverOpen"), 1);
    };
    Fakes::new().run("loads_by_cufile_use_registered_gpu_memory", body, check);
}

#[test]
fn regions_of_registered_memory_are_not_crossed() {
    let body = || {
        let mut bench = Bench::direct(|config| config.piece_bytes = MIB);
        bench.arena = kvtier_mem::Arena::device(&bench.gpu, 40 * MIB).unwrap();
        assert_eq!(bench.tier.register_gpu(&bench.arena).bytes, 40 * MIB);
        // The chunk crosses the end of the first region.
        let _before = bench.arena.lease(16 * MIB - 8192).unwrap();
        let key = bench.key(1);
        let len = 2 * MIB;
        let chunk = bench.chunk(&key, len);
        assert_eq!(bench.save(&key, chunk).result.unwrap(), Saved::Stored);
        bench.prove(&key, len);
        assert_eq!(bench.counter("direct_bytes"), len as u64);
    };
    let check = |report: &Report| {
        report.assert_clean();
        assert_eq!(report.counter("unregistered"), 2, "those of the probe");
    };
    Fakes::new().run("regions_of_registered_memory_are_not_crossed", body, check);
}

#[test]
fn foreign_memory_can_be_registered() {
    let body = || {
        let mut bench = Bench::direct(|_| {});
        let theirs = kvtier_mem::Arena::device(&bench.gpu, 4 * MIB).unwrap();
        let region = theirs.regions()[0];
        // SAFETY: only this test uses the memory, and the arena keeps it.
        let over = |addr, len| unsafe {
            kvtier_mem::Arena::from_device(addr, len, std::sync::Arc::new(theirs.clone()))
        };
        assert!(over(region.addr + 1, region.len - 1).unwrap_err().to_string().contains("aligned"));
        assert!(
            over(region.addr, region.len + 16 * MIB)
                .unwrap_err()
                .to_string()
                .contains("past their allocation")
        );
        bench.arena = over(region.addr, region.len).unwrap();
        assert_eq!(bench.tier.register_gpu(&bench.arena).bytes, 4 * MIB);
        (0..3).for_each(|n| bench.round_trip(n, LEN));
        assert_eq!(bench.counter("direct_bytes"), 3 * MIB as u64);
    };
    let check = |report: &Report| {
        report.assert_clean();
        assert_eq!(report.counter("unregistered"), 2, "those of the probe");
    };
    Fakes::new().run("foreign_memory_can_be_registered", body, check);
}

#[test]
fn memory_of_any_alignment_loads_as_directly_as_possible() {
    clean("memory_of_any_alignment_loads_as_directly_as_possible", &Fakes::new(), || {
        let bench = Bench::direct(|_| {});
        let key = bench.key(1);
        assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
        let (_, odd) = bench.arena.lease(LEN + 3).unwrap().split_at(3);
        let lens = [5000, 8192, MIB];
        let leases = lens.map(|len| bench.arena.lease(len).unwrap());
        for into in [vec![odd], leases.into()] {
            let done = bench.load_into(&key, into);
            assert_eq!(done.result.unwrap(), Loaded::Hit { len: LEN as u64 });
            let mut at = 0;
            for lease in &done.op.into {
                let mut bytes = vec![0; lease.init_len()];
                bench.stream.download_lease(lease, 0, &mut bytes).unwrap();
                assert_eq!(kvtier_testkit::Content::of(&key).check(at, &bytes), Ok(()));
                at += bytes.len() as u64;
            }
            assert_eq!(at, LEN as u64);
        }
    });
}

#[test]
fn a_file_replaced_by_another_process_during_an_unverified_load_is_no_hit() {
    let body = || {
        let bench = Bench::direct(|config| config.proof = Proof::Off);
        let caller = foreign_stream(&bench.gpu);
        let key = bench.key(1);
        assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
        let mut into = bench.arena.lease(LEN).unwrap();
        let hold = HeldStreams::new();
        let event = set_later(&bench.gpu, &caller, into.addr(), LEN);
        into.set_after(Some(event));
        let load = kvtier_core::Load { key: key.clone(), into: vec![into] };
        let ticket =
            bench.tier.load(&kvtier_core::Ctx::within(Duration::from_secs(600)), vec![load]);
        // By then the footer was read, and the payload waits for the event.
        while bench.counter("event_waits") == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let file = bench.file();
        let taken = bench.dir.path().join("taken");
        std::fs::rename(&file, &taken).unwrap();
        std::fs::OpenOptions::new()
            .write(true)
            .open(&taken)
            .unwrap()
            .write_all_at(&[7; MIB], 0)
            .unwrap();
        drop(hold);
        let done = ticket.wait().pop().unwrap();
        assert_eq!(
            (done.result.unwrap(), done.op.into[0].init_len()),
            (Loaded::Miss(MissReason::Absent), 0)
        );
        assert_eq!(bench.counter("unverified_loads"), 1);
    };
    let fakes = Fakes::new();
    let check = |report: &Report| {
        assert_eq!(report.leaks(), [("streams".to_owned(), 1)], "but the caller's own")
    };
    let name = "a_file_replaced_by_another_process_during_an_unverified_load_is_no_hit";
    fakes.run(name, body, check);
}

/// The data path of the loads after the fault.
#[derive(Clone, Copy, PartialEq)]
enum Ends {
    Direct,
    Pinned,
}

/// Checks that every load is correct with these faults, and that the status contains `words`.
fn survives(name: &str, fakes: &Fakes, ends: Ends, words: &str) {
    clean(name, fakes, || {
        // No call hangs in these tests.
        let bench = Bench::direct(|config| config.open_timeout = Duration::from_secs(30));
        (0..3).for_each(|n| bench.round_trip(n, LEN));
        let direct = bench.counter("direct_bytes");
        assert_eq!(
            direct > 0,
            ends == Ends::Direct,
            "{direct} bytes by cuFile; {}",
            bench.reasons()
        );
        assert_eq!(direct + bench.counter("uploaded_bytes"), 3 * MIB as u64);
        assert!(bench.reasons().contains(words), "{}", bench.reasons());
    });
}

macro_rules! survives {
    ($($name:ident: $fakes:expr, $ends:ident, $words:literal;)*) => {
        $(
            #[test]
            fn $name() {
                survives(stringify!($name), &$fakes, Ends::$ends, $words);
            }
        )*
    };
}

// The first call of each function is that of the probe.
survives! {
    no_library: Fakes::new().without_cufile(), Pinned, "no libcufile";
    a_driver_that_does_not_open: Fakes::new().fail("cuFileDriverOpen:1:5001"), Pinned, "load nvidia-fs (modprobe nvidia_fs)";
    compatibility_mode: Fakes::new().compat(), Pinned, "slower than kvtier's pinned memory";
    a_mount_that_is_not_supported: Fakes::new().fail("cuFileHandleRegister:*:5030"), Pinned, "use a volume of ext4 or xfs";
    no_udev_for_a_file: Fakes::new().fail("cuFileHandleRegister:*:5027"), Pinned, "mount the host's /run/udev";
    a_file_that_is_refused_later: Fakes::new().fail("cuFileHandleRegister:3:5030"), Direct, "by cuFile no more";
    a_file_that_fails_once: Fakes::new().fail("cuFileHandleRegister:2:5031"), Direct, "direct for nvme";
    a_read_that_fails_once: Fakes::new().fail("cuFileRead:5:5011"), Direct, "direct for nvme";
    reads_that_always_fail: Fakes::new().fail("cuFileRead:1:S65536,cuFileRead:*:5010"), Pinned, "nvidia-fs failed";
    a_read_that_the_disk_fails: Fakes::new().fail("cuFileRead:3:E5"), Direct, "direct for nvme";
    short_reads: Fakes::new().fail("cuFileRead:2:S4096,cuFileRead:3:S12288"), Direct, "direct for nvme";
    reads_of_nothing: Fakes::new().fail("cuFileRead:2:Z,cuFileRead:4:Z"), Direct, "direct for nvme";
    a_probe_that_reads_nothing: Fakes::new().fail("cuFileRead:1:Z"), Pinned, "moved 0 bytes";
    a_probe_that_cannot_write: Fakes::new().fail("cuFileWrite:1:E30"), Pinned, "Read-only";
    an_unknown_code: Fakes::new().fail("cuFileRead:2:7777"), Direct, "direct for nvme";
}

#[test]
fn a_driver_that_never_opens_costs_a_thread_and_no_load() {
    let body = || {
        let bench = Bench::direct(|config| config.open_timeout = Duration::from_secs(3));
        (0..3).for_each(|n| bench.round_trip(n, LEN));
        assert!(bench.reasons().contains("has not returned within 3 s"), "{}", bench.reasons());
    };
    let check = |report: &Report| {
        assert_eq!(report.leaks(), [("contexts".to_owned(), 1)]);
        assert_eq!(report.calls("cuFileDriverOpen"), 1, "not tried again");
    };
    let fakes = Fakes::new().fail("cuFileDriverOpen:1:H");
    fakes.run("a_driver_that_never_opens_costs_a_thread_and_no_load", body, check);
}

#[test]
fn memory_that_cannot_be_registered_is_loaded_unregistered() {
    let body = || {
        let mut bench = Bench::direct(|_| {});
        bench.arena = kvtier_mem::Arena::device(&bench.gpu, 40 * MIB).unwrap();
        let registered = bench.tier.register_gpu(&bench.arena);
        assert_eq!(registered.bytes, 16 * MIB);
        assert!(registered.reason.contains("BAR1"), "{}", registered.reason);
        (0..3).for_each(|n| bench.round_trip(n, LEN));
        assert_eq!(bench.counter("direct_bytes"), 3 * MIB as u64);
    };
    let fakes = Fakes::new().bar1(20 * MIB);
    clean("memory_that_cannot_be_registered_is_loaded_unregistered", &fakes, body);
}

/// Checks that a tier that requires cuFile cannot be opened, with the reason as its error.
fn refused(name: &str, fakes: &Fakes, whole: bool, words: &[&str]) {
    clean(name, fakes, || {
        let dir = tempfile::tempdir().unwrap();
        let root = machine();
        let mut config = config(dir.path());
        config.cufile = CufileMode::Require;
        if whole {
            config.system_root = root.path().to_owned();
        } else {
            config.system_root = dir.path().to_owned();
        }
        let error = GdsTier::open(config).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = format!("{error:?}");
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    });
}

#[test]
fn a_required_but_missing_cufile_is_an_error_at_the_start() {
    refused(
        "a_required_but_missing_cufile_is_an_error_at_the_start",
        &Fakes::new(),
        false,
        &["/proc/modules", "mode auto"],
    );
}

#[test]
fn a_probe_that_fails_is_an_error_where_cufile_is_required() {
    let fakes = Fakes::new().fail("cuFileHandleRegister:1:5030");
    refused(
        "a_probe_that_fails_is_an_error_where_cufile_is_required",
        &fakes,
        true,
        &["5030", "volume of ext4"],
    );
}

#[test]
fn without_a_gpu_a_required_cufile_is_an_error() {
    let fakes = Fakes::new().without_cuda();
    refused(
        "without_a_gpu_a_required_cufile_is_an_error",
        &fakes,
        true,
        &["cannot use the GPU", "no NVIDIA driver"],
    );
}

#[test]
fn a_disabled_cufile_is_not_called() {
    let body = || {
        let bench = Bench::direct(|config| config.cufile = CufileMode::Off);
        bench.round_trip(1, LEN);
        assert!(bench.reasons().contains("switched off"), "{}", bench.reasons());
    };
    let check = |report: &Report| {
        report.assert_clean();
        assert_eq!(report.calls("cuFileDriverOpen"), 0);
    };
    Fakes::new().run("a_disabled_cufile_is_not_called", body, check);
}

#[test]
fn a_directory_without_direct_transfers_uses_pinned_memory() {
    let name = "a_directory_without_direct_transfers_uses_pinned_memory";
    clean(name, &Fakes::new(), || {
        let dir = tempfile::tempdir().unwrap();
        let root = machine();
        disk_of(dir.path(), root.path(), "vda");
        let mut config = config(dir.path());
        (config.gpu, config.system_root) = (Some(0), root.path().to_owned());
        let tier = GdsTier::open(config.clone()).unwrap();
        let reasons = kvtier_core::Observe::status(&tier).reasons.join("\n");
        assert!(
            reasons.contains("is on vda, to which cuFile has no direct transfers"),
            "{reasons}"
        );
        drop(tier);
        config.cufile = CufileMode::Require;
        let refused = GdsTier::open(config).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        assert!(refused.to_string().contains("is on vda"), "{refused}");
    });
}

#[test]
fn compatibility_mode_can_be_configured() {
    clean("compatibility_mode_can_be_configured", &Fakes::new().compat(), || {
        let bench = Bench::direct(|config| config.compat = true);
        bench.round_trip(1, LEN);
        assert_eq!(bench.counter("direct_bytes"), MIB as u64);
        assert!(bench.reasons().contains("direct for nothing"));
    });
}

#[test]
fn files_are_registered_once_and_deleted_ones_closed() {
    let body = || {
        let bench = Bench::direct(|_| {});
        let keys: Vec<_> = (0..100).map(|n| bench.key(n)).collect();
        for key in &keys {
            assert_eq!(bench.save(key, bench.chunk(key, 8192)).result.unwrap(), Saved::Stored);
        }
        for key in keys.iter().chain(&keys[90..]) {
            bench.prove(key, 8192);
        }
        let ctx = kvtier_core::Ctx::within(Duration::from_secs(600));
        let removed = bench.tier.remove(&ctx, keys.clone().into()).wait().unwrap();
        assert_eq!(removed, Removed::new(100, 0, 0));
        // The next save closes the deleted files.
        bench.round_trip(1000, 8192);
        let open = std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        let deleted: Vec<_> =
            open.filter(|path| path.to_string_lossy().ends_with(" (deleted)")).collect();
        let chunks = deleted.iter().filter(|path| path.starts_with(bench.dir.path())).count();
        assert_eq!(chunks, 0, "{deleted:?}");
    };
    let check = |report: &Report| {
        report.assert_clean();
        // One for each file, including those of the probe and of the last save, and none for the ten
        // repeated loads.
        assert_eq!(report.calls("cuFileHandleRegister"), 102);
    };
    Fakes::new().run("files_are_registered_once_and_deleted_ones_closed", body, check);
}
