//! The items of the nightly list, but for AddressSanitizer, which has a file of its own.

use anyhow::Result;

use super::{asan, botocore, lmcache, ptxas, python, sglang, tested, vllm};
use crate::args::Args;
use crate::ci::Outcome;
use crate::sh::Cmd;
use crate::testing::{self, Count};
use crate::workspace::Package;
use crate::{
    bench, build_alone, faultsim, fs_crashes, fuzz as fuzzing, mutants as mutations,
    scale as fleets, servers, shuttle as interleavings,
};

/// An item of the nightly list.
pub struct Item {
    pub name: &'static str,
    pub what: &'static str,
    pub run: fn(&[Package]) -> Result<Outcome>,
}

/// The items, in their order.
pub const ITEMS: &[Item] = &[
    Item {
        name: "long-tests",
        what: "all tests with KVTIER_NIGHTLY=1: soaks and long loops",
        run: long_tests,
    },
    Item { name: "fault-seeds", what: "fault schedules over 10,000 seeds", run: fault_seeds },
    Item {
        name: "fault-simulator",
        what: "10,000 seeds of each scope of the fault simulator",
        run: fault_simulator,
    },
    Item {
        name: "scale",
        what: "fleets of up to 1,000 nodes on a simulated bucket, and a node with 10,000,000 chunks",
        run: scale,
    },
    Item {
        name: "crashes",
        what: "file systems that lose what was not synced, a thousand times",
        run: crashes,
    },
    Item { name: "shuttle", what: "thread interleavings with KVTIER_NIGHTLY=1", run: shuttle },
    Item {
        name: "asan",
        what: "AddressSanitizer on the crates with unsafe, with a canary",
        run: asan::run,
    },
    Item {
        name: "valgrind",
        what: "memcheck on the allocators and arenas of kvtier-mem",
        run: valgrind,
    },
    Item { name: "miri", what: "Miri on the crates that need no kernel", run: miri },
    Item { name: "fuzz", what: "every fuzz target for 10 minutes", run: fuzz },
    Item {
        name: "mutants",
        what: "tests fail for changes to the code that decides about space, order of use and truth",
        run: mutants,
    },
    Item {
        name: "real-servers",
        what: "the S3 client on Ceph, Swift, Garage and moto: plain, TLS, HTTP/2",
        run: real_servers,
    },
    Item {
        name: "lmcache-files",
        what: "the real LMCache reads our files and we read its",
        run: lmcache::files,
    },
    Item {
        name: "lmcache-bucket",
        what: "the real LMCache's S3 adapter and our tier on one bucket",
        run: lmcache::bucket,
    },
    Item {
        name: "lmcache-wheel",
        what: "the Python module inside the real LMCache",
        run: lmcache::wheel,
    },
    Item {
        name: "vllm",
        what: "a real vLLM on the CPU with the Python module as its storage",
        run: vllm::engine,
    },
    Item {
        name: "sglang",
        what: "SGLang's own classes and cache controller on CPU tensors with the Python module as their storage",
        run: sglang::engine,
    },
    Item {
        name: "python",
        what: "the Python module's tests with KVTIER_NIGHTLY=1",
        run: python::long,
    },
    Item {
        name: "wheel",
        what: "the wheel for manylinux_2_28 with the command, installed and tested",
        run: python::wheel,
    },
    Item {
        name: "python-valgrind",
        what: "memcheck on the Python module's tests, with a canary",
        run: python::valgrind,
    },
    Item {
        name: "botocore",
        what: "the S3 client's signatures beside botocore's",
        run: botocore::run,
    },
    Item {
        name: "ptxas",
        what: "NVIDIA's assembler takes the kernel that sums on the GPU",
        run: ptxas::run,
    },
    Item {
        name: "clippy-each",
        what: "each crate is clean with its own features only",
        run: clippy_each,
    },
    Item { name: "test-each", what: "the tests of each crate build alone", run: test_each },
    Item { name: "features", what: "all pairs of features", run: features },
    Item { name: "bench-smoke", what: "every benchmark once, unoptimised", run: bench_smoke },
];

/// The CPU time on each core that one night may spend on one item.
const LIMIT_S: u64 = 4 * 60 * 60;

/// Crates whose code runs without a kernel below it, so that Miri can interpret their tests.
///
/// Not codec: it has no unsafe code of its own, and Miri cannot call the C libraries below it.
const FOR_MIRI: &[&str] = &["key", "evict", "index"];

/// The crashes of file systems in one night.
const CRASHES: u32 = 1000;

const FUZZ_S: u64 = 600;

fn long_tests(_: &[Package]) -> Result<Outcome> {
    let cmd = testing::workspace().args(["--release", "--no-fail-fast"]).env("KVTIER_NIGHTLY", "1");
    testing::run(&cmd.limit_s(LIMIT_S)).map(tested)
}

fn fault_seeds(_: &[Package]) -> Result<Outcome> {
    let cmd = testing::workspace().args(["--lib", "--bins", "--tests", "fault_seeds"]);
    testing::run(&cmd.env("KVTIER_SEEDS", "10000").limit_s(LIMIT_S)).map(tested)
}

fn fault_simulator(_: &[Package]) -> Result<Outcome> {
    let runs = faultsim::run_optimised(&faultsim::SCOPES, 10_000)?;
    Ok(Outcome::Noted(format!("{runs} runs")))
}

fn scale(_: &[Package]) -> Result<Outcome> {
    fleets::measure_beside_the_docs()?;
    Ok(Outcome::Noted("the model agrees with the runs".into()))
}

fn crashes(_: &[Package]) -> Result<Outcome> {
    Ok(match fs_crashes::run(CRASHES)? {
        Ok(_) => Outcome::Noted(format!("{CRASHES} crashes")),
        Err(why) => Outcome::Skipped(why),
    })
}

fn shuttle(packages: &[Package]) -> Result<Outcome> {
    interleavings::run(packages, Some(LIMIT_S)).map(tested)
}

/// The tests of allocators, arenas and leases; those of memory shared between processes have
/// nothing that memcheck could see.
fn valgrind(packages: &[Package]) -> Result<Outcome> {
    if !packages.iter().any(|package| package.short_name() == "mem") {
        return Ok(Outcome::Skipped("kvtier-mem is not there".into()));
    }
    if !Cmd::new("valgrind --version").works() {
        return Ok(Outcome::Skipped("valgrind is not installed (Debian package valgrind)".into()));
    }
    let runner =
        "valgrind --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite --quiet";
    let cmd = Cmd::new("cargo test --locked -p kvtier-mem --lib --test arena");
    let cmd = cmd.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", runner);
    testing::run(&cmd.limit_s(LIMIT_S)).map(tested)
}

/// Each crate alone, so that no other crate's features hide what it lacks.
fn clippy_each(packages: &[Package]) -> Result<Outcome> {
    for package in packages {
        Cmd::new("cargo clippy --locked -p")
            .arg(&package.name)
            .args(["--", "-D", "warnings"])
            .run()?;
    }
    Ok(Outcome::Noted(format!("{} crates", packages.len())))
}

/// The tests of each crate build without the features that others ask for.
fn test_each(packages: &[Package]) -> Result<Outcome> {
    Ok(Outcome::Noted(format!("{} crates", build_alone::build(packages)?)))
}

fn miri(packages: &[Package]) -> Result<Outcome> {
    if !Cmd::new("cargo +nightly miri --version").works() {
        return Ok(Outcome::Skipped(
            "no Miri on this machine (rustup +nightly component add miri rust-src)".into(),
        ));
    }
    let mut count = Count::default();
    for package in packages.iter().filter(|package| FOR_MIRI.contains(&package.short_name())) {
        let cmd = Cmd::new("cargo +nightly miri test --target-dir target/miri --lib -p")
            .arg(&package.name);
        count += testing::run(&cmd.env("MIRIFLAGS", "-Zmiri-disable-isolation").limit_s(LIMIT_S))?;
    }
    Ok(tested(count))
}

fn fuzz(_: &[Package]) -> Result<Outcome> {
    match fuzzing::targets()? {
        Err(why) => Ok(Outcome::Skipped(why)),
        Ok(targets) => {
            targets.iter().try_for_each(|target| fuzzing::fuzz(target, FUZZ_S))?;
            Ok(Outcome::Noted(format!("{} targets, {FUZZ_S} s each", targets.len())))
        }
    }
}

/// All that can have a switch, so that a test that is lost is noticed.
fn mutants(_: &[Package]) -> Result<Outcome> {
    if let Some(why) = mutations::unable() {
        return Ok(Outcome::Skipped(why));
    }
    let selection = mutations::Selection { sample: None, seed: 1, only: Vec::new(), package: None };
    mutations::try_switched(&selection)?.check(mutations::CAUGHT_MIN_PERCENT).map(Outcome::Noted)
}

fn real_servers(_: &[Package]) -> Result<Outcome> {
    let (count, absent) = servers::test(&servers::Kind::ALL, &servers::Way::ALL)?;
    let tests = format!("{} tests", count.passed);
    Ok(match (count.passed, absent.is_empty()) {
        (0, _) => Outcome::Skipped(absent.join("; ")),
        (_, true) => Outcome::Noted(tests),
        (_, false) => Outcome::Noted(format!("{tests}; without {}", absent.join("; "))),
    })
}

fn features(packages: &[Package]) -> Result<Outcome> {
    let count = crate::features::check(packages, 2)?;
    Ok(Outcome::Noted(format!("{count} combinations")))
}

fn bench_smoke(packages: &[Package]) -> Result<Outcome> {
    if packages.iter().all(|package| package.targets_of("bench").next().is_none()) {
        return Ok(Outcome::Skipped("no benchmarks yet".into()));
    }
    bench::run(&mut Args::of(&["--smoke"]))?;
    Ok(Outcome::Passed)
}
