//! S3 clients side by side on a loopback server: `cargo xtask bench s3` runs it, pinned, in turns.
//!
//! `serve` is the server, `run` measures one client at one operation in a process of its own and prints one JSON object.

#![forbid(unsafe_code)]

mod bytes;
mod job;
mod peers;
mod serve;
mod usage;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves until standard input ends. Prints its ports as JSON; its certificate goes to a file.
    Serve {
        #[arg(long)]
        certificate: PathBuf,
        /// Each request is answered only after this time, in milliseconds.
        #[arg(long, default_value_t = 0)]
        latency_ms: u64,
    },
    /// Measures one client.
    Run(job::RunArgs),
    /// Prints the names of the clients that this was built with, those that set the floor first.
    Peers,
}

fn main() -> Result<()> {
    match Args::parse().command {
        Command::Serve { certificate, latency_ms } => {
            serve::run(&certificate, std::time::Duration::from_millis(latency_ms))
        }
        Command::Run(args) => {
            println!("{}", job::run(&args)?);
            Ok(())
        }
        Command::Peers => {
            peers::NAMES.iter().for_each(|name| println!("{name}"));
            Ok(())
        }
    }
}
