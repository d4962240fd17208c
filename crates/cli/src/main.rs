//! The `kvtier` command.
//!
//! Exit codes: 0 all is well; 1 the run failed or a wrong byte was seen; 2 the arguments or the
//! input are bad; 130 a signal ended the run.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod age;
mod bench;
mod bucket;
mod bucket_args;
mod chunk_groups;
mod chunk_info;
mod chunk_line;
mod config;
mod copy;
mod dir;
mod disk_space;
mod doctor;
mod encoding_args;
mod encoding_totals;
mod gen_key;
mod gen_trace;
mod help;
mod interrupt;
mod json;
mod key;
mod location;
mod location_args;
mod log;
mod ls;
mod name_filter;
mod parallel;
mod plan;
mod process_usage;
mod progress;
mod replay;
mod rm;
mod sim;
#[cfg(feature = "sim-fault")]
mod sim_fault;
mod stat;
mod stdout;
mod stored_form;
mod table;
mod trace;
mod verify;

use std::process::ExitCode;

use clap::{FromArgMatches, Parser, Subcommand};

/// Stores and loads the KV cache of LLM inference below the GPU.
#[derive(Parser)]
#[command(
    name = "kvtier",
    version,
    after_help = "Exit codes: 0 ok; 1 the run failed or a wrong byte was seen; 2 bad arguments or input; 130 interrupted."
)]
struct Args {
    #[command(flatten)]
    log: log::LogArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Replays a request trace through host memory and files, and verifies every loaded byte.
    Replay(replay::ReplayArgs),
    /// Simulates eviction policies over a request trace: hit ratios by size of the cache, and the
    /// optimum.
    Sim(sim::SimArgs),
    /// Simulates a fleet of S3 tiers and faults around it, from a seed; exit code 1 if a promise was
    /// broken.
    #[cfg(feature = "sim-fault")]
    SimFault(sim_fault::SimFaultArgs),
    /// Generates a request trace: chat, agents, or questions about documents.
    GenTrace(gen_trace::GenTraceArgs),
    /// Makes a key for encryption, in a new file that only its owner can read.
    GenKey(gen_key::GenKeyArgs),
    /// Measures a tier.
    Bench {
        #[command(subcommand)]
        command: bench::BenchCommand,
    },
    /// Checks a directory, GPU, bucket or shared memory, and recommends settings.
    Doctor {
        #[command(subcommand)]
        command: doctor::DoctorCommand,
    },
    /// Explains a configuration file, kvtier's or LMCache's.
    Config {
        #[command(subcommand)]
        command: config::ConfigCommand,
    },
    /// Computes whether a model's chunks in flight and the host tier fit into memory. Exit code 1
    /// if they do not. With --encode: which encoding pays on a link.
    Plan(plan::PlanArgs),
    /// Lists the chunks of a directory or bucket: digest, payload bytes, and their metadata.
    Ls(ls::LsArgs),
    /// Summarizes a directory or bucket: chunks, bytes, processes that have it open, failed checks.
    Stat(stat::StatArgs),
    /// Reads every chunk of a directory or bucket and checks every byte. Exit code 1 if any is
    /// corrupt.
    Verify(verify::VerifyArgs),
    /// Removes chunks from a directory or bucket. Without --yes it only prints what it would remove.
    Rm(rm::RmArgs),
    /// Copies every chunk of a directory or bucket into another, of the same or another layout, and
    /// verifies it. Chunks that the target already has stay. With one directory: upgrades it in place
    /// from the format of an earlier build.
    Migrate(copy::MigrateArgs),
    /// Writes every chunk of a directory or bucket into one file, for `kvtier import`, and verifies
    /// it.
    Export(copy::ExportArgs),
    /// Copies every chunk of a file that `kvtier export` wrote into a directory or bucket, and
    /// verifies it.
    Import(copy::ImportArgs),
    /// Explains names of chunks in any form, and converts between forms.
    Key(key::KeyArgs),
    /// Prints a script that completes this command's words in a shell.
    Completions(help::CompletionsArgs),
    /// Prints the manual page, or writes one for every command into a directory.
    Man(help::ManArgs),
    #[command(hide = true)]
    ReplayPeer(replay::peer::ReplayPeerArgs),
}

/// The arguments or the input are bad: exit code 2.
#[derive(Debug)]
pub struct BadInput(pub String);

impl std::fmt::Display for BadInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}

/// A tier that does not open is bad input: a directory of another program, no permission, no space,
/// an engine that the machine lacks.
fn cannot_open(error: kvtier::core::Error) -> BadInput {
    BadInput(format!("{:#}", anyhow::Error::from(error)))
}

fn main() -> ExitCode {
    // By way of `help::command`, which adds the examples to every subcommand.
    let args = Args::from_arg_matches(&help::command().get_matches()).unwrap_or_else(|e| e.exit());
    log::start(&args.log);
    let outcome = match args.command {
        Command::Replay(args) => replay::run(args),
        Command::Sim(args) => sim::run(&args).map(|()| true),
        #[cfg(feature = "sim-fault")]
        Command::SimFault(args) => sim_fault::run(&args),
        Command::GenTrace(args) => gen_trace::run(&args).map(|()| true),
        Command::GenKey(args) => gen_key::run(&args).map(|()| true),
        Command::Bench { command } => bench::run(command).map(|()| true),
        Command::Doctor { command } => doctor::run(&command).map(|()| true),
        Command::Config { command } => config::run(&command),
        Command::Plan(args) => plan::run(&args),
        Command::Ls(args) => ls::ls(&args).map(|()| true),
        Command::Stat(args) => stat::stat(&args).map(|()| true),
        Command::Verify(args) => verify::verify(&args),
        Command::Rm(args) => rm::rm(&args).map(|()| true),
        Command::Migrate(args) => copy::migrate(args),
        Command::Export(args) => copy::run(&args.into(), copy::CopyMode::Export),
        Command::Import(args) => copy::run(&args.into(), copy::CopyMode::Import),
        Command::Key(args) => key::run(args),
        Command::Completions(args) => help::completions(&args).map(|()| true),
        Command::Man(args) => help::man(&args).map(|()| true),
        Command::ReplayPeer(args) => replay::peer::serve(args).map(|()| true),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // The reader of a pipe, such as `head`, had enough.
        Err(e) if stdout::is_closed(&e) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("kvtier: {e:#}");
            // As shells report a process that SIGINT ended: 128 and the number of the signal.
            if e.is::<interrupt::Interrupted>() {
                return ExitCode::from(interrupt::EXIT_CODE);
            }
            // Errors that the user can mend end with 2, as wrong arguments do.
            let invalid = e.downcast_ref::<kvtier::core::Error>().is_some_and(|e| {
                use kvtier::core::ErrorKind::{Denied, Full, Invalid};
                matches!(e.kind(), Invalid | Denied | Full)
            });
            if invalid || e.is::<BadInput>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}
