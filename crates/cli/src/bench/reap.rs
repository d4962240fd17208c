//! Objects that a bench which was killed left in a bucket: the next bench removes them, as that of files does with directories.
//!
//! A bucket has no locks. A run's prefix names its host and its process instead: on the same host the process tells whether it lives; of
//! another host's run the newest object must be a day old.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use kvtier::s3::{Client, List};
use tokio::runtime::Runtime;

use crate::store::failed;

/// What the keys of all benches begin with.
const ROOT: &str = "kvtier-bench/";
/// After this many seconds without a new object, a run of another host is taken for dead.
const OTHER_HOST_DEAD_AFTER_S: i64 = 24 * 3600;
/// The most keys that one request deletes.
const KEYS_MAX: usize = 1000;

/// A prefix for the objects of this run alone.
pub fn prefix() -> String {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    format!("{ROOT}{}.{}.{nanos:x}/", host(), std::process::id())
}

/// Removes the objects of runs that are dead. Answers how many there were.
pub fn reap(client: &Client, runtime: &Runtime) -> Result<usize> {
    let (mut runs, mut now) = (BTreeMap::<String, Run>::new(), None);
    let (list, mut next) = (List::under(ROOT), None);
    loop {
        let page = runtime.block_on(client.list(&list, next.as_deref())).map_err(failed);
        let page = page.with_context(|| format!("cannot look for objects of earlier runs under {ROOT}"))?;
        now = now.or(page.date);
        for entry in page.entries {
            if let Some(name) = entry.key.strip_prefix(ROOT).and_then(|rest| rest.split_once('/')).map(|(name, _)| name)
            {
                let run = runs.entry(name.to_owned()).or_default();
                run.newest = run.newest.max(entry.modified);
                run.keys.push(entry.key);
            }
        }
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    let dead = runs.into_iter().filter(|(name, run)| is_dead(name, now.map(|now| now - run.newest)));
    let keys: Vec<String> = dead.flat_map(|(_, run)| run.keys).collect();
    for keys in keys.chunks(KEYS_MAX) {
        let refused = runtime.block_on(client.delete_many(keys)).map_err(failed);
        let refused =
            refused.with_context(|| format!("cannot remove objects that an earlier run left under {ROOT}"))?;
        refused.iter().for_each(|refused| {
            eprintln!("kvtier: {}, which an earlier run left, was not removed ({})", refused.key, refused.code);
        });
    }
    Ok(keys.len())
}

/// The objects of one run.
#[derive(Default)]
struct Run {
    keys: Vec<String>,
    /// When the newest was written, in seconds since 1970 by the store's clock.
    newest: i64,
}

/// Whether the run of this name has ended, as far as can be told; its newest object is `age_s` old, where the store says what time it is.
fn is_dead(name: &str, age_s: Option<i64>) -> bool {
    let process = name.strip_prefix(&format!("{}.", host())).and_then(|rest| rest.split_once('.'));
    if let Some((process, _)) = process.filter(|(process, _)| process.bytes().all(|b| b.is_ascii_digit())) {
        return !Path::new("/proc").join(process).exists();
    }
    age_s.is_some_and(|age_s| age_s > OTHER_HOST_DEAD_AFTER_S)
}

/// This host's name, as a part of a key.
fn host() -> String {
    let name = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_dead_when_its_process_is_or_when_it_is_another_hosts_and_a_day_old() {
        let ours = prefix();
        let ours = ours.strip_prefix(ROOT).unwrap().trim_end_matches('/');
        assert!(!is_dead(ours, Some(i64::MAX)), "it lives, however old its objects are");
        // Above the most that Linux gives to a process.
        let dead = ours.replacen(&std::process::id().to_string(), "4194305", 1);
        assert!(is_dead(&dead, None));
        for other in ["another-host.1.5f", "17c2d5f0-33"] {
            assert!(!is_dead(other, None) && !is_dead(other, Some(OTHER_HOST_DEAD_AFTER_S)), "{other}");
            assert!(is_dead(other, Some(OTHER_HOST_DEAD_AFTER_S + 1)), "{other}");
        }
    }
}
