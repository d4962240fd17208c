//! `docs/METRICS.md`.

use super::all;
use super::expose::{BESIDE, prometheus_name};

/// The whole page.
pub fn markdown() -> String {
    let mut page = String::from(HEAD);
    for m in all() {
        let (name, reason) = prometheus_name(m.name);
        let label = reason.map(|reason| format!("{{reason=\"{reason}\"}}")).unwrap_or_default();
        page += &format!(
            "| {} | `{}` | `{name}{label}` | {} | {} | {} |\n",
            m.tier, m.name, m.unit, m.stability, m.help
        );
    }
    page += BESIDE_HEAD;
    for (name, unit, help) in BESIDE {
        page += &format!("| `{name}` | {unit} | stable | {help} |\n");
    }
    page
}

const HEAD: &str = "\
# Metrics

Every tier's `status()` shows these counters, in this order. They only grow, and begin at 0 when the tier opens. In Prometheus each has the
label `tier`, the tier's name. Written from `crates/kvtier/src/metrics` by its test; change it there. `grafana.json`, beside this page, is a
dashboard of them.

`kvtier replay --metrics 127.0.0.1:9464` serves them at `/metrics` while it runs; so does `kvtier::metrics::Server` in any program, and
`kvtier::metrics::record` gives them to the `metrics` facade (feature `metrics`). In Python `metrics=\"127.0.0.1:9464\"` beside `tiers` serves
them, and `Store.status().tiers` has them tier by tier. The hit ratio is `kvtier_lookup_hits_total / kvtier_lookup_keys_total`: who looks keys
up before loading them never loads what is not there, so that hits and misses of loads say nothing of it.

| tier | counter | in Prometheus | unit | stability | meaning |
|---|---|---|---|---|---|
";

const BESIDE_HEAD: &str = "
Besides, for every tier:

| in Prometheus | unit | stability | meaning |
|---|---|---|---|
";
