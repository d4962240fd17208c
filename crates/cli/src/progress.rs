//! How far a run is: a bar on standard error where that is a terminal, or plain lines where they
//! are asked for.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use kvtier::byte_size::format;

/// Plain lines are printed this often.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressUnit {
    /// Bytes of chunks.
    Bytes,
    /// Chunks of which something is asked.
    Chunks,
    /// Steps of a run, each with a text of its own.
    Steps,
}

/// How far a run is.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    unit: ProgressUnit,
    /// When the last plain line was printed; `None` where none are printed.
    line: Option<Mutex<Instant>>,
}

impl Progress {
    /// Begins to count to `total`. `lines`: print plain lines where standard error is no terminal.
    pub fn start(unit: ProgressUnit, total: u64, lines: bool) -> Result<Self> {
        let template = match unit {
            ProgressUnit::Bytes => {
                "{bar:40} {bytes}/{total_bytes} {binary_bytes_per_sec} (eta {eta})"
            }
            ProgressUnit::Chunks => "{bar:40} {pos}/{len} chunks (eta {eta})",
            ProgressUnit::Steps => "{bar:20} {pos}/{len} {elapsed} {msg}",
        };
        let bar = ProgressBar::new(total)
            .with_style(ProgressStyle::with_template(template).context("template")?);
        // On a terminal the bar shows it; lines are for logs.
        let lines = lines && !std::io::stderr().is_terminal();
        Ok(Progress { bar, unit, line: lines.then(|| Mutex::new(Instant::now())) })
    }

    /// Says what the next step is.
    pub fn step(&self, what: String) {
        if self.line.is_some() {
            eprintln!(
                "kvtier: {} of {}: {what}",
                self.bar.position(),
                self.bar.length().unwrap_or(0)
            );
        }
        self.bar.set_message(what);
        self.bar.tick();
    }

    /// So much more is done.
    pub fn add(&self, done: u64) {
        self.bar.inc(done);
        let Some(line) = self.line.as_ref().filter(|_| self.unit != ProgressUnit::Steps) else {
            return;
        };
        let mut last = line.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that of several workers only one prints.
        if last.elapsed() >= LINE_EVERY {
            *last = Instant::now();
            self.print();
        }
    }

    /// The run has ended: takes the bar away, or prints a last line.
    pub fn finish(&self) {
        if self.line.is_some() {
            self.print();
        }
        self.bar.finish_and_clear();
    }

    fn print(&self) {
        let done = self.bar.position();
        let total = self.bar.length().unwrap_or(0);
        match self.unit {
            ProgressUnit::Bytes => {
                let rate = format(self.bar.per_sec() as u64);
                eprintln!("kvtier: {} of {}, {rate}/s", format(done), format(total));
            }
            ProgressUnit::Chunks => eprintln!("kvtier: asked of {done} of {total} chunks"),
            ProgressUnit::Steps => eprintln!("kvtier: {done} of {total}"),
        }
    }
}
