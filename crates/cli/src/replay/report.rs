//! What a replay prints.

use std::sync::{Arc, Mutex};

use anyhow::Result;
use kvtier::config::OpenTiers;
use serde_json::Value;

use super::block_size::BlockSize;
use super::run::ReplayOutcome;
use super::timed_tier::{TierStats, take};
use crate::json::json;
use crate::process_usage::{percentile, threads_cpu_s};

/// What has to be moved before CPU time is said by GB.
const PER_GB_BYTES_MIN: f64 = 10e6;

/// Prints the outcome as a table, or as one JSON object.
pub fn print(
    outcome: &ReplayOutcome,
    opened: &OpenTiers,
    meters: &[Arc<Mutex<TierStats>>],
    size: &BlockSize,
    as_json: bool,
) -> Result<()> {
    let tiers: Vec<Value> = opened
        .tiers
        .iter()
        .zip(meters)
        .zip(&outcome.found)
        .map(|((tier, meter), found)| {
            let mut m = take(meter);
            let status = tier.status();
            let usage = tier.usage();
            let gb = (m.bytes_loaded + m.bytes_saved) as f64 / 1e9;
            let cpu_s = m.calls_cpu_s + own_threads_cpu_s(&tier.caps().name, &status.reasons);
            json!({
                "name": &*tier.caps().name,
                "found": found,
                "hits": m.hits,
                "misses": m.misses,
                "hit_ratio": m.hits as f64 / (outcome.blocks as f64).max(1.0),
                "cpu_s_per_gb": per_gb(cpu_s, gb * 1e9),
                "bytes_loaded": m.bytes_loaded,
                "bytes_saved": m.bytes_saved,
                "load_p50_ms": percentile(&mut m.load_ms, 0.5),
                "load_p99_ms": percentile(&mut m.load_ms, 0.99),
                "evictions": status.counter("evicted"),
                "corrupt": status.counter("misses_corrupt"),
                "used_bytes": usage.used_bytes,
                "capacity_bytes": usage.capacity_bytes,
                "errors": m.errors,
                "notes": status.reasons.into_iter().chain(m.last_error).collect::<Vec<_>>(),
            })
        })
        .collect();
    let moved: u64 = tiers
        .iter()
        .map(|t| t["bytes_loaded"].as_u64().unwrap_or(0) + t["bytes_saved"].as_u64().unwrap_or(0))
        .sum();
    let ratio = outcome.prefix_hits as f64 / (outcome.blocks as f64).max(1.0);
    let per_gb = per_gb(outcome.cpu_s, moved as f64);
    let whole = json!({
        "wrong_bytes": outcome.wrong_bytes,
        "prefix_hit_ratio": ratio,
        "requests": outcome.requests,
        "blocks": outcome.blocks,
        "prefix_hits": outcome.prefix_hits,
        "loads": outcome.loads,
        "peer_loads": outcome.peer_loads,
        "failures": outcome.failures,
        "chunk_bytes": size.chunk,
        "model": size.model,
        "model_chunk_bytes": size.true_bytes,
        "block_tokens": size.block_tokens,
        "wall_s": outcome.wall_s,
        "cpu_s": outcome.cpu_s,
        "cpu_s_per_gb": per_gb,
        "rss_mib": crate::process_usage::rss_mib(),
        "tiers": tiers,
    });
    if as_json {
        return crate::stdout::line(&serde_json::to_string(&whole)?);
    }
    let ratios = Ratios { prefix_hits: ratio, cpu_s_per_gb: per_gb };
    text(outcome, &tiers, size, &ratios).iter().try_for_each(|line| crate::stdout::line(line))
}

/// Seconds a GB; none where so little was moved that the start of the program would be counted, and
/// not the work.
fn per_gb(seconds: f64, bytes: f64) -> Option<f64> {
    // Below some megabytes the start of the process is most of the CPU time.
    (bytes >= PER_GB_BYTES_MIN).then(|| seconds / (bytes / 1e9))
}

/// CPU seconds of a tier's threads: those that carry its name, and those of the engine if it has
/// one. Two tiers with engines share these.
fn own_threads_cpu_s(name: &str, reasons: &[String]) -> f64 {
    // Threads of a tier are named after it. Those of an I/O engine are shared and belong to the
    // tier that has one.
    let own = format!("{name}-");
    let engine = ["kvtier-uring", "kvtier-io-"];
    let has_engine = reasons.iter().any(|reason| reason.starts_with("engine"));
    threads_cpu_s(&[&own]) + if has_engine { threads_cpu_s(&engine) } else { 0.0 }
}

/// The ratios that stand above the table.
struct Ratios {
    prefix_hits: f64,
    cpu_s_per_gb: Option<f64>,
}

fn text(
    outcome: &ReplayOutcome,
    tiers: &[Value],
    size: &BlockSize,
    ratios: &Ratios,
) -> Vec<String> {
    let ReplayOutcome { requests, blocks, wall_s, cpu_s, wrong_bytes, failures, .. } = outcome;
    let cpu = ratios.cpu_s_per_gb.map_or(String::new(), |s| format!(", {s:.3} s per GB moved"));
    let mut lines = vec![
        format!("{requests} requests, {blocks} blocks in {wall_s:.1} s"),
        format!(
            "a block is {} here; its {} tokens are {} in {}",
            kvtier::byte_size::format(size.chunk as u64),
            size.block_tokens,
            kvtier::byte_size::format(size.true_bytes),
            size.model
        ),
        format!("prefix hit ratio {:.2} %   CPU {cpu_s:.1} s{cpu}", ratios.prefix_hits * 100.0),
        format!("wrong bytes {wrong_bytes}   failures {failures}"),
        String::new(),
    ];
    lines.extend(crate::table::lines(
        &[
            "tier", "hits", "misses", "hit %", "GB in", "GB out", "GB/s", "p50 ms", "p99 ms",
            "CPU s/GB", "evicted",
        ],
        &tiers.iter().map(|tier| row(tier, *wall_s)).collect::<Vec<_>>(),
    ));
    lines.push("GB in: saved to the tier; GB out: loaded from it".to_owned());
    for tier in tiers {
        for note in tier["notes"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            lines.extend(crate::table::wrapped(
                &format!("{}: {note}", tier["name"].as_str().unwrap_or_default()),
                2,
            ));
        }
    }
    lines
}

/// A tier's cells.
fn row(tier: &Value, wall_s: f64) -> Vec<String> {
    let number = |name: &str| tier[name].as_f64().unwrap_or(0.0);
    let saved = number("bytes_saved") / 1e9;
    let loaded = number("bytes_loaded") / 1e9;
    vec![
        tier["name"].as_str().unwrap_or_default().to_owned(),
        tier["hits"].to_string(),
        tier["misses"].to_string(),
        format!("{:.2}", number("hit_ratio") * 100.0),
        format!("{saved:.2}"),
        format!("{loaded:.2}"),
        format!("{:.2}", (loaded + saved) / wall_s.max(1e-9)),
        format!("{:.2}", number("load_p50_ms")),
        format!("{:.2}", number("load_p99_ms")),
        tier["cpu_s_per_gb"].as_f64().map_or("-".to_owned(), |s| format!("{s:.3}")),
        tier["evictions"].to_string(),
    ]
}
