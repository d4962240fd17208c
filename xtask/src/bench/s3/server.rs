//! The server in memory that clients are measured at, pinned to a core of its own.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::machine;
use crate::sh::Cmd;
use crate::workspace;

/// The workspace of the server and the peers.
const MANIFEST: &str = "benches/s3/Cargo.toml";
/// The longest that building everything may take.
const BUILD_MAX_S: u64 = 60 * 60;

/// A running server; dropping it ends it.
pub struct BenchServer {
    /// By scheme.
    ports: Value,
    /// The path of its certificate.
    pub certificate: String,
    child: Child,
    _ends_when_closed: ChildStdin,
}

/// What a server is started for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setting {
    /// Each request is answered after this time.
    pub latency_ms: u64,
    /// It and its clients run at real-time priority.
    pub is_realtime: bool,
}

impl Setting {
    /// The words before a command that pin it to a core.
    pub fn pinned(&self, core: usize) -> Vec<String> {
        let priority: &[&str] = if self.is_realtime { &["chrt", "-f", "10"] } else { &[] };
        let core = core.to_string();
        priority.iter().copied().chain(["taskset", "-c", &core]).map(String::from).collect()
    }
}

/// Builds the program. Not --locked: our own crates' dependencies may have grown since; the peers'
/// versions stay as they are all the same.
pub fn building() -> Cmd {
    Cmd::new("cargo build --release --manifest-path")
        .arg(MANIFEST)
        .arg("--target-dir")
        .arg(folder().to_string_lossy())
        .limit_s(BUILD_MAX_S)
}

/// Where cargo puts what it builds of that workspace: not among what it builds of ours.
fn folder() -> PathBuf {
    workspace::target_dir().join("bench-s3")
}

/// The program that serves and measures.
pub fn program() -> String {
    folder().join("release/kvtier-bench-s3").to_string_lossy().into_owned()
}

impl BenchServer {
    /// Builds it without peers and starts it.
    pub fn alone() -> Result<BenchServer> {
        building().arg("--no-default-features").run()?;
        BenchServer::start(Setting::default())
    }

    /// Starts what was built.
    pub fn start(setting: Setting) -> Result<BenchServer> {
        let certificate = workspace::target_dir().join("bench-s3.pem");
        let certificate = certificate.to_string_lossy().into_owned();
        let words = setting.pinned(machine::cores() - 1);
        let mut server = Command::new(&words[0]);
        server.args(&words[1..]).args([&program(), "serve", "--certificate", &certificate]);
        server.args(["--latency-ms", &setting.latency_ms.to_string()]);
        let server = server.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut server = server
            .with_context(|| format!("cannot start `{}` (Debian package util-linux)", words[0]))?;
        let mut line = String::new();
        BufReader::new(server.stdout.take().context("a piped standard output")?)
            .read_line(&mut line)?;
        let ports = serde_json::from_str(&line).context("the server does not start")?;
        let stdin = server.stdin.take().context("a piped standard input")?;
        Ok(BenchServer { ports, certificate, child: server, _ends_when_closed: stdin })
    }

    /// Where it speaks `scheme`.
    pub fn port(&self, scheme: &str) -> &Value {
        &self.ports[scheme]
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_time_priority_is_only_taken_when_asked_for() {
        let words = |is_realtime| Setting { is_realtime, ..Setting::default() }.pinned(1).join(" ");
        assert_eq!(words(false), "taskset -c 1");
        assert_eq!(words(true), "chrt -f 10 taskset -c 1");
    }

    #[test]
    fn cargo_builds_the_program_where_it_is_started_from() {
        let words = building().to_string();
        let folder = words.split_once("--target-dir ").expect("the build names its folder").1;

        assert_eq!(program(), format!("{folder}/release/kvtier-bench-s3"));
    }
}
