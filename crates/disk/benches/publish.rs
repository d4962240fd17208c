//! What it costs to give a chunk a file and a name, by each way there is: the reason for the one
//! the tier takes.
//!
//! `cargo bench -p kvtier-disk --bench publish`: microseconds of CPU and of wall time a file of 1
//! MiB, its space reserved, nothing written; medians of turns that alternate.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use nix::fcntl::{
    AT_FDCWD, AtFlags, FallocateFlags, OFlag, RenameFlags, fallocate, open, renameat2,
};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::stat::Mode;
use nix::unistd::linkat;

const LEN: i64 = 1 << 20;

fn main() {
    let smoke = std::env::args().any(|arg| arg == "--test");
    let (turns, files) = if smoke { (1, 4) } else { (15, 100) };
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // The last says whether the way starts from files that are there.
    let ways: [(&str, Way, bool); 4] = [
        ("open by name, rename", by_rename, false),
        ("the same over a file that has the name", by_rename_over, true),
        ("O_TMPFILE, linkat", by_link, false),
        ("a victim's file renamed, opened, renamed", by_recycling, true),
    ];
    let mut times: Vec<Vec<(f64, f64)>> = vec![Vec::new(); ways.len()];
    for _ in 0..turns {
        for ((_, way, from_old), times) in ways.iter().zip(&mut times) {
            times.push(turn(dir.path(), files, *way, *from_old));
        }
    }
    println!("| way | CPU µs | wall µs |");
    println!("|---|---|---|");
    for ((name, ..), times) in ways.iter().zip(times) {
        let median = |which: fn(&(f64, f64)) -> f64| {
            let mut values: Vec<f64> = times.iter().map(which).collect();
            values.sort_unstable_by(f64::total_cmp);
            values[values.len() / 2]
        };
        println!("| {name} | {:.0} | {:.0} |", median(|t| t.0), median(|t| t.1));
    }
}

type Way = fn(&Path, u64);

/// (CPU, wall) microseconds a file of one turn in an empty directory, where the way finds what it
/// needs.
fn turn(dir: &Path, files: u64, way: Way, from_old: bool) -> (f64, f64) {
    let own = tempfile::tempdir_in(dir).unwrap();
    for n in (0..files).filter(|_| from_old) {
        make(&own.path().join(format!("old-{n}")));
    }
    let cpu = cpu_us();
    let began = Instant::now();
    (0..files).for_each(|n| way(own.path(), n));
    let wall = began.elapsed().as_secs_f64() * 1e6;
    ((cpu_us() - cpu) / files as f64, wall / files as f64)
}

fn make(path: &Path) -> File {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_DIRECT | OFlag::O_CLOEXEC;
    let file = File::from(open(path, flags, Mode::from_bits_truncate(0o644)).unwrap());
    let _ = fallocate(&file, FallocateFlags::empty(), 0, LEN);
    file
}

fn by_rename(dir: &Path, n: u64) {
    let draft = dir.join("draft");
    drop(make(&draft));
    renameat2(
        AT_FDCWD,
        &draft,
        AT_FDCWD,
        &dir.join(format!("new-{n}")),
        RenameFlags::RENAME_NOREPLACE,
    )
    .unwrap();
}

fn by_rename_over(dir: &Path, n: u64) {
    let draft = dir.join("draft");
    drop(make(&draft));
    std::fs::rename(&draft, dir.join(format!("old-{n}"))).unwrap();
}

fn by_link(dir: &Path, n: u64) {
    let flags = OFlag::O_WRONLY | OFlag::O_TMPFILE | OFlag::O_DIRECT | OFlag::O_CLOEXEC;
    let file = open(dir, flags, Mode::from_bits_truncate(0o644)).unwrap();
    let _ = fallocate(&file, FallocateFlags::empty(), 0, LEN);
    linkat(&file, "", AT_FDCWD, &dir.join(format!("new-{n}")), AtFlags::AT_EMPTY_PATH).unwrap();
}

fn by_recycling(dir: &Path, n: u64) {
    let draft = dir.join("draft");
    std::fs::rename(dir.join(format!("old-{n}")), &draft).unwrap();
    drop(
        open(&draft, OFlag::O_WRONLY | OFlag::O_DIRECT | OFlag::O_CLOEXEC, Mode::empty()).unwrap(),
    );
    renameat2(
        AT_FDCWD,
        &draft,
        AT_FDCWD,
        &dir.join(format!("new-{n}")),
        RenameFlags::RENAME_NOREPLACE,
    )
    .unwrap();
}

fn cpu_us() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let us = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 * 1e6 + time.tv_usec() as f64;
    us(usage.user_time()) + us(usage.system_time())
}
