//! Running other programs: echoed, with limits, from the root of the workspace.

use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::machine::cores;
use crate::watchdog::{self, Killed, Limits, STILL_MAX, Seen};

/// The CPU time, on each core, that one command may use before it is killed, unless it asks for
/// another limit.
const LIMIT_S: u64 = 20 * 60;

/// How a command ended.
struct Ended {
    status: ExitStatus,
    /// Why it was killed, if it was.
    killed: Option<Killed>,
}

/// The root of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is one folder below the root of the workspace")
}

/// A command line on its way to being run.
#[derive(Clone, Debug)]
pub struct Cmd {
    words: Vec<String>,
    envs: Vec<(String, String)>,
    dir: Option<PathBuf>,
    limit_s: u64,
    still: Duration,
}

/// What becomes of what a command prints.
type Sink<'a> = &'a mut (dyn FnMut(&[u8]) + Send);

impl Cmd {
    /// A command of words without blanks in them.
    pub fn new(line: &str) -> Cmd {
        let words = line.split_whitespace().map(String::from).collect();
        Cmd { words, envs: Vec::new(), dir: None, limit_s: LIMIT_S, still: STILL_MAX }
    }

    pub fn arg(mut self, arg: impl Into<String>) -> Cmd {
        self.words.push(arg.into());
        self
    }

    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Cmd {
        self.words.extend(args.into_iter().map(Into::into));
        self
    }

    pub fn env(mut self, name: &str, value: impl Into<String>) -> Cmd {
        self.envs.push((name.into(), value.into()));
        self
    }

    /// Runs in this folder instead of the root of the workspace.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Cmd {
        self.dir = Some(dir.into());
        self
    }

    /// Adds a flag to RUSTFLAGS, keeping those of the caller.
    pub fn rustflags(self, flags: &str) -> Cmd {
        let outer = std::env::var("RUSTFLAGS").unwrap_or_default();
        self.env("RUSTFLAGS", format!("{outer} {flags}").trim().to_owned())
    }

    /// Allows the command `seconds` of CPU time on each core instead of the usual limit.
    pub fn limit_s(mut self, seconds: u64) -> Cmd {
        self.limit_s = seconds;
        self
    }

    /// Allows the command to stand still for so long instead of the usual limit.
    #[cfg(test)]
    fn still(mut self, still: Duration) -> Cmd {
        self.still = still;
        self
    }

    /// Runs the command with our own output; anything but success is an error.
    pub fn run(&self) -> Result<()> {
        self.echo();
        if std::io::stdout().is_terminal() {
            // As it is, with colours and progress bars.
            return self.check(self.finish(
                self.spawn(Stdio::inherit, Stdio::inherit)?,
                &mut |_| {},
                &mut |_| {},
            )?);
        }
        let child = self.spawn(Stdio::piped, Stdio::piped)?;
        self.check(self.finish(child, &mut |out| pass_on(std::io::stdout(), out), &mut |err| {
            pass_on(std::io::stderr(), err)
        })?)
    }

    /// Runs the command, passing each line of its standard output on and to `see`.
    pub fn run_seeing(&self, mut see: impl FnMut(&str) + Send) -> Result<()> {
        self.echo();
        let mut rest = Vec::new();
        let mut out = |bytes: &[u8]| {
            pass_on(std::io::stdout(), bytes);
            rest.extend_from_slice(bytes);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                see(String::from_utf8_lossy(&line).trim_end());
            }
        };
        let child = self.spawn(Stdio::piped, Stdio::piped)?;
        let ended = self.finish(child, &mut out, &mut |err| pass_on(std::io::stderr(), err))?;
        if !rest.is_empty() {
            see(&String::from_utf8_lossy(&rest));
        }
        self.check(ended)
    }

    /// Runs the command quietly and gives back its standard output.
    pub fn read(&self) -> Result<String> {
        let mut text = Vec::new();
        let child = self.spawn(Stdio::piped, Stdio::piped)?;
        let mut err = |err: &[u8]| pass_on(std::io::stderr(), err);
        self.check(self.finish(child, &mut |out| text.extend_from_slice(out), &mut err)?)?;
        String::from_utf8(text)
            .with_context(|| format!("`{self}` printed something that is not UTF-8"))
    }

    /// Whether the command runs and succeeds; prints nothing.
    pub fn works(&self) -> bool {
        let child = self.spawn(Stdio::null, Stdio::null);
        let ended = child.and_then(|child| self.finish(child, &mut |_| {}, &mut |_| {}));
        ended.is_ok_and(|ended| self.check(ended).is_ok())
    }

    /// Runs the command quietly and gives back success and everything it printed.
    pub fn try_read(&self) -> Result<(bool, String)> {
        let mut out = Vec::new();
        let mut err = Vec::new();
        let child = self.spawn(Stdio::piped, Stdio::piped)?;
        let ended =
            self.finish(child, &mut |bytes| out.extend_from_slice(bytes), &mut |bytes| {
                err.extend_from_slice(bytes)
            })?;
        let mut text = String::from_utf8_lossy(&[out, err].concat()).into_owned();
        if let Some(killed) = ended.killed {
            text += &format!("\n{}\n", self.why(killed));
        }
        Ok((ended.status.success() && ended.killed.is_none(), text))
    }

    /// In a group of its own, so that all of it can be ended. At a terminal the group stays ours,
    /// so that Ctrl-C reaches it.
    fn spawn(&self, out: fn() -> Stdio, err: fn() -> Stdio) -> Result<Child> {
        let Some((program, args)) = self.words.split_first() else { bail!("no command") };
        let mut command = Command::new(program);
        command.args(args).envs(self.envs.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(out()).stderr(err());
        if !std::io::stdin().is_terminal() {
            command.process_group(0);
        }
        command.current_dir(self.dir.as_deref().unwrap_or(Path::new(".")));
        command.spawn().map_err(|e| match e.kind() {
            ErrorKind::NotFound => {
                anyhow::anyhow!("`{self}` cannot be started: is `{program}` installed?")
            }
            _ => anyhow::Error::new(e).context(format!("`{self}` cannot be started")),
        })
    }

    /// Waits for the command to end, or ends it at its limits.
    fn finish(&self, mut child: Child, out: Sink, err: Sink) -> Result<Ended> {
        let limits =
            Limits { cpu: Duration::from_secs(self.limit_s) * cores() as u32, still: self.still };
        let pid = child.id();
        let seen = &Seen::default();
        thread::scope(|scope| {
            let stdout = child.stdout.take();
            let stderr = child.stderr.take();
            let watcher = scope.spawn(move || watchdog::watch(pid, limits, seen));
            let errors =
                scope.spawn(move || stderr.map_or(Ok(()), |stderr| pump(stderr, seen, err)));
            let read = stdout.map_or(Ok(()), |stdout| pump(stdout, seen, out));
            let status = child.wait();
            let errors = errors.join();
            seen.end();
            let killed = watcher.join().ok().flatten();
            read.and(errors.unwrap_or(Ok(())))
                .with_context(|| format!("cannot read what `{self}` prints"))?;
            Ok(Ended {
                status: status.with_context(|| format!("cannot wait for `{self}`"))?,
                killed,
            })
        })
    }

    fn echo(&self) {
        println!("$ {self}");
    }

    fn check(&self, ended: Ended) -> Result<()> {
        match (ended.killed, ended.status.success()) {
            (Some(killed), _) => bail!("{}", self.why(killed)),
            (None, true) => Ok(()),
            (None, false) => bail!("`{self}` failed ({})", ended.status),
        }
    }

    fn why(&self, killed: Killed) -> String {
        match killed {
            Killed::Still => {
                format!(
                    "`{self}` was killed: it printed nothing and did nothing for {} s",
                    self.still.as_secs()
                )
            }
            Killed::Cpu => format!(
                "`{self}` was killed: it used more than {} s of CPU time a core",
                self.limit_s
            ),
        }
    }
}

/// Hands on what comes until it ends.
fn pump(mut from: impl Read, seen: &Seen, to: Sink) -> std::io::Result<()> {
    let mut piece = [0; 16384];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(n) => {
                seen.printed(n);
                to(&piece[..n]);
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Nothing can be done when our own output is gone.
fn pass_on(mut to: impl Write, bytes: &[u8]) {
    _ = to.write_all(bytes).and_then(|()| to.flush());
}

impl std::fmt::Display for Cmd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, value) in &self.envs {
            write!(f, "{name}={value:?} ")?;
        }
        f.write_str(&self.words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_and_overtime_and_absence_differ() {
        assert!(Cmd::new("true").run().is_ok());
        assert!(Cmd::new("false").run().unwrap_err().to_string().contains("failed"));
        let still =
            Cmd::new("sleep 600").still(Duration::from_secs(1)).run().unwrap_err().to_string();
        assert!(still.contains("did nothing for 1 s"), "{still}");
        let busy = Cmd::new("sh -c")
            .arg("while :; do :; done & wait")
            .limit_s(0)
            .run()
            .unwrap_err()
            .to_string();
        assert!(busy.contains("CPU time"), "{busy}");
        let (ok, text) = Cmd::new("sh -c")
            .arg("echo here; sleep 600")
            .still(Duration::from_secs(5))
            .try_read()
            .unwrap();
        assert!(!ok && text.contains("here") && text.contains("killed"), "{text}");
        assert!(
            Cmd::new("no-such-program-here").run().unwrap_err().to_string().contains("installed?")
        );
    }

    #[test]
    fn output_is_seen_line_by_line() {
        let mut lines = Vec::new();
        Cmd::new("printf a\\nb\\nc").run_seeing(|line| lines.push(line.to_owned())).unwrap();
        assert_eq!(lines, ["a", "b", "c"]);
    }
}
