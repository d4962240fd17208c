//! A short `kvtier replay` over a bucket leaves the eviction lease free, so that the next node can
//! evict at once.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kvtier_testkit::s3::{Fault, Rule, Server, Setup};
use serde_json::json;

/// Nodes that share the bucket in each run.
const NODES: usize = 3;
/// Runs, and how many when `KVTIER_NIGHTLY` is set.
const RUNS: usize = 6;
const RUNS_NIGHTLY: usize = 36;

/// Longer than the test runs.
const FOREVER: Duration = Duration::from_secs(600);

fn start(server: &Server, config: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier"));
    command.args(["replay", "--requests", "1", "--chunk-bytes", "4096", "--config"]).arg(config);
    command
        .env_clear()
        .env("AWS_ACCESS_KEY_ID", "AKIDTEST")
        .env("AWS_SECRET_ACCESS_KEY", "secret/test+key");
    command.env("AWS_ENDPOINT_URL", server.url()).env("AWS_REGION", "us-east-1");
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn short_replays_leave_the_lease_free() {
    let runs = if std::env::var_os("KVTIER_NIGHTLY").is_some() { RUNS_NIGHTLY } else { RUNS };
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("kv.json");
    let tier = json!({"type": "s3", "s3_endpoint": "s3://bucket", "s3_region": "us-east-1", "prefix": "kv", "max_capacity_gb": 1});
    std::fs::write(
        &config,
        json!({"tiers": [{"type": "host", "bytes": "1MiB"}, tier]}).to_string(),
    )
    .unwrap();
    let server = Server::start(Setup::default()).unwrap();
    let mut claimed = std::collections::BTreeSet::new();
    for run in 0..runs {
        // One node alone, whose claim of the lease is never confirmed: no listing of leases is
        // answered after the first. Then several at once.
        let nodes = if run % 2 == 0 { 1 } else { NODES };
        if nodes == 1 {
            let of_leases = |fault| Rule::next(fault).method("GET").containing("lease");
            server
                .script(of_leases(Fault::CloseAfter).times(1))
                .script(of_leases(Fault::Stall(FOREVER)).times(1000));
        }
        let started: Vec<Child> = (0..nodes).map(|_| start(&server, &config)).collect();
        for node in started {
            let out = node.wait_with_output().unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        }
        server.heal();
        // Epochs are in the names, in hexadecimal digits of one length.
        let Some(last) = server.keys("kv/.kvtier/lease/").into_iter().max() else { continue };
        let held = server.object(&last).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert_eq!(
            held.as_deref(),
            Some("free\n"),
            "run {run}: {last} is held after all nodes ended"
        );
        claimed.insert(last);
    }
    assert!(!claimed.is_empty(), "no run claimed the lease");
}
