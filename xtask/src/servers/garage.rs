//! Garage: the one that verifies checksums. It is no package, and takes the better part of an hour
//! to build: used where it is installed.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::process::{self, await_that, spawn};
use super::{BUCKET, DOMAIN, Started, access, packages, quiet};
use crate::sh::Cmd;
use crate::versions::GARAGE;

const REGION: &str = "garage";
const USER: (&str, &str) = (
    "GK0123456789abcdef01234567",
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
);

/// Starts it in an empty directory, from the `garage` that the shell finds.
pub fn start(dir: &Path) -> Result<Started> {
    if !packages::is_there("garage") {
        return Ok(Started::Absent(format!(
            "no program garage; `cargo install garage --version {GARAGE} --locked --no-default-features --features bundled-libs,lmdb,sqlite` takes about 45 minutes"
        )));
    }
    let [port, rpc, admin] = process::ports()?;
    fs::write(dir.join("garage.toml"), conf(dir, port, rpc, admin))?;
    let command = &mut Command::new("garage");
    let command =
        command.arg("-c").arg(dir.join("garage.toml")).arg("server").env("RUST_LOG", "garage=warn");
    let mut server = spawn(dir, "garage", command)?;
    await_that(&mut server, dir, || garage(dir, "status").works())?;
    let node = quiet(&garage(dir, "node id -q"))?;
    let node = node.split('@').next().unwrap_or_default().trim();
    quiet(&garage(dir, "layout assign -z dc1 -c 20G").arg(node))?;
    quiet(&garage(dir, "layout apply --version 1"))?;
    quiet(&garage(dir, "key import --yes -n kvtier").args([USER.0, USER.1]))?;
    quiet(&garage(dir, "key allow --create-bucket").arg(USER.0))?;
    quiet(&garage(dir, "bucket create").arg(BUCKET)).context("cannot make the bucket")?;
    quiet(&garage(dir, "bucket allow --read --write --owner").args([BUCKET, "--key", USER.0]))?;
    process::await_http(port, &mut server, dir)?;
    let mut found = access(port, "garage", REGION, USER.0, USER.1);
    found.push(("S3_VIRTUAL_HOST", DOMAIN.into()));
    Ok(Started::Up(found))
}

fn garage(dir: &Path, line: &str) -> Cmd {
    Cmd::new("garage -c")
        .arg(dir.join("garage.toml").to_string_lossy())
        .args(line.split(' '))
        .limit_s(300)
}

fn conf(dir: &Path, port: u16, rpc: u16, admin: u16) -> String {
    let dir = dir.display();
    let secret = USER.1;
    format!(
        "metadata_dir = \"{dir}/meta\"
data_dir = \"{dir}/data\"
db_engine = \"lmdb\"
replication_factor = 1
block_size = \"16MiB\"
compression_level = \"none\"
metadata_fsync = false
data_fsync = false
rpc_bind_addr = \"127.0.0.1:{rpc}\"
rpc_public_addr = \"127.0.0.1:{rpc}\"
rpc_secret = \"{secret}\"
[s3_api]
s3_region = \"{REGION}\"
api_bind_addr = \"127.0.0.1:{port}\"
root_domain = \".{DOMAIN}\"
[admin]
api_bind_addr = \"127.0.0.1:{admin}\"
"
    )
}
