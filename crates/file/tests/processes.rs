//! Several processes on one directory, killed at random: no wrong byte, one cap for all, and
//! whatever the dead did the living take over. The test runs itself again as the other processes.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kvtier_core::{Loaded, Saved};
use kvtier_file::{FileConfig, FileTier};
use kvtier_testkit::Seed;
use kvtier_testkit::conformance::Fixture;

use common::{FILE, LEN, bytes_there, files_bytes, go_on, ledger, stop};

const CHUNKS: u64 = 20;
const CAP: u64 = CHUNKS * FILE + FILE / 2;
/// Three times as many keys as the cap holds: every second save evicts.
const KEYS: u64 = 3 * CHUNKS;
const WORKER: &str = "KVTIER_TEST_WORKER";
/// Longer than any machine needs for what is waited for.
const LATE: Duration = Duration::from_secs(120);

fn open(dir: &Path) -> Fixture {
    Fixture::new(
        FileTier::open(FileConfig::new(dir, CAP).with_flush_every(Duration::from_millis(50)))
            .unwrap(),
    )
}

/// This test program again, running only `the_worker`.
fn worker(dir: &Path, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["the_worker", "--exact", "--nocapture", "--test-threads=1"])
        .env(WORKER, format!("{seed} {}", dir.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What another process does until its standard input ends; nothing when the tests are run as such.
/// Each hit is proven byte by byte.
#[test]
fn the_worker() {
    let Ok(task) = std::env::var(WORKER) else { return };
    let (seed, dir) = task.split_once(' ').unwrap();
    let mut seed = Seed::new(seed.parse().unwrap());
    let f = open(Path::new(dir));
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = std::sync::Arc::clone(&stop);
    std::thread::spawn(move || {
        let _ = std::io::stdin().lines().next();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    println!("say open");
    let mut hits = 0;
    let mut stored = 0;
    let late = Instant::now() + LATE;
    // A busy machine needs longer for as much.
    while !stopped.load(std::sync::atomic::Ordering::Relaxed)
        || (Instant::now() < late && (hits <= 10 || stored <= 10))
    {
        stored += u64::from(f.save(&f.key(seed.below(KEYS)), LEN) == Saved::Stored);
        hits += u64::from(matches!(f.load(&f.key(seed.below(KEYS)), LEN), Loaded::Hit { .. }));
    }
    drop(f);
    println!("say {hits} {stored}");
}

/// Locks two files, forks a child that shares the locks, and says so.
const FORKS: &str = r#"exec 8>>"$1" 9>>"$2"; flock 8; flock 9; (while :; do sleep 1; done) & echo "say forked"; wait"#;

/// The line by which a process is known to others, as `docs/FORMAT.md` has it.
fn line_of(pid: u32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let started = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().to_owned();
    let namespace = |kind: &str| {
        let link = fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap_or_default();
        link.to_str().unwrap().to_owned()
    };
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    format!("process: {pid} {started} {}{} {boot}", namespace("pid"), namespace("time"))
}

/// Ends what is left of a process group.
struct Group(nix::unistd::Pid);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = nix::sys::signal::killpg(self.0, nix::sys::signal::Signal::SIGKILL);
    }
}

#[test]
fn a_leader_that_is_killed_is_followed_though_its_child_keeps_its_locks() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let own = dir.path().join(".kvtier");
    let staging = own.join("tmp/host.1.1.0");
    let evictor = own.join("evictor");
    fs::create_dir(&staging).unwrap();
    let mut leader = Command::new("bash")
        .args(["-c", FORKS, "-"])
        .args([&staging.join("alive"), &evictor])
        .process_group(0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let group = Group(nix::unistd::Pid::from_raw(leader.id().cast_signed()));
    assert_eq!(next_line(&mut leader), "forked");
    let line = line_of(leader.id());
    [staging.join("alive"), evictor.clone()]
        .iter()
        .for_each(|file| fs::write(file, &line).unwrap());

    // It lives: no process takes its place.
    let f = open(dir.path());
    f.store(&f.keys(0..2), LEN);
    drop(f);
    assert!(staging.exists() && fs::read_to_string(&evictor).unwrap() == line);

    leader.kill().unwrap();
    leader.wait().unwrap();
    assert!(is_led(dir.path()), "its child has the lock");
    let f = open(dir.path());
    assert!(!staging.exists(), "it is dead");
    let ours = line_of(std::process::id());
    f.eventually("we lead", || fs::read_to_string(&evictor).is_ok_and(|by| by == ours));
    assert!(is_led(dir.path()));
    drop(f);
    assert!(!is_led(dir.path()), "though the child still lives");
    drop(group);
}

fn next_line(child: &mut Child) -> String {
    let out = child.stdout.as_mut().unwrap();
    let mut lines = BufReader::with_capacity(1, out).lines().map(Result::unwrap);
    lines
        .find_map(|line| line.rsplit_once("say ").map(|(_, said)| said.to_owned()))
        .expect("the worker spoke")
}

/// Whether a process holds the lock for merging journals and taking snapshots.
fn is_led(dir: &Path) -> bool {
    File::open(dir.join(".kvtier/evictor")).is_ok_and(|file| file.try_lock().is_err())
}

#[test]
fn processes_that_are_killed_cost_no_byte_and_the_living_take_over() {
    let dir = tempfile::tempdir().unwrap();
    let long = if std::env::var_os("KVTIER_NIGHTLY").is_some() { 180 } else { 10 };
    let end = Instant::now() + Duration::from_secs(long);
    let mut seed = Seed::new(7);
    let mut workers: Vec<Child> = (0..2).map(|n| worker(dir.path(), n)).collect();
    workers.iter_mut().for_each(|child| assert_eq!(next_line(child), "open"));
    let mut kills = 0;
    while Instant::now() < end || (kills <= long / 3 && Instant::now() < end + LATE) {
        std::thread::sleep(Duration::from_millis(500 + seed.below(1000)));
        // One dies at whatever it is doing; the other goes on alone for a while, and leads; then
        // there is a new one.
        let victim = seed.below(2) as usize;
        workers.iter().for_each(stop);
        let there = bytes_there(dir.path());
        assert!(there <= CAP, "kill {kills}: {there} bytes under a cap of {CAP}");
        // More may be counted: a file that a process made before it was killed, and was not granted.
        let counted = ledger(dir.path());
        assert!(counted >= there, "kill {kills}: {counted} bytes counted of {there}");
        workers[victim].kill().unwrap();
        workers[victim].wait().unwrap();
        go_on(&workers[1 - victim]);
        kills += 1;
        std::thread::sleep(Duration::from_millis(300));
        let late = Instant::now() + LATE;
        while !is_led(dir.path()) {
            assert!(Instant::now() < late, "no process replaced the dead one");
            std::thread::sleep(Duration::from_millis(10));
        }
        workers[victim] = worker(dir.path(), 100 + kills);
        assert_eq!(next_line(&mut workers[victim]), "open");
    }
    std::thread::sleep(Duration::from_secs(1));
    for mut child in workers {
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let said = next_line(&mut child);
        let (hits, stored) = said.split_once(' ').unwrap();
        assert!(child.wait().unwrap().success(), "a wrong byte, or a panic");
        assert!(hits.parse::<u64>().unwrap() > 10 && stored.parse::<u64>().unwrap() > 10, "{said}");
    }
    assert!(kills > long / 3, "{kills} kills");
    // What the dead left is found and counted anew by the next who is alone.
    drop(open(dir.path()));
    let on_disk = files_bytes(dir.path());
    assert_eq!(ledger(dir.path()), on_disk);
    assert!((CHUNKS / 2 * FILE..=CAP).contains(&on_disk), "{on_disk} bytes on disk");
    assert_eq!(fs::read_dir(dir.path().join(".kvtier/tmp")).unwrap().count(), 0);
    let quarantined = fs::read_dir(dir.path().join(".kvtier/quarantine")).unwrap().count();
    assert_eq!(quarantined, 0, "nothing that was published was damaged");
}
