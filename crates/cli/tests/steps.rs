//! Killed at every step: `strace` kills the command at the first, the second, ... call of each kind
//! that changes a file, until a run gets through. After each kill the next start finds nothing
//! wrong and nothing unfinished.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The calls that make, name, fill, swap and delete files; those that write manifest, ledger,
/// journal and snapshot are `write` and `pwrite64`. Counted for each thread by itself.
const CALLS: [&str; 9] = [
    "mkdir",
    "openat",
    "fallocate",
    "write",
    "pwrite64",
    "rename",
    "renameat",
    "renameat2",
    "unlinkat",
];
/// The most calls of a kind that one thread makes in the run; the first 256 directories are made in
/// a loop and sampled.
const STEPS_MAX: usize = 1000;

fn kvtier(path: &Path, seed: usize) -> Vec<String> {
    let words = "replay --chunk-bytes 5000 --requests 8 --concurrency 2 --peers 0 --host-bytes 32KiB --file-bytes 200KiB --json --path";
    let words =
        [env!("CARGO_BIN_EXE_kvtier")].into_iter().chain(words.split(' ')).map(str::to_owned);
    // New contents at every step: a full directory stays full, and saves go on.
    words
        .chain([path.to_str().unwrap().to_owned(), "--seed".to_owned(), seed.to_string()])
        .collect()
}

fn run(words: &[String]) -> Output {
    Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).output().unwrap()
}

/// Runs the command until its `n`th call of a kind in any one thread; answers whether it was killed
/// there.
fn killed_at(call: &str, n: usize, path: &Path) -> bool {
    let inject = format!("inject={call}:signal=SIGKILL:when={n}");
    let strace =
        ["strace", "-f", "-qqq", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e", &inject]
            .map(str::to_owned);
    let out = run(&[&strace[..], &kvtier(path, n)].concat());
    // Killed, and not ended by itself for another reason: strace ends as the command did.
    assert!(
        out.status.success() || out.status.signal() == Some(9),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    !out.status.success()
}

/// The next start serves no wrong byte and clears what was left; afterwards books and files agree.
fn check(path: &Path, seed: usize, after: &str) {
    let out = run(&kvtier(path, seed));
    assert!(out.status.success(), "{after}: {}", String::from_utf8_lossy(&out.stderr));
    let replay: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        (&replay["wrong_bytes"], &replay["failures"]),
        (&Value::from(0), &Value::from(0)),
        "{after}"
    );
    let words =
        [env!("CARGO_BIN_EXE_kvtier"), "stat", path.to_str().unwrap(), "--json"].map(str::to_owned);
    let stat: Value = serde_json::from_slice(&run(&words).stdout).unwrap();
    assert_eq!(stat["unfinished"], 0, "{after}: {stat}");
    assert_eq!(
        (stat["dead"].as_array().unwrap().len(), stat["living"].as_array().unwrap().len()),
        (0, 0),
        "{after}"
    );
    assert_eq!(stat["bytes"], stat["ledger_bytes"], "{after}: {stat}");
    assert!(stat["bytes"].as_u64().unwrap() <= 200 << 10, "{after}: {stat}");
    for list in ["strangers", "quarantine"] {
        assert!(stat[list].as_array().unwrap().is_empty(), "{after}: {stat}");
    }
}

#[test]
fn killed_at_every_call_that_changes_a_file_nothing_is_wrong_and_nothing_is_left() {
    if !Command::new("strace")
        .args(["-o", "/dev/null", "true"])
        .status()
        .is_ok_and(|status| status.success())
    {
        eprintln!("not tried: strace is missing or may not trace here (Debian package strace)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut kills = 0;
    for call in CALLS {
        // A fresh directory, so that what happens once in its life happens under the knife too.
        let path = dir.path().join(call);
        // Of a loop of 256 alike, the first, the last and some between.
        let steps = (1..STEPS_MAX)
            .filter(|n| !matches!(call, "mkdir" | "openat") || *n < 12 || n % 37 == 0);
        for n in steps {
            if !killed_at(call, n, &path) {
                break;
            }
            kills += 1;
            check(&path, n, &format!("killed at {call} number {n}"));
        }
    }
    eprintln!("{kills} kills");
    assert!(kills > 60, "only {kills} kills");
}
