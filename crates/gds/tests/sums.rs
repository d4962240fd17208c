//! What cuFile brought is proven on the GPU where that can be had, else at the CPU, as configured; never is a damaged chunk believed.
#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::fs::FileExt;
use std::time::Duration;

use common::{Bench, LEN, MIB, clean};
use kvtier_core::{Loaded, MissReason, Saved};
use kvtier_fakegpu::{Fakes, Report};
use kvtier_gds::Proof;

/// Flips a bit of the one chunk's payload.
fn damage(bench: &Bench, at: u64) {
    let file = std::fs::OpenOptions::new().write(true).read(true).open(bench.file()).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// Loads of a chunk: what was summed on the GPU, copied back, and not looked at.
fn proofs(bench: &Bench) -> [u64; 3] {
    let [summed, proven, unseen] = ["summed_bytes", "proven_bytes", "unseen_loads"].map(|name| bench.counter(name));
    [summed / MIB as u64, proven / MIB as u64, unseen]
}

/// Four loads of one chunk, and one more of what became of it by one bit, for each way to prove them.
fn proves_as_configured(name: &str, fakes: &Fakes, on_gpu: bool) {
    clean(name, fakes, || {
        for (proof, seen, unseen) in [(Proof::Always, 4, 0), (Proof::Sample(2), 2, 2), (Proof::Off, 0, 4)] {
            let bench = Bench::direct(|config| config.proof = proof);
            let key = bench.key(1);
            assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
            (0..4).for_each(|_| bench.prove(&key, LEN));
            assert_eq!(proofs(&bench), if on_gpu { [seen, 0, unseen] } else { [0, seen, unseen] }, "{proof:?}");
            damage(&bench, 70_000);
            let believed =
                if proof == Proof::Off { Loaded::Hit { len: LEN as u64 } } else { Loaded::Miss(MissReason::Corrupt) };
            assert_eq!(bench.load(&key, LEN).result.unwrap(), believed, "{proof:?}");
        }
    });
}

#[test]
fn loads_are_proven_on_the_gpu_as_configured() {
    proves_as_configured("loads_are_proven_on_the_gpu_as_configured", &Fakes::new(), true);
}

#[test]
fn a_driver_that_does_not_take_the_kernel_costs_the_way_back() {
    let fakes = Fakes::new().fail("cuModuleLoadData:*:218");
    proves_as_configured("a_driver_that_does_not_take_the_kernel_costs_the_way_back", &fakes, false);
}

#[test]
fn a_gpu_that_sums_wrongly_is_not_believed() {
    let fakes = Fakes::new().wrong_kernels();
    proves_as_configured("a_gpu_that_sums_wrongly_is_not_believed", &fakes, false);
}

#[test]
fn one_wrong_bit_anywhere_is_found() {
    clean("one_wrong_bit_anywhere_is_found", &Fakes::new(), || {
        for at in [0, 2047, 2048, 4 * 2048 + 15, MIB as u64 / 2 + 3, MIB as u64 - 1, MIB as u64 + 776] {
            let bench = Bench::direct(|_| {});
            let key = bench.key(1);
            assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
            damage(&bench, at);
            assert_eq!(bench.load(&key, LEN).result.unwrap(), Loaded::Miss(MissReason::Corrupt), "at {at}");
            assert_eq!(proofs(&bench), [1, 0, 0]);
        }
    });
}

#[test]
fn why_a_gpu_takes_no_checksums_is_told() {
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
    clean("why_a_gpu_takes_no_checksums_is_told", &fakes, body);
}

#[test]
fn what_a_gpu_fails_to_sum_once_is_copied_back() {
    // The first run is the one by which it proves itself.
    let fakes = Fakes::new().fail("cuLaunchKernel:3:700");
    let check = |report: &Report| {
        report.is_clean();
        assert_eq!((report.calls("cuLaunchKernel"), report.saw("kernels")), (4, 3));
    };
    let body = || {
        let bench = Bench::direct(|_| {});
        (0..3).for_each(|n| bench.round_trip(n, LEN));
        assert_eq!(proofs(&bench), [2, 1, 0]);
    };
    fakes.run("what_a_gpu_fails_to_sum_once_is_copied_back", body, check);
}

#[test]
fn a_kernel_that_is_never_loaded_costs_a_thread_and_no_load() {
    let body = || {
        let bench = Bench::direct(|config| config.open_wait = Duration::from_secs(2));
        (0..3).for_each(|n| bench.round_trip(n, LEN));
        assert!(bench.counter("direct_bytes") == 0 || proofs(&bench) == [0, 3, 0], "{:?}", proofs(&bench));
    };
    let check = |report: &Report| assert_eq!(report.calls("cuModuleLoadData"), 1, "nobody tries it again");
    Fakes::new().fail("cuModuleLoadData:1:H").run(
        "a_kernel_that_is_never_loaded_costs_a_thread_and_no_load",
        body,
        check,
    );
}

#[test]
fn chunks_in_several_leases_are_summed_part_by_part() {
    clean("chunks_in_several_leases_are_summed_part_by_part", &Fakes::new(), || {
        let bench = Bench::direct(|_| {});
        let key = bench.key(1);
        assert_eq!(bench.save(&key, bench.chunk(&key, LEN)).result.unwrap(), Saved::Stored);
        let leases = [4096, 300 << 10, MIB].map(|len| bench.arena.lease(len).unwrap());
        assert_eq!(bench.load_into(&key, leases.into()).result.unwrap(), Loaded::Hit { len: LEN as u64 });
        assert_eq!(bench.counter("summed_bytes"), MIB as u64);
    });
}
