//! AWS's client for Python, in an environment of its own below `target/rivals`.

use std::fs;

use anyhow::Result;

use super::cells::{BOTO3, Plan};
use crate::venv::{self, Venv};
use crate::versions;

const ENVIRONMENT: Venv = Venv { name: "boto3", packages: versions::BOTO3, alone: false };
/// Does what the Rust clients' program does, with the same arguments.
const DRIVER: &str = include_str!("boto3_driver.py");

/// How to start it; nothing when it is not asked for or cannot be had.
pub fn install(plan: &Plan, absent: &mut Vec<String>) -> Option<[String; 2]> {
    if !plan.with_boto3 {
        absent.push(format!("{BOTO3} (ask for it with --with-boto3)"));
        return None;
    }
    let made = || -> Result<_> {
        let home = venv::make(&ENVIRONMENT)?;
        let driver = home.join("driver.py");
        fs::write(&driver, DRIVER)?;
        Ok([venv::python(&home), driver].map(|path| path.to_string_lossy().into_owned()))
    };
    made().inspect_err(|e| absent.push(format!("{BOTO3} (it does not install: {e:#})"))).ok()
}
