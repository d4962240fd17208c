//! Writes `docs/METRICS.md`.

use super::prometheus_name;
use super::table::{OTHER, Unit, all};

/// The whole page.
pub fn markdown() -> String {
    let mut page = String::from(HEAD);
    for m in all() {
        let (name, reason) = prometheus_name(m.name);
        let unit = match m.unit {
            Unit::Micros => "µs; Prometheus: s".to_owned(),
            unit => unit.to_string(),
        };
        let label = reason.map(|reason| format!("{{reason=\"{reason}\"}}")).unwrap_or_default();
        page += &format!(
            "| {} | `{}` | `{name}{label}` | {unit} | {} | {} |\n",
            m.tier, m.name, m.stability, m.help
        );
    }
    page += GAUGES_HEAD;
    for (name, unit, help) in OTHER {
        page += &format!("| `{name}` | {unit} | stable | {help} |\n");
    }
    page
}

const HEAD: &str = "\
# Metrics

Every tier reports these counters in `status()`, in this order. They start at 0 when the tier opens and only grow. In Prometheus each has the
label `tier`, the tier's name. Times are microseconds in `status()` and seconds in Prometheus. `docs/grafana.json` is a dashboard of these
metrics. This page is generated from `crates/kvtier/src/metrics` by its test; change the text there.

Four ways to read them:

- `kvtier replay --metrics 127.0.0.1:9464` serves them at `/metrics` while it runs.
- `kvtier::metrics::Server` does so in any program, and `kvtier::metrics::record` passes them to the `metrics` facade (feature `metrics`).
- In Python `metrics=\"127.0.0.1:9464\"` beside `tiers` serves them.
- In Python `Store.status().tiers` returns them tier by tier.

The hit ratio is `kvtier_lookup_hits_total / kvtier_lookup_keys_total`. Hits and misses of loads do not show it: a caller that looks keys up
first loads only what the lookup found.

| tier | counter | in Prometheus | unit | stability | meaning |
|---|---|---|---|---|---|
";

const GAUGES_HEAD: &str = "
Other metrics of every tier:

| in Prometheus | unit | stability | meaning |
|---|---|---|---|
";
