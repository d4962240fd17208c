//! Running other programs: echoed, with a time limit, from the root of the workspace.

use std::io::{BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

/// The longest that one command may take before it is killed, unless it asks for another limit.
const LIMIT_S: u64 = 20 * 60;

/// The root of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies one folder below the root of the workspace")
}

/// A command line on its way to being run.
#[derive(Clone, Debug)]
pub struct Cmd {
    words: Vec<String>,
    envs: Vec<(String, String)>,
    dir: Option<PathBuf>,
    limit_s: u64,
}

impl Cmd {
    /// A command of words without blanks in them.
    pub fn new(line: &str) -> Cmd {
        let words = line.split_whitespace().map(String::from).collect();
        Cmd { words, envs: Vec::new(), dir: None, limit_s: LIMIT_S }
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

    /// Allows the command `seconds` instead of the usual limit.
    pub fn limit_s(mut self, seconds: u64) -> Cmd {
        self.limit_s = seconds;
        self
    }

    /// Runs the command with our own output; anything but success is an error.
    pub fn run(&self) -> Result<()> {
        self.echo();
        let status = self.command().status().with_context(|| self.cannot_start())?;
        self.judge(status)
    }

    /// Runs the command, passing each line of its standard output on and to `see`.
    pub fn run_seeing(&self, mut see: impl FnMut(&str)) -> Result<()> {
        self.echo();
        let mut child = self.command().stdout(Stdio::piped()).spawn().with_context(|| self.cannot_start())?;
        let out = child.stdout.take().context("a piped standard output")?;
        for line in BufReader::new(out).lines() {
            let line = line?;
            println!("{line}");
            see(&line);
        }
        self.judge(child.wait()?)
    }

    /// Runs the command quietly and gives back its standard output.
    pub fn read(&self) -> Result<String> {
        let output = self.command().stderr(Stdio::inherit()).output().with_context(|| self.cannot_start())?;
        self.judge(output.status)?;
        String::from_utf8(output.stdout).with_context(|| format!("`{self}` printed something that is not UTF-8"))
    }

    /// Whether the command runs and succeeds; prints nothing.
    pub fn works(&self) -> bool {
        let status = self.command().stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    /// Runs the command quietly and gives back success and everything it printed.
    pub fn try_read(&self) -> Result<(bool, String)> {
        let output = self.command().output().with_context(|| self.cannot_start())?;
        let text = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
    }

    /// `timeout` of coreutils ends the whole process group, so that no grandchild outlives its limit. At a terminal
    /// the group stays ours instead, so that Ctrl-C reaches it.
    fn command(&self) -> Command {
        let mut command = Command::new("timeout");
        if std::io::stdin().is_terminal() {
            command.arg("--foreground");
        }
        command.arg("--kill-after=10").arg(self.limit_s.to_string()).args(&self.words);
        command.envs(self.envs.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
        self.dir.iter().for_each(|dir| _ = command.current_dir(dir));
        command
    }

    fn echo(&self) {
        println!("$ {self}");
    }

    fn cannot_start(&self) -> String {
        format!("cannot start `timeout` (Debian package coreutils) for `{self}`")
    }

    fn judge(&self, status: ExitStatus) -> Result<()> {
        match status.code() {
            Some(0) => Ok(()),
            Some(124 | 137) => bail!("`{self}` was killed after its limit of {} s", self.limit_s),
            Some(126 | 127) => bail!("`{self}` cannot be started: is `{}` installed?", self.words[0]),
            _ => bail!("`{self}` failed ({status})"),
        }
    }
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
    fn failure_and_overtime_and_absence_are_told_apart() {
        assert!(Cmd::new("true").run().is_ok());
        assert!(Cmd::new("false").run().unwrap_err().to_string().contains("failed"));
        assert!(Cmd::new("sleep 5").limit_s(1).run().unwrap_err().to_string().contains("limit of 1 s"));
        assert!(Cmd::new("no-such-program-here").run().unwrap_err().to_string().contains("installed?"));
    }

    #[test]
    fn output_is_seen_line_by_line() {
        let mut lines = Vec::new();
        Cmd::new("printf a\\nb\\n").run_seeing(|line| lines.push(line.to_owned())).unwrap();
        assert_eq!(lines, ["a", "b"]);
    }
}
