//! Calls of the GPU's libraries that never return, and slow work on a GPU: neither blocks other
//! operations.
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

/// The timeout of calls in these tests: long enough for a call that returns, also on a busy machine.
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
fn a_read_that_never_returns_ends_at_its_deadline_and_does_not_block_close() {
    let body = || {
        let bench = Bench::direct(|config| config.open_timeout = WAIT);
        let key = bench.key(1);
        assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
        let before = bench.arena.stats().free;
        let load = || vec![Load { key: key.clone(), into: vec![bench.arena.lease(LEN).unwrap()] }];
        let done = bench.tier.load(&Ctx::within(WAIT), load()).wait().pop().unwrap();
        assert_eq!(done.result.as_ref().unwrap_err().kind(), ErrorKind::Timeout);
        drop(done);
        // The other threads of the executor continue.
        bench.prove(&key, LEN);
        let began = Instant::now();
        let Bench { tier, arena, .. } = bench;
        drop(tier);
        assert!(began.elapsed() < Duration::from_secs(300), "{:?}", began.elapsed());
        assert!(arena.stats().free < before, "memory under a read that hangs is not reused");
    };
    // The first call is that of the probe, the second that of a load.
    let fakes = Fakes::new().fail("cuFileRead:2:H");
    let name = "a_read_that_never_returns_ends_at_its_deadline_and_does_not_block_close";
    fakes.run(name, body, |report| assert_eq!(report.counter("stale"), 0));
}

#[test]
fn events_are_polled_while_all_threads_are_busy() {
    let body = || {
        let bench = Bench::with(|config| config.threads = 1);
        let caller = foreign_stream(&bench.gpu);
        let waiting = bench.key(1);
        let other = bench.key(2);
        for key in [&waiting, &other] {
            assert_eq!(bench.save(key, bench.chunk(key, LEN)).result.unwrap(), Saved::Stored);
        }
        let mut into = bench.arena.lease(LEN).unwrap();
        into.set_after(Some(set_later(&bench.gpu, &caller, into.addr(), LEN)));
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
        assert_eq!(report.leaks(), [("streams".to_owned(), 1)], "but the caller's own")
    };
    fakes.run("events_are_polled_while_all_threads_are_busy", body, check);
}

#[test]
fn a_missing_library_is_searched_again() {
    let body = || {
        let lost =
            Bench::direct(|config| config.cufile_library = Some("/nowhere/libcufile.so".into()));
        assert!(lost.reasons().contains("/nowhere/libcufile.so"), "{}", lost.reasons());
        let found = Bench::direct(|_| {});
        found.round_trip(1, LEN);
        assert!(found.counter("direct_bytes") > 0, "{}", found.reasons());
    };
    Fakes::new().run("a_missing_library_is_searched_again", body, Report::assert_clean);
}

#[test]
fn with_cufile_off_no_gpu_is_used_at_the_start() {
    let body = || {
        let dir = tempfile::tempdir().unwrap();
        let mut config = common::config(dir.path());
        (config.cufile, config.gpu) = (kvtier_gds::CufileMode::Off, Some(0));
        drop(GdsTier::open(config).unwrap());
    };
    let check = |report: &Report| assert_eq!(report.calls("cuDevicePrimaryCtxRetain"), 0);
    Fakes::new().run("with_cufile_off_no_gpu_is_used_at_the_start", body, check);
}

#[test]
fn memory_of_two_gpus_in_one_load_is_an_error() {
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
    fakes.run("memory_of_two_gpus_in_one_load_is_an_error", body, Report::assert_clean);
}

#[test]
fn a_kernel_that_one_gpu_never_loads_delays_neither_status_nor_other_loads() {
    let body = || {
        let bench = Bench::direct(|config| config.open_timeout = 3 * WAIT);
        let key = bench.key(1);
        let second = Gpu::open(1).unwrap();
        assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
        let there = Arena::device(&second, 4 * MIB).unwrap();
        let load = || vec![Load { key: key.clone(), into: vec![there.lease(LEN).unwrap()] }];
        let first = bench.tier.load(&Ctx::within(Duration::from_secs(600)), load());
        // The first load then loads the kernel, which never returns.
        while bench.counter("direct_bytes") == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(bench.reasons().contains("checksums computed on the GPU"), "{}", bench.reasons());
        bench.prove(&key, LEN);
        let meanwhile =
            bench.tier.load(&Ctx::within(Duration::from_secs(600)), load()).wait().pop().unwrap();
        assert_eq!(meanwhile.result.unwrap(), Loaded::Hit { len: LEN as u64 });
        assert!(!first.is_done(), "it waits for the kernel all the while");
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
    // The first call is for GPU 0.
    let fakes = Fakes::new().devices(2).fail("cuModuleLoadData:2:H");
    let name = "a_kernel_that_one_gpu_never_loads_delays_neither_status_nor_other_loads";
    fakes.run(name, body, |report| {
        assert_eq!(report.calls("cuModuleLoadData"), 2, "it is not tried again")
    });
}
