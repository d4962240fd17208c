//! The table of counters is what the tiers show, and what the documentation says.
#![allow(clippy::unwrap_used)]
#![cfg(feature = "file")]

mod common;

use common::host;
use kvtier::file::{FileConfig, FileTier};
use kvtier::metrics;
use kvtier::prelude::*;

#[test]
fn every_tier_shows_the_counters_of_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let file = FileTier::open(FileConfig::new(dir.path(), 64 << 20)).unwrap();
    let stack = Stack::new("stack", vec![host(1 << 20)]).unwrap();
    for (tier, status) in [("host", host(1 << 20).status()), ("file", file.status()), ("stack", stack.status())] {
        let table: Vec<_> = metrics::all().filter(|m| m.tier == tier).map(|m| m.name).collect();
        let shown: Vec<_> = status.counters.iter().map(|(name, _)| *name).collect();
        assert_eq!(shown, table, "{tier}");
    }
}

/// Run it with `KVTIER_WRITE_DOCS=1` to write the page anew.
#[test]
fn the_documentation_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/METRICS.md");
    let page = format!(
        "# Metrics\n\nEvery tier's `status()` shows these counters, in this order. They only grow, and begin at 0 when the tier opens.\n\
         Written from `crates/kvtier/src/metrics.rs` by its test; change it there.\n\n{}",
        metrics::markdown()
    );
    if std::env::var_os("KVTIER_WRITE_DOCS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(written == page, "docs/METRICS.md is out of date: run this test with KVTIER_WRITE_DOCS=1");
}
