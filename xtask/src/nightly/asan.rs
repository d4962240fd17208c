//! AddressSanitizer on the crates that hold `unsafe`.

use std::fs;

use anyhow::{Context, Result, bail};

use super::tested;
use crate::ci::Outcome;
use crate::sh::Cmd;
use crate::testing::{self, Count};
use crate::workspace::Package;

const CRATES: &[&str] = &["mem", "uring", "gds", "disk", "file"];
const TARGET: &str = "x86_64-unknown-linux-gnu";
const FLAGS: &str = "-Zsanitizer=address";
const LIMIT_S: u64 = 2 * 60 * 60;

/// A program with a known fault. If it ends well, the sanitizer is off and its silence about us
/// means nothing.
const CANARY: &str = "fn main() {
    let freed = { let owner = Box::new([7_u8; 64]); owner.as_ptr() };
    std::process::exit(i32::from(unsafe { std::ptr::read_volatile(freed) } == 0));
}
";

/// The unit and integration tests of each such crate. Doctests do not get the flags and are left
/// out.
pub fn run(packages: &[Package]) -> Result<Outcome> {
    if !Cmd::new("cargo +nightly --version").works() {
        return Ok(Outcome::Skipped("no nightly toolchain on this machine".into()));
    }
    prove_it_barks()?;
    let mut count = Count::default();
    for package in packages.iter().filter(|package| CRATES.contains(&package.short_name())) {
        let cmd =
            Cmd::new("cargo +nightly test --locked --lib --bins --tests --target-dir target/asan");
        let cmd = cmd.args(["--target", TARGET, "-p", &package.name]).rustflags(FLAGS);
        // One test wants a leak: memory that the kernel may still use when its reactor dies.
        let cmd = cmd.args(["--", "--skip", "a_reactor_that_dies_answers_everyone"]);
        count += testing::run(&cmd.limit_s(LIMIT_S))?;
    }
    Ok(tested(count))
}

/// Builds the canary with the flags of the real run and wants it to die of its fault.
fn prove_it_barks() -> Result<()> {
    fs::create_dir_all("target/asan").context("cannot create target/asan")?;
    let source = "target/asan/canary.rs";
    let program = "target/asan/canary";
    fs::write(source, CANARY).with_context(|| format!("cannot write {source}"))?;
    Cmd::new("rustc +nightly --target").args([TARGET, FLAGS, "-o", program, source]).run()?;
    let (passed, output) = Cmd::new(program).try_read()?;
    if passed || !output.contains("AddressSanitizer: heap-use-after-free") {
        bail!("the canary was not caught: AddressSanitizer is not on in this toolchain");
    }
    println!("the canary was caught: AddressSanitizer is on");
    Ok(())
}
