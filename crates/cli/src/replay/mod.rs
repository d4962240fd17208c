//! `kvtier replay`: the main job.

mod block_keys;
mod block_on;
mod block_size;
mod content;
pub mod peer;
mod report;
mod run;
mod timed_tier;
mod workdir;

use std::path::PathBuf;

use anyhow::{Context, Result};
use kvtier::config::{LmcacheMode, OpenTiers};
use kvtier::file::inspect::Directory;
use kvtier::metrics::MetricsServer;

use self::block_size::BlockSize;
use self::workdir::WorkDir;
use crate::BadInput;

/// How long a bucket may take to say whether it is there.
const CHECK_MAX: std::time::Duration = std::time::Duration::from_secs(5);
/// How many requests are generated where nothing else is said.
const GENERATED_DEFAULT: usize = 2000;
/// The most requests that are generated: they are kept in memory, about half a kilobyte each.
const GENERATED_MAX: usize = 5_000_000;

/// Replays a request trace: looks up each request's longest prefix, loads it, saves the rest, and
/// verifies every loaded byte.
#[derive(clap::Args, Clone)]
pub struct ReplayArgs {
    /// The trace: JSON lines with `hash_ids`, or the binary form (.bin, .bin.zst); - for standard
    /// input. Without it, a generated chat and agent workload.
    trace: Option<PathBuf>,
    /// The tiers, in any form that `kvtier config check` takes:
    /// {"tiers":[{"type":"host","bytes":"512MiB"},{"type":"file","path":"DIR","bytes":"2GiB"}]}.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Bytes of a block (default: 256KiB, or with --model that model's true size).
    #[arg(long)]
    chunk_bytes: Option<String>,
    /// The model whose true block size is used, or with --chunk-bytes is printed beside it:
    /// llama-3.1-8b, qwen3-32b, deepseek-v3, ...
    #[arg(long, value_name = "PRESET")]
    model: Option<String>,
    /// Replay only the first N requests (default: all of a trace, 2000 generated ones).
    #[arg(long)]
    requests: Option<usize>,
    /// Requests at once.
    #[arg(long, default_value_t = 8)]
    concurrency: usize,
    /// Seed of the generated workload (default: 1).
    #[arg(long)]
    seed: Option<u64>,
    /// The host tier's cap, without --config.
    #[arg(long, default_value = "64MiB", conflicts_with = "config")]
    host_bytes: String,
    /// The file tier's cap, without --config.
    #[arg(long, default_value = "1GiB", conflicts_with = "config")]
    file_bytes: String,
    /// The file tier's directory, without --config; kept afterwards (default: a temporary one that
    /// is removed).
    #[arg(long, conflicts_with = "config")]
    path: Option<PathBuf>,
    /// Let files go when the cap of a kept directory is smaller than last time; without it the
    /// directory is refused.
    #[arg(long)]
    shrink: bool,
    /// Let a second process over the same directory do every other verifying load.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    peers: u8,
    /// Save nothing: load and verify every block of the trace that the tiers already hold.
    #[arg(long)]
    verify_only: bool,
    /// Serve the tiers' metrics to Prometheus at this address while replaying, such as
    /// 127.0.0.1:9464.
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl ReplayArgs {
    /// The file tier's cap in bytes. Who only verifies changes nothing, so the cap is the one that
    /// the directory notes; where none is noted, all of the file system, so that nothing need
    /// go.
    fn file_cap(&self) -> Result<u64> {
        let asked = size("--file-bytes", &self.file_bytes)?;
        // `--verify-only` reads what an earlier run left. A smaller cap than that run's would evict
        // it first.
        let Some(path) = self.path.as_deref().filter(|_| self.verify_only) else {
            return Ok(asked);
        };
        match Directory::open(path).ok().and_then(|dir| dir.capacity_bytes()) {
            Some(noted) => Ok(noted),
            None => Ok(asked.max(crate::disk_space::of(path)?.all)),
        }
    }
}

/// Replays; answers whether every loaded byte was right and every operation succeeded.
pub fn run(args: ReplayArgs) -> Result<bool> {
    if args.concurrency == 0 || args.concurrency > 1024 {
        return Err(BadInput("--concurrency must be 1 to 1024".into()).into());
    }
    if args.requests == Some(0) {
        return Err(BadInput(
            "--requests 0 replays nothing; set it to 1 or more, or leave it out".into(),
        )
        .into());
    }
    let trace = requests(&args)?;
    let size =
        BlockSize::choose(args.chunk_bytes.as_deref(), args.model.as_deref(), trace.block_tokens)?;
    // Before any thread is started: threads inherit which signals are blocked.
    crate::interrupt::watch()?;
    let workdir = WorkDir::choose(&args)?;
    let mut meters = Vec::new();
    // `open_with` takes a closure that may be called again; the cell lets it push.
    let cell = std::cell::RefCell::new(&mut meters);
    let config = workdir.config(&args, size.chunk)?;
    let mode =
        config.lmcache_mode().map_err(crate::cannot_open)?.unwrap_or(LmcacheMode::MultiProcess);
    let opened = config.open_with(|tier| {
        let (timed, meter) = timed_tier::Timed::wrap(tier);
        cell.borrow_mut().push(meter);
        std::sync::Arc::new(timed)
    });
    let opened: OpenTiers = opened.map_err(crate::cannot_open)?;
    // A wrong endpoint or key is reported now and not as a thousand failed saves.
    check(&opened)?;
    let _server = serve(args.metrics.as_deref(), &opened)?;
    let peer = match (args.peers, workdir.files()) {
        (0, _) => None,
        (_, Some(dir)) => Some(peer::Peer::start(dir, args.file_cap()?, size.chunk)?),
        (_, None) => {
            return Err(BadInput(
                "--peers needs the file tier of --path or the default; drop --config".into(),
            )
            .into());
        }
    };
    let job = run::ReplayJob {
        top: &*opened.top,
        meters: &meters,
        keys: block_keys::Keys::new(size.chunk, mode),
        chunk: size.chunk,
        concurrency: args.concurrency,
        verify_only: args.verify_only,
    };
    let outcome = run::replay(&trace.requests, job, peer)?;
    // A reader who had enough changes nothing of what follows.
    let printed = report::print(&outcome, &opened, &meters, &size, args.json);
    // Before the exit code: what waits to be written may still fail.
    opened.top.close().wait().context("cannot close the tiers")?;
    // A tier below can fail while the stack answers from another one.
    let failures = outcome.failures.max(meters.iter().map(|m| timed_tier::take(m).errors).sum());
    if failures > 0 {
        anyhow::bail!(
            "{failures} operations failed; the report's notes name the last one of each tier"
        );
    }
    if outcome.wrong_bytes == 0 {
        printed?;
    }
    Ok(outcome.wrong_bytes == 0)
}

/// Refuses a bucket that does not exist; what else its store says now may pass.
fn check(opened: &OpenTiers) -> Result<(), BadInput> {
    for problem in opened.check(CHECK_MAX) {
        if problem.kind() == kvtier::core::ErrorKind::Invalid {
            return Err(BadInput(format!("{:#}", anyhow::Error::from(problem))));
        }
        eprintln!("kvtier: {:#}", anyhow::Error::from(problem));
    }
    Ok(())
}

/// The requests of the trace, or of the generated workload.
fn requests(args: &ReplayArgs) -> Result<crate::trace::Trace> {
    let Some(path) = &args.trace else {
        let count = args.requests.unwrap_or(GENERATED_DEFAULT);
        if count > GENERATED_MAX {
            let what = format!(
                "--requests {count}: a generated workload has at most {GENERATED_MAX}; write a trace with `kvtier gen-trace`"
            );
            return Err(BadInput(what).into());
        }
        return Ok(crate::trace::generate(count, args.seed.unwrap_or(1)));
    };
    if args.seed.is_some() {
        let what =
            "--seed is for the generated workload; a trace has nothing random, leave --seed out";
        return Err(BadInput(what.into()).into());
    }
    crate::trace::read(path, args.requests.unwrap_or(usize::MAX))
}

/// Serves the metrics, if an address is set.
fn serve(address: Option<&str>, opened: &OpenTiers) -> Result<Option<MetricsServer>> {
    let Some(address) = address else { return Ok(None) };
    let server = MetricsServer::start(address, opened.monitored().to_vec());
    let server = server.map_err(|e| {
        BadInput(format!("--metrics {address}: {e}; name a free address such as 127.0.0.1:9464"))
    })?;
    eprintln!("kvtier: metrics at http://{}/metrics", server.address());
    Ok(Some(server))
}

/// Reads a size argument.
pub fn size(flag: &str, text: &str) -> Result<u64, BadInput> {
    kvtier::byte_size::parse(text)
        .ok_or_else(|| BadInput(format!("{flag} {text:?} is no size; write for example 256KiB")))
}
