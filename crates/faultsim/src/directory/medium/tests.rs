//! What is kept beside the files is what the files are, after every kind of call.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use nix::dir::Dir;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::UnlinkatFlags;

use super::durable::{UNNAMED_MAX, WRITTEN_BACK_AT};
use super::*;
use crate::directory::process::{OnStack, SimProcess};
use crate::directory::turn::Running;

/// The lengths of the files below a directory, by their paths.
fn lengths(root: &Path, dir: &Path, into: &mut BTreeMap<PathBuf, u64>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => lengths(root, &entry.path(), into),
            false => {
                let path = entry.path().strip_prefix(root).unwrap().to_owned();
                into.insert(path, entry.metadata().unwrap().len());
            }
        }
    }
}

/// The names of a directory and the numbers of its files, as it is listed.
fn listed(dir: &Path) -> Vec<KnownName> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = CString::new(entry.file_name().as_bytes()).unwrap();
        let is_dir = entry.file_type().unwrap().is_dir();
        names.push(KnownName { name, inode: if is_dir { 0 } else { entry.ino() } });
    }
    names.sort_by(|one, other| one.name.cmp(&other.name));
    names
}

fn is_right(medium: &Medium) {
    for dir in ["", "one", "two"].map(Path::new) {
        let there = medium.root().join(dir);
        let expected = there.is_dir().then(|| listed(&there));
        let path = if dir.as_os_str().is_empty() { medium.root() } else { &there };
        assert_eq!(medium.names_in(Name { dir: None, path }), expected, "{}", dir.display());
    }
    let mut there = BTreeMap::new();
    lengths(medium.root(), medium.root(), &mut there);
    let state = medium.lock();
    let files = state.names.iter().filter_map(|(path, entry)| match entry {
        Entry::File(number) => Some((path.to_owned(), state.files[&number].len())),
        Entry::Dir => None,
    });
    assert_eq!(files.collect::<BTreeMap<_, _>>(), there);
}

/// Runs this as a process of a simulation.
fn as_process(journal: Journal, what: fn(&Medium)) -> Arc<World> {
    let world = Arc::new(World::with_own_time(7, false));
    let medium = Arc::new(Medium::new(journal).unwrap());
    let process = Arc::new(SimProcess::new(1, 0, &world, &medium));
    let on_stack = Rc::new(OnStack(Arc::clone(&process)));
    let mut running = Running::new(0, on_stack, 1, move || what(&medium)).unwrap();
    while !running.has_ended() {
        running.go_on();
    }
    world
}

#[test]
fn lengths_are_known_after_each_call() {
    as_process(Journal::Ordered, |medium| {
        let at = medium.root().join("chunk");
        let new = || File::options().write(true).create(true).truncate(true).clone();
        let mut file = kvtier_os::open(&new(), &at).unwrap();
        is_right(medium);
        kvtier_os::write_all(&mut file, &[1; 300]).unwrap();
        is_right(medium);
        kvtier_os::write_all_at(&file, &[2; 300], 200).unwrap();
        is_right(medium);
        kvtier_os::set_len(&file, 40).unwrap();
        is_right(medium);
        kvtier_os::fallocate(&file, 5000).unwrap();
        assert_eq!(medium.chunk_bytes(), 5000);
        drop(kvtier_os::open(&new(), &at).unwrap());
        is_right(medium);
        assert_eq!(medium.chunk_bytes(), 0);
        kvtier_os::write_all_at(&file, &[3; 70], 0).unwrap();
        medium.set_faults(Faults { is_full: true, ..Faults::default() });
        while kvtier_os::write_all_at(&file, &[3; 900], 70).is_ok() {
            is_right(medium);
            kvtier_os::set_len(&file, 70).unwrap();
        }
        // A part of the write arrived.
        is_right(medium);
    });
}

#[test]
fn paths_are_known_where_directories_move_and_go() {
    as_process(Journal::None, |medium| {
        let root = medium.root();
        let flags = OFlag::O_RDWR | OFlag::O_CREAT;
        let create = |dir: &Dir, name: &str| {
            drop(kvtier_os::openat(dir.as_fd(), name, flags, Mode::S_IRUSR).unwrap());
            is_right(medium);
        };
        kvtier_os::create_dir(root.join("one")).unwrap();
        let dir = Dir::open(&root.join("one"), OFlag::O_DIRECTORY, Mode::empty()).unwrap();
        create(&dir, "a");
        create(&dir, "b");
        kvtier_os::rename(root.join("one"), root.join("two")).unwrap();
        is_right(medium);
        create(&dir, "c");
        kvtier_os::renameat(&dir, "c", &dir, "d").unwrap();
        is_right(medium);
        kvtier_os::hard_link(root.join("two/d"), root.join("two/e")).unwrap();
        kvtier_os::unlinkat(&dir, "d", UnlinkatFlags::NoRemoveDir).unwrap();
        is_right(medium);
        kvtier_os::remove_dir_all(root.join("two")).unwrap();
        is_right(medium);
        kvtier_os::create_dir(root.join("two")).unwrap();
        let dir = Dir::open(&root.join("two"), OFlag::O_DIRECTORY, Mode::empty()).unwrap();
        create(&dir, "f");
    });
}

/// What the ledger counts is read again after each change, by whomever.
#[test]
fn the_ledger_is_read_where_it_changed() {
    let world = Arc::new(World::with_own_time(7, false));
    let medium = Arc::new(Medium::new(Journal::Ordered).unwrap());
    let as_process = |what: fn(&Medium)| {
        let process = Arc::new(SimProcess::new(1, 0, &world, &medium));
        let medium = Arc::clone(&medium);
        let mut running = Running::new(0, Rc::new(OnStack(process)), 1, move || what(&medium));
        let running = running.as_mut().unwrap();
        while !running.has_ended() {
            running.go_on();
        }
    };
    let is_read = |expected: Option<u64>| {
        assert_eq!(medium.ledger_bytes(), expected);
        assert_eq!(kvtier_disk::inspect::ledger_bytes(medium.root()).ok().flatten(), expected);
    };
    /// A ledger that counts this.
    fn write(medium: &Medium, total: u8) {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(b"KVTLEDG2");
        bytes[8] = total;
        let sum = kvtier_key::BlockSums::from_bytes(&bytes[..28]).whole();
        bytes[28..].copy_from_slice(&sum.to_le_bytes());
        let at = medium.root().join(".kvtier/ledger");
        let file = kvtier_os::open(File::options().write(true).create(true), at).unwrap();
        kvtier_os::write_all_at(&file, &bytes, 0).unwrap();
    }
    is_read(None);
    as_process(|medium| {
        kvtier_os::create_dir(medium.root().join(".kvtier")).unwrap();
        write(medium, 4);
    });
    is_read(Some(4));
    as_process(|medium| write(medium, 9));
    is_read(Some(9));
    medium.damage(&mut Rng::with_seed(1)).unwrap();
    is_read(None);
    as_process(|medium| {
        kvtier_os::remove_file(medium.root().join(".kvtier/ledger")).unwrap();
        write(medium, 5);
    });
    is_read(Some(5));
    medium.crash(&world, &mut Rng::with_seed(1)).unwrap();
    let kept = kvtier_disk::inspect::ledger_bytes(medium.root()).ok().flatten();
    is_read(kept);
}

/// Files without names are forgotten in the end: each costs a descriptor.
#[test]
fn few_files_without_names_are_kept() {
    as_process(Journal::Ordered, |medium| {
        let at = medium.root().join("chunk");
        for _ in 0..3 * UNNAMED_MAX {
            let file = kvtier_os::open(File::options().write(true).create_new(true), &at).unwrap();
            kvtier_os::remove_file(&at).unwrap();
            kvtier_os::sync_all(&file).unwrap();
        }
        assert!(medium.lock().files.len() <= UNNAMED_MAX);
    });
}

/// Reads that answer fewer bytes are gone on with, to the end of the file or of what is wanted.
#[test]
fn short_reads_are_gone_on_with() {
    as_process(Journal::Ordered, |medium| {
        let at = medium.root().join("chunk");
        let mut file =
            kvtier_os::open(File::options().read(true).write(true).create_new(true), &at).unwrap();
        let bytes: Vec<u8> = (0..200).collect();
        kvtier_os::write_all(&mut file, &bytes).unwrap();
        medium.set_faults(Faults { short_transfers: true, ..Faults::default() });
        for _ in 0..50 {
            let mut into = [0; 300];
            assert_eq!(kvtier_os::read_at_least(&file, &mut into, 10, 300).unwrap(), 190);
            assert_eq!(into[..190], bytes[10..]);
            let got = kvtier_os::read_at_least(&file, &mut into, 10, 20).unwrap();
            assert!((20..=190).contains(&got), "{got}");
        }
    });
}

/// Writes that take fewer bytes without an error are gone on with, each part as a call of its own. A single write
/// answers how many it took, and of those of the change log the medium keeps the time.
#[test]
fn short_writes_are_gone_on_with() {
    let world = as_process(Journal::Ordered, |medium| {
        let at = medium.root().join("chunk");
        let mut file = kvtier_os::open(File::options().append(true).create_new(true), &at).unwrap();
        kvtier_os::create_dir(medium.root().join(".kvtier")).unwrap();
        let log = medium.root().join(".kvtier/changes.1");
        let log = kvtier_os::open(File::options().append(true).create_new(true), log).unwrap();
        medium.set_faults(Faults { short_transfers: true, ..Faults::default() });
        let bytes: Vec<u8> = (0..200).collect();
        (0..30).for_each(|_| kvtier_os::write_all(&mut file, &bytes).unwrap());
        assert_eq!(fs::read(&at).unwrap(), bytes.repeat(30));
        drop(file);
        let file = kvtier_os::open(File::options().write(true), &at).unwrap();
        for n in 0..30 {
            kvtier_os::write_all_at(&file, &bytes[n..], 100 * n as u64).unwrap();
            assert_eq!(fs::read(&at).unwrap()[100 * n..][..200 - n], bytes[n..]);
        }
        is_right(medium);
        assert!(medium.cut_batches().is_empty());
        let taken: Vec<usize> = (0..30).map(|_| kvtier_os::write(&log, &bytes).unwrap()).collect();
        let short = taken.iter().filter(|taken| **taken < 200).count();
        assert!((5..25).contains(&short) && !taken.contains(&0), "{taken:?}");
        assert_eq!(medium.cut_batches().len(), short);
        is_right(medium);
    });
    let events = world.lock().events;
    assert!(events > 90 + 30, "{events}: each write that went on is another call");
}

/// Without a journal too, where nothing but a sync of their directory makes names durable.
#[test]
fn few_files_without_names_are_kept_where_a_crash_could_bring_them_back() {
    as_process(Journal::None, |medium| {
        kvtier_os::create_dir(medium.root().join("other")).unwrap();
        let other = File::open(medium.root().join("other")).unwrap();
        let at = medium.root().join("chunk");
        for _ in 0..3 * WRITTEN_BACK_AT {
            drop(kvtier_os::open(File::options().write(true).create_new(true), &at).unwrap());
            kvtier_os::remove_file(&at).unwrap();
            kvtier_os::sync_all(&other).unwrap();
        }
        assert!(medium.lock().files.len() <= WRITTEN_BACK_AT + 1);
    });
}

/// The names that a crash keeps which leaves nothing that is not durable.
fn durable(medium: &Medium) -> Vec<String> {
    let names = medium.lock().durable_names.sorted(|_, _| true);
    names.into_iter().map(|(path, _)| path.display().to_string()).collect()
}

/// Without a journal a sync of a directory makes its own names durable and no others, also of a rename from one
/// to the other. With one it makes all durable.
#[test]
fn a_sync_of_a_directory_makes_durable_what_the_journal_says() {
    fn run(medium: &Medium) {
        let root = medium.root();
        let sync = |dir: &str| kvtier_os::sync_all(&File::open(root.join(dir)).unwrap()).unwrap();
        kvtier_os::create_dir(root.join("from")).unwrap();
        kvtier_os::create_dir(root.join("to")).unwrap();
        sync("");
        let new = || File::options().write(true).create_new(true).clone();
        drop(kvtier_os::open(&new(), root.join("from/a")).unwrap());
        drop(kvtier_os::open(&new(), root.join("from/b")).unwrap());
        sync("from");
        assert_eq!(durable(medium), ["from", "from/a", "from/b", "to"]);
        kvtier_os::rename(root.join("from/a"), root.join("to/a")).unwrap();
        kvtier_os::remove_file(root.join("from/b")).unwrap();
        sync("to");
        let has_journal = medium.lock().journal == Journal::Ordered;
        match has_journal {
            true => assert_eq!(durable(medium), ["from", "to", "to/a"]),
            false => assert_eq!(durable(medium), ["from", "from/a", "from/b", "to", "to/a"]),
        }
        sync("from");
        assert_eq!(durable(medium), ["from", "to", "to/a"]);
        // What a directory has moves with it.
        kvtier_os::rename(root.join("to"), root.join("new")).unwrap();
        sync("");
        assert_eq!(durable(medium), ["from", "new", "new/a"]);
    }
    as_process(Journal::None, run);
    as_process(Journal::Ordered, run);
}

/// Whether all that is in the directory has a time of the run.
fn times_are_virtual(medium: &Medium, dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let file = fs::metadata(entry.path()).unwrap();
        assert!(!times::is_of_host(file.mtime()), "{}", entry.path().display());
        if entry.file_type().unwrap().is_dir() {
            times_are_virtual(medium, &entry.path());
        }
    }
    assert!(!times::is_of_host(fs::metadata(medium.root()).unwrap().mtime()));
}

/// Every call that changes the time of a file or a directory leaves a virtual one: whole writes, torn ones, and
/// opens that cut.
#[test]
fn times_are_those_of_the_run() {
    as_process(Journal::Ordered, |medium| {
        let dir = medium.root().join("dir");
        kvtier_os::create_dir(&dir).unwrap();
        times_are_virtual(medium, medium.root());
        let at = dir.join("chunk");
        let new = || File::options().write(true).create(true).truncate(true).clone();
        let mut file = kvtier_os::open(&new(), &at).unwrap();
        times_are_virtual(medium, medium.root());
        kvtier_os::write_all(&mut file, &[1; 300]).unwrap();
        times_are_virtual(medium, medium.root());
        kvtier_os::write_all_at(&file, &[2; 300], 200).unwrap();
        times_are_virtual(medium, medium.root());
        drop(kvtier_os::open(&new(), &at).unwrap());
        times_are_virtual(medium, medium.root());
        medium.set_faults(Faults { is_full: true, ..Faults::default() });
        while kvtier_os::write_all_at(&file, &[3; 900], 0).is_ok() {}
        times_are_virtual(medium, medium.root());
        medium.set_faults(Faults::default());
        kvtier_os::rename(&at, medium.root().join("other")).unwrap();
        kvtier_os::remove_file(medium.root().join("other")).unwrap();
        times_are_virtual(medium, medium.root());
    });
}

/// Refused calls, failed ones, torn writes and the bytes of whole ones are in the digest.
#[test]
fn what_calls_did_is_in_the_digest() {
    let run = |what: fn(&Medium)| {
        let world = Arc::new(World::with_own_time(7, true));
        let medium = Arc::new(Medium::new(Journal::Ordered).unwrap());
        let process = Arc::new(SimProcess::new(1, 0, &world, &medium));
        let on_stack = Rc::new(OnStack(Arc::clone(&process)));
        let mut running = Running::new(0, on_stack, 1, move || what(&medium)).unwrap();
        while !running.has_ended() {
            running.go_on();
        }
        world.report(crate::Scope::Directory, 7)
    };
    fn open(medium: &Medium) -> File {
        let at = medium.root().join("chunk");
        kvtier_os::open(File::options().write(true).create(true), at).unwrap()
    }
    let one = run(|medium| kvtier_os::write_all(&mut open(medium), b"one").unwrap());
    let two = run(|medium| kvtier_os::write_all(&mut open(medium), b"two").unwrap());
    assert_ne!(one.digest, two.digest);
    assert!(one.trace[1].contains("p1 write #1 on: 3 bytes, "), "{one:?}");
    let torn = run(|medium| {
        let file = open(medium);
        medium.set_faults(Faults { is_full: true, ..Faults::default() });
        while kvtier_os::write_all_at(&file, &[3; 900], 0).is_ok() {}
        kvtier_os::create_dir(medium.root().join("dir")).unwrap_err();
        medium.set_faults(Faults::default());
        kvtier_os::remove_file(medium.root().join("nothing")).unwrap_err();
    });
    let last: Vec<&str> = torn.trace.iter().rev().take(3).map(|line| &line[11..]).collect();
    let expected = [
        "p1 remove nothing fails: ENOENT",
        "p1 create directory dir is refused: ENOSPC",
        "p1 write #1 fails: ENOSPC",
    ];
    assert_eq!(last, expected);
}
