//! Encoded chunks in GPU memory: decoded into host memory of the tier and copied from there, also
//! after every fault. Memory that is short costs misses or time, and no load hangs.
#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use common::{Bench, LEN, MIB, clean, encrypts, foreign_stream, set_later};
use kvtier_core::{Ctx, ErrorKind, Load, Loaded, MissReason, Saved, Tier};
use kvtier_fakegpu::{Fakes, HeldStreams, Report};
use kvtier_gds::Proof;
use kvtier_mem::{Arena, ArenaConfig, Lease};

/// The memory of a load: the file of a chunk, and its decoded bytes.
const LOAD_MEMORY: usize = 2 * (MIB + 16384);
const CLOSED_WITHIN: Duration = Duration::from_secs(600);

fn host(bytes: usize) -> Arena {
    Arena::new(ArenaConfig::heap(bytes)).unwrap()
}

fn assert_missed(loaded: &kvtier_core::Done<Load, Loaded>, reason: MissReason) {
    assert_eq!(*loaded.result.as_ref().unwrap(), Loaded::Miss(reason));
    assert!(loaded.op.into.iter().all(|lease| lease.init_len() == 0), "a lease has bytes");
}

/// Waits until all of the arena is free again.
fn eventually_free(arena: &Arena, bytes: usize) {
    let end = Instant::now() + CLOSED_WITHIN;
    while arena.stats().free < bytes {
        assert!(Instant::now() < end, "the memory was never returned");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn encoded_chunks_load_into_gpu_memory_with_one_copy() {
    const LENS: [usize; 4] = [1, 4095, 65536, LEN];
    let body = || {
        let bench = Bench::with(encrypts);
        for (n, len) in (0..).zip(LENS) {
            bench.round_trip(n, len);
        }
        let raw = LENS.iter().sum::<usize>() as u64;
        assert_eq!((bench.counter("encoded_chunks"), bench.counter("decoded_chunks")), (4, 4));
        assert_eq!((bench.counter("uploaded_bytes"), bench.counter("fetched_bytes")), (raw, raw));
        // Leases of odd lengths, and more than the chunk needs.
        let key = bench.key(3);
        let into = |len| bench.arena.lease(len).unwrap();
        let done = bench.load_into(&key, vec![into(1000), into(MIB - 1), into(8192), into(5)]);
        assert_eq!(done.result.unwrap(), Loaded::Hit { len: LEN as u64 });
        let mut loaded = Vec::new();
        for lease in &done.op.into {
            let mut bytes = vec![0; lease.init_len()];
            bench.stream.download_lease(lease, 0, &mut bytes).unwrap();
            loaded.extend(bytes);
        }
        assert_eq!(loaded.len(), LEN);
        assert_eq!(kvtier_testkit::Content::of(&key).check(0, &loaded), Ok(()));
        // Too little memory is found before anything is read.
        assert_missed(&bench.load_into(&key, vec![into(LEN - 1)]), MissReason::Length);
    };
    let check = |report: &Report| {
        report.assert_clean();
        let raw = LENS.iter().sum::<usize>() as u64;
        // The copies of the test itself (each chunk twice, and the last one again), and those of
        // the loads.
        let len = LEN as u64;
        assert_eq!(report.counter("pageable_bytes"), 2 * raw + len + raw + len);
    };
    Fakes::new().run("encoded_chunks_load_into_gpu_memory_with_one_copy", body, check);
}

#[test]
fn a_load_of_an_encoded_chunk_waits_for_the_event_before_its_memory() {
    let body = || {
        let bench = Bench::with(encrypts);
        let caller = foreign_stream(&bench.gpu);
        let key = bench.key(1);
        assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
        let mut into = bench.arena.lease(LEN).unwrap();
        let event = set_later(&bench.gpu, &caller, into.addr(), LEN);
        into.set_after(Some(event));
        let back = bench.load_into(&key, vec![into]).op.into.pop().unwrap();
        let mut bytes = vec![0; LEN];
        bench.stream.download_lease(&back, 0, &mut bytes).unwrap();
        let right = kvtier_testkit::Content::of(&key).check(0, &bytes);
        assert_eq!(right, Ok(()), "the caller's work came after it");
    };
    let fakes = Fakes::new().delay(Duration::from_millis(5));
    let name = "a_load_of_an_encoded_chunk_waits_for_the_event_before_its_memory";
    fakes.run(name, body, only_the_callers_stream);
}

fn only_the_callers_stream(report: &Report) {
    assert_eq!(report.leaks(), [("streams".to_owned(), 1)], "but the caller's own");
}

#[test]
fn a_damaged_encoded_chunk_is_no_hit_in_gpu_memory() {
    clean("a_damaged_encoded_chunk_is_no_hit_in_gpu_memory", &Fakes::new(), || {
        let bench = Bench::with(encrypts);
        for (n, share) in (1..).zip([0, 50, 99]) {
            let key = bench.key(n);
            assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
            let path = bench.file();
            let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
            let at = (file.metadata().unwrap().len() - 8192) * share / 100;
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1], at).unwrap();
            assert_missed(&bench.load(&key, LEN), MissReason::Corrupt);
            assert_eq!(bench.counter("misses_corrupt"), n);
        }
        assert_eq!(bench.counter("uploaded_bytes"), 0);
    });
}

#[test]
fn an_encoded_chunk_is_verified_whatever_proof_says() {
    let body = || {
        // cuFile works here, and would load a plain chunk without a look at its bytes.
        let plain = Bench::direct(|config| config.proof = Proof::Off);
        plain.round_trip(1, LEN);
        assert_eq!(plain.counter("unverified_loads"), 1);
        let bench = Bench::direct(|config| {
            encrypts(config);
            config.proof = Proof::Off;
        });
        bench.round_trip(1, LEN);
        let file = std::fs::File::options().read(true).write(true).open(bench.file()).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 4096).unwrap();
        file.write_all_at(&[byte[0] ^ 1], 4096).unwrap();
        assert_missed(&bench.load(&bench.key(1), LEN), MissReason::Corrupt);
        assert_eq!(bench.counter("unverified_loads"), 0);
    };
    clean("an_encoded_chunk_is_verified_whatever_proof_says", &Fakes::new(), body);
}

#[test]
fn a_failed_copy_of_a_decoded_chunk_is_an_error_and_the_chunk_stays() {
    let body = || {
        let bench = Bench::with(|config| {
            encrypts(config);
            config.disk.encode_bytes = 2 * LOAD_MEMORY;
        });
        let key = bench.key(1);
        assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
        // The first lease gets its bytes, the second one does not.
        let into = |len| bench.arena.lease(len).unwrap();
        let done = bench.load_into(&key, vec![into(MIB), into(MIB)]);
        let error = done.result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        let shown = format!("{:?}", std::error::Error::source(&error));
        assert!(shown.contains("the bytes are right"), "{shown}");
        assert!(done.op.into.iter().all(|lease| lease.init_len() == 0), "a lease has bytes");
        assert_eq!((bench.counter("quarantined"), bench.counter("misses_corrupt")), (0, 0));
        // The memory of the tier, which holds one chunk, came back too.
        bench.prove(&key, LEN);
    };
    // The upload of the test's chunk, that of its first lease, and then that of its second.
    let fakes = Fakes::new().fail("cuMemcpyHtoDAsync_v2:3:719");
    clean("a_failed_copy_of_a_decoded_chunk_is_an_error_and_the_chunk_stays", &fakes, body);
}

#[test]
fn loads_that_need_more_memory_than_there_is_wait_for_each_other() {
    clean("loads_that_need_more_memory_than_there_is_wait_for_each_other", &Fakes::new(), || {
        let bench = Bench::with(|config| {
            encrypts(config);
            // One load at a time has space.
            config.disk.encode_bytes = 2 * LOAD_MEMORY;
        });
        let keys: Vec<_> = (0..6).map(|n| bench.key(n)).collect();
        for key in &keys {
            assert_eq!(bench.save(key, bench.chunk(key, LEN)).result.unwrap(), Saved::Stored);
        }
        let load = |key: &kvtier_core::Key, into| Load { key: key.clone(), into: vec![into] };
        let on_gpu = keys.iter().map(|key| load(key, bench.arena.lease(LEN).unwrap()));
        // Loads into host memory wait in the same queue.
        let memory = host(8 * MIB);
        let on_host = keys.iter().map(|key| load(key, memory.lease(LEN).unwrap()));
        let ops = on_gpu.zip(on_host).flat_map(|(gpu, host)| [gpu, host]).collect();
        for done in bench.tier.load(&Ctx::within(CLOSED_WITHIN), ops).wait() {
            assert_eq!(done.result.unwrap(), Loaded::Hit { len: LEN as u64 });
            check_bytes(&bench, &done.op.key, &done.op.into[0]);
        }
    });
}

fn check_bytes(bench: &Bench, key: &kvtier_core::Key, lease: &Lease) {
    let mut bytes = vec![0; lease.init_len()];
    match lease.as_host() {
        Some(host) => bytes.copy_from_slice(host),
        None => bench.stream.download_lease(lease, 0, &mut bytes).unwrap(),
    }
    assert_eq!(bytes.len(), LEN);
    assert_eq!(kvtier_testkit::Content::of(key).check(0, &bytes), Ok(()));
}

#[test]
fn a_chunk_that_never_fits_the_memory_is_a_miss_on_the_gpu_and_a_hit_on_the_host() {
    let name = "a_chunk_that_never_fits_the_memory_is_a_miss_on_the_gpu_and_a_hit_on_the_host";
    clean(name, &Fakes::new(), || {
        let bench = Bench::with(|config| {
            encrypts(config);
            // Space for the file, and not for the decoded bytes beside it.
            config.disk.encode_bytes = 3 * MIB;
        });
        let key = bench.key(1);
        assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
        assert_missed(&bench.load(&key, LEN), MissReason::TooLarge);
        assert_eq!(bench.counter("misses_too_large"), 1);
        assert!(bench.reasons().contains("raise encode_bytes"), "{}", bench.reasons());
        let memory = host(2 * MIB);
        let done = bench.load_into(&key, vec![memory.lease(LEN).unwrap()]);
        assert_eq!(done.result.unwrap(), Loaded::Hit { len: LEN as u64 });
        check_bytes(&bench, &key, &done.op.into[0]);
        // The chunk is good: its file stays.
        assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Present);
    });
}

#[test]
fn a_copy_past_the_deadline_is_a_timeout_and_its_memory_is_returned() {
    let body = || {
        let bench = Bench::with(|config| {
            encrypts(config);
            config.disk.encode_bytes = 2 * LOAD_MEMORY;
        });
        let caller = foreign_stream(&bench.gpu);
        let key = bench.key(1);
        assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
        let hold = HeldStreams::new();
        let mut time = Duration::from_millis(50);
        // A busy machine may not have begun the copy at its deadline.
        while bench.counter("event_waits") == 0 {
            let mut into = bench.arena.lease(LEN).unwrap();
            let event = set_later(&bench.gpu, &caller, into.addr(), LEN);
            into.set_after(Some(event));
            let load = Load { key: key.clone(), into: vec![into] };
            let done = bench.tier.load(&Ctx::within(time), vec![load]).wait().pop().unwrap();
            assert_eq!(done.result.as_ref().unwrap_err().kind(), ErrorKind::Timeout);
            time *= 2;
        }
        assert!(bench.arena.stats().free < 16 * MIB, "the GPU still works on it");
        drop(hold);
        eventually_free(&bench.arena, 16 * MIB);
        // The memory of the tier, which holds one chunk, came back too.
        bench.prove(&key, LEN);
    };
    let fakes = Fakes::new().delay(Duration::from_millis(2));
    let name = "a_copy_past_the_deadline_is_a_timeout_and_its_memory_is_returned";
    fakes.run(name, body, only_the_callers_stream);
}

#[test]
fn closing_a_tier_that_waits_for_the_gpu_ends_its_loads() {
    let body = || {
        let bench = Bench::with(encrypts);
        let caller = foreign_stream(&bench.gpu);
        let key = bench.key(1);
        assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
        let mut into = bench.arena.lease(LEN).unwrap();
        let hold = HeldStreams::new();
        let event = set_later(&bench.gpu, &caller, into.addr(), LEN);
        into.set_after(Some(event));
        let load = Load { key, into: vec![into] };
        let ticket = bench.tier.load(&Ctx::within(CLOSED_WITHIN), vec![load]);
        let end = Instant::now() + CLOSED_WITHIN;
        while bench.counter("event_waits") == 0 {
            assert!(Instant::now() < end, "the load never waited");
            std::thread::sleep(Duration::from_millis(1));
        }
        let Bench { tier, arena, .. } = bench;
        drop(tier);
        let done = ticket.wait().pop().unwrap();
        assert!(done.result.is_err(), "{done:?}");
        assert!(done.op.into.iter().all(|lease| lease.init_len() == 0), "a lease has bytes");
        drop(done);
        drop(hold);
        eventually_free(&arena, 16 * MIB);
    };
    let fakes = Fakes::new().delay(Duration::from_millis(2));
    let name = "closing_a_tier_that_waits_for_the_gpu_ends_its_loads";
    fakes.run(name, body, only_the_callers_stream);
}
