//! `kvtier doctor`: what a medium can do, and the settings that follow from it.

mod file;
mod finding;
mod gds;
mod lossy;
mod s3;
mod shm;
mod stored;

use std::path::Path;

use anyhow::Result;

use crate::BadInput;

/// The subcommands of `kvtier doctor`.
#[derive(clap::Subcommand)]
pub enum DoctorCommand {
    /// Checks a directory for the file tier: file system and machine features, speed, recommended
    /// settings.
    File(file::DoctorFileArgs),
    /// Checks a directory for the GPU tier: whether loads go directly to the GPU, and if not, why
    /// and what to do.
    Gds(gds::DoctorGdsArgs),
    /// Checks a bucket: credentials, features of its store, speed, recommended settings.
    S3(Box<s3::DoctorS3Args>),
    /// Finds shared-memory segments of LMCache and kvtier that no process uses, and removes them with
    /// --yes.
    Shm(shm::ShmArgs),
}

/// Returns an error unless the path is a directory.
fn exists(path: &Path) -> Result<(), BadInput> {
    let what = match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => return Ok(()),
        Ok(_) => "not a directory".to_owned(),
        Err(e) => e.to_string(),
    };
    Err(BadInput(format!("cannot examine {}: {what}; check the path", path.display())))
}

/// Looks, and prints what it found.
pub fn run(command: &DoctorCommand) -> Result<()> {
    match command {
        DoctorCommand::File(args) => file::run(args),
        DoctorCommand::Gds(args) => gds::run(args),
        DoctorCommand::S3(args) => s3::run(args),
        DoctorCommand::Shm(args) => shm::run(args),
    }
}
