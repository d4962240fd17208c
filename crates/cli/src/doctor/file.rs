use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kvtier::byte_size::format;
use kvtier::core::key::{ChunkHash, KeyId, KvRank, ObjectKey};
use kvtier::core::{Ctx, Digest, Key, Load, Namespace, Save};
use kvtier::file::inspect::{Medium, Scratch, Summary};
use kvtier::file::{EngineKind, FileConfig, FileTier};
use kvtier::mem::{Arena, ArenaConfig};
use kvtier::{Observe, Tier};
use serde_json::Value;

use super::finding::{self, Finding};
use super::lossy::LossyArgs;
use super::stored;
use crate::json::{self, json};

/// `kvtier doctor file`.
#[derive(clap::Args)]
pub struct DoctorFileArgs {
    /// The directory, which must exist; what is written there for the probe is removed.
    path: PathBuf,
    #[command(flatten)]
    lossy: LossyArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

const CHUNK: usize = 4 << 20;
const CHUNKS: u64 = 16;

/// Probes the directory and prints findings, rate and settings.
pub fn run(args: &DoctorFileArgs) -> Result<()> {
    super::exists(&args.path)?;
    let lossy = args.lossy.findings()?;
    let sum = stored::summary(&args.path);
    let medium = Medium::probe(&args.path).map_err(crate::cannot_open)?;
    let mount = mount_of(&args.path);
    let memlock = limit("Max locked memory");
    let rate = rate(&args.path)?;
    let mut findings = findings(&medium, &mount, &memlock);
    findings.push(engine(&rate));
    findings.extend(unnameable(&args.path));
    findings.extend(lossy);
    findings.extend(stored::lossy(&sum));
    let chosen = settings(&args.path, &sum, &medium, &rate);
    let settings: Value = chosen.iter().map(|c| (c.key.to_owned(), c.value.clone())).collect();
    if args.json {
        let list: Vec<Value> = findings.iter().map(Finding::json).collect();
        let all = json!({
            "path": json::path(&args.path), "findings": list, "put_mb_per_s": rate.put_mb_per_s, "get_mb_per_s": rate.get_mb_per_s,
            "settings": settings,
            "reasons": chosen.iter().map(|c| (c.key.to_owned(), Value::from(c.reason))).collect::<Value>(),
        });
        return crate::stdout::line(&all.to_string());
    }
    findings.iter().try_for_each(Finding::print)?;
    let put = rate.put_mb_per_s;
    let get = rate.get_mb_per_s;
    let size = format(CHUNK as u64);
    let how =
        format!("({CHUNKS} chunks of {size}, 8 at once; `kvtier bench file` measures longer)");
    finding::print("rate", &format!("put {put:.0} MB/s, get {get:.0} MB/s {how}"))?;
    crate::stdout::line(&format!("{:<16} {settings}", "settings"))?;
    let reasons = chosen.iter().filter_map(|c| Some((c.key, c.reason?)));
    reasons
        .into_iter()
        .try_for_each(|(key, reason)| finding::print("", &format!("{key}: {reason}")))
}

/// A setting of a file tier here, and why.
struct Chosen {
    key: &'static str,
    value: Value,
    /// `None` where there was nothing to choose.
    reason: Option<&'static str>,
}

fn settings(path: &Path, sum: &Summary, medium: &Medium, rate: &FileRates) -> Vec<Chosen> {
    let given = |key, value| Chosen { key, value, reason: None };
    let because = |key, value, reason| Chosen { key, value, reason: Some(reason) };
    let cap = cap(sum, medium.bytes.1);
    let engine = if rate.uring {
        ("auto", "io_uring works here")
    } else {
        ("threads", "io_uring is refused here")
    };
    vec![
        given("type", json!("file")),
        given("path", json::path(path)),
        because("bytes", json!(cap.0), cap.1),
        because("engine", json!(engine.0), engine.1),
    ]
}

/// The cap in bytes and why: existing chunks take space that the cap covers.
fn cap(sum: &Summary, free: u64) -> (u64, &'static str) {
    let held = sum.bytes + sum.quarantine_bytes;
    // What chunks use now is free for the tier too.
    let share = (free + held) / 10 * 9;
    match sum.capacity_bytes {
        Some(noted) if noted <= share => {
            (noted, "the cap that the directory notes, which its file system can hold")
        }
        // More is stored than the cap would allow. Without `shrink` a tier refuses to open with
        // such a cap.
        _ if held > share => (
            share,
            "nine tenths of what is free or ours: less than is stored here, so set shrink to evict chunks",
        ),
        _ if held > 0 => {
            (share, "nine tenths of what is free or ours: the rest keeps the file system fast")
        }
        _ => (share, "nine tenths of what is free: the rest keeps the file system fast"),
    }
}

/// A finding with advice where something is not as it should be.
fn judged(what: &'static str, found: impl Into<String>, good: bool, advice: &str) -> Finding {
    Finding { what, found: found.into(), advice: (!good).then(|| advice.to_owned()) }
}

/// What is to be done about a name that no configuration file can hold.
fn unnameable(path: &Path) -> Option<Finding> {
    let advice =
        "no configuration file can name it, and what is printed here is not its name: rename it";
    path.to_str().is_none().then(|| judged("name", format!("{path:?} is not UTF-8"), false, advice))
}

/// A finding with advice where something cannot be done.
fn able(what: &'static str, can: bool, advice: &str) -> Finding {
    judged(what, if can { "yes" } else { "no" }, can, advice)
}

fn findings(medium: &Medium, mount: &str, memlock: &str) -> Vec<Finding> {
    let (all, free) = medium.bytes;
    let inodes = medium.inodes_free;
    let align = medium.direct_align;
    let reported =
        align.map(|(memory, offset)| format!("memory {memory} bytes, offsets {offset} bytes"));
    // Chunks are padded to pages of 4096 bytes. A device that wants more cannot do direct I/O with
    // them.
    let fits = align.is_none_or(|(memory, offset)| memory.max(offset) <= 4096);
    let counted = if inodes == 0 { "not counted".into() } else { inodes.to_string() };
    let unnamed =
        if medium.unnamed { "yes (O_TMPFILE; not needed)" } else { "no (O_TMPFILE; not needed)" };
    vec![
        judged("file system", mount, true, ""),
        able(
            "local",
            medium.local,
            "processes learn of each other's writes once a second: leave space above the cap",
        ),
        able(
            "direct I/O",
            medium.direct,
            "all goes through the page cache: slower, and it takes the engine's memory",
        ),
        judged(
            "alignment",
            reported.unwrap_or_else(|| "not reported".into()),
            fits,
            "direct I/O wants more than the 4096 bytes that chunks are padded to: it will not be used",
        ),
        able(
            "rename swaps",
            medium.rename_swaps,
            "two processes that save one chunk at once may miscount one file",
        ),
        able("fallocate", medium.fallocates, "writes of new files wait for one another"),
        judged("unnamed files", unnamed, true, ""),
        able(
            "attributes",
            medium.attributes,
            "in the incumbent's layouts, chunks cannot carry checksums here",
        ),
        able("locks", medium.locks, "do not share this directory between processes"),
        judged(
            "free space",
            format!("{} of {}", format(free), format(all)),
            // Allocators of most file systems slow down when little is free.
            free > all / 20,
            "less than a twentieth is free: file systems slow down there",
        ),
        judged(
            "free inodes",
            counted,
            // Some file systems (btrfs, network ones) count none and report 0.
            inodes == 0 || inodes > 100_000,
            "every chunk takes an inode",
        ),
        judged("locked memory", memlock, true, ""),
    ]
}

/// What moved the bytes of the probe, and a short rate.
struct FileRates {
    put_mb_per_s: f64,
    get_mb_per_s: f64,
    uring: bool,
    reason: String,
}

fn engine(rate: &FileRates) -> Finding {
    let advice = "io_uring is refused here: see kernel.io_uring_disabled, the container's seccomp profile and the limit of locked memory";
    Finding {
        what: "engine",
        found: rate.reason.clone(),
        advice: (!rate.uring).then(|| advice.to_owned()),
    }
}

/// Saves and loads a few chunks in a directory of its own.
fn rate(path: &Path) -> Result<FileRates> {
    let scratch = Scratch::new(path, "doctor")
        .with_context(|| format!("cannot write to {}", path.display()))?;
    rate_in(scratch.path())
}

fn rate_in(scratch: &Path) -> Result<FileRates> {
    // Twice what is written, so that nothing is evicted.
    let tier = FileTier::open(FileConfig::new(scratch, 2 * CHUNKS * CHUNK as u64))
        .map_err(crate::cannot_open)?;
    let arena = Arena::new(ArenaConfig::huge(8 * CHUNK)).context("no memory for the probe")?;
    // As engines do it: without it io_uring pins the pages of each transfer anew.
    tier.register(&arena)?;
    let ns = Arc::new(Namespace::new("doctor", Digest::derive("kvtier doctor", b"file")));
    let key = |n: u64| {
        let hash = ChunkHash::new(&n.to_be_bytes());
        let id =
            ObjectKey { model: "doctor".into(), rank: KvRank(0), group: 0, hash, salt: "".into() };
        Key::new(Arc::clone(&ns), KeyId::Object(id))
    };
    let ctx = Ctx::within(Duration::from_secs(60));
    let mb = (CHUNKS as usize * CHUNK) as f64 / 1e6;
    let began = Instant::now();
    for batch in 0..CHUNKS / 8 {
        let ops = (batch * 8..batch * 8 + 8).map(|n| {
            let mut lease = arena.lease(CHUNK)?;
            lease.assume_filled(CHUNK);
            Ok(Save { key: key(n), from: vec![lease.freeze()] })
        });
        let done = tier.save(&ctx, ops.collect::<Result<_>>()?).wait();
        done.into_iter()
            .try_for_each(|done| done.result.map(drop))
            .context("cannot save to the directory")?;
    }
    let put_mb_per_s = mb / began.elapsed().as_secs_f64();
    let began = Instant::now();
    for batch in 0..CHUNKS / 8 {
        let ops = (batch * 8..batch * 8 + 8)
            .map(|n| Ok(Load { key: key(n), into: vec![arena.lease(CHUNK)?] }));
        let done = tier.load(&ctx, ops.collect::<Result<_>>()?).wait();
        done.into_iter()
            .try_for_each(|done| done.result.map(drop))
            .context("cannot load from the directory")?;
    }
    let get_mb_per_s = mb / began.elapsed().as_secs_f64();
    let uring = tier.engine() == EngineKind::Uring;
    // The first reason of a file tier is its engine, and why.
    let reason = tier.status().reasons.into_iter().next().unwrap_or_default();
    Ok(FileRates { put_mb_per_s, get_mb_per_s, uring, reason })
}

/// The mount that a path is on: type, device, options.
fn mount_of(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let fields = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        Some((fields.next()?, fields.next()?, fields.next()?, fields.next()?))
    });
    // Of mounts on one point the last is on top.
    let best = fields
        // By whole components, so that `/data2` is not below `/data`.
        .filter(|(_, point, ..)| path.starts_with(point))
        .max_by_key(|(_, point, ..)| point.len());
    best.map_or("unknown".into(), |(device, point, kind, options)| {
        format!("{kind} ({device} on {point}, {options})")
    })
}

/// A limit of this process, as the kernel prints it.
fn limit(name: &str) -> String {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("unknown");
    line.split_whitespace()
        .next()
        .map_or("unknown".into(), |soft| soft.parse().map_or(soft.to_owned(), format))
}
