//! Loads by cuFile are verified as configured, on the GPU or else in host memory, and a damaged
//! chunk is never a hit.
#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::fs::FileExt;
use std::time::Duration;

use common::{Bench, LEN, MIB, clean};
use kvtier_core::key::KeyId;
use kvtier_core::{Digest, Key, Loaded, MissReason, Namespace, Saved};
use kvtier_fakegpu::{Fakes, Report};
use kvtier_gds::{Layout, Proof};
use kvtier_mem::Lease;
use kvtier_testkit::{Content, Seed};

/// Flips a bit of the one chunk's payload.
fn damage(bench: &Bench, at: u64) {
    let file = std::fs::OpenOptions::new().write(true).read(true).open(bench.file()).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// MiB verified on the GPU, MiB verified in host memory, and unverified loads.
fn proofs(bench: &Bench) -> [u64; 3] {
    let [summed, proven, unseen] =
        ["verified_gpu_bytes", "verified_host_bytes", "unverified_loads"]
            .map(|name| bench.counter(name));
    [summed / MIB as u64, proven / MIB as u64, unseen]
}

/// For each setting of `proof`: loads a chunk four times, and once more after one bit was flipped.
fn verifies_as_configured(name: &str, fakes: &Fakes, on_gpu: bool) {
    clean(name, fakes, || {
        for (proof, seen, unseen) in
            [(Proof::Always, 4, 0), (Proof::Sample(2), 2, 2), (Proof::Off, 0, 4)]
        {
            let bench = Bench::direct(|config| config.proof = proof);
            let key = bench.key(1);
            assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
            (0..4).for_each(|_| bench.prove(&key, LEN));
            assert_eq!(
                proofs(&bench),
                if on_gpu { [seen, 0, unseen] } else { [0, seen, unseen] },
                "{proof:?}"
            );
            damage(&bench, 70_000);
            let expected = if proof == Proof::Off {
                Loaded::Hit { len: LEN as u64 }
            } else {
                Loaded::Miss(MissReason::Corrupt)
            };
            assert_eq!(bench.load(&key, LEN).result.unwrap(), expected, "{proof:?}");
        }
    });
}

#[test]
fn loads_are_verified_on_the_gpu_as_configured() {
    verifies_as_configured("loads_are_verified_on_the_gpu_as_configured", &Fakes::new(), true);
}

#[test]
fn a_driver_that_refuses_the_kernel_costs_a_copy_back() {
    let fakes = Fakes::new().fail("cuModuleLoadData:*:218");
    verifies_as_configured("a_driver_that_refuses_the_kernel_costs_a_copy_back", &fakes, false);
}

#[test]
fn a_gpu_with_wrong_checksums_is_not_used_for_them() {
    let fakes = Fakes::new().wrong_kernels();
    verifies_as_configured("a_gpu_with_wrong_checksums_is_not_used_for_them", &fakes, false);
}

#[test]
fn one_flipped_bit_anywhere_is_detected() {
    clean("one_flipped_bit_anywhere_is_detected", &Fakes::new(), || {
        for at in
            [0, 2047, 2048, 4 * 2048 + 15, MIB as u64 / 2 + 3, MIB as u64 - 1, MIB as u64 + 776]
        {
            let bench = Bench::direct(|_| {});
            let key = bench.key(1);
            assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
            damage(&bench, at);
            assert_eq!(
                bench.load(&key, LEN).result.unwrap(),
                Loaded::Miss(MissReason::Corrupt),
                "at {at}"
            );
            assert_eq!(proofs(&bench), [1, 0, 0]);
        }
    });
}

#[test]
fn the_status_says_why_a_gpu_computes_no_checksums() {
    let body = || {
        let bench = Bench::direct(|_| {});
        bench.round_trip(1, LEN);
        assert!(
            bench.reasons().contains("copied back from GPU 0 for checksums: cuModuleGetFunction"),
            "{}",
            bench.reasons()
        );
    };
    let fakes = Fakes::new().fail("cuModuleGetFunction:*:500");
    clean("the_status_says_why_a_gpu_computes_no_checksums", &fakes, body);
}

#[test]
fn a_range_that_a_gpu_fails_to_checksum_is_copied_back() {
    // The first run is the self-test.
    let fakes = Fakes::new().fail("cuLaunchKernel:3:700");
    let check = |report: &Report| {
        report.assert_clean();
        assert_eq!((report.calls("cuLaunchKernel"), report.counter("kernels")), (4, 3));
    };
    let body = || {
        let bench = Bench::direct(|_| {});
        (0..3).for_each(|n| bench.round_trip(n, LEN));
        assert_eq!(proofs(&bench), [2, 1, 0]);
    };
    fakes.run("a_range_that_a_gpu_fails_to_checksum_is_copied_back", body, check);
}

#[test]
fn a_kernel_that_is_never_loaded_costs_a_thread_and_no_load() {
    let body = || {
        let bench = Bench::direct(|config| config.open_timeout = Duration::from_secs(2));
        (0..3).for_each(|n| bench.round_trip(n, LEN));
        assert!(
            bench.counter("direct_bytes") == 0 || proofs(&bench) == [0, 3, 0],
            "{:?}",
            proofs(&bench)
        );
        let reasons = bench.reasons();
        let kernel = "the kernel that computes checksums has not returned within 2 s";
        assert!(
            !reasons.contains(kernel) || !reasons.contains("cufile.log"),
            "cufile.log does not cover the kernel: {reasons}"
        );
    };
    let check =
        |report: &Report| assert!(report.calls("cuModuleLoadData") <= 1, "it is not tried again");
    Fakes::new().fail("cuModuleLoadData:1:H").run(
        "a_kernel_that_is_never_loaded_costs_a_thread_and_no_load",
        body,
        check,
    );
}

#[test]
fn chunks_in_several_leases_are_checksummed_part_by_part() {
    clean("chunks_in_several_leases_are_checksummed_part_by_part", &Fakes::new(), || {
        let bench = Bench::direct(|_| {});
        let key = bench.key(1);
        assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
        let leases = [4096, 300 << 10, MIB].map(|len| bench.arena.lease(len).unwrap());
        assert_eq!(
            bench.load_into(&key, leases.into()).result.unwrap(),
            Loaded::Hit { len: LEN as u64 }
        );
        assert_eq!(bench.counter("verified_gpu_bytes"), MIB as u64);
    });
}

/// Leases for `len` bytes and a little more: few or many, some of whole pages, some not, some that
/// start within a page.
fn leases(bench: &Bench, rng: &mut Seed, len: usize) -> Vec<Lease> {
    let mut leases = Vec::new();
    let mut leased = 0;
    while leased < len {
        let most = (len - leased + 5000).min(600_000) as u64;
        let bytes = rng.below(most) as usize + 1;
        let bytes = if rng.below(3) == 0 { bytes } else { bytes.next_multiple_of(4096) };
        let skip = [0, 0, 0, 1, 2048, 4095][rng.below(6) as usize];
        leases.push(bench.arena.lease(skip + bytes).unwrap().split_at(skip).1);
        leased += bytes;
    }
    leases
}

/// Loads chunks of many lengths into leases of all kinds, with reads and checksums that fail, and
/// then with one flipped bit.
fn right_or_corrupt(layout: Layout) {
    let bench = Bench::direct(|config| {
        config.disk.layout = layout;
        config.disk.chunk_shape =
            Some("1x1x4194304x1".parse().unwrap()).filter(|_| layout.has_headers());
    });
    let mut rng = Seed::new(7);
    for n in 1..=10_u64 {
        let text = format!("org/model@1@0@{n:x}@uint8");
        let id = KeyId::from_engine_text(&text).unwrap();
        let key = Key::new(Namespace::new("sums", Digest::default()).into(), id);
        let key = if layout.has_headers() { key } else { bench.key(n) };
        let len = [rng.below(2 * MIB as u64) as usize + 1, 4096 * (rng.below(300) as usize + 1)]
            [n as usize % 2];
        assert_eq!(bench.save(&key, bench.chunk(&key, len)).result.unwrap(), Saved::Stored);
        for _ in 0..2 {
            let done = bench.load_into(&key, leases(&bench, &mut rng, len));
            assert_eq!(done.result.unwrap(), Loaded::Hit { len: len as u64 }, "{len} bytes");
            let mut at = 0;
            for lease in &done.op.into {
                let mut bytes = vec![0; lease.init_len()];
                bench.stream.download_lease(lease, 0, &mut bytes).unwrap();
                assert_eq!(Content::of(&key).check(at, &bytes), Ok(()));
                at += bytes.len() as u64;
            }
            assert_eq!(at, len as u64);
        }
        let head = if layout.has_headers() { 4096 } else { 0 };
        damage(&bench, head + rng.below(len as u64));
        let done = bench.load_into(&key, leases(&bench, &mut rng, len));
        assert_eq!(done.result.unwrap(), Loaded::Miss(MissReason::Corrupt), "{len} bytes");
    }
    let counted = ["verified_gpu_bytes", "verified_host_bytes", "uploaded_bytes", "direct_failed"]
        .map(|name| bench.counter(name));
    assert!(
        counted.iter().all(|n| *n > 0) && bench.counter("unverified_loads") == 0,
        "{counted:?}"
    );
}

/// Reads and kernel runs that fail now and then, except the first of each, which are those of the
/// probe and the self-test.
fn now_and_then() -> Fakes {
    (0..40).fold(Fakes::new(), |fakes, n| {
        fakes.fail(&format!("cuFileRead:{}:E5,cuLaunchKernel:{}:700", 3 + 7 * n, 2 + 3 * n))
    })
}

#[test]
fn bytes_of_several_data_paths_are_verified_once_each() {
    clean("bytes_of_several_data_paths_are_verified_once_each", &now_and_then(), || {
        right_or_corrupt(Layout::Kvtier)
    });
}

#[test]
fn bytes_after_a_header_are_verified_once_each() {
    clean("bytes_after_a_header_are_verified_once_each", &now_and_then(), || {
        right_or_corrupt(Layout::LmcacheGds)
    });
}
