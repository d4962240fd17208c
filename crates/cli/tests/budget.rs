//! How many system calls a chunk costs, counted by `strace`: what moves nothing and decides nothing
//! is not called.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

const CHUNK: u64 = 256 << 10;
/// What is done now and then while a busy machine takes its time, as a part of a chunk's; one call
/// more for each is twice that.
const WHILE: f64 = 0.5;

/// Calls by name of one run of the bench that moves `chunks` chunks.
fn calls(op: &str, chunks: u64, dir: &Path) -> BTreeMap<String, i64> {
    let counts = dir.join("counts");
    let gb = ((chunks * CHUNK) as f64 / 1e9).to_string();
    let size = CHUNK.to_string();
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-qq", "-c", "-U", "name,calls", "-o"])
        .arg(&counts)
        .arg(env!("CARGO_BIN_EXE_kvtier"));
    strace.args([
        "bench",
        "file",
        "--op",
        op,
        "--size",
        &size,
        "--concurrency",
        "4",
        "--gb",
        &gb,
        "--json",
        "--path",
    ]);
    let out = strace.arg(dir.join("kv")).stdin(Stdio::null()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = std::fs::read_to_string(counts).unwrap();
    let line = |line: &str| {
        let (name, count) = line.trim().split_once(char::is_whitespace)?;
        Some((name.to_owned(), count.trim().parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// What a chunk more costs, in calls by name.
fn for_a_chunk(op: &str) -> impl Fn(&str) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let few = calls(op, 40, dir.path());
    let many = calls(op, 140, dir.path());
    move |name| {
        let count = |calls: &BTreeMap<String, i64>| calls.get(name).copied().unwrap_or(0);
        (count(&many) - count(&few)) as f64 / 100.0
    }
}

#[test]
fn a_chunk_costs_no_call_that_is_not_needed() {
    if !Command::new("strace")
        .args(["-o", "/dev/null", "true"])
        .status()
        .is_ok_and(|status| status.success())
    {
        eprintln!("not tried: strace is missing or may not trace here (Debian package strace)");
        return;
    }
    // The bench removes what it saved: one unlinkat, one change of the ledger, and at most two
    // listings of shards more than the save itself.
    let put = for_a_chunk("put");
    for (name, most) in
        [("openat", 3.0), ("fallocate", 1.0), ("renameat2", 1.0), ("close", 3.0), ("unlinkat", 1.0)]
    {
        assert!((0.7..=most + WHILE).contains(&put(name)), "put: {} {name}", put(name));
    }
    for (name, most) in
        [("flock", 4.0), ("pread64", 3.0), ("pwrite64", 2.0), ("io_uring_enter", 4.0)]
    {
        assert!(put(name) <= most + WHILE, "put: {} {name}", put(name));
    }
    // Here the put before it is not measured apart: a get costs what is over that.
    let get = for_a_chunk("get");
    let alone = |name| get(name) - put(name);
    for (name, most) in [("openat", 1.0), ("statx", 1.0), ("close", 1.0), ("io_uring_enter", 4.0)] {
        assert!(alone(name) <= most + WHILE, "get: {} {name}", alone(name));
    }
    // The listings of the shards of what is removed. How many chunks one of them finds, each of which
    // it asks for its length, depends on the threads' turns.
    for (name, most) in [("newfstatat", 2.5), ("lseek", 2.0), ("getdents64", 4.0)] {
        assert!(
            put(name) <= most + WHILE && alone(name) <= WHILE,
            "put: {} {name}, get: {}",
            put(name),
            alone(name)
        );
    }
    for name in ["mmap", "munmap", "access", "faccessat2", "mkdir"] {
        assert!(
            put(name).abs() <= WHILE && alone(name).abs() <= WHILE,
            "put: {} {name}, get: {}",
            put(name),
            alone(name)
        );
    }
}
