//! `kvtier doctor shm`: segments of shared memory that no process uses.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use kvtier::byte_size::format;

use crate::json::json;

/// What the names of segments begin with that LMCache, in all its versions, and kvtier leave
/// behind.
const PREFIXES: [&str; 3] = ["my_shm_", "lmcache_l1_pool_", "kvtier"];

/// `kvtier doctor shm`.
#[derive(clap::Args)]
pub struct ShmArgs {
    /// Remove the stale ones; without this, only say which they are.
    #[arg(long)]
    yes: bool,
    /// Segments younger than this many seconds are never stale: their users may be about to open
    /// them.
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    older: u64,
    /// Where segments lie.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A segment, and why it is kept, if it is.
struct ShmSegment {
    name: String,
    bytes: u64,
    keep: Option<&'static str>,
}

/// Finds stale segments, and removes them with `--yes`.
pub fn run(args: &ShmArgs) -> Result<()> {
    let space = crate::disk_space::of(&args.dir)?;
    // Processes before files: a segment that is created after this is too young, one that is opened
    // in between is locked or young.
    let used = Used::look()?;
    let mut all = segments(args, &used)?;
    all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let stale = || all.iter().filter(|segment| segment.keep.is_none());
    if args.yes {
        stale().try_for_each(|segment| remove(&args.dir.join(&segment.name)))?;
    }
    let bytes: u64 = stale().map(|segment| segment.bytes).sum();
    if args.json {
        let list =
            all.iter().map(|s| json!({ "name": s.name, "bytes": s.bytes, "stale": s.keep.is_none(), "kept": s.keep }));
        let list: Vec<_> = list.collect();
        let all = json!({ "segments": list, "stale_bytes": bytes, "removed": args.yes, "all_bytes": space.all, "free_bytes": space.free });
        return crate::stdout::line(&all.to_string());
    }
    crate::stdout::line(&format!(
        "{} has {}, {} free",
        args.dir.display(),
        format(space.all),
        format(space.free)
    ))?;
    for segment in &all {
        let state = segment.keep.unwrap_or(if args.yes { "stale: removed" } else { "stale" });
        crate::stdout::line(&format!(
            "{:<40} {:>12}  {state}",
            segment.name,
            format(segment.bytes)
        ))?;
    }
    let next = if !args.yes && bytes > 0 { "; add --yes to remove them" } else { "" };
    crate::stdout::line(&format!("{} stale segments, {}{next}", stale().count(), format(bytes)))
}

fn segments(args: &ShmArgs, used: &Used) -> Result<Vec<ShmSegment>> {
    let entries =
        fs::read_dir(&args.dir).with_context(|| format!("cannot read {}", args.dir.display()))?;
    let mut all = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", args.dir.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Removed meanwhile.
        let Ok(meta) = entry.metadata() else { continue };
        // Only names of LMCache and kvtier: other programs have their own rules for what is stale.
        if !meta.is_file() || !PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let age = meta
            .modified()
            .ok()
            .and_then(|at| SystemTime::now().duration_since(at).ok())
            // A time in the future, or none, counts as young.
            .unwrap_or_default();
        // Any sign of life keeps a segment. Removing memory that an engine still shares would give
        // wrong bytes.
        let keep = match used.has(meta.dev(), meta.ino()) {
            true => Some("in use"),
            false
                if maker(&name).is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists()) =>
            {
                Some("its maker lives")
            }
            false if age < Duration::from_secs(args.older) => Some("too young"),
            false if is_locked(&entry.path()) => Some("locked, by another container perhaps"),
            false if !used.complete => Some("not all processes can be looked into; run as root"),
            false => None,
        };
        all.push(ShmSegment { name, bytes: meta.len(), keep });
    }
    Ok(all)
}

/// The process that a name says made it.
fn maker(name: &str) -> Option<u32> {
    // LMCache puts the id of the process that made the pool into its name.
    let rest = name.strip_prefix("lmcache_l1_pool_")?;
    rest.split(['_', '.', '-']).next()?.parse().ok()
}

fn is_locked(path: &Path) -> bool {
    // The lock is seen across containers that share `/dev/shm`, where process ids are not.
    File::open(path).is_ok_and(|file| file.try_lock().is_err())
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// The files that processes have open or mapped.
struct Used {
    files: std::collections::HashSet<(u64, u64)>,
    /// Whether all processes could be looked into.
    complete: bool,
}

impl Used {
    fn look() -> Result<Self> {
        let mut used = Used { files: Default::default(), complete: true };
        for entry in fs::read_dir("/proc").context("cannot read /proc")?.flatten() {
            let is_process =
                entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit());
            if is_process {
                used.process(&entry.path());
            }
        }
        Ok(used)
    }

    /// A mapping keeps its file although no descriptor is left, so both are looked at. Processes
    /// that end meanwhile use nothing.
    fn process(&mut self, path: &Path) {
        // A process may have closed the descriptor and still have the memory mapped.
        for list in ["fd", "map_files"] {
            match fs::read_dir(path.join(list)) {
                Ok(entries) => {
                    let files =
                        entries.flatten().filter_map(|entry| fs::metadata(entry.path()).ok());
                    self.files.extend(files.map(|meta| (meta.dev(), meta.ino())));
                }
                Err(e)
                    if e.kind() == ErrorKind::NotFound
                        // The process ended while its entries were read, so it uses nothing.
                        || e.raw_os_error() == Some(nix::libc::ESRCH) => {}
                Err(_) => self.complete = false,
            }
        }
    }

    fn has(&self, dev: u64, ino: u64) -> bool {
        self.files.contains(&(dev, ino))
    }
}
