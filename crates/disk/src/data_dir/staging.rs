//! Staging directories: `.kvtier/tmp/<host>.<pid>.<start>.<n>`, one for each open tier.
//!
//! A process writes its unfinished files only there, and peers treat the directory as the process's
//! registration. Which processes live is in [`liveness`](super::liveness): the staging directory of
//! a dead one is deleted, and the bytes of its files are released.
//!
//! A name is used once: the start time of the process is part of it, because a container that
//! restarts has the same pid, and a counter for the tiers of one process.

use std::fs::{self, File};
use std::io::{self, ErrorKind as Io};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kvtier_core::Clock;

use super::liveness::{alive_text, create_alive, host, is_stale, staging_dirs};
use super::process_identity::Process;

/// How many staging directories this process has created.
static CREATED: AtomicU64 = AtomicU64::new(0);

/// A tier's directory for unfinished files; see the [module](self). No other process writes there
/// while this one lives.
#[derive(Debug)]
pub struct StagingDir {
    path: PathBuf,
    name: String,
    dir: OwnedFd,
    /// Locked while this process lives.
    alive: File,
    next: AtomicU64,
    is_abandoned: AtomicBool,
}

impl StagingDir {
    /// Creates the staging directory and locks it.
    pub fn create(tmp: &Path) -> io::Result<Self> {
        for simulated in 0.. {
            // A process may have several tiers over one directory, each with a staging directory of
            // its own. Simulated processes share this counter, and must not depend on others.
            let n = match kvtier_os::is_simulated() {
                true => simulated,
                false => CREATED.fetch_add(1, Ordering::Relaxed),
            };
            let name = format!("{}.{}.{}.{n}", host()?, process_id(), started_ms());
            let path = tmp.join(&name);
            match kvtier_os::create_dir(&path) {
                Err(e) if e.kind() == Io::AlreadyExists => continue,
                other => other?,
            }
            // On a full device nothing half made stays: it would take a block.
            let undo = |_: &io::Error| drop(kvtier_os::remove_dir_all(&path));
            let alive = create_alive(&path).inspect_err(undo)?;
            let dir = File::open(&path).inspect_err(undo)?.into();
            let next = AtomicU64::new(0);
            let is_abandoned = AtomicBool::new(false);
            return Ok(StagingDir { path, name, dir, alive, next, is_abandoned });
        }
        Err(Io::AlreadyExists.into())
    }

    /// Its name, which is used only once: host, process, the process's start, and the number of the
    /// tier.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory, open.
    pub fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// A number that no unfinished file here has had.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether it still exists under its name: `.kvtier` may have been deleted.
    pub fn exists(&self) -> bool {
        let there = fs::metadata(self.path.join("alive"));
        there.is_ok_and(|there| self.alive.metadata().is_ok_and(|ours| ours.ino() == there.ino()))
    }

    /// Writes the cap of this process, for peers that open the directory.
    pub fn write_cap(&self, capacity_bytes: u64) -> io::Result<()> {
        let text = alive_text(Some(capacity_bytes));
        kvtier_os::write_all_at(&self.alive, text.as_bytes(), 0)?;
        kvtier_os::set_len(&self.alive, text.len() as u64)
    }

    /// Shows processes of other hosts that this one lives.
    pub fn heartbeat(&self, clock: &Clock) -> io::Result<()> {
        self.alive.set_modified(clock.wall())
    }

    /// Leaves the directory behind on drop, as a killed process does. A tier that finds it lists the
    /// chunks.
    pub fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }
}

impl Drop for StagingDir {
    fn drop(&mut self) {
        if self.is_abandoned.load(Ordering::Relaxed) {
            // Unlocked, not only closed: a forked child has the file open too.
            let _ = self.alive.unlock();
        } else {
            let _ = kvtier_os::remove_dir_all(&self.path);
        }
    }
}

/// The number of this process.
fn process_id() -> u32 {
    kvtier_os::identity().map_or_else(std::process::id, |process| process.pid)
}

/// When this process started, in Unix milliseconds.
fn started_ms() -> u64 {
    if let Some(process) = kvtier_os::identity() {
        return process.started_ms;
    }
    static STARTED: OnceLock<u64> = OnceLock::new();
    *STARTED.get_or_init(|| started_by_proc().unwrap_or_else(|| Clock::real().unix_ms()))
}

/// The same from `/proc`; `None` where it cannot be read.
fn started_by_proc() -> Option<u64> {
    let ticks = Process::this()?.started_ticks;
    let a_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??.cast_unsigned();
    Some(booted_s()? * 1000 + ticks * 1000 / a_second)
}

/// When the machine started, in Unix seconds; `None` where `/proc` cannot be read.
fn booted_s() -> Option<u64> {
    if let Some(process) = kvtier_os::identity() {
        return Some(process.booted_s);
    }
    let machine = fs::read_to_string("/proc/stat").ok()?;
    machine.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// The removed staging directories of dead processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct RemovedStale {
    /// How many were removed.
    pub dirs: usize,
    /// Bytes that the ledger granted for their unfinished files.
    pub bytes: u64,
    /// When the machine started, in Unix seconds, if one of the processes had started before that: it
    /// ended with a crash or a shutdown of the machine.
    pub crashed_before_s: Option<u64>,
}

impl RemovedStale {
    /// Adds what was removed later.
    pub fn add(&mut self, later: Self) {
        self.dirs += later.dirs;
        self.bytes += later.bytes;
        self.crashed_before_s = self.crashed_before_s.or(later.crashed_before_s);
    }
}

/// Removes the staging directories of dead processes. The caller holds the registration lock.
pub fn remove_stale(tmp: &Path) -> io::Result<RemovedStale> {
    let mut removed = RemovedStale::default();
    for staging in staging_dirs(tmp)? {
        if is_stale(&staging.path(), &staging.file_name().to_string_lossy())? {
            // Counted before the files go, and released by the caller afterwards.
            removed.bytes += granted_bytes(&staging.path())?;
            removed.dirs += 1;
            removed.crashed_before_s = removed
                .crashed_before_s
                .or(ended_with_the_machine(&staging.file_name().to_string_lossy()));
            kvtier_os::remove_dir_all(staging.path())?;
        }
    }
    Ok(removed)
}

/// When the machine started, in Unix seconds, if the process of this name had started before that.
fn ended_with_the_machine(name: &str) -> Option<u64> {
    let started_ms: u64 = name.split('.').nth(2)?.parse().ok()?;
    booted_s().filter(|booted| started_ms < booted * 1000)
}

/// The name of an unfinished file: its number, and the bytes claimed for it.
pub fn draft_name(number: u64, bytes: u64) -> String {
    format!("{number}-{bytes:x}")
}

/// The bytes that the name of an unfinished file states.
pub fn claimed_by(name: &str) -> Option<u64> {
    let (number, bytes) = name.split_once('-')?;
    number.parse::<u64>().ok()?;
    u64::from_str_radix(bytes, 16).ok()
}

/// Bytes that were certainly granted for a directory's unfinished files: a file gets a length only
/// after its claim. One may have the place of another, with which it was exchanged: then its name
/// states what that one has.
fn granted_bytes(staging: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for file in kvtier_os::read_dir(staging)? {
        let file = file?;
        let name = file.file_name();
        let len = file.metadata()?.len();
        if name != "alive" && len > 0 {
            bytes += name.to_str().and_then(claimed_by).map_or(len, |claimed| claimed.min(len));
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::liveness::{ALIVE, live_names, read_cap};
    use super::super::open_rw;
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn stale_directories_of_another_host_name_are_removed_by_lock_and_other_files_stay() {
        let tmp = tempfile::tempdir().unwrap();
        let pod = tmp.path().join("pod-1.1.2.3");
        fs::create_dir(&pod).unwrap();
        fs::write(pod.join("alive"), "").unwrap();
        fs::write(pod.join("0"), [0; 100]).unwrap();
        fs::write(tmp.path().join(".DS_Store"), "").unwrap();
        let held = File::open(pod.join("alive")).unwrap();
        held.lock().unwrap();
        assert_eq!(live_names(tmp.path()).unwrap().len(), 1);
        held.unlock().unwrap();
        assert!(live_names(tmp.path()).unwrap().is_empty());
        let removed = remove_stale(tmp.path()).unwrap();
        assert_eq!((removed.dirs, removed.bytes, pod.exists()), (1, 100, false));
    }

    #[test]
    fn a_process_that_ended_is_dead_although_its_forked_child_holds_its_lock() {
        let tmp = tempfile::tempdir().unwrap();
        let staging = StagingDir::create(tmp.path()).unwrap();
        staging.write_cap(7).unwrap();
        assert_eq!(read_cap(tmp.path(), staging.name()), Some(7));
        let is_stale = |name: &str| is_stale(&tmp.path().join(name), name).unwrap();
        assert!(!is_stale(staging.name()));
        // This process holds the lock, as such a child does.
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let ours = Process::this().unwrap();
        let forked = tmp.path().join("host.1.1.0");
        fs::create_dir(&forked).unwrap();
        let alive = open_rw(&forked.join("alive")).unwrap();
        alive.lock().unwrap();
        let elsewhere = Process { boot: "another machine".into(), pid: ended.id(), ..ours.clone() };
        let again = Process { started_ticks: ours.started_ticks + 1, ..ours.clone() };
        let gone = Process { pid: ended.id(), ..ours.clone() };
        for (process, expected) in
            [(&ours, false), (&elsewhere, false), (&again, true), (&gone, true)]
        {
            alive.set_len(0).unwrap();
            alive.write_all_at(format!("{ALIVE}{}\n", process.text()).as_bytes(), 0).unwrap();
            assert_eq!(is_stale("host.1.1.0"), expected, "{process:?}");
        }
        assert_eq!(remove_stale(tmp.path()).unwrap().dirs, 1);
    }

    #[test]
    fn a_staging_directory_is_named_after_its_process_and_never_twice() {
        let tmp = tempfile::tempdir().unwrap();
        let first = StagingDir::create(tmp.path()).unwrap().name().to_owned();
        let second = StagingDir::create(tmp.path()).unwrap().name().to_owned();
        assert_ne!(first, second, "also when the first is gone");
        let parts: Vec<&str> = second.split('.').collect();
        assert_eq!((parts.len(), parts[1]), (4, std::process::id().to_string().as_str()));
        // A test has not run for a day, and does not run in the future.
        let age = Clock::real().unix_ms().abs_diff(parts[2].parse().unwrap());
        assert!(
            age < 24 * 3600 * 1000
                && started_by_proc().is_none_or(|ms| ms.abs_diff(started_ms()) < 2000),
            "{age}"
        );
    }
}
