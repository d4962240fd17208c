//! `kvtier bench gds`: how fast bytes go between a directory and a GPU, each way that there is.

use std::path::PathBuf;

use anyhow::Result;
use kvtier::gds::{BenchConfig, measure};
use serde_json::Value;

use crate::BadInput;
use crate::json::json;

/// `kvtier bench gds`.
#[derive(clap::Args)]
pub struct BenchGdsArgs {
    /// The directory; what the bench writes there it removes.
    #[arg(long)]
    path: PathBuf,
    /// Which GPU.
    #[arg(long, default_value_t = 0)]
    gpu: u32,
    /// Chunk size.
    #[arg(long, default_value = "32MiB")]
    size: String,
    /// GB to move each way.
    #[arg(long, default_value_t = 2.0)]
    gb: f64,
    /// How often to measure each way; the medians are printed.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=99))]
    turns: u8,
    /// Print one JSON object a way.
    #[arg(long)]
    json: bool,
}

/// Measures and prints one line a way.
pub fn run(args: &BenchGdsArgs) -> Result<()> {
    let size = kvtier::byte_size::parse(&args.size)
        .and_then(|bytes| usize::try_from(bytes).ok())
        .filter(|bytes| *bytes > 0);
    let size = size
        .ok_or_else(|| BadInput(format!("--size {:?} is no size; write 32MiB, say", args.size)))?;
    let chunks = args.gb * 1e9 / size as f64;
    if !(1.0..=1e6).contains(&chunks) {
        return Err(BadInput(format!(
            "--gb {} is not between one and a million chunks of {size} bytes",
            args.gb
        ))
        .into());
    }
    let mut config = BenchConfig::new(&args.path);
    (config.gpu, config.chunk_bytes, config.chunks) = (args.gpu, size, chunks as usize);
    config.rounds = usize::from(args.turns);
    for rate in measure(&config).map_err(crate::cannot_open)? {
        let out = rate.to_file_per_s / 1e6;
        let into = rate.to_gpu_per_s / 1e6;
        let line = if args.json {
            // A way that does not work here has no rate. 0 would look like a slow one.
            let measured = |rate: f64| if rate > 0.0 { Value::from(rate) } else { Value::Null };
            json!({ "way": rate.data_path, "to_file_mb_per_s": measured(out), "to_gpu_mb_per_s": measured(into),
                    "cpu_s_per_gb": rate.cpu_s_per_gb, "note": rate.note })
            .to_string()
        } else if into > 0.0 {
            format!(
                "{:<34} to file {out:>7.0} MB/s   to GPU {into:>7.0} MB/s   {:.3} s/GB   {}",
                rate.data_path, rate.cpu_s_per_gb, rate.note
            )
        } else {
            format!("{:<34} not measured: {}", rate.data_path, rate.note)
        };
        crate::stdout::line(&line)?;
    }
    Ok(())
}
