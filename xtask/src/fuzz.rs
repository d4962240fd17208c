//! `cargo xtask fuzz`: the targets of `fuzz/`, which is a workspace of its own.
//!
//! Inputs worth keeping lie in `fuzz/seeds/TARGET`; what a run finds goes to `fuzz/corpus/TARGET`,
//! which is not tracked.

use std::path::Path;
use std::thread;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::args::Args;
use crate::machine;
use crate::sh::Cmd;
use crate::versions::CARGO_FUZZ;

const SMOKE_S: u64 = 5;

/// What building all targets may take.
const BUILD_LIMIT_S: u64 = 15 * 60;

pub fn run(args: &mut Args) -> Result<()> {
    let smoke_all = args.flag("--smoke");
    let seconds = args.number("--seconds")?.unwrap_or(60);
    let wanted = args.word();
    args.end()?;
    let targets = targets()?.map_err(|why| anyhow::anyhow!("cannot fuzz: {why}"))?;
    match wanted {
        None if smoke_all => smoke(&targets),
        None => bail!("--smoke, or one of: {}", targets.join(", ")),
        Some(target) if targets.contains(&target) => fuzz(&target, seconds),
        Some(target) => bail!("no target '{target}'; there are: {}", targets.join(", ")),
    }
}

/// The names of all targets, or why this machine cannot fuzz.
pub fn targets() -> Result<Result<Vec<String>, String>> {
    if !Path::new("fuzz/Cargo.toml").exists() {
        return Ok(Err("no targets yet".into()));
    }
    if !Cmd::new("cargo +nightly --version").works() {
        return Ok(Err("no nightly toolchain (rustup toolchain install nightly)".into()));
    }
    if !Cmd::new("cargo +nightly fuzz --version").works() {
        return Ok(Err(format!("no cargo-fuzz (cargo install --locked cargo-fuzz@{CARGO_FUZZ})")));
    }
    let json =
        Cmd::new("cargo metadata --no-deps --format-version 1 --manifest-path fuzz/Cargo.toml")
            .read()?;
    Ok(Ok(names(&serde_json::from_str(&json)?)))
}

/// How the targets are built for a smoke test: with little optimisation and without a sanitizer,
/// which halves the time. The code that they run is safe but for a few lines.
const SMOKE: [&str; 3] = ["--dev", "--sanitizer", "none"];

/// AddressSanitizer keeps what was freed to find later uses of it. By default that is so
/// much that targets with large buffers run four times slower and reach libFuzzer's limit of memory
/// within ten minutes, although nothing leaks.
const KEEP_FREED: &str = "quarantine_size_mb=8:thread_local_quarantine_size_kb=64";

/// Every target for a few seconds, as many at once as there are cores.
pub fn smoke(targets: &[String]) -> Result<()> {
    Cmd::new("cargo +nightly fuzz build").args(SMOKE).limit_s(BUILD_LIMIT_S).run()?;
    targets.chunks(machine::cores()).try_for_each(|some| {
        thread::scope(|scope| {
            let mut runs = Vec::new();
            for target in some {
                runs.push(scope.spawn(|| run_for(target, SMOKE_S, &SMOKE)));
            }
            runs.into_iter().try_for_each(|run| run.join().expect("the runs do not panic"))
        })
    })
}

/// One target for `seconds`.
pub fn fuzz(target: &str, seconds: u64) -> Result<()> {
    run_for(target, seconds, &[])
}

fn run_for(target: &str, seconds: u64, options: &[&str]) -> Result<()> {
    let corpus = format!("fuzz/corpus/{target}");
    let seeds = format!("fuzz/seeds/{target}");
    std::fs::create_dir_all(&corpus).with_context(|| format!("cannot create {corpus}"))?;
    let cmd =
        Cmd::new("cargo +nightly fuzz run").args(options.iter().copied()).args([target, &corpus]);
    let cmd = if Path::new(&seeds).exists() { cmd.arg(seeds) } else { cmd };
    let cmd = cmd.args([
        "--",
        &format!("-max_total_time={seconds}"),
        "-timeout=60",
        "-print_final_stats=1",
    ]);
    cmd.env("ASAN_OPTIONS", KEEP_FREED).limit_s(BUILD_LIMIT_S + seconds).run()
}

fn names(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let programs = targets.filter(|target| target["kind"][0] == "bin");
    programs.filter_map(|target| target["name"].as_str()).map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_the_targets() {
        let target = |name, kind| serde_json::json!({"name": name, "kind": [kind]});
        let targets =
            [target("kvtier_fuzz", "lib"), target("key_text", "bin"), target("facts", "bin")];
        assert_eq!(
            names(&serde_json::json!({"packages": [{"targets": targets}]})),
            ["key_text", "facts"]
        );
    }
}
