//! The Python module at length, and under memcheck.

use std::path::Path;

use anyhow::{Result, bail};

use crate::ci::Outcome;
use crate::sh::{Cmd, root};
use crate::wheel;
use crate::workspace::Package;

/// The longest that memcheck may take; it runs everything on one core, some fifty times slower.
const MEMCHECK_LIMIT_S: u64 = 2 * 60 * 60;
/// What memcheck sees: no test that measures memory, and none that starts other interpreters, which
/// it would not follow.
const TESTS: &[&str] = &[
    "test_connector",
    "test_store",
    "test_s3.Contract",
    "test_s3.Stacked",
    "test_s3.Embedded",
    "test_hostile.Buffers",
    "test_hostile.Threads",
    "test_hostile.Closed",
    "test_lent.Twice",
    "test_callers.Keys",
    "test_callers.Logs",
];
/// A script with a known fault. If it ends well, memcheck is blind and its silence about us means
/// nothing.
const CANARY: &str = "import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
address = libc.malloc(64)
libc.free(ctypes.c_void_p(address))
ctypes.string_at(address, 64)";

/// The wheel that users install: built for the glibc of its name, installed and tested.
pub fn wheel(_: &[Package]) -> Result<Outcome> {
    Ok(Outcome::Noted(wheel::wheels(true)?.join("; ")))
}

/// All tests with the lengths of a night; none may be skipped.
pub fn long(_: &[Package]) -> Result<Outcome> {
    let tests = wheel::test_with(&[("KVTIER_NIGHTLY", "1")])?.whole()?;
    Ok(Outcome::Noted(tests.to_string()))
}

/// What the module does to memory of Python's and to its own. What the interpreter does by itself
/// is not ours, and suppressed.
pub fn valgrind(_: &[Package]) -> Result<Outcome> {
    if !Cmd::new("valgrind --version").works() {
        return Ok(Outcome::Skipped("valgrind is not installed (Debian package valgrind)".into()));
    }
    let python = wheel::python()?;
    let module = wheel::stage("dev")?;
    let under =
        memcheck(&python).env("PYTHONPATH", format!("{}:crates/py/tests", module.display()));
    let (ended_well, said) = under.clone().args(["-c", CANARY]).try_read()?;
    if ended_well || !said.contains("Invalid read") {
        bail!("the canary was not caught: memcheck sees nothing here\n{said}");
    }
    println!("the canary was caught: memcheck sees what happens in the interpreter's process");
    let tests = under.args(["-m", "unittest", "-v"]).args(TESTS.iter().copied());
    Ok(Outcome::Noted(wheel::unittest(tests.limit_s(MEMCHECK_LIMIT_S))?.to_string()))
}

fn memcheck(python: &Path) -> Cmd {
    let suppressions = root().join("xtask/src/nightly/python.supp");
    let cmd = Cmd::new("valgrind --quiet --error-exitcode=99 --fair-sched=yes");
    let cmd =
        cmd.arg(format!("--suppressions={}", suppressions.display())).arg(python.to_string_lossy());
    // Each object of Python's is memory of its own then. In io_uring a thread that waits would hold
    // up all others.
    cmd.env("PYTHONMALLOC", "malloc").env("KVTIER_ENGINE", "threads")
}
