//! The file tier after crashes of the machine: `crates/file/tests/machine_crashes.rs`, where this machine
//! lets us mount file systems and shut them down.

use anyhow::Result;

use crate::filesystems;
use crate::sh::Cmd;
use crate::testing::{self, Count};

/// The CPU time on each core that a night's crashes may take.
const LIMIT_S: u64 = 2 * 60 * 60;

/// Crashes file systems so often; or why that is not possible here.
pub fn run(crashes: u32) -> Result<Result<Count, String>> {
    if !Cmd::new("xfs_io -V").works() {
        return Ok(Err("xfs_io is not installed (Debian package xfsprogs)".into()));
    }
    let refused = filesystems::refused(&["ext4", "xfs"]);
    if !refused.is_empty() {
        return Ok(Err(refused.join("; ")));
    }
    let cmd = testing::workspace().args([
        "-p",
        "kvtier-file",
        "--test",
        "machine_crashes",
        "--",
        "--nocapture",
    ]);
    testing::run(&cmd.env("KVTIER_CRASHES", crashes.to_string()).limit_s(LIMIT_S)).map(Ok)
}
