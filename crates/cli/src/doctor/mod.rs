//! `kvtier doctor`: what a medium can do, and the settings that follow from it.

mod file;
mod finding;
mod gds;
mod s3;
mod shm;

use std::path::Path;

use anyhow::Result;

use crate::BadInput;

/// What to look at.
#[derive(clap::Subcommand)]
pub enum What {
    /// A directory for the file tier: what its file system and this machine can do, how fast it is,
    /// and what to set.
    File(file::FileArgs),
    /// A directory for the GPU tier: whether loads go straight to the GPU, and if not, why and what
    /// to do.
    Gds(gds::GdsArgs),
    /// A bucket: who signs, what its store can do, how fast it is, and what to set.
    S3(Box<s3::S3Args>),
    /// Shared memory: segments of LMCache's and ours that nobody uses any more; removes them if
    /// told to.
    Shm(shm::ShmArgs),
}

/// Refuses what is no directory.
fn exists(path: &Path) -> Result<(), BadInput> {
    let what = match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => return Ok(()),
        Ok(_) => "not a directory".to_owned(),
        Err(e) => e.to_string(),
    };
    Err(BadInput(format!("cannot examine {}: {what}; check the path", path.display())))
}

/// Looks, and prints what it found.
pub fn run(what: &What) -> Result<()> {
    match what {
        What::File(args) => file::run(args),
        What::Gds(args) => gds::run(args),
        What::S3(args) => s3::run(args),
        What::Shm(args) => shm::run(args),
    }
}
