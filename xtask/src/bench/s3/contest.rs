use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::plan::{Cell, Plan};
use crate::bench::machine;
use crate::sh::{Cmd, root};

/// The workspace of the peers.
const MANIFEST: &str = "benches/s3/Cargo.toml";
const PROGRAM: &str = "benches/s3/target/release/kvtier-bench-s3";
/// The core that the clients run on; the server has the last one.
const CORE: usize = 0;
/// The longest that building everything may take.
const BUILD_MAX_S: u64 = 60 * 60;
/// The longest that one turn of one client may take.
const TURN_MAX_S: u64 = 120;

/// A server, and those who take turns at it.
pub struct Contest {
    /// All that are measured, those that set the floor first.
    pub names: Vec<String>,
    /// What is not measured, and why.
    pub absent: Vec<String>,
    ports: Value,
    certificate: String,
    server: Child,
    _ends_when_closed: ChildStdin,
}

/// What one turn gave.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    pub mb_per_s: f64,
    pub cpu_s_per_gb: f64,
    pub cpu_us_per_op: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub rss_mib: f64,
}

impl Contest {
    /// Builds everything and starts the server.
    pub fn start(plan: &Plan) -> Result<Contest> {
        // Not --locked: our own crates' dependencies may have grown since; the peers' versions stay as they are all the same.
        let alone = Cmd::new("cargo build --release --no-default-features --manifest-path").arg(MANIFEST);
        let mut absent = Vec::new();
        if plan.is_alone() {
            alone.run()?;
        } else if let Err(e) =
            Cmd::new("cargo build --release --manifest-path").arg(MANIFEST).limit_s(BUILD_MAX_S).run()
        {
            absent.push(format!("the other clients do not build: {e}"));
            alone.run()?;
        }
        let program = root().join(PROGRAM).to_string_lossy().into_owned();
        let all = Cmd::new(&program).arg("peers").read()?;
        let wanted = |name: &&str| plan.peers.is_empty() || plan.peers.iter().any(|peer| peer == name);
        let names: Vec<String> = all.lines().filter(wanted).map(String::from).collect();
        if let Some(unknown) = plan.peers.iter().find(|peer| !names.contains(peer)) {
            bail!("no client '{unknown}'; there are: {}", all.lines().collect::<Vec<_>>().join(", "));
        }
        let certificate = root().join("target/bench-s3.pem").to_string_lossy().into_owned();
        let mut server = Command::new("taskset");
        server.args(["-c", &(machine::cores() - 1).to_string(), &program, "serve", "--certificate", &certificate]);
        let server = server.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut server = server.context("cannot start `taskset` (Debian package util-linux)")?;
        let mut line = String::new();
        BufReader::new(server.stdout.take().context("a piped standard output")?).read_line(&mut line)?;
        let ports = serde_json::from_str(&line).context("the server does not start")?;
        let stdin = server.stdin.take().context("a piped standard input")?;
        Ok(Contest { names, absent, ports, certificate, server, _ends_when_closed: stdin })
    }

    /// One turn of one client.
    pub fn measure(&self, cell: &Cell, name: &str) -> Result<Sample> {
        let port = &self.ports[if cell.scheme == "http" { "plain" } else { "tls" }];
        let cmd =
            Cmd::new("taskset -c").args([&CORE.to_string(), &root().join(PROGRAM).to_string_lossy().into_owned()]);
        let cmd = cmd.args(["run", "--peer", name, "--op", &cell.op, "--size", &cell.size.to_string()]);
        let cmd = cmd.args(["--concurrency", &cell.inflight.to_string(), "--count", &cell.count.to_string()]);
        let cmd = cmd.arg("--endpoint").arg(format!("{}://127.0.0.1:{port}", cell.scheme));
        let out = cmd.env("SSL_CERT_FILE", &self.certificate).env("RUST_BACKTRACE", "0").limit_s(TURN_MAX_S).read()?;
        sample(&serde_json::from_str(&out).context("the client printed no JSON")?, cell.size)
    }
}

impl Drop for Contest {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn sample(out: &Value, size: u64) -> Result<Sample> {
    let number = |name: &str| out[name].as_f64().with_context(|| format!("no {name} in {out}"));
    let (ops, cpu) = (number("ops")?, number("user_s")? + number("system_s")?);
    let gb = ops * size as f64 / 1e9;
    Ok(Sample {
        mb_per_s: gb * 1e3 / number("seconds")?,
        cpu_s_per_gb: cpu / gb,
        cpu_us_per_op: cpu * 1e6 / ops,
        p50_ms: number("p50_ms")?,
        p99_ms: number("p99_ms")?,
        rss_mib: number("rss_over_memory_mib")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_prints_is_read() {
        let out = serde_json::json!({
            "ops": 1000, "seconds": 0.5, "user_s": 0.1, "system_s": 0.1, "p50_ms": 1.0, "p99_ms": 2.0, "rss_over_memory_mib": 9.0,
        });
        let sample = sample(&out, 1_000_000).unwrap();
        assert_eq!((sample.mb_per_s, sample.cpu_s_per_gb), (2000.0, 0.2));
        assert!((sample.cpu_us_per_op - 200.0).abs() < 1e-9);
    }
}
