//! What goes to standard output.

use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};

/// Prints a line.
pub fn line(text: &str) -> Result<()> {
    writeln!(io::stdout().lock(), "{text}").context("cannot write to standard output")
}

/// Whether the reader of our output had enough (`| head`): no fault of the run.
pub fn is_closed(e: &anyhow::Error) -> bool {
    e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
}
