//! One cap for several processes: stopped, killed and started at any moment, over a damaged ledger
//! and beside a program that deletes files, they never have more bytes in the directory than it
//! allows, and they use it again afterwards. The test runs itself as the processes.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvtier_core::key::KeyId;
use kvtier_core::mem::{Arena, ArenaConfig};
use kvtier_core::{Ctx, Digest, Key, Namespace, Save, Saved, Tier};
use kvtier_file::{EngineKind, FileConfig, FileTier, Layout};
use kvtier_testkit::Seed;
use kvtier_testkit::conformance::Fixture;

use common::bytes_there;

const WORKER: &str = "KVTIER_TEST_WORKER";
const CHUNKS: u64 = 40;
/// Longer than any machine needs for what is waited for.
const LATE: Duration = Duration::from_secs(120);

/// Payload bytes of a chunk: in a layout of whole files not a number of whole pages.
fn len(layout: Layout) -> usize {
    if layout == Layout::LmcacheGds { 65_536 } else { 100_000 }
}

/// Bytes of a chunk's files.
fn file(layout: Layout) -> u64 {
    match layout {
        Layout::Kvtier => 25 * 4096 + 4096,
        Layout::LmcacheGds => 65_536 + 2 * 4096,
        _ => len(layout) as u64,
    }
}

fn cap(layout: Layout) -> u64 {
    CHUNKS * file(layout)
}

fn key(layout: Layout, n: u64) -> Key {
    let ns = Namespace::new("shared", Digest::default());
    match layout {
        Layout::LmcacheGds => {
            let text = format!("org/m@1@0@{:x}@bfloat16", 0x1a2b_3c4d_0000_0000 + n);
            Key::new(Arc::new(ns), KeyId::from_engine_text(&text).unwrap())
        }
        _ => Fixture::key_in(ns, n),
    }
}

fn open(dir: &Path, layout: Layout, engine: EngineKind) -> FileTier {
    let config =
        FileConfig::new(dir, cap(layout)).with_layout(layout).with_engine(engine).with_free_min(0);
    let config = config.with_namespace(Arc::new(Namespace::new("shared", Digest::default())));
    let config = config
        .with_flush_every(Duration::from_millis(50))
        .with_sweep_every(Duration::from_millis(200));
    let shaped = layout == Layout::LmcacheGds;
    FileTier::open(if shaped {
        config.with_chunk_shape("2x2x16x512".parse().unwrap())
    } else {
        config
    })
    .unwrap()
}

fn ctx() -> Ctx {
    Ctx::within(LATE)
}

fn save_op(arena: &Arena, layout: Layout, n: u64) -> Save {
    let mut lease = arena.lease(len(layout)).unwrap();
    lease.write_at(0, &vec![n as u8; len(layout)]).unwrap();
    Save { key: key(layout, n), from: vec![lease.freeze()] }
}

fn save(tier: &FileTier, arena: &Arena, layout: Layout, n: u64) -> Saved {
    tier.save(&ctx(), vec![save_op(arena, layout, n)]).wait().remove(0).result.unwrap()
}

/// Another process, which does as the first word says.
struct Process(Child);

impl Process {
    fn start(what: &str, dir: &Path, layout: Layout, seed: u64) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["the_worker", "--exact", "--nocapture", "--test-threads=1"])
            .env(WORKER, format!("{what} {layout} {seed} {}", dir.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut it = Process(child);
        it.says("open");
        it
    }

    fn says(&mut self, what: &str) {
        let out = BufReader::with_capacity(1, self.0.stdout.as_mut().unwrap());
        assert!(
            out.lines().map(Result::unwrap).any(|line| line.ends_with(&format!("say {what}"))),
            "{what}"
        );
    }

    fn proceed(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Returns when all its threads stand still.
    fn stop(&self) {
        common::stop(&self.0);
    }

    fn go_on(&self) {
        common::go_on(&self.0);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What another process does; nothing when the tests are run as such.
#[test]
fn the_worker() {
    let Ok(task) = std::env::var(WORKER) else { return };
    let words: Vec<&str> = task.splitn(4, ' ').collect();
    let layout = words[1].parse().unwrap();
    let seed = words[2].parse().unwrap();
    let dir = Path::new(words[3]);
    match words[0] {
        "claim" => claim_much(dir, layout),
        _ => save_at_random(dir, layout, seed),
    }
}

/// Saves and removes on three threads until its standard input ends.
fn save_at_random(dir: &Path, layout: Layout, seed: u64) {
    let tier = open(
        dir,
        layout,
        if seed.is_multiple_of(2) { EngineKind::Threads } else { EngineKind::Auto },
    );
    let stop = AtomicBool::new(false);
    println!("\nsay open");
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let tier = &tier;
            let stop = &stop;
            scope.spawn(move || {
                let arena = Arena::new(ArenaConfig::heap(4 << 20)).unwrap();
                let mut seed = Seed::new(100 * seed + thread);
                while !stop.load(Ordering::Relaxed) {
                    let n = seed.below(8 * CHUNKS);
                    match seed.below(10) {
                        0 => drop(tier.remove(&ctx(), [key(layout, n)].into()).wait()),
                        // What a file that is deleted at this moment does to a save is no matter of
                        // the cap.
                        _ => drop(tier.save(&ctx(), vec![save_op(&arena, layout, n)]).wait()),
                    }
                }
            });
        }
        let _ = std::io::stdin().lines().next();
        stop.store(true, Ordering::Relaxed);
    });
    drop(tier);
    println!("\nsay end");
}

/// Saves as many chunks at once as fit, which wait for bounce memory of one chunk.
fn claim_much(dir: &Path, layout: Layout) {
    let config = FileConfig::new(dir, cap(layout))
        .with_layout(layout)
        .with_bounce(len(layout).next_multiple_of(4096));
    let tier = FileTier::open(config).unwrap();
    let arena = Arena::new(ArenaConfig::heap(64 << 20)).unwrap();
    println!("\nsay open");
    let _ = std::io::stdin().lines().next();
    let ops = (0..CHUNKS).map(|n| {
        // Unaligned: it goes through bounce memory.
        let lease = arena.lease(len(layout) + 512).unwrap();
        let mut rest = lease.split_at(512).1;
        rest.write_at(0, &vec![7; len(layout)]).unwrap();
        Save { key: key(layout, 10_000 + n), from: vec![rest.freeze().slice(0..len(layout))] }
    });
    let saves = tier.save(&ctx(), ops.collect());
    println!("\nsay begun");
    drop(saves.wait());
    println!("\nsay end");
    let _ = std::io::stdin().lines().next();
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let late = Instant::now() + LATE;
    while !is_so() {
        assert!(Instant::now() < late, "not within {LATE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// How a ledger is damaged while processes have it open.
fn damage(dir: &Path, kind: u64) {
    let ledger =
        fs::OpenOptions::new().read(true).write(true).open(dir.join(".kvtier/ledger")).unwrap();
    match kind {
        0 => ledger.set_len(0).unwrap(),
        1 => ledger.write_all_at(&[0; 32], 0).unwrap(),
        2 => ledger.set_len(12).unwrap(),
        _ => ledger.write_all_at(&[0; 8], 8).unwrap(),
    }
}

fn never_past_the_cap(layout: Layout, seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut seed = Seed::new(seed);
    let start = |n| Process::start("save", dir.path(), layout, n);
    let mut all: Vec<Process> = (0..3).map(start).collect();
    let nightly = std::env::var_os("KVTIER_NIGHTLY").is_some();
    let looks = if nightly { 3000 } else { 150 };
    let mut most = 0;
    for look in 0..looks {
        std::thread::sleep(Duration::from_millis(5 + seed.below(20)));
        all.iter().for_each(Process::stop);
        let there = bytes_there(dir.path());
        most = most.max(there);
        assert!(
            there <= cap(layout),
            "{layout}, look {look}: {there} bytes, and the cap is {}",
            cap(layout)
        );
        if look % 15 == 3 {
            damage(dir.path(), seed.below(4));
        }
        // One may stand still until a later look.
        let still = if look % 15 == 11 { seed.below(3) } else { 3 };
        all.iter().zip(0..).filter(|(_, n)| *n != still).for_each(|(process, _)| process.go_on());
        if look % 15 == 7 {
            all[seed.below(3) as usize] = start(100 + look);
        }
    }
    assert!(most > cap(layout) * 8 / 10, "{layout}: at most {most} bytes of {}", cap(layout));
    all.iter().for_each(Process::go_on);
    eventually("the cap is used again", || bytes_there(dir.path()) > cap(layout) * 8 / 10);
    for process in &mut all {
        process.proceed();
        process.says("end");
    }
}

#[test]
fn processes_that_are_stopped_killed_and_started_never_pass_the_cap() {
    never_past_the_cap(Layout::Kvtier, 1);
}

#[test]
fn nor_in_a_layout_of_whole_files() {
    never_past_the_cap(Layout::LmcacheMp, 2);
}

#[test]
fn nor_in_a_layout_of_two_files_a_chunk() {
    never_past_the_cap(Layout::LmcacheGds, 3);
}

/// A process that has claimed nearly all of the cap and written little of it.
fn claimer(dir: &Path, layout: Layout) -> Process {
    let mut claimer = Process::start("claim", dir, layout, 0);
    claimer.proceed();
    claimer.says("begun");
    eventually("most of it is claimed", || common::ledger(dir) >= cap(layout) * 8 / 10);
    claimer.stop();
    claimer
}

/// However long it is stopped, and while another process needs the space: that process evicts
/// chunks, and the claims stay.
#[test]
fn a_process_that_is_stopped_keeps_what_it_claimed() {
    for layout in [Layout::Kvtier, Layout::LmcacheMp] {
        let dir = tempfile::tempdir().unwrap();
        let other = open(dir.path(), layout, EngineKind::Threads);
        let arena = Arena::new(ArenaConfig::heap(4 << 20)).unwrap();
        let mut stopped = claimer(dir.path(), layout);
        // Longer than a check of the ledger takes to be made twice.
        let end = Instant::now() + Duration::from_secs(8);
        let mut n = 0;
        while Instant::now() < end {
            let _shed_or_stored = save(&other, &arena, layout, n);
            n += 1;
            assert!(bytes_there(dir.path()) <= cap(layout), "{layout}");
        }
        stopped.go_on();
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            let there = bytes_there(dir.path());
            assert!(there <= cap(layout), "{layout}: {there} of {} after it went on", cap(layout));
        }
        stopped.says("end");
    }
}

#[test]
fn what_a_killed_process_had_claimed_is_free_at_once() {
    for layout in [Layout::Kvtier, Layout::LmcacheMp] {
        let dir = tempfile::tempdir().unwrap();
        let other = open(dir.path(), layout, EngineKind::Threads);
        let arena = Arena::new(ArenaConfig::heap(4 << 20)).unwrap();
        drop(claimer(dir.path(), layout));
        let published = bytes_there(dir.path()) / file(layout);
        for n in 0..CHUNKS {
            assert_eq!(
                save(&other, &arena, layout, n),
                Saved::Stored,
                "{layout}, {published} were there, chunk {n}"
            );
        }
        assert!(bytes_there(dir.path()) > cap(layout) * 8 / 10, "{layout}");
    }
}

/// Another program deletes files all the time while others save.
#[test]
fn files_that_are_deleted_do_not_shrink_a_busy_cache() {
    for processes in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::Kvtier;
        let mut all: Vec<_> =
            (0..processes).map(|n| Process::start("save", dir.path(), layout, n)).collect();
        let full = || common::files_bytes(dir.path()) >= cap(layout) * 9 / 10;
        eventually("it is full", full);
        let mut seed = Seed::new(processes);
        for _ in 0..60 {
            let mut files: Vec<_> = (0..=255)
                .flat_map(|shard| {
                    fs::read_dir(dir.path().join(format!("{shard:02x}")))
                        .into_iter()
                        .flatten()
                        .flatten()
                })
                .collect();
            if !files.is_empty() {
                let _ = fs::remove_file(
                    files.swap_remove(seed.below(files.len() as u64) as usize).path(),
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        eventually("it is full again, under load", full);
        for process in &mut all {
            process.proceed();
            process.says("end");
        }
    }
}
