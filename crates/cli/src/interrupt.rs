//! Ctrl-C and its like end a run in order: what is under way ends, temporary files go. A second one
//! ends it at once.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};

/// The exit code of a run that a signal ended, as shells have it for SIGINT.
pub const EXIT_CODE: u8 = 130;

static ASKED: AtomicBool = AtomicBool::new(false);
static WATCHED: AtomicBool = AtomicBool::new(false);

/// A signal ended the run.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Waits for signals from now on. Call it before other threads start: they must inherit that these
/// signals are not theirs.
pub fn watch() -> Result<()> {
    // Some commands come here twice, by way of what they share with others.
    if WATCHED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    // All threads that start later inherit this mask. Only the thread below takes the signals.
    signals.thread_block().context("cannot wait for signals")?;
    let wait = move || {
        let _ = signals.wait();
        ASKED.store(true, Ordering::Relaxed);
        // The first signal asks for the end; from here on this thread takes them as they are, so
        // that a second one kills.
        let _ = signals.thread_unblock();
        loop {
            std::thread::park();
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(wait)
        .context("cannot start a thread for signals")?;
    Ok(())
}

/// Whether the run is to end.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// `Interrupted`, if the run is to end.
pub fn check() -> Result<()> {
    if asked() { Err(Interrupted.into()) } else { Ok(()) }
}
