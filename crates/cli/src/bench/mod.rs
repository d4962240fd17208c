//! `kvtier bench`: how fast a tier is here.

mod cold_memory;
mod file;
mod gds;
mod leftover_objects;
pub mod s3;

use anyhow::Result;

/// The subcommands of `kvtier bench`.
#[derive(clap::Subcommand)]
pub enum BenchCommand {
    /// Measures the file tier in a directory.
    File(file::BenchFileArgs),
    /// Measures each way between a GPU and a directory.
    Gds(gds::BenchGdsArgs),
    /// Measures the S3 client on a bucket.
    S3(s3::BenchS3Args),
}

/// Measures and prints.
pub fn run(command: BenchCommand) -> Result<()> {
    match command {
        BenchCommand::File(args) => file::run(&args),
        BenchCommand::Gds(args) => gds::run(&args),
        BenchCommand::S3(args) => s3::run(&args),
    }
}
