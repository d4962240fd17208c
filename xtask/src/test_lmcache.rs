//! `cargo xtask test-lmcache`: the Python module inside the real LMCache.

use anyhow::Result;

use crate::args::Args;
use crate::venv;
use crate::wheel;

/// The longest that the tests may take; importing LMCache alone takes seconds.
const LIMIT_S: u64 = 15 * 60;

/// Runs all tests below `crates/py/tests/lmcache`, or those whose names hold a word (`-k WORD`).
pub fn run(args: &mut Args) -> Result<()> {
    let only = args.value("-k")?;
    args.end()?;
    let tests = test(only.as_deref())?;
    println!("{tests} passed under {}", venv::LMCACHE.packages[0]);
    Ok(())
}

/// Installs LMCache where that was not done before, builds the module and tests it there. None may
/// be skipped, but for those that need a GPU where there is none.
pub fn test(only: Option<&str>) -> Result<wheel::Tests> {
    let home = venv::make(&venv::LMCACHE)?;
    let module = wheel::stage("dev")?;
    let python = venv::python(&home);
    let cmd = wheel::discover(&python.to_string_lossy(), "crates/py/tests/lmcache");
    let cmd = wheel::with_stand_in(cmd);
    let cmd = only.into_iter().fold(cmd, |cmd, word| cmd.args(["-k", word]));
    wheel::unittest(venv::quiet(cmd.env("PYTHONPATH", module.to_string_lossy())).limit_s(LIMIT_S))?
        .whole()
}
