//! The steps of `cargo xtask ci`. All but fuzz share one target folder and the same RUSTFLAGS, so
//! that nothing is compiled twice without need.

use std::path::PathBuf;

use anyhow::{Result, bail};

use super::{Outcome, Run};
use crate::servers::{Kind, Way};
use crate::sh::Cmd;
use crate::testing::Count;
use crate::versions::CARGO_DENY;
use crate::{
    arch, build_alone, cufile, engine_contract, faultsim, features, filesystems, fs_crashes, fuzz,
    servers, shuttle, testing, tidy, wheel, workspace,
};

/// A step of `cargo xtask ci`.
pub struct Step {
    pub name: &'static str,
    pub lane: Lane,
    pub run: fn(&mut Run) -> Result<Outcome>,
}

/// What a step may run beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Nothing.
    One,
    /// Steps that wait. It replaces no program that they run: cargo puts programs built with other
    /// features at the same place.
    Building,
    /// Steps that build: it waits much of its time for servers, deadlines or disks, and leaves a
    /// core idle.
    Waiting,
}

/// The steps, in their order. Adjacent steps that build and that wait run beside each other.
pub const STEPS: &[Step] = &[
    Step { name: "fmt", lane: Lane::One, run: fmt },
    Step { name: "tidy", lane: Lane::One, run: tidy },
    Step { name: "arch", lane: Lane::One, run: arch },
    Step { name: "deny", lane: Lane::One, run: deny },
    Step { name: "clippy-all", lane: Lane::One, run: clippy_all },
    Step { name: "test", lane: Lane::One, run: test },
    Step { name: "examples", lane: Lane::One, run: examples },
    Step { name: "doc", lane: Lane::Building, run: doc },
    Step { name: "features", lane: Lane::Building, run: features },
    Step { name: "alone", lane: Lane::Building, run: alone },
    Step { name: "fuzz", lane: Lane::Building, run: fuzz },
    Step { name: "filesystems", lane: Lane::Waiting, run: filesystems },
    Step { name: "crashes", lane: Lane::Waiting, run: crashes },
    Step { name: "real-servers", lane: Lane::Waiting, run: real_servers },
    Step { name: "cufile", lane: Lane::Waiting, run: cufile },
    Step { name: "python", lane: Lane::Waiting, run: python },
    Step { name: "vllm-contract", lane: Lane::Waiting, run: vllm_contract },
    Step { name: "sglang-contract", lane: Lane::Waiting, run: sglang_contract },
    Step { name: "fault-seeds", lane: Lane::One, run: fault_seeds },
    Step { name: "shuttle", lane: Lane::One, run: shuttle },
];

/// The seeds that each fault schedule runs for every change.
const FAULT_SEEDS: &str = "500";

/// How many seeds of each scope of the fault simulator every change runs, from 0 on. One of `fleet` takes as long
/// as two others.
const SIMULATED_SEEDS: [(&str, u64); 4] =
    [("fleet", 30), ("directory", 340), ("layouts", 280), ("stack", 350)];

/// The crashes of file systems that every change goes through.
const CRASHES: u32 = 12;

/// The longest that one example may take.
const EXAMPLE_LIMIT_S: u64 = 600;

fn fmt(_: &mut Run) -> Result<Outcome> {
    Cmd::new("cargo fmt --all --check").run()?;
    Ok(Outcome::Passed)
}

fn tidy(_: &mut Run) -> Result<Outcome> {
    tidy::run()?;
    Ok(Outcome::Passed)
}

fn arch(_: &mut Run) -> Result<Outcome> {
    arch::run()?;
    Ok(Outcome::Passed)
}

/// Licences, duplicates and sources. Advisories need a database that only a network can bring: they
/// are checked where one is present.
fn deny(_: &mut Run) -> Result<Outcome> {
    if !Cmd::new("cargo deny --version").works() {
        bail!(
            "cargo-deny is missing: `cargo install --locked cargo-deny@{CARGO_DENY}` builds it in a few minutes; .ci/run does so by itself"
        );
    }
    Cmd::new("cargo fetch --locked").run()?;
    Cmd::new("cargo deny --offline check bans licenses sources").run()?;
    if !has_advisories() {
        return Ok(Outcome::Noted("advisories: skipped, no local database".into()));
    }
    Cmd::new("cargo deny --offline check advisories").run()?;
    Ok(Outcome::Noted("with advisories".into()))
}

fn has_advisories() -> bool {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let databases = home.and_then(|home| std::fs::read_dir(home.join("advisory-dbs")).ok());
    databases.is_some_and(|mut databases| databases.next().is_some())
}

fn clippy_all(_: &mut Run) -> Result<Outcome> {
    Cmd::new(
        "cargo clippy --locked --workspace --features kvtier-key/serde,kvtier-s3/tls-direct,kvtier/metrics,kvtier-cli/aws-config --all-targets -- -D warnings",
    )
    .run()?;
    Ok(Outcome::Passed)
}

/// All tests but those in the documentation.
fn workspace_tests() -> Cmd {
    testing::workspace().args(["--lib", "--bins", "--tests"])
}

/// Unit tests, integration tests and doctests.
fn test(run: &mut Run) -> Result<Outcome> {
    let mut count = testing::run_at_once(&workspace_tests(), &[], &[])?;
    count += testing::run(&testing::workspace().arg("--doc"))?;
    if count.passed == 0 {
        bail!("no test ran");
    }
    Ok(tested(run, count))
}

fn doc(_: &mut Run) -> Result<Outcome> {
    Cmd::new("cargo doc --locked --workspace --no-deps")
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()?;
    Ok(Outcome::Passed)
}

fn features(run: &mut Run) -> Result<Outcome> {
    match features::check(&run.packages, 1)? {
        0 => Ok(Outcome::Skipped("no crate has features".into())),
        count => Ok(Outcome::Noted(format!("{count} combinations"))),
    }
}

/// The tests of each crate that the change touches compile alone; the nightly item `test-each` links them.
fn alone(run: &mut Run) -> Result<Outcome> {
    match build_alone::touched(&run.packages)? {
        Err(why) => Ok(Outcome::Skipped(why)),
        Ok(touched) if touched.is_empty() => {
            Ok(Outcome::Skipped("the change touches no crate".into()))
        }
        Ok(touched) => Ok(Outcome::Noted(format!("{} crates", build_alone::lint(touched)?))),
    }
}

/// The whole workspace is built at once, as `cargo test` does it: there is nothing left to build
/// then.
fn examples(run: &mut Run) -> Result<Outcome> {
    build_examples()?;
    let mut count = 0;
    for example in run.packages.iter().flat_map(|package| package.targets_of("example")) {
        let program = workspace::target_dir().join("debug/examples").join(&example.name);
        Cmd::new("").arg(program.display().to_string()).limit_s(EXAMPLE_LIMIT_S).run()?;
        count += 1;
    }
    match count {
        0 => Ok(Outcome::Skipped("none yet".into())),
        count => Ok(Outcome::Noted(format!("{count} ran"))),
    }
}

fn build_examples() -> Result<()> {
    build().arg("--examples").run()
}

/// What a simulated run spends its time in. Optimised, the runs take half of the time, which is more than that
/// takes to build.
const OPTIMISED: [&str; 11] = [
    "kvtier",
    "kvtier-codec",
    "kvtier-core",
    "kvtier-disk",
    "kvtier-faultsim",
    "kvtier-index",
    "kvtier-key",
    "kvtier-mem",
    "kvtier-os",
    "kvtier-s3",
    "kvtier-s3-tier",
];

/// Has a `cargo` command optimise [these](OPTIMISED).
fn optimised(cmd: Cmd) -> Cmd {
    OPTIMISED.iter().fold(cmd, |cmd, package| {
        cmd.arg("--config").arg(format!("profile.dev.package.{package}.opt-level=2"))
    })
}

fn build_simulator() -> Result<()> {
    optimised(build().args(["--example", "seeds"])).run()
}

fn build() -> Cmd {
    Cmd::new(
        "cargo build --locked --workspace --features kvtier-key/serde,kvtier-s3/tls-direct,kvtier/metrics,kvtier-cli/aws-config",
    )
}

/// The tests whose name contains `fault_seeds`, over many more seeds than in a plain `cargo test`, and
/// the fault simulator with its command.
fn fault_seeds(run: &mut Run) -> Result<Outcome> {
    let mut count = testing::run_at_once(
        &workspace_tests(),
        &["fault_seeds"],
        &[("KVTIER_SEEDS", FAULT_SEEDS)],
    )?;
    let command = testing::workspace().args(["--features", "kvtier-cli/sim-fault"]);
    count += testing::run(&optimised(command.args(["--test", "sim_fault"])))?;
    build_simulator()?;
    let simulator = workspace::target_dir().join("debug/examples/seeds");
    let runs = faultsim::run_seeds(&simulator, &SIMULATED_SEEDS)?;
    let Outcome::Noted(tests) = tested(run, count) else { return Ok(Outcome::Passed) };
    Ok(Outcome::Noted(format!("{tests}, {runs} simulated runs")))
}

/// The file tier on ext4, xfs and tmpfs, where this machine lets us mount them.
fn filesystems(run: &mut Run) -> Result<Outcome> {
    let (count, refused) = filesystems::run()?;
    if count.passed == 0 {
        return Ok(Outcome::Skipped(refused.join("; ")));
    }
    let Outcome::Noted(tests) = tested(run, count) else { return Ok(Outcome::Passed) };
    Ok(Outcome::Noted(if refused.is_empty() {
        tests
    } else {
        format!("{tests}; not on {}", refused.join("; "))
    }))
}

/// The file tier on file systems that lose what was not synced, at random moments.
fn crashes(run: &mut Run) -> Result<Outcome> {
    match fs_crashes::run(CRASHES)? {
        Ok(count) => {
            run.tests += count;
            Ok(Outcome::Noted(format!("{CRASHES} crashes")))
        }
        Err(why) => Ok(Outcome::Skipped(why)),
    }
}

/// The S3 client against Ceph and Swift, where they are installed or can be.
fn real_servers(run: &mut Run) -> Result<Outcome> {
    let (count, absent) = servers::test(&[Kind::Ceph, Kind::Swift], &Way::ALL)?;
    if count.passed == 0 {
        return Ok(Outcome::Skipped(absent.join("; ")));
    }
    let Outcome::Noted(tests) = tested(run, count) else { return Ok(Outcome::Passed) };
    Ok(Outcome::Noted(if absent.is_empty() {
        tests
    } else {
        format!("{tests}; without {}", absent.join("; "))
    }))
}

/// The GPU tier over NVIDIA's own libcufile, where its Python package can be had.
fn cufile(run: &mut Run) -> Result<Outcome> {
    match cufile::test()? {
        Ok(count) => Ok(tested(run, count)),
        Err(why) => Ok(Outcome::Skipped(why)),
    }
}

/// The Python module under the contract of the program that loads it.
fn python(run: &mut Run) -> Result<Outcome> {
    let tests = wheel::test()?;
    run.tests += Count { passed: tests.passed, ..Count::default() };
    Ok(Outcome::Noted(tests.to_string()))
}

/// The tier for vLLM under the real classes of the versions that it supports.
fn vllm_contract(run: &mut Run) -> Result<Outcome> {
    contract(run, &engine_contract::VLLM)
}

/// The storage backend for SGLang under the real classes of the version that it supports.
fn sglang_contract(run: &mut Run) -> Result<Outcome> {
    contract(run, &engine_contract::SGLANG)
}

fn contract(run: &mut Run, contract: &engine_contract::Contract) -> Result<Outcome> {
    match contract.run(None)? {
        Ok(passed) => Ok(tested(run, Count { passed, ..Count::default() })),
        Err(why) => Ok(Outcome::Skipped(why)),
    }
}

fn shuttle(run: &mut Run) -> Result<Outcome> {
    let count = shuttle::run(&run.packages, None)?;
    Ok(if count.passed == 0 { Outcome::Skipped("none yet".into()) } else { tested(run, count) })
}

fn fuzz(_: &mut Run) -> Result<Outcome> {
    match fuzz::targets()? {
        Err(why) => Ok(Outcome::Skipped(why)),
        Ok(targets) => {
            fuzz::smoke(&targets)?;
            Ok(Outcome::Noted(format!("{} targets", targets.len())))
        }
    }
}

fn tested(run: &mut Run, count: Count) -> Outcome {
    run.tests += count;
    Outcome::Noted(format!("{} tests", count.passed))
}
