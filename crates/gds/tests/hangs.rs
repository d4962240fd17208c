//! Calls of the GPU's libraries that never return, and work on a GPU that takes its time: neither
//! stops anything else.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Bench, LEN, MIB, foreign_stream, set_later};
use kvtier_core::{Ctx, ErrorKind, Load, Loaded, Saved, Tier};
use kvtier_fakegpu::{Fakes, Report};
use kvtier_gds::GdsTier;
use kvtier_mem::Arena;
use kvtier_mem::cuda::Gpu;

/// How long a call may take here: one that returns does so by then, though the machine stands still
/// meanwhile.
const WAIT: Duration = Duration::from_secs(3);

#[test]
fn a_probe_that_never_returns_costs_a_thread_and_no_load() {
    let body = || {
        let bench = Bench::direct(|config| config.open_timeout = WAIT);
        (0..3).for_each(|n| bench.round_trip(n, LEN));
        assert_eq!(bench.counter("direct_bytes"), 0);
        let reasons = bench.reasons();
        assert!(
            reasons.contains("transfer to a file in") && reasons.contains("within 3 s"),
            "{reasons}"
        );
    };
    let check = |report: &Report| assert_eq!(report.calls("cuFileRead"), 1, "not tried again");
    let fakes = Fakes::new().fail("cuFileRead:1:H");
    fakes.run("a_probe_that_never_returns_costs_a_thread_and_no_load", body, check);
}

#[test]
fn a_read_that_never_returns_ends_at_its_deadline_and_does_not_hold_up_the_end() {
    let body = || {
        let bench = Bench::direct(|config| config.open_timeout = WAIT);
        let key = bench.key(1);
        assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
        let before = bench.arena.stats().free;
        let load = || vec![Load { key: key.clone(), into: vec![bench.arena.lease(LEN).unwrap()] }];
        let done = bench.tier.load(&Ctx::within(WAIT), load()).wait().pop().unwrap();
        assert_eq!(done.result.as_ref().unwrap_err().kind(), ErrorKind::Timeout);
        drop(done);
        // The other threads of the GPU go on.
        bench.prove(&key, LEN);
        let (began, Bench { tier, arena, .. }) = (Instant::now(), bench);
        drop(tier);
        assert!(began.elapsed() < Duration::from_secs(300), "{:?}", began.elapsed());
        assert!(arena.stats().free < before, "what is read into for ever is nobody else's");
    };
    // The probe's, and then the first of a load.
    let fakes = Fakes::new().fail("cuFileRead:2:H");
    let name = "a_read_that_never_returns_ends_at_its_deadline_and_does_not_hold_up_the_end";
    fakes.run(name, body, |report| assert_eq!(report.saw("stale"), 0));
}

#[test]
fn an_event_is_seen_however_busy_the_threads_are() {
    let body = || {
        let bench = Bench::with(|config| config.threads = 1);
        let (caller, waiting, other) = (foreign_stream(&bench.gpu), bench.key(1), bench.key(2));
        for key in [&waiting, &other] {
            assert_eq!(bench.save(key, bench.chunk(key, LEN)).result.unwrap(), Saved::Stored);
        }
        let mut into = bench.arena.lease(LEN).unwrap();
        into.set_after(Some(set_later(&bench.gpu, &caller, (into.addr(), LEN))));
        let load = Load { key: waiting.clone(), into: vec![into] };
        let ticket = bench.tier.load(&Ctx::within(Duration::from_secs(600)), vec![load]);
        let over = AtomicBool::new(false);
        let busy = || {
            while !over.load(Ordering::Relaxed) {
                assert_eq!(
                    bench.load(&other, LEN).result.unwrap(),
                    Loaded::Hit { len: LEN as u64 }
                );
            }
        };
        std::thread::scope(|scope| {
            (0..8).for_each(|_| drop(scope.spawn(busy)));
            let done = ticket.wait().pop().unwrap();
            over.store(true, Ordering::Relaxed);
            assert_eq!(done.result.unwrap(), Loaded::Hit { len: LEN as u64 });
        });
    };
    let fakes = Fakes::new().delay(Duration::from_micros(500));
    let check = |report: &Report| {
        assert_eq!(report.left(), [("streams".to_owned(), 1)], "but the caller's own")
    };
    fakes.run("an_event_is_seen_however_busy_the_threads_are", body, check);
}

#[test]
fn a_library_that_is_not_found_is_not_the_last_word_of_the_process() {
    let body = || {
        let lost =
            Bench::direct(|config| config.cufile_library = Some("/nowhere/libcufile.so".into()));
        assert!(lost.reasons().contains("/nowhere/libcufile.so"), "{}", lost.reasons());
        let found = Bench::direct(|_| {});
        found.round_trip(1, LEN);
        assert!(found.counter("direct_bytes") > 0, "{}", found.reasons());
    };
    Fakes::new().run(
        "a_library_that_is_not_found_is_not_the_last_word_of_the_process",
        body,
        Report::is_clean,
    );
}

#[test]
fn switched_off_no_gpu_is_touched_at_the_start() {
    let body = || {
        let dir = tempfile::tempdir().unwrap();
        let mut config = common::config(dir.path());
        (config.cufile, config.gpu) = (kvtier_gds::CufileMode::Off, Some(0));
        drop(GdsTier::open(config).unwrap());
    };
    let check = |report: &Report| assert_eq!(report.calls("cuDevicePrimaryCtxRetain"), 0);
    Fakes::new().run("switched_off_no_gpu_is_touched_at_the_start", body, check);
}

#[test]
fn memory_of_two_gpus_in_one_load_is_an_error_and_not_mixed_up() {
    let body = || {
        let bench = Bench::direct(|_| {});
        let key = bench.key(1);
        assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
        let second = Gpu::open(1).unwrap();
        let there = Arena::device(&second, 1 << 20).unwrap();
        let into =
            vec![bench.arena.lease(128 << 10).unwrap(), there.lease(LEN - (128 << 10)).unwrap()];
        let done = bench.load_into(&key, into);
        assert_eq!(done.result.unwrap_err().kind(), ErrorKind::Io);
        assert_eq!((bench.counter("quarantined"), bench.counter("direct_bytes")), (0, 128 << 10));
        bench.prove(&key, LEN);
    };
    let fakes = Fakes::new().devices(2);
    fakes.run(
        "memory_of_two_gpus_in_one_load_is_an_error_and_not_mixed_up",
        body,
        Report::is_clean,
    );
}

#[test]
fn a_kernel_that_one_gpu_does_not_load_holds_up_neither_a_status_nor_other_loads() {
    let body = || {
        let bench = Bench::direct(|config| config.open_timeout = 3 * WAIT);
        let (key, second) = (bench.key(1), Gpu::open(1).unwrap());
        assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
        let there = Arena::device(&second, 4 * MIB).unwrap();
        let load = || vec![Load { key: key.clone(), into: vec![there.lease(LEN).unwrap()] }];
        let first = bench.tier.load(&Ctx::within(Duration::from_secs(600)), load());
        // Then it asks for the kernel, and nothing comes back.
        while bench.counter("direct_bytes") == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let began = Instant::now();
        assert!(bench.reasons().contains("checksums taken on the GPU"), "{}", bench.reasons());
        bench.prove(&key, LEN);
        let meanwhile =
            bench.tier.load(&Ctx::within(Duration::from_secs(600)), load()).wait().pop().unwrap();
        assert_eq!(meanwhile.result.unwrap(), Loaded::Hit { len: LEN as u64 });
        assert!(began.elapsed() < 2 * WAIT, "{:?}", began.elapsed());
        assert_eq!(first.wait().pop().unwrap().result.unwrap(), Loaded::Hit { len: LEN as u64 });
        assert!(
            bench.reasons().contains("copied back from GPU 1 for checksums"),
            "{}",
            bench.reasons()
        );
        assert_eq!(
            ["verified_gpu_bytes", "verified_host_bytes"].map(|name| bench.counter(name)),
            [MIB as u64, 2 * MIB as u64]
        );
    };
    // The first is GPU 0's.
    let fakes = Fakes::new().devices(2).fail("cuModuleLoadData:2:H");
    let name = "a_kernel_that_one_gpu_does_not_load_holds_up_neither_a_status_nor_other_loads";
    fakes.run(name, body, |report| {
        assert_eq!(report.calls("cuModuleLoadData"), 2, "nobody tries it again")
    });
}
