//! Runs the program that prints a key: without a shell, for a bounded time and bounded output.

use std::io::{Read, sink};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

/// The most bytes that are read of a key.
pub(super) const KEY_TEXT_MAX: usize = 4096;

/// How long the program may run.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// How often an ended program is looked for.
const POLL: Duration = Duration::from_millis(5);

/// The most bytes of its standard error that are shown.
const STDERR_MAX: usize = 1024;

/// What the program prints on its standard output; the error shows its standard error.
pub(super) fn output(words: &[String], limit: Duration) -> Result<Zeroizing<Vec<u8>>, String> {
    let (program, arguments) = words.split_first().ok_or("names no program")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let cannot_run = |e| format!("cannot be run: {e}; check the program and its mode");
    let mut child = command.spawn().map_err(cannot_run)?;
    let end = Instant::now() + limit;
    let out = child.stdout.take().map(|pipe| read_apart(pipe, KEY_TEXT_MAX + 1));
    let err = child.stderr.take().map(|pipe| read_apart(pipe, STDERR_MAX));
    let late = || format!("did not end within {} s; run it by hand", limit.as_secs_f32());
    let status = match wait(&mut child, end) {
        Ok(Some(status)) => status,
        Ok(None) => {
            // Neither error leaves anything to be done: it is gone, or the system keeps it.
            let _ = child.kill();
            let _ = child.wait();
            return Err(late());
        }
        Err(e) => return Err(cannot_run(e)),
    };
    // A program in the background that it left may keep the pipes open.
    let left = || end.saturating_duration_since(Instant::now()).max(POLL);
    let read = |pipe: Option<Receiver<Zeroizing<Vec<u8>>>>| {
        pipe.and_then(|pipe| pipe.recv_timeout(left()).ok()).ok_or_else(late)
    };
    let (text, said) = (read(out)?, read(err)?);
    if !status.success() {
        let said = String::from_utf8_lossy(&said);
        return Err(format!("failed ({status}): {}; run it by hand", said.trim()));
    }
    Ok(text)
}

fn wait(child: &mut Child, end: Instant) -> std::io::Result<Option<std::process::ExitStatus>> {
    loop {
        match child.try_wait()? {
            None if Instant::now() < end => std::thread::sleep(POLL),
            ended => return Ok(ended),
        }
    }
}

/// Reads the first `max` bytes of a pipe on a thread of its own, and drops the rest, so that the
/// program never waits for a reader.
fn read_apart(mut pipe: impl Read + Send + 'static, max: usize) -> Receiver<Zeroizing<Vec<u8>>> {
    let (to, from) = sync_channel(1);
    std::thread::spawn(move || {
        let mut text = Zeroizing::new(Vec::with_capacity(max));
        // What cannot be read is missing in the text, and then that is no key.
        let _ = pipe.by_ref().take(max as u64).read_to_end(&mut text);
        let _ = std::io::copy(&mut pipe, &mut sink());
        let _ = to.send(text);
    });
    from
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_end_or_leaves_its_pipes_open_is_an_error() {
        let run = |script: &str| {
            let words = ["sh", "-c", script].map(str::to_owned);
            let started = Instant::now();
            let e = output(&words, Duration::from_millis(100)).map(|_| ()).unwrap_err();
            assert!(e.contains("did not end"), "{e}");
            // Before the program itself ends.
            assert!(started.elapsed() < Duration::from_secs(120), "{script}");
        };
        run("exec sleep 240");
        run("yes");
        run("sleep 240 & echo key");
    }
}
