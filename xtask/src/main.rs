//! The project's own build steps: `cargo xtask <step>`.
//!
//! `ci` is the whole of what a change must pass, `nightly` is what takes longer than a change can
//! wait. The other steps are parts of those two that are useful alone.

#![forbid(unsafe_code)]
// A command-line tool speaks through standard output; the libraries of this workspace may not.
#![allow(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod arch;
mod args;
mod bench;
mod build_alone;
mod build_gpu_check;
mod ci;
mod cufile;
mod engine_contract;
mod faultsim;
mod features;
mod filesystems;
mod fs_crashes;
mod fuzz;
mod machine;
mod mutants;
mod nightly;
mod release;
mod scale;
mod servers;
mod sglang_venv;
mod sh;
mod shuttle;
mod test_lmcache;
mod testing;
mod tidy;
mod tree;
mod venv;
mod versions;
mod vllm_venv;
mod watchdog;
mod wheel;
mod workspace;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::args::Args;

const USAGE: &str = "\
Usage: cargo xtask <step> [options]

  ci [--only STEP,...] [--list]      everything a change must pass, fast checks first
  nightly [--only NAME] [--list]     the long checks, each named in docs/TESTING.md
  tidy [--words DIR] [--write-words] sizes, SAFETY notes, links, words; --words lists those to avoid in DIR,
                                     --write-words lowers the budgets in xtask/words.toml
  arch                               which crate may use which
  features [--depth 2]               the feature combinations that matter
  bench [--smoke]                    all benchmarks; --smoke runs each once, unoptimised
  bench cachegen                     CacheGen beside LMCache's own path for the CPU, in turns
  bench encodings [--path DIR]        whole saves and loads of encoded chunks beside plain ones
  bench file [--path DIR] [--sizes 1MiB,4MiB,10MiB,32MiB] [--pairs 9] [--gb 1] [--json FILE] [--with-lmcache] [--with-nixl]
                                     the file tier beside fio, and rivals, in the same minutes
  bench lmcache [--s3] [--path DIR] [--sizes 4MiB,10MiB,32MiB] [--turns 5] [--gb 1] [--json FILE]
                                     our adapters beside LMCache's own, inside LMCache, in turns
  bench vllm [--s3] [--path DIR] [--sizes 256KiB,2MiB,32MiB] [--turns 7] [--gb 2] [--json FILE]
                                     our tier beside vLLM's own secondary tiers, in turns
  bench sglang [--path DIR] [--sizes 768KiB,4392KiB,8MiB] [--turns 7] [--gb 2] [--json FILE]
                                     our storage backend beside SGLang's own, in turns
  bench s3 [--ops get,put,head] [--sizes 64KiB,1MiB,10MiB,32MiB] [--inflight 1,8,64] [--schemes http,https,h2] [--peers NAME,...]
           [--turns 5] [--gb 0.5] [--json FILE] [--with-lmcache] [--with-awscrt] [--with-boto3] [--with-mountpoint]
           [--table uploads|large-gets] [--realtime]
                                     the S3 client beside sockets and rivals, on a server of its own, in turns
  faultsim [--seeds 100] [--scope fleet|directory|layouts|stack] [--repeat] [--defects]
                                     seeds of the fault simulator; --repeat runs each in two processes, which must do the
                                     same; --defects puts each known defect into a copy of the last
                                     commit and runs seeds until one finds it
  fuzz [--smoke | TARGET --seconds N]  every target for 5 seconds, or one for longer
  gpu-check [--dev]                  one program that tests and measures on a machine with a GPU, tried here without one
  mutants [--sample 160] [--seed 1] [--only TEXT]... [--package NAME] [--list | --switched]
                                     changes to the code that decides about space, order of use and truth, as xtask/mutants.toml
                                     lists it: a test must fail for 85 of 100; --only tries all whose name contains TEXT;
                                     --switched makes all in one build, and tries all without --sample
  release [--check]                  the command as it is released, with a file of its line tables beside it;
                                     --check packs the crates as they are published, offline
  scale [--render]                   measures fleets of up to 1,000 nodes on a simulated bucket and writes docs/SCALE.md's
                                     tables and pictures; --render writes them from the last record
  s3-server ceph|swift|garage|moto start|stop|status
                                     a real S3 server on loopback; prints how to reach it as lines for a shell
  test-lmcache [-k WORD]             the Python module inside the real LMCache, in an environment of its own
  test-sglang [-k WORD]              the Python module's storage backend for SGLang under SGLang's own classes
  test-vllm [-k WORD]                the Python module's tier for vLLM under vLLM's own classes
  wheel [--no-test]                  the Python wheel, built and tested in an environment of its own; --no-test only builds it
";

fn main() -> ExitCode {
    match run(&mut Args::from_env()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &mut Args) -> Result<()> {
    std::env::set_current_dir(sh::root())?;
    match args.word().as_deref() {
        Some("ci") => ci::run(args),
        Some("nightly") => nightly::run(args),
        Some("tidy") => tidy::command(args),
        Some("arch") => args.end().and_then(|()| arch::run()),
        Some("features") => features::run(args),
        Some("bench") => bench::run(args),
        Some("faultsim") => faultsim::run(args),
        Some("fuzz") => fuzz::run(args),
        Some("gpu-check") => build_gpu_check::run(args),
        Some("mutants") => mutants::run(args),
        Some("release") => release::run(args),
        Some("scale") => scale::run(args),
        Some("s3-server") => servers::run(args),
        Some("test-lmcache") => test_lmcache::run(args),
        Some("test-vllm") => engine_contract::run(args, &engine_contract::VLLM),
        Some("test-sglang") => engine_contract::run(args, &engine_contract::SGLANG),
        Some("wheel") => wheel::run(args),
        Some("help" | "-h" | "--help") => {
            print!("{USAGE}");
            Ok(())
        }
        Some(other) => bail!("no step is called '{other}'\n\n{USAGE}"),
        None => bail!("which step?\n\n{USAGE}"),
    }
}
