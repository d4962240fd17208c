//! `kvtier plan`: whether a model's chunks in flight and the host tier fit into memory, and what to
//! set if not. With `--encode`: which encoding pays on a link.

mod coding_rate;
mod encodings;
mod link_speed;
mod sample_data;

use anyhow::Result;
use kvtier::byte_size::format;
use kvtier::key::{DType, Geometry, presets};
use serde_json::Value;

use crate::BadInput;
use crate::json::json;

/// `kvtier plan`.
#[derive(clap::Args)]
pub struct PlanArgs {
    /// A model: llama-3.1-8b, qwen3-32b, deepseek-v3, ...
    #[arg(long, value_name = "PRESET", required_unless_present_any = ["layers", "encode"])]
    model: Option<String>,
    /// Layers, instead of a model.
    #[arg(long, requires = "kv_heads", requires = "head_dim", conflicts_with = "model")]
    layers: Option<u32>,
    /// KV heads, all ranks together.
    #[arg(long, requires = "layers", conflicts_with = "model")]
    kv_heads: Option<u32>,
    /// Elements of a head.
    #[arg(long, requires = "layers", conflicts_with = "model")]
    head_dim: Option<u32>,
    /// The elements' type (default: the model's, else bfloat16).
    #[arg(long)]
    dtype: Option<String>,
    /// Workers of tensor parallelism on this machine.
    #[arg(long, default_value_t = 1)]
    tp: u32,
    /// Tokens of a chunk: LMCache's chunk_size.
    #[arg(long, default_value_t = 256)]
    chunk_size: u32,
    /// Chunks in flight a worker: s3_num_io_threads, or the least of the limits.
    #[arg(long, default_value_t = 64)]
    in_flight: u64,
    /// The host tier of a worker: max_local_cpu_size.
    #[arg(long, default_value = "5GiB")]
    host: String,
    /// Memory that may be pinned, for all workers (default: what the machine has).
    #[arg(long)]
    pinned: Option<String>,
    /// Size of /dev/shm (default: this machine's).
    #[arg(long)]
    shm: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    encodings: encodings::EncodingArgs,
}

/// The sum, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct MemoryPlan {
    token: u64,
    chunk: u64,
    inflight: u64,
    host: u64,
    workers: u64,
    pinned: u64,
    shm: u64,
}

impl MemoryPlan {
    fn total(&self) -> u64 {
        // Every worker of a tensor-parallel model is a process with memory of its own.
        self.inflight.saturating_add(self.host).saturating_mul(self.workers)
    }

    fn fits(&self) -> bool {
        self.total() <= self.pinned
    }

    /// The most chunks in flight a worker beside the host tier.
    fn inflight_max(&self) -> u64 {
        // The workers share the memory in equal parts, and the host tier is in each part.
        (self.pinned / self.workers).saturating_sub(self.host) / self.chunk
    }

    /// The most chunks in flight a worker whose buffers all lie in /dev/shm, as those of LMCache's
    /// earlier S3 connector did.
    fn shm_inflight_max(&self) -> u64 {
        self.shm / self.workers / self.chunk
    }

    /// The largest host tier of a worker beside the chunks in flight.
    fn host_max(&self) -> u64 {
        (self.pinned / self.workers).saturating_sub(self.inflight)
    }
}

/// Computes and prints; answers whether it fits.
pub fn run(args: &PlanArgs) -> Result<bool> {
    if args.encodings.is_on() {
        return encodings::run(&args.encodings, dtype(args)?, args.json).map(|()| true);
    }
    let sum = sum(args)?;
    if args.json {
        crate::stdout::line(&as_json(args, &sum).to_string())?;
        return Ok(sum.fits());
    }
    let lines = [
        format!("a token on one worker      {}", format(sum.token)),
        format!("a chunk of {:<5} tokens     {}", args.chunk_size, format(sum.chunk)),
        format!("{:<5} chunks in flight     {}", args.in_flight, format(sum.inflight)),
        format!("host tier                  {}", format(sum.host)),
        format!("times {:<3} workers          {}", sum.workers, format(sum.total())),
        format!("memory to pin              {}", format(sum.pinned)),
    ];
    lines.iter().try_for_each(|line| crate::stdout::line(line))?;
    for line in advice(args, &sum) {
        // What is indented is set by itself, and short.
        let lines =
            if line.starts_with(' ') { vec![line] } else { crate::table::wrapped(&line, 2) };
        lines.iter().try_for_each(|line| crate::stdout::line(line))?;
    }
    Ok(sum.fits())
}

fn advice(args: &PlanArgs, sum: &MemoryPlan) -> Vec<String> {
    let mut lines = Vec::new();
    if sum.fits() {
        lines.push(format!("it fits; up to {} chunks in flight would", sum.inflight_max()));
    } else {
        lines.push("it does not fit; do one of these:".into());
        if sum.inflight_max() > 0 {
            lines.push(format!(
                "  s3_num_io_threads: {}   (the most in flight)",
                sum.inflight_max()
            ));
        }
        // Less than 128 MiB is no useful host tier.
        if sum.host_max() >= 1 << 27 {
            lines.push(format!(
                "  max_local_cpu_size: {:.1}   (GiB, rounded down)",
                (sum.host_max() as f64 / (1u64 << 30) as f64 * 10.0).floor() / 10.0
            ));
        }
        lines.push(format!("  memory to pin of {} or more", format(sum.total())));
    }
    // For comparison: what LMCache's own connector would take of shared memory.
    let need = sum.inflight.saturating_mul(sum.workers);
    lines.push(format!(
        "/dev/shm has {}: kvtier needs none of it; buffers of LMCache's earlier connector would need {}, at most {} in flight fit",
        format(sum.shm), format(need), sum.shm_inflight_max()
    ));
    if need > sum.shm {
        lines.push(format!(
            "  for that connector: --shm-size={}m, or {} in flight",
            need.div_ceil(1 << 20),
            sum.shm_inflight_max().min(args.in_flight)
        ));
    }
    lines
}

fn as_json(args: &PlanArgs, sum: &MemoryPlan) -> Value {
    json!({
        "token_bytes": sum.token, "chunk_bytes": sum.chunk, "in_flight": args.in_flight, "in_flight_bytes": sum.inflight,
        "host_bytes": sum.host, "workers": sum.workers, "total_bytes": sum.total(), "pinned_bytes": sum.pinned, "fits": sum.fits(),
        "in_flight_max": sum.inflight_max(), "host_bytes_max": sum.host_max(), "shm_bytes": sum.shm,
        "shm_in_flight_max": sum.shm_inflight_max(),
    })
}

fn sum(args: &PlanArgs) -> Result<MemoryPlan> {
    let geometry = geometry(args)?.with_tp(args.tp).with_chunk_tokens(args.chunk_size);
    let wrong =
        |e: kvtier::key::GeometryError| BadInput(format!("this model on {} workers: {e}", args.tp));
    let token = geometry.token_bytes().map_err(wrong)?;
    let chunk = geometry.chunk_bytes().map_err(wrong)?;
    let size = |flag: &str, text: &Option<String>, found: fn() -> Result<u64>| match text {
        Some(text) => crate::replay::size(flag, text).map_err(anyhow::Error::from),
        None => found(),
    };
    Ok(MemoryPlan {
        token,
        chunk,
        inflight: chunk.saturating_mul(args.in_flight),
        host: crate::replay::size("--host", &args.host)?,
        workers: args.tp.max(1).into(),
        pinned: size("--pinned", &args.pinned, memory)?,
        shm: size("--shm", &args.shm, || {
            Ok(crate::disk_space::of(std::path::Path::new("/dev/shm"))?.all)
        })?,
    })
}

fn geometry(args: &PlanArgs) -> Result<Geometry> {
    let mut geometry = match (&args.model, args.layers, args.kv_heads, args.head_dim) {
        (Some(name), ..) => {
            presets::geometry(name).map_err(|e| BadInput(format!("--model: {e}")))?
        }
        (None, Some(layers), Some(heads), Some(dim)) => Geometry::heads(layers, heads, dim),
        _ => {
            return Err(
                BadInput("name a --model, or --layers, --kv-heads and --head-dim".into()).into()
            );
        }
    };
    if let Some(dtype) = named_dtype(args)? {
        geometry = geometry.with_dtype(dtype);
    }
    Ok(geometry)
}

/// The type of elements: the one that is named, the model's, or bfloat16.
fn dtype(args: &PlanArgs) -> Result<DType> {
    let is_model = args.model.is_some() || args.layers.is_some();
    let of_model = || is_model.then(|| geometry(args).map(|geometry| geometry.dtype)).transpose();
    Ok(match named_dtype(args)? {
        Some(dtype) => dtype,
        None => of_model()?.unwrap_or(DType::BFloat16),
    })
}

fn named_dtype(args: &PlanArgs) -> Result<Option<DType>> {
    let named = |name: &String| {
        let dtype = DType::from_name(name).or_else(|| DType::from_torch_name(name));
        dtype.ok_or_else(|| {
            BadInput(format!("--dtype {name:?} is no type; write for example bfloat16"))
        })
    };
    Ok(args.dtype.as_ref().map(named).transpose()?)
}

/// The machine's memory in bytes.
fn memory() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?.trim().split(' ').next()?.parse::<u64>().ok()
    });
    kib.map(|kib| kib * 1024).ok_or_else(|| {
        BadInput("this machine does not say how much memory it has; give --pinned".into()).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_that_fits_fits_and_one_more_does_not() {
        let sum = |n: u64| MemoryPlan {
            token: 1,
            chunk: 32 << 20,
            inflight: n * (32 << 20),
            host: 5 << 30,
            workers: 8,
            pinned: 64 << 30,
            shm: 64 << 20,
        };
        let most = sum(0).inflight_max();
        assert_eq!(most, 96);
        assert!(sum(most).fits() && !sum(most + 1).fits());
        assert_eq!(sum(0).shm_inflight_max(), 0);
        assert_eq!(sum(96).host_max(), 5 << 30);
    }
}
