use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::cells::{AWSCRT, BOTO3, Cell, LMCACHE, MOUNTPOINT, Plan};
use super::server::{BenchServer, Setting, building, program};
use super::{awscrt, boto3, lmcache};
use crate::sh::Cmd;
use crate::venv;

/// The core that the clients run on; the server has the last one.
const CORE: usize = 0;
/// The longest that one turn of one client may take.
const TURN_MAX_S: u64 = 120;

/// A server, and those who take turns at it.
pub struct Contest {
    /// All that are measured, those that set the floor first.
    pub names: Vec<String>,
    /// What is not measured, and why.
    pub absent: Vec<String>,
    server: BenchServer,
    setting: Setting,
    /// How to start those in Python.
    scripts: BTreeMap<&'static str, [String; 2]>,
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
    /// By how much the memory besides the objects' own grew at most, and how many threads there
    /// were.
    pub grown_mib: Option<f64>,
    pub threads: Option<f64>,
    pub allocations_per_op: Option<f64>,
    pub requests_per_op: Option<f64>,
}

impl Contest {
    /// Builds everything and starts the server.
    pub fn start(plan: &Plan) -> Result<Contest> {
        let mut absent = Vec::new();
        build(plan, &mut absent)?;
        let mut scripts = BTreeMap::new();
        scripts.extend(awscrt::install(plan, &mut absent).map(|script| (AWSCRT, script)));
        scripts.extend(boto3::install(plan, &mut absent).map(|script| (BOTO3, script)));
        scripts.extend(lmcache::install(plan, &mut absent).map(|script| (LMCACHE, script)));
        let built = Cmd::new(&program()).arg("peers").read()?;
        let all: Vec<&str> = built.lines().chain(scripts.keys().copied()).collect();
        if let Some(unknown) = plan.peers.iter().find(|peer| !all.contains(&peer.as_str())) {
            let why = absent.iter().map(|why| format!("; {why}")).collect::<String>();
            bail!("no client '{unknown}'; there are: {}{why}", all.join(", "));
        }
        let wanted = |name: &&str| plan.wants(name);
        let names = all.into_iter().filter(wanted).map(String::from).collect();
        let setting = Setting { latency_ms: plan.preset.latency_ms, is_realtime: plan.is_realtime };
        Ok(Contest { names, absent, server: BenchServer::start(setting)?, setting, scripts })
    }

    /// One turn of one client. Bare sockets speak HTTP/1.1 whatever the others speak.
    pub fn measure(&self, cell: &Cell, name: &str) -> Result<Sample> {
        let socket = cell.socket();
        let http2 = socket != cell.scheme && !name.starts_with("raw-");
        let port = self.server.port(if http2 { &cell.scheme } else { socket });
        let cmd = Cmd::new("").args(self.setting.pinned(CORE));
        let cmd = match self.scripts.get(name) {
            Some(script) => cmd.args(script),
            None => cmd.arg(program()).args(["run", "--peer", name]),
        };
        let cmd = cmd.args(["--op", &cell.op, "--size", &cell.size.to_string()]);
        let cmd = cmd.args([
            "--concurrency",
            &cell.inflight.to_string(),
            "--count",
            &cell.count.to_string(),
        ]);
        let cmd = cmd.arg("--endpoint").arg(format!("{socket}://127.0.0.1:{port}"));
        let cmd = if http2 { cmd.arg("--http2") } else { cmd };
        let cmd = venv::quiet(cmd)
            .env("SSL_CERT_FILE", &self.server.certificate)
            .env("RUST_BACKTRACE", "0");
        let out = cmd.limit_s(TURN_MAX_S).read()?;
        // Libraries print what they like before.
        let last = out
            .lines()
            .rev()
            .find(|line| line.starts_with('{'))
            .context("the client printed no JSON")?;
        sample(&serde_json::from_str(last)?, cell.size)
    }
}

/// As many of the clients as can be built, and why others could not.
fn build(plan: &Plan, absent: &mut Vec<String>) -> Result<()> {
    let cargo = building();
    if plan.with_mountpoint {
        match cargo.clone().args(["--features", "mountpoint"]).run() {
            Ok(()) => return Ok(()),
            Err(e) => absent.push(format!(
                "{MOUNTPOINT} (does it have the Debian packages cmake and libclang-dev? {e})"
            )),
        }
    } else {
        absent.push(format!("{MOUNTPOINT} (ask for it with --with-mountpoint)"));
    }
    if !plan.is_alone() {
        match cargo.run() {
            Ok(()) => return Ok(()),
            Err(e) => absent.push(format!("the other clients do not build: {e}")),
        }
    }
    cargo.arg("--no-default-features").run()
}

fn sample(out: &Value, size: u64) -> Result<Sample> {
    let number = |name: &str| out[name].as_f64().with_context(|| format!("no {name} in {out}"));
    let ops = number("ops")?;
    let cpu = number("user_s")? + number("system_s")?;
    let gb = ops * size as f64 / 1e9;
    Ok(Sample {
        mb_per_s: gb * 1e3 / number("seconds")?,
        cpu_s_per_gb: cpu / gb,
        cpu_us_per_op: cpu * 1e6 / ops,
        p50_ms: number("p50_ms")?,
        p99_ms: number("p99_ms")?,
        rss_mib: number("rss_over_memory_mib")?,
        grown_mib: out["grown_mib"].as_f64(),
        threads: out["threads"].as_f64(),
        allocations_per_op: out["allocations_per_op"].as_f64(),
        requests_per_op: out["requests_per_op"].as_f64(),
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
        assert_eq!((sample.threads, sample.requests_per_op), (None, None));
    }
}
