//! The S3 client's signatures beside botocore's, over new random requests every night.

use anyhow::Result;

use crate::ci::Outcome;
use crate::sh::{Cmd, root};
use crate::testing;
use crate::workspace::Package;

const REQUESTS: &str = "10000";

pub fn run(_: &[Package]) -> Result<Outcome> {
    let home = root().join("target/botocore");
    let at = |name: &str| home.join(name).to_string_lossy().into_owned();
    if !Cmd::new("python3 --version").works() {
        return Ok(Outcome::Skipped("python3 is not installed".into()));
    }
    Cmd::new("python3 -m venv").arg(at("venv")).run()?;
    let pip = Cmd::new("").arg(at("venv/bin/pip")).args(["install", "--quiet", "botocore"]);
    if pip.run().is_err() {
        return Ok(Outcome::Skipped(
            "botocore cannot be installed from the Python registry".into(),
        ));
    }
    let day = std::time::UNIX_EPOCH.elapsed()?.as_secs() / 86_400;
    let script = root().join("crates/s3/vectors/sign.py").to_string_lossy().into_owned();
    let made = Cmd::new("")
        .arg(at("venv/bin/python"))
        .args([script, REQUESTS.to_owned(), day.to_string()])
        .read()?;
    std::fs::write(at("vectors.jsonl"), made)?;
    let cmd = Cmd::new("cargo test --locked -p kvtier-s3 --lib sign::botocore");
    testing::run(&cmd.env("KVTIER_S3_VECTORS", at("vectors.jsonl")))?;
    Ok(Outcome::Noted(format!("{REQUESTS} requests, seed {day}")))
}
