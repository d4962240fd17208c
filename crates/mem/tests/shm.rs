//! Shared memory between two processes, one of which is killed. The test runs itself again as the other process.
#![cfg(not(shuttle))]
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use kvtier_mem::{Arena, ArenaConfig, Attached, Descriptor, ErrorKind, sweep};

const LEN: usize = 300_000;
const OTHER: &str = "KVTIER_TEST_OTHER_PROCESS";

fn pattern(seed: usize) -> Vec<u8> {
    (0..LEN).map(|i| (i * 31 + seed) as u8).collect()
}

/// This test program again, running only `the_other_process`, with standard input and output to us.
fn other(what: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["the_other_process", "--exact", "--nocapture", "--test-threads=1"])
        .env(OTHER, what)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The first line of the child's output that is meant for us.
fn hear(child: &mut Child) -> String {
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    lines.map(Result::unwrap).find_map(|line| line.rsplit_once("say ").map(|(_, said)| said.to_owned())).unwrap()
}

/// What the other process does; nothing when the tests are run as such.
#[test]
#[allow(clippy::print_stdout)]
fn the_other_process() {
    match std::env::var(OTHER).as_deref() {
        Ok("name") => {
            let arena = Arena::new(ArenaConfig::named("kvtier-test-dying", 1 << 20)).unwrap();
            println!("say {}", arena.name().unwrap());
            std::thread::sleep(std::time::Duration::from_secs(60));
        }
        Ok(attach) => {
            // "pid fd offset": the maker's descriptor, through /proc, as a socket would have passed it on.
            let mut parts = attach.split(' ');
            let mut next = || parts.next().unwrap().to_owned();
            let path = format!("/proc/{}/fd/{}", next(), next());
            let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
            let shared = Attached::new(file.into()).unwrap();
            let descriptor = Descriptor { offset: next().parse().unwrap(), len: LEN as u64 };
            let mut bytes = vec![0; LEN];
            shared.read(descriptor, &mut bytes).unwrap();
            assert!(bytes == pattern(1));
            shared.write(descriptor, &pattern(2)).unwrap();
            println!("say done");
            std::thread::sleep(std::time::Duration::from_secs(60));
        }
        Err(_) => {}
    }
}

#[test]
fn what_one_lends_the_other_reads_and_writes_and_survives_its_death() {
    let arena = Arena::new(ArenaConfig::memfd(4 << 20)).unwrap();
    let _before = arena.lease(8192).unwrap();
    let mut lease = arena.lease(LEN).unwrap();
    lease.write_at(0, &pattern(1)).unwrap();
    let lent = arena.lend(lease).unwrap();
    assert_eq!(lent.descriptor().offset, 8192);
    let fd = arena.fd().unwrap().as_raw_fd();
    let mut child = other(&format!("{} {fd} {}", std::process::id(), lent.descriptor().offset));
    assert_eq!(hear(&mut child), "done");
    child.kill().unwrap();
    child.wait().unwrap();
    let lease = lent.reclaim(LEN);
    assert!(lease.as_host().unwrap() == pattern(2));
    drop(lease);
    assert!(arena.lease(LEN).is_ok());
}

#[test]
fn only_segments_of_the_dead_are_swept() {
    let alive = Arena::new(ArenaConfig::named("kvtier-test-dying", 1 << 20)).unwrap();
    let mut child = other("name");
    let name = hear(&mut child);
    let first = sweep("kvtier-test-dying").unwrap();
    assert!(first.kept.contains(&name) && first.kept.contains(&alive.name().unwrap()));
    child.kill().unwrap();
    // Killed and not yet waited for is as dead as gone.
    while !sweep("kvtier-test-dying").unwrap().removed.contains(&name) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.wait().unwrap();
    assert!(std::path::Path::new("/dev/shm").join(alive.name().unwrap()).exists());
    let name = alive.name().unwrap();
    drop(alive);
    assert!(!std::path::Path::new("/dev/shm").join(name).exists());
}

#[test]
fn names_of_others_are_left_alone() {
    let odd =
        ["kvtier-test-odd.x.1.1", "kvtier-test-odd.1.1", "kvtier-test-odder.999999999.1.1", "kvtier-test-odd.1.2.3.4"];
    let paths = odd.map(|name| std::path::Path::new("/dev/shm").join(name));
    paths.iter().for_each(|path| std::fs::write(path, "x").unwrap());
    assert_eq!(sweep("kvtier-test-odd").unwrap().removed, [""; 0]);
    assert!(paths.iter().all(|path| path.exists()));
    paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    for bad in ["", "a/b", "a.b", "ä"] {
        assert_eq!(sweep(bad).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(Arena::new(ArenaConfig::named(bad, 4096)).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[test]
fn descriptors_that_reach_outside_are_refused() {
    let arena = Arena::new(ArenaConfig::memfd(8192)).unwrap();
    let fd = arena.fd().unwrap().try_clone_to_owned().unwrap();
    let shared = Attached::new(fd).unwrap();
    let mut byte = [0];
    let cases = [(0, 8193), (8192, 1), (u64::MAX, 1), (1, u64::MAX), (0, 0)];
    for (offset, len) in cases {
        assert_eq!(shared.read(Descriptor { offset, len }, &mut byte).unwrap_err().kind(), ErrorKind::Invalid);
    }
    shared.read(Descriptor { offset: 8191, len: 1 }, &mut byte).unwrap();
    assert!(arena.lend(Vec::<u8>::new().into()).is_err(), "not of this arena");
    let mut file = std::fs::File::from(arena.fd().unwrap().try_clone_to_owned().unwrap());
    assert!(file.set_len(4096).is_err(), "its size is sealed");
    file.write_all(b"x").unwrap();
    // SAFETY: a descriptor of our own that nobody else uses.
    let none = unsafe {
        OwnedFd::from_raw_fd(
            std::fs::File::open("/dev/null").unwrap().try_clone().map(std::os::fd::IntoRawFd::into_raw_fd).unwrap(),
        )
    };
    assert!(Attached::new(none).is_err());
}
