//! The server in memory that clients are measured at, pinned to a core of its own.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::bench::machine;
use crate::sh::{Cmd, root};

/// The workspace of the server and the peers.
const MANIFEST: &str = "benches/s3/Cargo.toml";
const PROGRAM: &str = "benches/s3/target/release/kvtier-bench-s3";
/// The longest that building everything may take.
const BUILD_MAX_S: u64 = 60 * 60;

/// A running server; dropping it ends it.
pub struct Served {
    /// By scheme.
    ports: Value,
    /// Where its certificate lies.
    pub certificate: String,
    child: Child,
    _ends_when_closed: ChildStdin,
}

/// Builds the program. Not --locked: our own crates' dependencies may have grown since; the peers' versions stay as they are all the same.
pub fn building() -> Cmd {
    Cmd::new("cargo build --release --manifest-path").arg(MANIFEST).limit_s(BUILD_MAX_S)
}

/// The program that serves and measures.
pub fn program() -> String {
    root().join(PROGRAM).to_string_lossy().into_owned()
}

impl Served {
    /// Builds it without peers and starts it.
    pub fn alone() -> Result<Served> {
        building().arg("--no-default-features").run()?;
        Served::start(0)
    }

    /// Starts what was built. Each request is answered after `latency_ms`.
    pub fn start(latency_ms: u64) -> Result<Served> {
        let certificate = root().join("target/bench-s3.pem").to_string_lossy().into_owned();
        let mut server = Command::new("taskset");
        server.args(["-c", &(machine::cores() - 1).to_string(), &program(), "serve", "--certificate", &certificate]);
        server.args(["--latency-ms", &latency_ms.to_string()]);
        let server = server.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut server = server.context("cannot start `taskset` (Debian package util-linux)")?;
        let mut line = String::new();
        BufReader::new(server.stdout.take().context("a piped standard output")?).read_line(&mut line)?;
        let ports = serde_json::from_str(&line).context("the server does not start")?;
        let stdin = server.stdin.take().context("a piped standard input")?;
        Ok(Served { ports, certificate, child: server, _ends_when_closed: stdin })
    }

    /// Where it speaks `scheme`.
    pub fn port(&self, scheme: &str) -> &Value {
        &self.ports[scheme]
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
