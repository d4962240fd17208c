//! LMCache's own S3 adapter, in the environment that all of LMCache has below `target/rivals`.

use std::fs;

use anyhow::Result;

use super::cells::{LMCACHE, Plan};
use crate::bench::file::{MEASURE, RIVALS};
use crate::venv;

/// Does what the Rust clients' program does, with the same arguments.
const DRIVER: &str = include_str!("lmcache_s3.py");

/// How to start it; nothing when it is not asked for or cannot be had.
pub fn install(plan: &Plan, absent: &mut Vec<String>) -> Option<[String; 2]> {
    if !plan.with_lmcache {
        absent.push(format!("{LMCACHE} (ask for it with --with-lmcache)"));
        return None;
    }
    let made = || -> Result<_> {
        let home = venv::make(&venv::LMCACHE)?;
        for (name, text) in
            [("measure.py", MEASURE), ("rivals.py", RIVALS), ("lmcache_s3.py", DRIVER)]
        {
            fs::write(home.join(name), text)?;
        }
        Ok([venv::python(&home), home.join("lmcache_s3.py")]
            .map(|path| path.to_string_lossy().into_owned()))
    };
    made().inspect_err(|e| absent.push(format!("{LMCACHE} (it does not install: {e:#})"))).ok()
}
