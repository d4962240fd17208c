//! GPU memory through pinned memory: correct bytes, ordered with the caller's work on the GPU, also
//! after every fault.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read, Seek, SeekFrom, Write};
use std::time::Duration;

use common::{Bench, LEN, MIB, clean, config, foreign_stream, set_later};
use kvtier_core::{Ctx, ErrorKind, Loaded, MissReason, Observe, Save, Saved, Tier};
use kvtier_fakegpu::{Fakes, HeldStreams, Report};
use kvtier_gds::GdsTier;

#[test]
fn chunks_of_many_pieces_load_and_only_their_ends_are_not_pinned() {
    let body = || {
        let bench = Bench::new();
        (0..8).for_each(|n| bench.round_trip(n, LEN));
        assert_eq!(bench.counter("uploaded_bytes"), 8 * MIB as u64);
        assert_eq!(bench.counter("fetched_bytes"), 8 * LEN as u64);
        assert_eq!(bench.counter("copied_bounce_bytes"), 0);
    };
    let check = |report: &Report| {
        report.assert_clean();
        // The copies of the test itself (every chunk twice), and the ends of loads.
        let own = 2 * 8 * LEN as u64;
        assert_eq!(report.counter("pageable_bytes"), own + 8 * 777);
    };
    let fakes = Fakes::new().delay(Duration::from_micros(200));
    fakes.run("chunks_of_many_pieces_load_and_only_their_ends_are_not_pinned", body, check);
}

#[test]
fn many_concurrent_loads_and_saves_share_little_pinned_memory() {
    clean("many_concurrent_loads_and_saves_share_little_pinned_memory", &Fakes::new(), || {
        let bench = Bench::with(|config| config.buffer_bytes = 128 << 10);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let bench = &bench;
                scope.spawn(move || (0..4).for_each(|n| bench.round_trip(thread * 100 + n, LEN)));
            }
        });
    });
}

#[test]
fn a_save_waits_for_the_event_before_its_memory() {
    let body = || {
        let bench = Bench::new();
        let caller = foreign_stream(&bench.gpu);
        let key = bench.key(1);
        let mut chunk = bench.arena.lease(LEN).unwrap();
        let hold = HeldStreams::new();
        let event = set_later(&bench.gpu, &caller, chunk.addr(), LEN);
        chunk.set_after(Some(event));
        chunk.assume_filled(LEN);
        let save = Save { key: key.clone(), from: vec![chunk.freeze()] };
        let ticket = bench.tier.save(&Ctx::within(Duration::from_secs(600)), vec![save]);
        while bench.counter("event_waits") == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(hold);
        assert_eq!(ticket.wait().pop().unwrap().result.unwrap(), Saved::Stored);
        assert_eq!(bench.counter("event_waits"), 1);
        let back = bench.load(&key, LEN).op.into.pop().unwrap();
        let mut bytes = vec![0; LEN];
        bench.stream.download_lease(&back, 0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0x5a), "saved before it was made");
    };
    let fakes = Fakes::new().delay(Duration::from_millis(20));
    let check = |report: &Report| {
        assert_eq!(report.leaks(), [("streams".to_owned(), 1)], "but the caller's own")
    };
    fakes.run("a_save_waits_for_the_event_before_its_memory", body, check);
}

#[test]
fn a_short_load_waits_for_the_event_before_its_memory() {
    let body = || {
        let bench = Bench::new();
        for (n, len) in [(1, 100), (2, LEN)] {
            let caller = foreign_stream(&bench.gpu);
            let key = bench.key(n);
            let mut into = bench.arena.lease(len).unwrap();
            assert_eq!(bench.save(&key, bench.chunk(&key, len)).result.unwrap(), Saved::Stored);
            let event = set_later(&bench.gpu, &caller, into.addr(), len);
            into.set_after(Some(event));
            let back = bench.load_into(&key, vec![into]).op.into.pop().unwrap();
            let mut bytes = vec![0; len];
            bench.stream.download_lease(&back, 0, &mut bytes).unwrap();
            assert_eq!(
                kvtier_testkit::Content::of(&key).check(0, &bytes),
                Ok(()),
                "the caller's work came after it"
            );
        }
    };
    let fakes = Fakes::new().delay(Duration::from_millis(10));
    let check = |report: &Report| {
        assert_eq!(report.leaks(), [("streams".to_owned(), 2)], "but the caller's own")
    };
    fakes.run("a_short_load_waits_for_the_event_before_its_memory", body, check);
}

#[test]
fn a_deadline_does_not_wait_for_an_event_and_the_memory_is_returned() {
    let body = || {
        let bench = Bench::new();
        let caller = foreign_stream(&bench.gpu);
        let key = bench.key(1);
        let mut chunk = bench.arena.lease(LEN).unwrap();
        chunk.assume_filled(LEN);
        let hold = HeldStreams::new();
        let event = set_later(&bench.gpu, &caller, chunk.addr(), LEN);
        chunk.set_after(Some(event));
        let done = bench.save_within(Duration::from_millis(20), &key, chunk);
        assert_eq!(done.result.as_ref().unwrap_err().kind(), ErrorKind::Timeout);
        // An operation that had not begun at its deadline returned the memory with its result.
        drop(done);
        assert!(bench.arena.stats().free < 16 * MIB, "the GPU still works on it");
        drop(hold);
        let end = std::time::Instant::now() + Duration::from_secs(600);
        while bench.arena.stats().free < 16 * MIB {
            assert!(std::time::Instant::now() < end, "the memory was never returned");
            std::thread::sleep(Duration::from_millis(5));
        }
        bench.round_trip(2, 5000);
    };
    let fakes = Fakes::new().delay(Duration::from_millis(5));
    let check = |report: &Report| {
        assert_eq!(report.leaks(), [("streams".to_owned(), 1)], "but the caller's own")
    };
    fakes.run("a_deadline_does_not_wait_for_an_event_and_the_memory_is_returned", body, check);
}

#[test]
fn closing_a_waiting_tier_returns_all_memory() {
    let body = || {
        let bench = Bench::new();
        let caller = foreign_stream(&bench.gpu);
        let mut tickets = Vec::new();
        let hold = HeldStreams::new();
        for n in 0..4 {
            let mut chunk = bench.arena.lease(LEN).unwrap();
            chunk.assume_filled(LEN);
            let event = set_later(&bench.gpu, &caller, chunk.addr(), LEN);
            chunk.set_after(Some(event));
            let save = Save { key: bench.key(n), from: vec![chunk.freeze()] };
            tickets.push(bench.tier.save(&Ctx::within(Duration::from_secs(600)), vec![save]));
        }
        let Bench { tier, arena, .. } = bench;
        drop(tier);
        for ticket in tickets {
            assert!(ticket.wait().pop().unwrap().result.is_err());
        }
        drop(hold);
        let end = std::time::Instant::now() + Duration::from_secs(600);
        while arena.stats().free < 16 * MIB {
            assert!(std::time::Instant::now() < end, "the memory was never returned");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let fakes = Fakes::new().delay(Duration::from_millis(5));
    let check = |report: &Report| {
        assert_eq!(report.leaks(), [("streams".to_owned(), 1)], "but the caller's own")
    };
    fakes.run("closing_a_waiting_tier_returns_all_memory", body, check);
}

#[test]
fn a_damaged_chunk_is_no_hit_in_gpu_memory() {
    clean("a_damaged_chunk_is_no_hit_in_gpu_memory", &Fakes::new(), || {
        for at in [0, MIB as u64 / 2, LEN as u64 - 1] {
            let bench = Bench::new();
            let key = bench.key(1);
            assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
            let mut file =
                std::fs::OpenOptions::new().read(true).write(true).open(bench.file()).unwrap();
            let mut byte = [0];
            file.seek(SeekFrom::Start(at)).unwrap();
            file.read_exact(&mut byte).unwrap();
            file.seek(SeekFrom::Start(at)).unwrap();
            file.write_all(&[byte[0] ^ 1]).unwrap();
            let done = bench.load(&key, LEN);
            assert_eq!(done.result.unwrap(), Loaded::Miss(MissReason::Corrupt), "byte {at}");
            assert_eq!(done.op.into[0].init_len(), 0);
        }
    });
}

/// Injects one fault: its operation fails or is correct, and the next one is correct.
fn heals(name: &str, fault: &str) {
    clean(name, &Fakes::new().fail(fault), || {
        let bench = Bench::with(|config| config.threads = 1);
        let key = bench.key(1);
        let mut bad = 0;
        for _ in 0..3 {
            match bench.save(&key, bench.chunk(&key, LEN)).result {
                Ok(saved) => assert!(matches!(saved, Saved::Stored | Saved::Present)),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Io, "{e:?}");
                    bad += 1;
                }
            }
            let done = bench.load(&key, LEN);
            match done.result {
                Ok(Loaded::Hit { .. }) => {}
                Ok(Loaded::Miss(reason)) => {
                    assert!(bad > 0 && reason == MissReason::Absent, "{reason:?}")
                }
                Ok(other) => panic!("{other:?}"),
                Err(e) => {
                    assert_eq!((e.kind(), done.op.into[0].init_len()), (ErrorKind::Io, 0), "{e:?}");
                    bad += 1;
                }
            }
        }
        assert_eq!(bad, 1, "the fault was met once");
        bench.prove(&key, LEN);
    });
}

#[test]
fn a_failed_copy_to_the_gpu_is_an_error_and_passes() {
    // The first two copies are those of the test's chunk and of its first page.
    heals("a_failed_copy_to_the_gpu_is_an_error_and_passes", "cuMemcpyHtoDAsync_v2:5:719");
}

#[test]
fn a_chunk_whose_end_cannot_be_copied_is_an_error_and_stays() {
    let body = || {
        let bench = Bench::with(|config| config.threads = 1);
        let key = bench.key(1);
        assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
        let done = bench.load(&key, LEN);
        assert_eq!(
            (done.result.unwrap_err().kind(), done.op.into[0].init_len()),
            (ErrorKind::Io, 0)
        );
        assert_eq!((bench.counter("quarantined"), bench.counter("misses_corrupt")), (0, 0));
        bench.prove(&key, LEN);
    };
    // The upload of the test's chunk, its sixteen pieces, and then its last 777 bytes.
    let fakes = Fakes::new().fail("cuMemcpyHtoDAsync_v2:18:719");
    clean("a_chunk_whose_end_cannot_be_copied_is_an_error_and_stays", &fakes, body);
}

#[test]
fn a_failed_copy_from_the_gpu_is_an_error_and_passes() {
    heals("a_failed_copy_from_the_gpu_is_an_error_and_passes", "cuMemcpyDtoHAsync_v2:1:719");
}

#[test]
fn memory_that_cannot_be_pinned_is_an_error_and_is_retried() {
    heals("memory_that_cannot_be_pinned_is_an_error_and_is_retried", "cuMemHostRegister_v2:2:2");
}

#[test]
fn a_stream_that_cannot_be_created_is_an_error_and_is_retried() {
    // The first call is that of the test.
    heals("a_stream_that_cannot_be_created_is_an_error_and_is_retried", "cuStreamCreate:2:2");
}

#[test]
fn without_a_gpu_it_is_a_file_tier_and_the_status_says_why() {
    clean(
        "without_a_gpu_it_is_a_file_tier_and_the_status_says_why",
        &Fakes::new().without_cuda(),
        || {
            let dir = tempfile::tempdir().unwrap();
            let tier = GdsTier::open(config(dir.path())).unwrap();
            let reasons = tier.status().reasons.join("\n");
            assert!(reasons.contains("host memory only: no NVIDIA driver here"), "{reasons}");
            let fixture = kvtier_testkit::conformance::Fixture::new(tier);
            assert_eq!(fixture.save(&fixture.key(1), LEN), Saved::Stored);
            assert_eq!(fixture.load(&fixture.key(1), LEN), Loaded::Hit { len: LEN as u64 });
        },
    );
}

#[test]
fn a_chunk_longer_than_the_staging_memory_is_invalid_and_names_the_remedy() {
    clean(
        "a_chunk_longer_than_the_staging_memory_is_invalid_and_names_the_remedy",
        &Fakes::new(),
        || {
            let bench = Bench::new();
            let error =
                bench.save(&bench.key(1), bench.chunk(&bench.key(1), 5 * MIB)).result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("staging_bytes"), "{error}");
        },
    );
}

#[test]
fn a_chunk_saved_from_the_gpu_loads_into_host_memory() {
    clean("a_chunk_saved_from_the_gpu_loads_into_host_memory", &Fakes::new(), || {
        let bench = Bench::new();
        let key = bench.key(1);
        assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
        let host = kvtier_mem::Arena::new(kvtier_mem::ArenaConfig::heap(4 * MIB)).unwrap();
        let done = bench.load_into(&key, vec![host.lease(LEN).unwrap()]);
        assert_eq!(done.result.unwrap(), Loaded::Hit { len: LEN as u64 });
        assert_eq!(
            kvtier_testkit::Content::of(&key).check(0, done.op.into[0].as_host().unwrap()),
            Ok(())
        );
        let mixed = vec![host.lease(MIB).unwrap(), bench.arena.lease(MIB).unwrap()];
        assert_eq!(bench.load_into(&key, mixed).result.unwrap_err().kind(), ErrorKind::Invalid);
    });
}

type Capture = unsafe extern "C" fn(usize, u32) -> i32;
type EndCapture = unsafe extern "C" fn(usize, *mut usize) -> i32;

#[test]
fn a_concurrent_graph_capture_is_not_invalidated() {
    clean("a_concurrent_graph_capture_is_not_invalidated", &Fakes::new(), || {
        const STREAM: usize = 0xabc;
        let gpu = kvtier_mem::cuda::Gpu::open(0).unwrap();
        // SAFETY: the stand-in's library declares the functions so, and accepts any number as a
        // stream.
        let library = unsafe { libloading::Library::new("libcuda.so.1") }.unwrap();
        // SAFETY: as above.
        let began =
            unsafe { library.get::<Capture>("cuStreamBeginCapture_v2").unwrap()(STREAM, 0) };
        assert_eq!(began, 0);
        let bench = Bench::new();
        // This pins memory, creates streams and events, copies and waits, on the tier's threads and
        // on this one.
        (0..4).for_each(|n| bench.round_trip(n, LEN));
        let event = bench.stream.event().unwrap();
        let key = bench.key(9);
        let mut chunk = bench.chunk(&key, LEN);
        chunk.set_after(Some(event));
        assert_eq!(bench.save(&key, chunk).result.unwrap(), Saved::Stored);
        // Work of a captured stream is not executed, so nothing can wait for it.
        // SAFETY: as above.
        let error = unsafe { gpu.event_after(STREAM) }.unwrap_err();
        assert!(
            error.kind() == kvtier_mem::ErrorKind::Invalid
                && error.to_string().contains("captured"),
            "{error}"
        );
        drop(bench);
        let mut graph = 0;
        // SAFETY: as above, and `graph` is valid for a write.
        let ended =
            unsafe { library.get::<EndCapture>("cuStreamEndCapture").unwrap()(STREAM, &mut graph) };
        assert_eq!((ended, graph != 0), (0, true), "the capture was spoiled");
    });
}
