//! The table of counters is what the tiers show, and what the documentation says.
#![allow(clippy::unwrap_used)]
#![cfg(all(feature = "config", feature = "file"))]

mod common;
mod docs;

use std::collections::HashSet;
use std::io::{Read, Write};
use std::sync::Arc;

use common::host;
use kvtier::file::{FileConfig, FileTier};
use kvtier::metrics;
use kvtier::prelude::*;

#[test]
fn every_tier_shows_the_counters_of_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let file = FileTier::open(FileConfig::new(dir.path(), 64 << 20)).unwrap();
    let stack = Stack::new("stack", vec![host(1 << 20)]).unwrap();
    for (tier, status) in
        [("host", host(1 << 20).status()), ("file", file.status()), ("stack", stack.status())]
    {
        let table: Vec<_> = metrics::all().filter(|m| m.tier == tier).map(|m| m.name).collect();
        let shown: Vec<_> = status.counters.iter().map(|(name, _)| *name).collect();
        assert_eq!(shown, table, "{tier}");
    }
}

/// Run it with `KVTIER_WRITE_DOCS=1` to write the page anew.
#[test]
fn the_documentation_is_the_table() {
    let path = format!("{}/../../docs/METRICS.md", env!("CARGO_MANIFEST_DIR"));
    let page = metrics::markdown();
    if std::env::var_os("KVTIER_WRITE_DOCS").is_some() {
        docs::write(&path, &page);
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/METRICS.md is out of date: run this test with KVTIER_WRITE_DOCS=1"
    );
}

#[test]
fn the_dashboard_queries_only_documented_metrics() {
    let docs = format!("{}/../../docs", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(format!("{docs}/grafana.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let page = std::fs::read_to_string(format!("{docs}/METRICS.md")).unwrap();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let documented: HashSet<&str> = page.split(|c| !is_word(c)).collect();
    let mut queried = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            for name in query.split(|c| !is_word(c)).filter(|word| word.starts_with("kvtier_")) {
                assert!(documented.contains(name.trim_end_matches("_bucket")), "{name}");
                queried += 1;
            }
        }
    }
    assert!(queried > 15);
}

fn get(server: &metrics::MetricsServer, path: &str) -> String {
    let mut client = std::net::TcpStream::connect(server.address()).unwrap();
    write!(client, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_stack_that_is_served_shows_what_happened() {
    let dir = tempfile::tempdir().unwrap();
    let json = format!(
        r#"{{"tiers":[{{"type":"host","bytes":"1MiB"}},{{"type":"file","path":{:?},"bytes":"8MiB"}}],"prices":{{"per_gb_read":1}}}}"#,
        dir.path()
    );
    let opened = kvtier::config::Config::from_json(&json, "x.json").unwrap().open().unwrap();
    let arena = common::arena();
    (0..20).for_each(|n| assert_eq!(common::save(&*opened.top, &arena, n, 100_000), Saved::Stored));
    (0..20).for_each(|n| {
        assert_eq!(common::load(&*opened.top, &arena, n, 100_000), common::hit(100_000))
    });
    assert_eq!(common::load(&*opened.top, &arena, 99, 100_000), common::ABSENT);
    // The host tier can hold the newest ten; what it lacks is asked of the files.
    let keys: Arc<[Key]> = (10..30).map(common::key).collect();
    let found = opened.top.lookup(&common::ctx(), keys, Mode::Each, Hold::None).wait().unwrap();
    assert_eq!(found.found.iter().filter(|found| found.is_hit()).count(), 10);
    let server = metrics::MetricsServer::start("127.0.0.1:0", opened.monitored().to_vec()).unwrap();
    let text = get(&server, "/metrics");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    for line in [
        "kvtier_stored_total{tier=\"file\"} 20",
        "kvtier_misses_total{tier=\"file\",reason=\"absent\"} 1",
        "kvtier_hits_total{tier=\"stack\"} 20",
        "kvtier_healthy{tier=\"host\"} 1",
        "kvtier_capacity_bytes{tier=\"host\"} 1048576",
        &format!(
            "kvtier_tenant_used_bytes{{tier=\"host\",tenant=\"{}\"}}",
            metrics::tenant_label("tests")
        ),
        "kvtier_op_seconds_count{tier=\"stack\",op=\"load\"} 21",
        "kvtier_cost_dollars_total{tier=\"file\"} 0",
        "kvtier_lookup_keys_total{tier=\"stack\"} 20",
        "kvtier_lookup_hits_total{tier=\"stack\"} 10",
        "kvtier_lookup_keys_total{tier=\"host\"} 20",
        "kvtier_lookup_hits_total{tier=\"file\"}",
        "# TYPE kvtier_op_seconds histogram",
    ] {
        assert!(text.lines().any(|shown| shown.starts_with(line)), "{line}\n{text}");
    }
    assert!(!text.contains("\"tests\""), "the tenant's name, which may be a secret");
    // What promtool would check: every sample has a type, announced once and before it, and a
    // value.
    let mut types = Vec::new();
    let mut samples = 0;
    for line in text.split_once("\r\n\r\n").unwrap().1.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let name = kind.split(' ').next().unwrap().to_owned();
            assert!(!types.contains(&name), "{name} is announced twice");
            types.push(name);
        } else if !line.starts_with('#') {
            let name = line.split('{').next().unwrap();
            let value = line.rsplit_once(' ').unwrap().1;
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end))
                .unwrap_or(name);
            assert_eq!(types.last().map(String::as_str), Some(family), "{line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(!text.contains(&format!("# HELP {family} not described")), "{line}");
            samples += 1;
        }
    }
    assert!(samples > 100, "{samples}");
    assert!(get(&server, "/other").starts_with("HTTP/1.1 404"));
    drop(server);
}

#[test]
fn the_server_ends_at_once_even_with_slow_clients() {
    let ends_at_once = |_| {
        let server = metrics::MetricsServer::start("127.0.0.1:0", vec![]).unwrap();
        let mut slow = std::net::TcpStream::connect(server.address()).unwrap();
        write!(slow, "GET /met").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let start = std::time::Instant::now();
        drop(server);
        let took = start.elapsed();
        let mut rest = Vec::new();
        assert!(!matches!(slow.read_to_end(&mut rest), Ok(n) if n > 0), "it has gone");
        // And not after the 5 s that a client has.
        took < std::time::Duration::from_secs(4)
    };
    // Several times, for a machine that stands still for longer.
    assert!((0..10).any(ends_at_once), "it waits for its clients");
}

#[cfg(feature = "s3")]
#[test]
fn a_bucket_shows_the_counters_of_the_table() {
    use kvtier::s3::{BucketAddress, Config, Credentials};
    use kvtier::s3_tier::{S3Tier, TierConfig};
    // No server listens on that port.
    let endpoint =
        BucketAddress::new("http://127.0.0.1:9").bucket("b").region("us-east-1").resolve().unwrap();
    let status = S3Tier::open(TierConfig::new(Config::new(endpoint, Credentials::new("a", "b"))))
        .unwrap()
        .status();
    let shown: Vec<_> = status.counters.iter().map(|(name, _)| *name).collect();
    let table: Vec<_> = metrics::all().filter(|m| m.tier == "s3").map(|m| m.name).collect();
    assert_eq!(shown, table);
}

#[cfg(feature = "gds")]
#[test]
fn a_gpu_tier_shows_a_file_tiers_counters_and_its_own() {
    use kvtier::gds::{GdsConfig, GdsTier};
    let dir = tempfile::tempdir().unwrap();
    let shown: Vec<_> =
        GdsTier::open(GdsConfig::new(dir.path(), 64 << 20)).unwrap().status().counters;
    let mut shown: Vec<_> = shown.iter().map(|(name, _)| *name).collect();
    // What it counts of requests is GPU memory's; those of io_uring are the file tier's own.
    let of_io_uring = ["fixed_requests", "unfixed_requests", "registered_bytes"];
    let table = metrics::all().filter(|m| matches!(m.tier, "file" | "gds")).map(|m| m.name);
    let mut table: Vec<_> = table.filter(|name| !of_io_uring.contains(name)).collect();
    shown.sort_unstable();
    table.sort_unstable();
    assert_eq!(shown, table);
}
