//! What a replay prints.

use std::io::Write;
use std::sync::{Arc, Mutex};

use anyhow::Result;
use kvtier::config::Opened;
use serde_json::{Value, json};

use super::model::Size;
use super::run::Outcome;
use super::timed::{Measured, take};
use crate::usage::{percentile, threads_cpu_s};

/// Prints the outcome as a table, or as one JSON object.
pub fn print(
    outcome: &Outcome,
    opened: &Opened,
    meters: &[Arc<Mutex<Measured>>],
    (size, as_json): (&Size, bool),
) -> Result<()> {
    let tiers: Vec<Value> = opened
        .tiers
        .iter()
        .zip(meters)
        .zip(&outcome.found)
        .map(|((tier, meter), found)| {
            let (mut m, status, usage) = (take(meter), tier.status(), tier.usage());
            let gb = (m.bytes_loaded + m.bytes_saved) as f64 / 1e9;
            let cpu_s = m.calls_cpu_s + own_threads_cpu_s(&tier.caps().name, &status.reasons);
            json!({
                "name": &*tier.caps().name,
                "found": found,
                "hits": m.hits,
                "misses": m.misses,
                "hit_ratio": m.hits as f64 / (outcome.blocks as f64).max(1.0),
                "cpu_s_per_gb": cpu_s / gb.max(1e-9),
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
    let moved: u64 =
        tiers.iter().map(|t| t["bytes_loaded"].as_u64().unwrap_or(0) + t["bytes_saved"].as_u64().unwrap_or(0)).sum();
    let ratio = outcome.prefix_hits as f64 / (outcome.blocks as f64).max(1.0);
    let per_gb = outcome.cpu_s / (moved as f64 / 1e9).max(1e-9);
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
        "rss_mib": crate::usage::rss_mib(),
        "tiers": tiers,
    });
    if as_json {
        return crate::out::line(&serde_json::to_string(&whole)?);
    }
    Ok(table(&mut std::io::stdout().lock(), outcome, &tiers, (size, ratio, per_gb))?)
}

/// CPU seconds of a tier's threads: those that carry its name, and those of the engine if it has one. Two tiers with engines share these.
fn own_threads_cpu_s(name: &str, reasons: &[String]) -> f64 {
    let own = format!("{name}-");
    let engine = ["kvtier-uring", "kvtier-io-"];
    let has_engine = reasons.iter().any(|reason| reason.starts_with("engine"));
    threads_cpu_s(&[&own]) + if has_engine { threads_cpu_s(&engine) } else { 0.0 }
}

fn table(
    out: &mut impl Write,
    outcome: &Outcome,
    tiers: &[Value],
    (size, ratio, per_gb): (&Size, f64, f64),
) -> std::io::Result<()> {
    let Outcome { requests, blocks, wall_s, cpu_s, wrong_bytes, failures, .. } = outcome;
    writeln!(out, "{requests} requests, {blocks} blocks in {wall_s:.1} s")?;
    writeln!(
        out,
        "a block is {} here; its {} tokens are {} in {}",
        kvtier::bytes::format(size.chunk as u64),
        size.block_tokens,
        kvtier::bytes::format(size.true_bytes),
        size.model
    )?;
    writeln!(
        out,
        "prefix hit ratio {:.2} %   CPU {cpu_s:.1} s, {per_gb:.3} s per GB moved   wrong bytes {wrong_bytes}   failures {failures}",
        ratio * 100.0
    )?;
    writeln!(
        out,
        "{:<8} {:>9} {:>9} {:>7} {:>10} {:>10} {:>6} {:>8} {:>8} {:>9} {:>10}",
        "tier", "hits", "misses", "hit %", "GB loaded", "GB saved", "GB/s", "p50 ms", "p99 ms", "CPU s/GB", "evictions"
    )?;
    for t in tiers {
        let (loaded, saved) =
            (t["bytes_loaded"].as_f64().unwrap_or(0.0) / 1e9, t["bytes_saved"].as_f64().unwrap_or(0.0) / 1e9);
        let text = |name: &str| t[name].to_string();
        let name = t["name"].as_str().unwrap_or_default();
        writeln!(
            out,
            "{name:<8} {:>9} {:>9} {:>7.2} {loaded:>10.2} {saved:>10.2} {:>6.2} {:>8.2} {:>8.2} {:>9.3} {:>10}",
            text("hits"),
            text("misses"),
            t["hit_ratio"].as_f64().unwrap_or(0.0) * 100.0,
            (loaded + saved) / wall_s.max(1e-9),
            t["load_p50_ms"].as_f64().unwrap_or(0.0),
            t["load_p99_ms"].as_f64().unwrap_or(0.0),
            t["cpu_s_per_gb"].as_f64().unwrap_or(0.0),
            text("evictions"),
        )?;
    }
    for t in tiers {
        for note in t["notes"].as_array().into_iter().flatten() {
            writeln!(out, "{}: {}", t["name"].as_str().unwrap_or_default(), note.as_str().unwrap_or_default())?;
        }
    }
    Ok(())
}
