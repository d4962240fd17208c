//! Compares S3 clients on a loopback server. `cargo xtask bench s3` runs them, pinned and alternating.
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
    /// Serves until standard input ends. Prints the ports as JSON and writes the certificate to a file.
    Serve {
        #[arg(long)]
        certificate: PathBuf,
        /// Delay of each response in milliseconds.
        #[arg(long, default_value_t = 0)]
        latency_ms: u64,
    },
    /// Measures one client.
    Run(job::RunArgs),
    /// Prints the names of the clients in this build, the lower bounds first.
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
