use std::collections::BTreeSet;
use std::fs::{self, DirEntry, File, OpenOptions};
use std::io::{self, ErrorKind as Io};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kvtier_core::Clock;

use super::process::Process;
use super::{internal_files, is_local, open_rw};

/// A corner of another host is taken for abandoned when its process has not shown itself for so
/// long: locks may not reach across hosts.
const OTHER_HOST_DEAD_AFTER: Duration = Duration::from_secs(24 * 3600);

/// What the file `alive` begins with.
const ALIVE: &str = "locked while its process lives\n";
/// The most bytes of it that are read.
const ALIVE_BYTES_MAX: u64 = 4096;

/// How many corners this process has made.
static CREATED: AtomicU64 = AtomicU64::new(0);

/// This process's own directory below `.kvtier/tmp`: nobody else writes there while we live.
#[derive(Debug)]
pub struct StagingDir {
    path: PathBuf,
    name: String,
    dir: OwnedFd,
    /// Held locked while we live, so that others can tell our unfinished files from a dead
    /// process's.
    alive: File,
    next: AtomicU64,
    is_abandoned: AtomicBool,
}

impl StagingDir {
    /// Makes this process's corner and locks it.
    pub fn create(tmp: &Path) -> io::Result<Self> {
        loop {
            let n = CREATED.fetch_add(1, Ordering::Relaxed);
            let name = format!("{}.{}.{}.{n}", host()?, std::process::id(), started_ms());
            let path = tmp.join(&name);
            match fs::create_dir(&path) {
                Err(e) if e.kind() == Io::AlreadyExists => continue,
                other => other?,
            }
            let alive = open_rw(&path.join("alive"))?;
            alive.lock()?;
            alive.write_all_at(alive_text(None).as_bytes(), 0)?;
            let dir = File::open(&path)?.into();
            let (next, is_abandoned) = (AtomicU64::new(0), AtomicBool::new(false));
            return Ok(StagingDir { path, name, dir, alive, next, is_abandoned });
        }
    }

    /// Its name, which no other corner ever had: host, process, when that started, and which of the
    /// process's tiers.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The corner, open.
    pub fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// A number that no unfinished file here has had.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether it is still where it was made: somebody may have deleted `.kvtier`.
    pub fn exists(&self) -> bool {
        let there = fs::metadata(self.path.join("alive"));
        there.is_ok_and(|there| self.alive.metadata().is_ok_and(|ours| ours.ino() == there.ino()))
    }

    /// Notes with which cap this process has the directory open, for those who come.
    pub fn write_cap(&self, capacity_bytes: u64) -> io::Result<()> {
        let text = alive_text(Some(capacity_bytes));
        self.alive.write_all_at(text.as_bytes(), 0)?;
        self.alive.set_len(text.len() as u64)
    }

    /// Shows processes of other hosts that we live.
    pub fn heartbeat(&self, clock: &Clock) -> io::Result<()> {
        self.alive.set_modified(clock.wall())
    }

    /// Leaves it behind when it is dropped, as a process that is killed does. A tier that finds it
    /// lists the directory.
    pub fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }
}

impl Drop for StagingDir {
    fn drop(&mut self) {
        if self.is_abandoned.load(Ordering::Relaxed) {
            // Also where a child that this process forked has the file open too.
            let _ = self.alive.unlock();
        } else {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// What this process writes into its `alive`.
fn alive_text(capacity_bytes: Option<u64>) -> String {
    let process = Process::this().map(|process| format!("{}\n", process.text()));
    let cap = capacity_bytes.map(|bytes| format!("cap: {bytes}\n"));
    format!("{ALIVE}{}{}", process.unwrap_or_default(), cap.unwrap_or_default())
}

/// When this process started, in Unix milliseconds: in a container that starts again the process
/// number is the same.
fn started_ms() -> u64 {
    static STARTED: OnceLock<u64> = OnceLock::new();
    *STARTED.get_or_init(|| started_by_proc().unwrap_or_else(|| Clock::real().unix_ms()))
}

/// The same from `/proc`; `None` where that is not to be had.
fn started_by_proc() -> Option<u64> {
    let ticks = Process::this()?.started_ticks;
    let a_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??.cast_unsigned();
    Some(booted_s()? * 1000 + ticks * 1000 / a_second)
}

/// When the machine started, in Unix seconds; `None` where `/proc` is not to be had.
fn booted_s() -> Option<u64> {
    let machine = fs::read_to_string("/proc/stat").ok()?;
    machine.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn host() -> io::Result<String> {
    let host = nix::unistd::gethostname()?;
    Ok(host.to_string_lossy().replace(['/', '.'], "_"))
}

/// The names of the corners whose processes live.
pub fn live_names(tmp: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for staging in staging_dirs(tmp)? {
        let name = staging.file_name().to_string_lossy().into_owned();
        if !is_stale(&staging.path(), &name)? {
            names.insert(name);
        }
    }
    Ok(names)
}

/// The cap with which the process of a corner has the directory open; `None` for one that opens no
/// tier.
pub fn read_cap(tmp: &Path, name: &str) -> Option<u64> {
    let bytes = internal_files::read(&tmp.join(name).join("alive"), ALIVE_BYTES_MAX).ok()?;
    String::from_utf8(bytes).ok()?.lines().find_map(|line| line.strip_prefix("cap: ")?.parse().ok())
}

/// All corners; what is no directory is no corner.
pub fn staging_dirs(tmp: &Path) -> io::Result<Vec<DirEntry>> {
    let all = fs::read_dir(tmp)?.collect::<io::Result<Vec<_>>>()?;
    Ok(all.into_iter().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).collect())
}

/// What dead processes left.
#[derive(Clone, Copy, Debug, Default)]
pub struct RemovedStale {
    /// How many they were.
    pub dirs: usize,
    /// Bytes that were granted for their unfinished files.
    pub bytes: u64,
    /// When the machine started, in Unix seconds, if one of them was at work before that: it ended
    /// with the machine.
    pub crashed_before_s: Option<u64>,
}

/// Removes the corners of processes that are no more. The door is locked.
pub fn remove_stale(tmp: &Path) -> io::Result<RemovedStale> {
    let mut removed_stale = RemovedStale::default();
    for staging in staging_dirs(tmp)? {
        if is_stale(&staging.path(), &staging.file_name().to_string_lossy())? {
            removed_stale.bytes += granted_bytes(&staging.path())?;
            removed_stale.dirs += 1;
            removed_stale.crashed_before_s = removed_stale
                .crashed_before_s
                .or(ended_with_the_machine(&staging.file_name().to_string_lossy()));
            fs::remove_dir_all(staging.path())?;
        }
    }
    Ok(removed_stale)
}

/// When the machine started, in Unix seconds, if the process of a corner of this name had started
/// before.
fn ended_with_the_machine(name: &str) -> Option<u64> {
    let started_ms: u64 = name.split('.').nth(2)?.parse().ok()?;
    booted_s().filter(|booted| started_ms < booted * 1000)
}

/// The name of an unfinished file that bytes are claimed for: its number, and how many bytes.
pub fn draft_name(number: u64, bytes: u64) -> String {
    format!("{number}-{bytes:x}")
}

/// The bytes that the name of an unfinished file states.
pub fn claimed_by(name: &str) -> Option<u64> {
    let (number, bytes) = name.split_once('-')?;
    number.parse::<u64>().ok()?;
    u64::from_str_radix(bytes, 16).ok()
}

/// Bytes of the unfinished files in a corner that were granted for certain: only then a file gets a
/// length.
fn granted_bytes(staging: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for file in fs::read_dir(staging)? {
        let file = file?;
        let (name, len) = (file.file_name(), file.metadata()?.len());
        if name != "alive" && len > 0 {
            bytes += name.to_str().and_then(claimed_by).unwrap_or(len);
        }
    }
    Ok(bytes)
}

/// Whether nobody holds the corner's lock, and, for another host's on a file system that hosts
/// share, has not shown itself for long. On this machine's own a lock is enough, whatever the host
/// is called: containers have a new name at each start.
fn is_stale(staging: &Path, name: &str) -> io::Result<bool> {
    let alive = staging.join("alive");
    // Where nothing may be written, a lock can be asked for all the same.
    let opened = internal_files::open(&alive, OpenOptions::new().write(true));
    let file = match opened.or_else(|_| internal_files::open_to_read(&alive)) {
        Ok(file) => file,
        // No process of ours has locked anything else.
        Err(e) => return Ok(e.kind() == Io::NotFound || internal_files::is_not_a_file(&e)),
    };
    if file.try_lock().is_err() {
        // A child that a process forked has its locks too, and keeps them when that is killed.
        let bytes = internal_files::read(&alive, ALIVE_BYTES_MAX).unwrap_or_default();
        let noted =
            String::from_utf8(bytes).ok().and_then(|text| text.lines().find_map(Process::parse));
        return Ok(noted.is_some_and(|process| process.is_gone()));
    }
    // At once, not when the last of those who have it open closes it.
    file.unlock()?;
    if is_local(staging)? || name.split('.').next() == Some(&host()?) {
        return Ok(true);
    }
    let shown = file.metadata()?.modified()?;
    Ok(shown.elapsed().is_ok_and(|since| since > OTHER_HOST_DEAD_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dead_of_another_host_name_are_buried_where_a_lock_tells_and_what_is_no_corner_is_left_alone()
     {
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
        let removed_stale = remove_stale(tmp.path()).unwrap();
        assert_eq!((removed_stale.dirs, removed_stale.bytes, pod.exists()), (1, 100, false));
    }

    #[test]
    fn who_is_gone_is_dead_though_a_child_that_it_forked_has_its_lock() {
        let tmp = tempfile::tempdir().unwrap();
        let staging = StagingDir::create(tmp.path()).unwrap();
        staging.write_cap(7).unwrap();
        assert_eq!(read_cap(tmp.path(), staging.name()), Some(7));
        let is_stale = |name: &str| is_stale(&tmp.path().join(name), name).unwrap();
        assert!(!is_stale(staging.name()));
        // This process has its lock, as such a child has.
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
    fn a_corner_is_named_after_a_process_that_has_a_start_and_never_twice() {
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
