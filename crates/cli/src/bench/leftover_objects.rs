//! Objects that a bench which was killed left in a bucket: the next bench removes them, as that of
//! files does with directories.
//!
//! A bucket has no locks. A run's prefix names its process instead: by the boot of its machine, its
//! PID namespace, its number and when it was started. Where boot and namespace are ours, the kernel
//! says whether that process lives. Of any other run, and of one whose process is hidden
//! (`hidepid`), the newest object must be a day old. The host's name stands in the prefix for
//! people.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use kvtier::s3::{Client, List};
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use tokio::runtime::Runtime;

use crate::bucket_args::failed;

/// What the keys of all benches begin with.
const ROOT: &str = "kvtier-bench/";
/// After this many seconds without a new object, a run whose process cannot be looked up is taken
/// for dead.
const UNKNOWN_DEAD_AFTER_S: i64 = 24 * 3600;
/// The most keys that one request deletes.
const KEYS_MAX: usize = 1000;

/// A prefix for the objects of this run alone.
pub fn prefix() -> String {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    let process = std::process::id();
    // Process ids are used again. With the time of its start, in a boot, in a PID namespace, a
    // process is unique.
    let start = started(process).unwrap_or_default();
    let machine = machine().unwrap_or_else(|| "-.-".into());
    format!("{ROOT}{}.{machine}.{process}.{start}.{nanos:x}/", host())
}

/// Removes the objects of runs that are dead. Answers how many there were.
pub fn remove(client: &Client, runtime: &Runtime) -> Result<usize> {
    let mut runs = BTreeMap::<String, BenchRun>::new();
    let mut now = None;
    // All runs in one listing: their objects are below one root.
    let list = List::under(ROOT);
    let mut next = None;
    loop {
        let page = runtime.block_on(client.list(&list, next.as_deref())).map_err(failed);
        let page =
            page.with_context(|| format!("cannot look for objects of earlier runs under {ROOT}"))?;
        // The store's own clock: that of this machine may be wrong by hours.
        now = now.or(page.date);
        for entry in page.entries {
            if let Some(name) = entry
                .key
                .strip_prefix(ROOT)
                .and_then(|rest| rest.split_once('/'))
                .map(|(name, _)| name)
            {
                let run = runs.entry(name.to_owned()).or_default();
                // A run that still writes has new objects, however old its first one is.
                run.newest = run.newest.max(entry.modified);
                run.keys.push(entry.key);
            }
        }
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    let dead =
        // Another benchmark may run in this bucket at this moment.
        runs.into_iter().filter(|(name, run)| is_dead(name, now.map(|now| now - run.newest)));
    let keys: Vec<String> = dead.flat_map(|(_, run)| run.keys).collect();
    // The most that S3 deletes with one request.
    for keys in keys.chunks(KEYS_MAX) {
        let refused = runtime.block_on(client.delete_many(keys)).map_err(failed);
        let refused = refused.with_context(|| {
            format!("cannot remove objects that an earlier run left under {ROOT}")
        })?;
        refused.iter().for_each(|refused| {
            eprintln!(
                "kvtier: {}, which an earlier run left, was not removed ({})",
                refused.key, refused.code
            );
        });
    }
    Ok(keys.len())
}

/// The objects of one run.
#[derive(Default)]
struct BenchRun {
    keys: Vec<String>,
    /// When the newest was written, in seconds since 1970 by the store's clock.
    newest: i64,
}

/// Whether the run of this name is known to have ended; its newest object is `age_s` old, where the
/// store says what time it is.
fn is_dead(name: &str, age_s: Option<i64>) -> bool {
    // A run of another machine is dead by its age alone.
    has_ended(name).unwrap_or_else(|| age_s.is_some_and(|age_s| age_s > UNKNOWN_DEAD_AFTER_S))
}

/// Whether the process of a run of this boot and PID namespace has ended; `None` for other runs,
/// and where the process is hidden.
fn has_ended(name: &str) -> Option<bool> {
    let parts: Vec<&str> = name.split('.').collect();
    let [_, boot, namespace, process, start, _] = parts.as_slice() else { return None };
    // Processes of other machines and containers cannot be seen from here.
    if format!("{boot}.{namespace}") != machine()? {
        return None;
    }
    let process = process.parse::<u32>().ok().filter(|process| *process > 0)?;
    let start = start.parse::<u64>().ok().filter(|start| *start > 0)?;
    // Of a number that is in use again, the start differs.
    // Signal 0 only asks whether the process exists.
    match kill(Pid::from_raw(process.try_into().ok()?), None) {
        Err(Errno::ESRCH) => Some(true),
        _ => started(process).map(|now| now != start),
    }
}

/// What numbers of processes are unique in: the boot of the machine and the PID namespace, as two
/// parts of a key.
fn machine() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
    let number: String = namespace.to_str()?.chars().filter(char::is_ascii_digit).collect();
    let boot = boot.trim();
    // The parts of a run's name are separated by dots.
    (!boot.is_empty() && !boot.contains(['.', '/']) && !number.is_empty())
        .then(|| format!("{boot}.{number}"))
}

/// When a process was started, in ticks since the boot; `None` where it cannot be seen.
fn started(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field, the name in parentheses, may hold blanks and parentheses. The start is the
    // 22nd.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// This host's name, as a part of a key.
fn host() -> String {
    let name = nix::unistd::gethostname()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Our own name, with one part of it changed.
    fn with(at: usize, part: &str) -> String {
        let own = prefix();
        let own = own.strip_prefix(ROOT).unwrap().trim_end_matches('/');
        let mut parts: Vec<&str> = own.split('.').collect();
        assert_eq!(parts.len(), 6, "{own}");
        parts[at] = part;
        parts.join(".")
    }

    #[test]
    fn a_run_of_this_boot_and_namespace_is_dead_when_its_process_is() {
        assert!(!is_dead(&with(0, "h"), Some(i64::MAX)), "it lives, however old its objects are");
        // Above the most that Linux gives to a process.
        assert!(is_dead(&with(3, "4194305"), None));
        // A process that is there with the number of another, which ended.
        let parent = std::os::unix::process::parent_id().to_string();
        for (process, start) in [(std::process::id().to_string(), "1"), (parent, "1")] {
            let name = with(3, &process);
            let reused = name.rsplitn(3, '.').collect::<Vec<_>>();
            let name = format!("{}.{start}.{}", reused[2], reused[0]);
            assert!(is_dead(&name, None), "{name}");
        }
    }

    #[test]
    fn any_other_run_is_dead_when_its_objects_are_a_day_old() {
        let others = [
            // Another machine, or this one before it was started again; another container; a
            // prefix of earlier builds.
            with(1, "11111111-1111-1111-1111-111111111111"),
            with(2, "4026531000"),
            format!("{}.1.5f", host()),
            "17c2d5f0-33".into(),
            with(3, "0"),
            with(3, "-1"),
            with(4, "0"),
        ];
        for other in others {
            assert!(
                !is_dead(&other, None) && !is_dead(&other, Some(UNKNOWN_DEAD_AFTER_S)),
                "{other}"
            );
            assert!(is_dead(&other, Some(UNKNOWN_DEAD_AFTER_S + 1)), "{other}");
        }
    }
}
