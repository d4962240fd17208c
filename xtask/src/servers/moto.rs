//! moto: AWS's manners in memory. It checks no signature.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::process::{self, await_http, spawn};
use super::{BUCKET, Started, access, dir, packages, quiet};
use crate::sh::Cmd;
use crate::versions::MOTO;

/// Starts it, from a Python environment of its own that the first start makes.
pub fn start(place: &Path) -> Result<Started> {
    let venv = dir("moto-venv");
    let program = venv.join("bin/moto_server");
    if !program.exists() {
        if !packages::is_there("python3") {
            return Ok(Started::Absent("install Python 3".into()));
        }
        let made = Cmd::new("python3 -m venv").arg(venv.to_string_lossy()).try_read()?;
        let pip = Cmd::new(&venv.join("bin/pip").to_string_lossy()).args(["install", "-q"]);
        let installed =
            made.0.then(|| pip.arg(format!("moto[server,s3]=={MOTO}")).try_read()).transpose()?;
        if !program.exists() {
            let said = installed.map_or(made.1, |(_, said)| said);
            let last =
                said.lines().rev().find(|line| !line.is_empty()).unwrap_or_default().to_owned();
            return Ok(Started::Absent(format!(
                "the Python package moto {MOTO} cannot be installed: {last}"
            )));
        }
    }
    let [port] = process::ports()?;
    let mut server = spawn(
        place,
        "moto",
        Command::new(program).args(["-H", "127.0.0.1", "-p", &port.to_string()]),
    )?;
    await_http(port, &mut server, place)?;
    let bucket = Cmd::new("curl -sSf -X PUT").arg(format!("http://127.0.0.1:{port}/{BUCKET}"));
    quiet(&bucket).context("cannot make the bucket")?;
    let mut found = access(port, "other", "us-east-1", "test", "test");
    found.push(("S3_NO_SIGNATURES", "1".into()));
    Ok(Started::Up(found))
}
