//! `cargo xtask bench cachegen`: CacheGen beside LMCache's own path for the CPU, in turns on one core
//! each.

use anyhow::Result;

use crate::args::Args;
use crate::sh::Cmd;
use crate::{machine, venv};

/// The longest that it may take, with its build.
const LIMIT_S: u64 = 30 * 60;

pub fn run(args: &mut Args) -> Result<()> {
    args.end()?;
    let home = venv::make(&venv::LMCACHE)?;
    println!("{}, {}", machine::line(), venv::LMCACHE.packages[0]);
    println!("load average {:.1} before\n", machine::load());
    venv::quiet(Cmd::new("cargo bench --locked -p kvtier-codec --bench lmcache_cachegen"))
        .env("KVTIER_LMCACHE_PYTHON", venv::python(&home).to_string_lossy())
        .limit_s(LIMIT_S)
        .run()?;
    println!("\nload average {:.1} after", machine::load());
    Ok(())
}
