//! `kvtier replay`: the main job.

mod content;
pub mod peer;
mod report;
mod run;
mod timed;
mod trace;

use std::path::PathBuf;

use anyhow::{Context, Result};
use kvtier::config::{Config, Opened};

use crate::BadInput;

/// Replays a request trace: looks up each request's longest prefix, loads it, saves the rest, and verifies every loaded byte.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// The trace: JSON lines with `hash_ids`, or the binary form (.bin, .bin.zst). Without it, a generated chat and agent workload.
    trace: Option<PathBuf>,
    /// The tiers as JSON: {"tiers":[{"type":"host","bytes":"512MiB"},{"type":"file","path":"DIR","bytes":"2GiB"}]}.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Bytes of a block.
    #[arg(long, default_value = "256KiB")]
    chunk_bytes: String,
    /// Replay only the first N requests (default: all of a trace, 2000 generated ones).
    #[arg(long)]
    requests: Option<usize>,
    /// Requests at once.
    #[arg(long, default_value_t = 8)]
    concurrency: usize,
    /// Seed of the generated workload.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The host tier's cap, without --config.
    #[arg(long, default_value = "256MiB")]
    host_bytes: String,
    /// The file tier's cap, without --config.
    #[arg(long, default_value = "1GiB")]
    file_bytes: String,
    /// The file tier's directory, kept afterwards (default: a temporary one that is removed).
    #[arg(long)]
    path: Option<PathBuf>,
    /// Let a second process over the same directory do every other verifying load.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    peers: u8,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Replays; answers whether every loaded byte was right.
pub fn run(args: Args) -> Result<bool> {
    let chunk = size("--chunk-bytes", &args.chunk_bytes)? as usize;
    if chunk == 0 || chunk > 1 << 30 || args.concurrency == 0 || args.concurrency > 1024 {
        return Err(BadInput("--chunk-bytes must be 1 to 1 GiB, --concurrency 1 to 1024".into()).into());
    }
    let max = args.requests.unwrap_or(usize::MAX);
    let requests = match &args.trace {
        Some(path) => trace::read(path, max)?,
        None => trace::generate(max.min(2000), args.seed),
    };
    let home = Home::choose(&args)?;
    let config = home.config(&args)?;
    let mut measured = Vec::new();
    let meters = std::cell::RefCell::new(&mut measured);
    let opened: Opened = config.open_with(|tier| {
        let (timed, meter) = timed::Timed::around(tier);
        meters.borrow_mut().push(meter);
        std::sync::Arc::new(timed)
    })?;
    let peer = match (args.peers, &home.files) {
        (1, Some(dir)) => Some(peer::Peer::start(dir, &args.file_bytes, chunk)?),
        (1, None) => {
            return Err(BadInput("--peers needs the file tier of --path or the default; drop --config".into()).into());
        }
        _ => None,
    };
    let outcome = run::replay(&requests, &opened, (chunk, args.concurrency), peer)?;
    let right = outcome.wrong_bytes == 0;
    report::print(&outcome, &opened, &measured, (chunk, args.json))?;
    opened.top.close().wait().context("cannot close the tiers")?;
    Ok(right)
}

/// Where the files of this run lie.
struct Home {
    files: Option<PathBuf>,
    temporary: bool,
}

impl Home {
    fn choose(args: &Args) -> Result<Self> {
        if args.config.is_some() {
            return Ok(Home { files: None, temporary: false });
        }
        let temporary = args.path.is_none();
        let own = || std::env::temp_dir().join(format!("kvtier-replay-{}", std::process::id()));
        Ok(Home { files: Some(args.path.clone().unwrap_or_else(own)), temporary })
    }

    fn config(&self, args: &Args) -> Result<Config> {
        let (text, source) = match (&args.config, &self.files) {
            (Some(file), _) => {
                let read = std::fs::read_to_string(file);
                let text =
                    read.map_err(|e| BadInput(format!("cannot read the configuration {}: {e}", file.display())))?;
                (text, file.display().to_string())
            }
            (None, files) => {
                let (host, file) = (size("--host-bytes", &args.host_bytes)?, size("--file-bytes", &args.file_bytes)?);
                let tiers = serde_json::json!({"tiers": [
                    {"type": "host", "bytes": host},
                    {"type": "file", "path": files, "bytes": file},
                ]});
                (tiers.to_string(), "the command line".into())
            }
        };
        Ok(Config::from_json(&text, &source)?)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Some(dir) = self.files.as_ref().filter(|_| self.temporary) {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// Reads a size argument.
pub fn size(flag: &str, text: &str) -> Result<u64, BadInput> {
    kvtier::bytes::parse(text).ok_or_else(|| BadInput(format!("{flag} {text:?} is no size; write for example 256KiB")))
}
