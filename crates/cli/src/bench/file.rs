//! `kvtier bench file`: the file tier in a directory.

mod chunk_ops;
mod fill_case;
mod measure;
mod space_needed;

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use kvtier::file::EngineKind;
use serde_json::Value;

use self::chunk_ops::ChunkOp;
use self::fill_case::Case;
use self::measure::Stage;
use self::space_needed::Need;
use crate::BadInput;
use crate::json::json;

/// `kvtier bench file`.
#[derive(clap::Args)]
pub struct BenchFileArgs {
    /// The directory; the bench removes what it writes.
    #[arg(long)]
    path: PathBuf,
    /// Operations, in order: put, put-summed (of chunks whose checksums are known already), get,
    /// sum (a checksum pass from cold memory, no I/O). A get reads what the put before it
    /// wrote, a first get what was written unmeasured. Each begins with a warm-up pass that is
    /// not measured. A put writes new keys; with --case recycled it overwrites files of the same
    /// length.
    #[arg(long, value_delimiter = ',', default_value = "put,get")]
    op: Vec<String>,
    /// Chunk sizes.
    #[arg(long, value_delimiter = ',', default_value = "32MiB")]
    size: Vec<String>,
    /// Chunks in flight.
    #[arg(long, value_delimiter = ',', default_value = "8")]
    concurrency: Vec<usize>,
    /// GB to move in each cell.
    #[arg(long, default_value_t = 4.0)]
    gb: f64,
    /// The state of the directory before puts: fresh (space for all), churning (full; evicted chunks
    /// have another length and are deleted), recycled (full; evicted chunks have the same length
    /// and are overwritten).
    #[arg(long, default_value = "fresh")]
    case: String,
    /// The tier's cap; by default just enough for --gb.
    #[arg(long)]
    capacity: Option<String>,
    /// auto, uring or threads.
    #[arg(long, default_value = "auto")]
    engine: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What all cells of a run have in common, checked.
struct Plan {
    path: PathBuf,
    ops: Vec<ChunkOp>,
    gb: f64,
    case: Case,
    capacity: Option<u64>,
    engine: EngineKind,
}

impl Plan {
    fn new(args: &BenchFileArgs) -> Result<Self, BadInput> {
        if !(args.gb > 0.0 && args.gb <= 1e6) {
            return Err(BadInput("--gb must be more than 0 and at most 1,000,000".into()));
        }
        Ok(Plan {
            path: args.path.clone(),
            ops: args.op.iter().map(|op| op.parse()).collect::<Result<_, _>>()?,
            gb: args.gb,
            case: args.case.parse()?,
            capacity: args
                .capacity
                .as_ref()
                .map(|text| crate::replay::size("--capacity", text))
                .transpose()?,
            engine: EngineKind::from_str(&args.engine).map_err(|e| BadInput(e.to_string()))?,
        })
    }
}

/// Measures and prints.
pub fn run(args: &BenchFileArgs) -> Result<()> {
    let plan = Plan::new(args)?;
    let sizes: Vec<u64> =
        args.size.iter().map(|s| crate::replay::size("--size", s)).collect::<Result<_, _>>()?;
    if sizes.iter().any(|size| !(1..=1 << 40).contains(size))
        || args.concurrency.iter().any(|n| !(1..=4096).contains(n))
    {
        return Err(
            BadInput("--size must be 1 byte to 1 TiB, --concurrency 1 to 4096".into()).into()
        );
    }
    let all = sizes.iter().flat_map(|size| args.concurrency.iter().map(move |n| (*size, *n)));
    // All cells are checked before the first runs, so that the last one does not fail for lack of
    // space.
    all.into_iter().try_for_each(|(size, n)| Need::of(&plan, size as usize, n).check(&plan))?;
    crate::interrupt::watch()?;
    let mut cells = Vec::new();
    for size in sizes {
        for concurrency in &args.concurrency {
            // A tier and a directory for each size and concurrency, so that none inherits files or
            // warm threads of another.
            Stage::new(&plan, size as usize, *concurrency)?.play(&plan.ops, &mut cells)?;
        }
    }
    if args.json {
        return crate::stdout::line(&json!({ "cells": cells }).to_string());
    }
    print(&cells)
}

fn print(cells: &[Value]) -> Result<()> {
    crate::stdout::line(&format!(
        "{:<10} {:>10} {:>5} {:>10} {:>12} {:>12} {:>9} {:>9} {:>9}",
        "op", "size", "conc", "MB/s", "CPU s/GB", "system s/GB", "p50 ms", "p99 ms", "RSS MiB"
    ))?;
    for c in cells {
        let f = |name: &str| c[name].as_f64().unwrap_or(0.0);
        let size = kvtier::byte_size::format(c["size"].as_u64().unwrap_or(0));
        crate::stdout::line(&format!(
            "{:<10} {size:>10} {:>5} {:>10.0} {:>12.4} {:>12.4} {:>9.2} {:>9.2} {:>9.0}",
            c["op"].as_str().unwrap_or_default(),
            c["concurrency"],
            f("mb_per_s"),
            f("cpu_s_per_gb"),
            f("system_s_per_gb"),
            f("p50_ms"),
            f("p99_ms"),
            f("rss_mib")
        ))?;
    }
    Ok(())
}
