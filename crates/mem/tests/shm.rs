//! Shared memory between two processes, one of which is killed. The test runs itself again as the
//! other process.
#![cfg(not(shuttle))]
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};

use kvtier_mem::{Arena, ArenaConfig, Attached, Descriptor, ErrorKind, Place, sweep};

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
fn read_line(child: &mut Child) -> String {
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    lines
        .map(Result::unwrap)
        .find_map(|line| line.rsplit_once("say ").map(|(_, said)| said.to_owned()))
        .unwrap()
}

/// What the other process does; nothing when the tests are run as such.
#[test]
#[allow(clippy::print_stdout)]
fn the_other_process() {
    match std::env::var(OTHER).as_deref() {
        Ok("name") => {
            let arena = Arena::new(ArenaConfig::named("kvtier-test-dying", 1 << 20)).unwrap();
            println!("say {}", arena.name().unwrap());
            wait_to_be_killed();
        }
        Ok(what) if what.starts_with("connect ") => makes_and_sends(&what["connect ".len()..]),
        Ok(attach) => {
            // "pid fd offset": the maker's descriptor, through /proc, as a socket would have passed
            // it on.
            let mut parts = attach.split(' ');
            let mut next = || parts.next().unwrap().to_owned();
            let path = format!("/proc/{}/fd/{}", next(), next());
            let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
            let shared = Attached::new(file.into()).unwrap();
            let descriptor = Descriptor { offset: next().parse().unwrap(), len: LEN as u64 };
            let mut bytes = vec![0; LEN];
            // SAFETY: the maker lent exactly this to us alone.
            unsafe { shared.read(descriptor, &mut bytes) }.unwrap();
            assert!(bytes == pattern(1));
            // SAFETY: the same.
            unsafe { shared.write(descriptor, &pattern(2)) }.unwrap();
            println!("say done");
            wait_to_be_killed();
        }
        Err(_) => {}
    }
}

/// Makes an arena, lends a part of it and leaves another to be read, passes both on, and waits to
/// be killed.
fn makes_and_sends(socket: &str) {
    let mut socket =
        UnixStream::connect_addr(&SocketAddr::from_abstract_name(socket).unwrap()).unwrap();
    let arena = Arena::new(ArenaConfig::memfd(4 << 20)).unwrap();
    arena.send(&socket).unwrap();
    let mut lease = arena.lease(LEN).unwrap();
    lease.write_at(0, &pattern(3)).unwrap();
    let lent = arena.lend(lease).unwrap();
    let mut lease = arena.lease(LEN).unwrap();
    lease.write_at(0, &pattern(4)).unwrap();
    let view = lease.freeze().slice(1..LEN);
    for descriptor in [lent.descriptor(), arena.describe(&view).unwrap()] {
        socket.write_all(&descriptor.to_bytes()).unwrap();
    }
    wait_to_be_killed();
}

/// Waits as long as the test that started this process lives, and kills it.
fn wait_to_be_killed() {
    drop(std::io::stdin().lines().next());
}

#[test]
fn an_arena_passed_over_a_socket_outlives_its_maker() {
    let name = format!("kvtier-test-{}", std::process::id());
    let listener =
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let mut child = other(&format!("connect {name}"));
    let (mut socket, _) = listener.accept().unwrap();
    let shared = Attached::receive(&socket).unwrap();
    let mut received = [[0; 16]; 2];
    received.iter_mut().for_each(|bytes| socket.read_exact(bytes).unwrap());
    let [lent, shown] = received.map(Descriptor::from_bytes);
    child.kill().unwrap();
    child.wait().unwrap();

    assert_eq!((shared.len(), lent.len, shown.len), (4 << 20, LEN as u64, LEN as u64 - 1));
    let mut bytes = vec![0; LEN - 1];
    // SAFETY: the maker is dead.
    unsafe { shared.read(shown, &mut bytes) }.unwrap();
    assert!(bytes == pattern(4)[1..]);
    // SAFETY: the maker lent exactly this to us alone, and is dead.
    let mut lease = unsafe { shared.lease(lent) }.unwrap();
    assert_eq!((lease.place(), lease.region()), (Place::Shm, Some(shared.region().id)));
    drop(shared);
    lease.assume_filled(LEN);
    assert!(lease.as_host().unwrap() == pattern(3));
    lease.write_at(0, &pattern(5)).unwrap();
    assert!(lease.freeze().as_ref() == pattern(5));
}

#[test]
fn memory_that_is_not_an_arena_is_refused() {
    let (mut here, there) = UnixStream::pair().unwrap();
    here.set_read_timeout(Some(std::time::Duration::from_millis(10))).unwrap();
    assert_eq!(Attached::receive(&here).unwrap_err().kind(), ErrorKind::Io, "nothing came");
    let heap = Arena::new(ArenaConfig::heap(4096)).unwrap();
    assert_eq!(heap.send(&there).unwrap_err().kind(), ErrorKind::Unsupported);
    here.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    assert_eq!(Attached::receive(&there).unwrap_err().kind(), ErrorKind::Invalid, "other words");
    drop(here);
    while Attached::receive(&there).unwrap_err().kind() == ErrorKind::Invalid {}
    assert_eq!(Attached::receive(&there).unwrap_err().kind(), ErrorKind::Io, "no peer");
    assert_eq!(
        Arena::new(ArenaConfig::memfd(4096)).unwrap().send(&there).unwrap_err().kind(),
        ErrorKind::Io
    );
    assert_eq!(
        Attached::new(std::fs::File::open("/dev").unwrap().into()).unwrap_err().kind(),
        ErrorKind::Invalid
    );
}

#[test]
fn a_named_arena_is_opened_by_its_name_and_never_seen_half_made() {
    let arena = Arena::new(ArenaConfig::named("kvtier-test-open", 8192)).unwrap();
    let name = arena.name().unwrap();
    let meta = std::fs::metadata(std::path::Path::new("/dev/shm").join(&name)).unwrap();
    assert_eq!(
        (meta.len(), meta.blocks() * 512, meta.mode() & 0o777),
        (8192, 8192, 0o600),
        "all of it is reserved"
    );
    // SAFETY: `arena` lives, and nothing else has the name.
    let shared = unsafe { Attached::open(&name) }.unwrap();
    let mut lease = arena.lease(5).unwrap();
    lease.write_at(0, b"hello").unwrap();
    let lent = arena.lend(lease).unwrap();
    let mut word = [0; 5];
    // SAFETY: it is lent to us, here and below.
    unsafe { shared.read(lent.descriptor(), &mut word) }.unwrap();
    assert_eq!(&word, b"hello");
    // SAFETY: as above.
    unsafe { shared.write(lent.descriptor(), b"world") }.unwrap();
    assert_eq!(lent.reclaim(5).as_host().unwrap(), b"world");
    for (name, kind) in
        [("", ErrorKind::Invalid), ("../x", ErrorKind::Invalid), ("kvtier-none", ErrorKind::Io)]
    {
        // SAFETY: there is no such segment.
        assert_eq!(unsafe { Attached::open(name) }.unwrap_err().kind(), kind);
    }
}

#[test]
fn leaked_memory_is_never_leased_again() {
    let arena = Arena::new(ArenaConfig::memfd(4 * 4096)).unwrap();
    drop(arena.lend(arena.lease(4096).unwrap()).unwrap());
    let stats = arena.stats();
    assert_eq!((stats.free, stats.leaked), (3 * 4096, 4096));
    drop(arena.lend(arena.lease(4096).unwrap()).unwrap().reclaim(0));
    assert_eq!(arena.stats(), stats);
    let other = Arena::new(ArenaConfig::memfd(4096)).unwrap();
    assert!(arena.lend(other.lease(1).unwrap()).is_err(), "of another arena");
    assert!(arena.describe(&vec![1].into()).is_none());
}

#[test]
fn a_locked_segment_is_kept_even_if_its_maker_seems_dead() {
    // As the maker in another container would: its number says nothing here.
    let name = "kvtier-test-lock.4294967295.1.0";
    let path = std::path::Path::new("/dev/shm").join(name);
    let file = std::fs::File::create(&path).unwrap();
    file.try_lock().unwrap();
    assert_eq!(sweep("kvtier-test-lock").unwrap().kept, [name]);
    // Unlocked, not only dropped: a test beside this one forks, and its child has the file open too
    // for a moment.
    file.unlock().unwrap();
    drop(file);
    assert_eq!(sweep("kvtier-test-lock").unwrap().removed, [name]);
    assert!(!path.exists());
}

#[test]
fn a_forked_child_leaves_its_parents_name_alone() {
    let arena = Arena::new(ArenaConfig::named("kvtier-test-fork", 4096)).unwrap();
    let path = std::path::Path::new("/dev/shm").join(arena.name().unwrap());
    // SAFETY: the child only drops an arena, whose one lock is the allocator's, which glibc keeps
    // usable after a fork, and ends.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            drop(arena);
            // SAFETY: ends the process; there is nothing to clean up.
            unsafe { nix::libc::_exit(0) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            nix::sys::wait::waitpid(child, None).unwrap();
            assert!(path.exists());
        }
    }
    drop(arena);
    assert!(!path.exists());
}

#[test]
fn lent_memory_is_shared_and_survives_the_other_process() {
    let arena = Arena::new(ArenaConfig::memfd(4 << 20)).unwrap();
    let _before = arena.lease(8192).unwrap();
    let mut lease = arena.lease(LEN).unwrap();
    lease.write_at(0, &pattern(1)).unwrap();
    let lent = arena.lend(lease).unwrap();
    assert_eq!(lent.descriptor().offset, 8192);
    let fd = arena.fd().unwrap().as_raw_fd();
    let mut child = other(&format!("{} {fd} {}", std::process::id(), lent.descriptor().offset));
    assert_eq!(read_line(&mut child), "done");
    child.kill().unwrap();
    child.wait().unwrap();
    let lease = lent.reclaim(LEN);
    assert!(lease.as_host().unwrap() == pattern(2));
    drop(lease);
    assert!(arena.lease(LEN).is_ok());
}

#[test]
fn only_segments_of_dead_processes_are_swept() {
    let alive = Arena::new(ArenaConfig::named("kvtier-test-dying", 1 << 20)).unwrap();
    let mut child = other("name");
    let name = read_line(&mut child);
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
fn segments_of_other_programs_are_kept() {
    let odd = [
        "kvtier-test-odd.x.1.1",
        "kvtier-test-odd.1.1",
        "kvtier-test-odder.999999999.1.1",
        "kvtier-test-odd.1.2.3.4",
    ];
    let paths = odd.map(|name| std::path::Path::new("/dev/shm").join(name));
    paths.iter().for_each(|path| std::fs::write(path, "x").unwrap());
    assert_eq!(sweep("kvtier-test-odd").unwrap().removed, [""; 0]);
    assert!(paths.iter().all(|path| path.exists()));
    paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    for bad in ["", "a/b", "a.b", "ä"] {
        assert_eq!(sweep(bad).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(
            Arena::new(ArenaConfig::named(bad, 4096)).unwrap_err().kind(),
            ErrorKind::Invalid
        );
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
        // SAFETY: nothing writes to this arena.
        let read = unsafe { shared.read(Descriptor { offset, len }, &mut byte) };
        assert_eq!(read.unwrap_err().kind(), ErrorKind::Invalid);
    }
    // SAFETY: the same.
    unsafe { shared.read(Descriptor { offset: 8191, len: 1 }, &mut byte) }.unwrap();
    assert!(arena.lend(Vec::<u8>::new().into()).is_err(), "not of this arena");
    let mut file = std::fs::File::from(arena.fd().unwrap().try_clone_to_owned().unwrap());
    assert!(file.set_len(4096).is_err(), "its size is sealed");
    file.write_all(b"x").unwrap();
    let none = std::fs::File::open("/dev/null").unwrap().into();
    assert!(Attached::new(none).is_err());
    // Memory that another process could shrink.
    let named = Arena::new(ArenaConfig::named("kvtier-test-unsealed", 8192)).unwrap();
    let fd = named.fd().unwrap().try_clone_to_owned().unwrap();
    assert_eq!(Attached::new(fd).unwrap_err().kind(), ErrorKind::Invalid);
    let (there, _here) = UnixStream::pair().unwrap();
    assert_eq!(named.send(&there).unwrap_err().kind(), ErrorKind::Unsupported);
}
