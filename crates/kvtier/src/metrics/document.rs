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
    page + VLLM
}

const HEAD: &str = "\
# Metrics

Every tier reports these counters in `status()`, in this order. They start at 0 when the tier opens and only grow. In Prometheus each has the
label `tier`, the tier's name. Times are microseconds in `status()` and seconds in Prometheus. `docs/grafana.json` is a dashboard of these
metrics. This page is generated from `crates/kvtier/src/metrics` by its test; change the text there.

Four ways to read them:

- `kvtier replay --metrics 127.0.0.1:9464` serves them at `/metrics` while it runs.
- `kvtier::metrics::MetricsServer` does so in any program, and `kvtier::metrics::record` passes them to the `metrics` facade (feature `metrics`).
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

/// What `crates/py/python/kvtier/vllm/_stats.py` reports; the contract tests compare them.
const VLLM: &str = "
Inside vLLM (`kvtier.vllm.KvtierTier`) these are in vLLM's own Prometheus output, with vLLM's labels beside those named here. `kvtier_tier` is the
tier's name. Prometheus adds `_total` to counters. They are read from the tiers once a second. All are experimental.

| in vLLM | kind | labels | meaning |
|---|---|---|---|
| `vllm:kvtier_lookups` | counter | `answer` | lookups of single chunks: `hit`, `miss`, `retry` while a bucket is asked, `failure` for a batch of lookups of which a medium left a key without an answer |
| `vllm:kvtier_load_chunks` | counter | | chunks of loads that ended: `load_hits` and all `load_misses` together |
| `vllm:kvtier_load_hits` | counter | | chunks loaded, with verified bytes, whichever tier had them |
| `vllm:kvtier_load_misses` | counter | `reason` | chunks of loads that were not loaded: `absent`, `corrupt`, `length`, `unverified`, `slow` (computing is faster), `codec` (an encoding that is not decoded here), `key` (its encryption key is not loaded), `too_large` (to be decoded here), `late` (the deadline passed), `failed` (a medium answered with an error), `invalid` (the key or the memory), `refused` (the request) |
| `vllm:kvtier_overdue_loads` | gauge | | loads past their deadline whose memory a medium still uses; while there are any, all lookups are misses |
| `vllm:kvtier_tier_hits` | counter | `kvtier_tier` | chunks that the tier was asked for and had |
| `vllm:kvtier_tier_misses` | counter | `kvtier_tier`, `reason` | chunks that the tier was asked for and did not have: `absent`, `corrupt`, `length`, `unverified`, `codec`, `key`, `too_large`; the next tier may have had them |
| `vllm:kvtier_loaded_bytes` | counter | `kvtier_tier` | bytes loaded |
| `vllm:kvtier_stored_chunks` | counter | `kvtier_tier` | chunks stored |
| `vllm:kvtier_stored_bytes` | counter | `kvtier_tier` | bytes stored |
| `vllm:kvtier_shed_chunks` | counter | `kvtier_tier` | chunks not stored for lack of space |
| `vllm:kvtier_evicted_chunks` | counter | `kvtier_tier` | chunks evicted to free space |
| `vllm:kvtier_io_errors` | counter | `kvtier_tier` | transfers and system calls that failed |
| `vllm:kvtier_stranded_operations` | counter | `kvtier_tier` | operations past their deadline whose memory the kernel still used |
| `vllm:kvtier_job_seconds` | histogram | `direction` | duration of jobs from their submission to their end: `load`, `store` |
| `vllm:kvtier_failed_jobs` | counter | `direction` | jobs that did not transfer all their chunks |
| `vllm:kvtier_used_bytes` | gauge | `kvtier_tier` | bytes in use, by all processes that share the tier |
| `vllm:kvtier_capacity_bytes` | gauge | `kvtier_tier` | the cap; absent without one |
| `vllm:kvtier_healthy` | gauge | `kvtier_tier` | 1 if the tier works, else 0 |
| `vllm:kvtier_ignored_params` | counter | | parameters and hints of requests that are unknown or invalid, and were ignored |
| `vllm:kvtier_refused_requests` | counter | `reason` | requests that neither load nor store: `tenant` (theirs is invalid), `identity` (that of the engine cannot be had) |
| `vllm:kvtier_dropped_events` | counter | | KV events dropped because too many waited |

Inside SGLang (`kvtier.sglang.KvtierHiCache`) the metrics above are served at the address of its parameter `metrics`. SGLang's own output has the pages and the bandwidth of
prefetches and backups (`--enable-metrics`), as for its other backends.
";
