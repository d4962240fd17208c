//! What lookups may say while the change log and the index do not agree with the directory.

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;

use kvtier_core::{ManualClock, Namespace, Observe as _};
use kvtier_index::journal::Record;
use kvtier_key::{BlockSums, ChunkHash, Facts, KeyId, KvRank, ObjectKey};

use super::*;
use crate::corrupt_chunks::SUSPECTS_MAX;
use crate::index_age::{AGE_MAX, FOLLOW_EVERY};
use crate::inspect::{Directory, NewChunk};
use crate::ledger::Ledger;
use crate::mover::{Finish, Refused, Transfer};
use crate::{Layout, chunk_file_name, use_order};

pub const LEN: usize = 5000;

/// Moves nothing: no test here loads or saves.
#[derive(Debug)]
pub struct Idle;

impl Mover for Idle {
    fn submit(&self, transfer: Transfer, _done: Finish) -> Result<(), Refused> {
        Err(Refused { transfer, closed: true })
    }

    fn close(&self) {}

    fn describe(&self) -> String {
        "idle".into()
    }
}

/// A tier whose own rounds stand still.
pub fn open(dir: &Path) -> Disk<Idle> {
    open_on(&ManualClock::new(), dir)
}

/// A tier whose own rounds come when this clock is moved.
pub fn open_on(time: &ManualClock, dir: &Path) -> Disk<Idle> {
    let mut config = DiskConfig::new(dir, 1 << 20);
    config.clock = time.clock();
    Disk::open(config, Idle).unwrap()
}

/// The state of a tier.
pub fn shared_of(disk: &Disk<Idle>) -> &Arc<Shared<Idle>> {
    &disk.shared
}

/// Moves the clock until it is so.
pub fn in_time(time: &ManualClock, what: &str, is_so: impl Fn() -> bool) {
    let late = std::time::Instant::now() + std::time::Duration::from_secs(300);
    while !is_so() {
        assert!(std::time::Instant::now() < late, "{what}");
        time.advance(std::time::Duration::from_secs(1));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

pub fn key(n: u8) -> Key {
    let ns = Arc::new(Namespace::new("t", Digest::default()));
    Key::new(
        ns,
        KeyId::Object(ObjectKey::new("m", KvRank(0), 0, ChunkHash::new(&[n; 32]), "").unwrap()),
    )
}

/// Writes a chunk as another process does.
pub fn write(dir: &Path, key: &Key) {
    let payload = [7; LEN];
    let facts =
        Facts::plain(*key.digest(), key.namespace().digest(), BlockSums::from_bytes(&payload));
    let chunk = NewChunk { facts: &facts, canonical: &key.canonical(), payload: &payload };
    assert!(Directory::open(dir).unwrap().writer().unwrap().write(&chunk).unwrap());
}

/// Threads that were started would keep the state alive, and with it this process's registration.
#[test]
fn an_open_that_fails_late_leaves_neither_threads_nor_a_registration() {
    for layout in [Layout::Kvtier, Layout::LmcacheMp] {
        let dir = tempfile::tempdir().unwrap();
        let config = |bytes| {
            let mut config = DiskConfig::new(dir.path(), bytes);
            config.layout = layout;
            config
        };
        crate::snapshot_leader::FAILS.set(true);
        Disk::open(config(1 << 20), Idle).unwrap_err();
        let registered = fs::read_dir(dir.path().join(".kvtier/tmp")).unwrap().count();
        assert_eq!(registered, 0, "{layout}");
        // Beside a living process, another cap would be refused.
        drop(Disk::open(config(1 << 21), Idle).unwrap());
    }
}

#[test]
fn a_chunk_that_is_being_evicted_is_not_discovered() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let key = key(1);
    write(dir.path(), &key);
    let shared = &disk.shared;
    shared.follow_changes();
    assert_eq!(shared.known_len(key.digest()), Some(LEN as u64));
    assert!(matches!(
        shared.index().begin_evict(key.digest()),
        kvtier_index::RemoveOutcome::Gone(_)
    ));
    assert_eq!(shared.find_on_disk(&key, Some(LEN as u64)), None);
    assert!(shared.index().is_evicting(key.digest()));
}

#[test]
fn a_chunk_that_was_evicted_since_the_listing_is_not_entered_again() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let gone = key(1);
    let there = key(2);
    write(dir.path(), &gone);
    write(dir.path(), &there);
    let shared = &disk.shared;
    shared.follow_changes();
    let mut listed = Vec::new();
    shared.data_dir.list(|chunk| listed.push(chunk)).unwrap();
    listed.sort_unstable_by_key(|chunk| chunk.digest);
    let entry = match shared.index().begin_evict(gone.digest()) {
        kvtier_index::RemoveOutcome::Gone(entry) => entry,
        other => panic!("{other:?}"),
    };
    assert_eq!(shared.evict(vec![entry]), 1);
    let total = || Ledger::peek(&shared.data_dir.own()).unwrap();
    let before = total();
    shared.apply_listing(&listed).unwrap();
    assert_eq!(shared.known_len(gone.digest()), None);
    assert_eq!(shared.known_len(there.digest()), Some(LEN as u64));
    // Entered again, it would be evicted again, and its bytes released twice.
    let _ = shared.index().begin_evict(gone.digest());
    assert_eq!((before, total()), (Some(12_288), Some(12_288)));
}

#[test]
fn a_lookup_in_memory_finds_what_others_stored_a_little_later() {
    let (time, dir) = (ManualClock::new(), tempfile::tempdir().unwrap());
    let disk = open_on(&time, dir.path());
    let there = Presence::Hit { len: LEN as u64 };
    assert_eq!(disk.lookup_in_memory(&[key(1)]), [Presence::Miss], "listed a moment ago");
    write(dir.path(), &key(1));
    assert_eq!(disk.lookup_in_memory(&[key(1)]), [Presence::Miss], "it read the log itself");
    let late = std::time::Instant::now() + std::time::Duration::from_secs(300);
    while disk.lookup_in_memory(&[key(1)]) != [there] {
        assert!(std::time::Instant::now() < late, "the log is not read");
        time.advance(FOLLOW_EVERY);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // However long nothing happens, an absent key is a miss at once.
    in_time(&time, "the log is followed", || disk.shared.now_ms() > 5000);
    in_time(&time, "an absent key is a miss", || {
        disk.lookup_in_memory(&[key(2)]) == [Presence::Miss]
    });
}

#[test]
fn a_lookup_in_memory_waits_for_no_reader_of_the_change_log() {
    let (time, dir) = (ManualClock::new(), tempfile::tempdir().unwrap());
    let disk = open_on(&time, dir.path());
    write(dir.path(), &key(1));
    let (began, has_begun) = sync_channel::<()>(1);
    let (go, wait) = sync_channel::<()>(1);
    let (answer, answered) = sync_channel(2);
    std::thread::scope(|scope| {
        let disk = &disk;
        // A reader that stands still with the log locked, as on a device that hangs.
        scope.spawn(move || {
            disk.shared.changes.follow(u64::MAX, |_| {
                let _ = began.try_send(());
                let _ = wait.recv();
            })
        });
        has_begun.recv().unwrap();
        let ask = || {
            let answer = answer.clone();
            scope.spawn(move || answer.send(disk.lookup_in_memory(&[key(2)])).unwrap());
            answered.recv_timeout(std::time::Duration::from_secs(60))
        };
        let recent = ask();
        // Nothing says any more whether another process stored it.
        time.advance(2 * AGE_MAX);
        let old = ask();
        // Before the asserts: the scope ends with its threads.
        drop(go);
        assert_eq!(recent, Ok(vec![Presence::Miss]), "the lookup waits for the reader");
        assert_eq!(old, Ok(vec![Presence::Unknown]));
    });
    in_time(&time, "the log is followed again", || {
        disk.lookup_in_memory(&[key(2)]) == [Presence::Miss]
    });
}

#[test]
fn what_was_missed_is_no_miss_until_a_listing_succeeded() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let shared = &disk.shared;
    assert!(shared.follow_few_changes());
    write(dir.path(), &key(1));
    let path = chunk_file_name::path(dir.path(), key(1).digest(), LEN as u64);
    let own = dir.path().join(".kvtier");
    let logs = fs::read_dir(&own)
        .unwrap()
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with("changes"));
    logs.for_each(|log| fs::remove_file(log.path()).unwrap());
    // One that no record names.
    let copied = chunk_file_name::path(dir.path(), key(2).digest(), LEN as u64);
    fs::copy(&path, &copied).unwrap();
    assert!(!shared.follow_few_changes());
    // A listing that fails settles nothing.
    let shard = dir.path().join(format!("{:02x}", key(2).digest().as_bytes()[0]));
    let away = dir.path().join("lost+found");
    fs::rename(&shard, &away).unwrap();
    fs::write(&shard, "no directory").unwrap();
    assert!(!shared.reconcile() && !shared.follow_few_changes());
    fs::remove_file(&shard).unwrap();
    fs::rename(&away, &shard).unwrap();
    assert!(shared.reconcile() && shared.follow_few_changes());
    assert!(
        shared.known_len(key(1).digest()).is_some() && shared.known_len(key(2).digest()).is_some()
    );
    // What is gone is dropped as well.
    fs::remove_file(&copied).unwrap();
    assert!(shared.reconcile() && shared.known_len(key(2).digest()).is_none());
}

#[test]
fn a_log_that_cannot_be_read_is_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let own = dir.path().join(".kvtier");
    let away = dir.path().join("lost+found");
    fs::rename(&own, &away).unwrap();
    fs::write(&own, "no directory").unwrap();
    for _ in 0..10 {
        assert!(!disk.shared.follow_few_changes());
    }
    assert_eq!(disk.shared.counters.io_errors.load(Ordering::Relaxed), 1);
    fs::remove_file(&own).unwrap();
    fs::rename(&away, &own).unwrap();
    assert!(!disk.shared.follow_few_changes(), "what was missed is not known yet");
    assert!(disk.shared.reconcile() && disk.shared.follow_few_changes());
}

#[test]
fn what_a_writer_could_not_note_is_found_by_a_listing() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let key = key(1);
    let obstacle = dir.path().join(format!(".kvtier/changes.{}", u64::MAX / 2));
    fs::create_dir(&obstacle).unwrap();
    write(dir.path(), &key);
    fs::remove_dir(obstacle).unwrap();
    let shared = &disk.shared;
    assert!(shared.follow_few_changes() && shared.known_len(key.digest()).is_none());
    shared.remove_stale();
    assert!(shared.changes.has_missed() && shared.reconcile());
    assert_eq!(shared.known_len(key.digest()), Some(LEN as u64));
}

#[test]
fn remove_deletes_the_files_of_a_key_that_is_distrusted() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let keys = [key(1), key(2)];
    let path = chunk_file_name::path(dir.path(), keys[0].digest(), LEN as u64);
    write(dir.path(), &keys[0]);
    let other = chunk_file_name::path(dir.path(), keys[0].digest(), 3);
    fs::hard_link(&path, &other).unwrap();
    let file = crate::data_dir::FileId::of(&fs::metadata(&path).unwrap());
    // As where it cannot be quarantined.
    disk.shared.mark_corrupt(keys[0].digest(), file);
    assert!(disk.shared.find_on_disk(&keys[0], Some(LEN as u64)).is_none());
    let remove = || {
        let soon = std::time::Instant::now() + std::time::Duration::from_secs(300);
        let (answer, ticket) = kvtier_core::Reply::new("remove", soon);
        crate::remove::remove(&disk.shared, &keys, answer);
        ticket.wait().unwrap()
    };
    for removed in [1, 0] {
        let counts = remove();
        assert_eq!((counts.removed, counts.held, counts.absent), (removed, 0, 2 - removed));
        assert!(!path.exists() && !other.exists());
    }
}

#[test]
fn files_that_failed_a_check_are_remembered_also_after_many_that_were_saved_again() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let shared = &disk.shared;
    let [first, second] = ["first", "second"].map(|name| {
        let path = dir.path().join(name);
        fs::write(&path, name).unwrap();
        crate::data_dir::FileId::of(&fs::metadata(path).unwrap())
    });
    let digest = |n: usize| Digest::derive("test", &n.to_le_bytes());
    // Many that no save replaces, as chunks that cannot be decoded here, and many that one does.
    for n in 0..5000 {
        shared.mark_corrupt(&digest(n), first);
        if n % 5 == 0 {
            // As the commit of a save does.
            shared.index().clear_suspect(&digest(n));
        }
    }
    for n in [4999, usize::MAX] {
        let last = digest(n);
        shared.mark_corrupt(&last, first);
        assert!(shared.index().is_suspect(&last));
        shared.clear_corrupt_if_replaced(&last, second);
        assert!(!shared.index().is_suspect(&last), "another process saved it again");
    }
    let files = || shared.chunks.corrupt_files().len();
    assert_eq!(files(), 4999);
    // Bounded, also where all of them stay unusable.
    (0..2 * SUSPECTS_MAX).for_each(|n| _ = shared.mark_corrupt(&digest(10_000 + n), first));
    assert!(files() <= 2 * SUSPECTS_MAX);
    let last = digest(10_000 + 2 * SUSPECTS_MAX - 1);
    shared.clear_corrupt_if_replaced(&last, second);
    assert!(!shared.index().is_suspect(&last));
}

#[test]
fn who_goes_on_in_a_new_directory_waits_for_the_process_that_makes_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let own = dir.path().join(".kvtier");
    let segments = || -> Vec<_> {
        let names = fs::read_dir(&own)
            .unwrap()
            .flatten()
            .map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("changes.")).collect()
    };
    segments().iter().for_each(|name| fs::remove_file(own.join(name)).unwrap());
    *disk.shared.recreation.is_due.lock().unwrap() = true;
    let registration = crate::data_dir::open_rw(&own.join("lock")).unwrap();
    registration.lock().unwrap();
    std::thread::scope(|scope| {
        let restored = scope.spawn(|| disk.shared.restore_data_dir());
        // Long enough for one that does not wait.
        std::thread::sleep(std::time::Duration::from_millis(100));
        fs::write(own.join("changes.1"), "").unwrap();
        registration.unlock().unwrap();
        assert!(restored.join().unwrap());
    });
    assert_eq!(segments(), ["changes.1"]);
}

#[test]
fn a_use_of_what_is_not_there_is_not_written_down() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let journals = || fs::read_dir(dir.path().join(".kvtier/journal")).unwrap().count();
    disk.shared.used(&[*key(1).digest()], &kvtier_evict::EvictionHint::new());
    disk.shared.journal.flush().unwrap();
    assert_eq!(journals(), 0);
    write(dir.path(), &key(1));
    disk.shared.follow_changes();
    disk.shared.used(&[*key(1).digest(), *key(2).digest()], &kvtier_evict::EvictionHint::new());
    disk.shared.journal.flush().unwrap();
    assert_eq!(
        use_order::Reader::new(&dir.path().join(".kvtier"), 0).read(None).unwrap(),
        [Record::Touch(*key(1).digest())]
    );
}

#[test]
fn journals_of_one_who_does_not_lead_go_while_it_lives() {
    let dir = tempfile::tempdir().unwrap();
    let time = ManualClock::new();
    let own = dir.path().join(".kvtier");
    let leader = open_on(&time, dir.path());
    in_time(&time, "it leads", || {
        fs::File::open(own.join("evictor")).is_ok_and(|file| file.try_lock().is_err())
    });
    let other = open_on(&time, dir.path());
    let name = other.shared.data_dir.staging().unwrap().name().to_owned();
    let journals = || {
        let names =
            fs::read_dir(own.join("journal")).unwrap().flatten().map(|entry| entry.file_name());
        names.filter(|journal| journal.to_str().unwrap().starts_with(&name)).count()
    };
    let last = |n: u32| own.join(format!("journal/{name}.{n}"));
    // More than a file's worth in each round, so that the next round begins another.
    for round in 1..5_u32 {
        let digest =
            |n: u32| Digest::derive("test", &[round.to_le_bytes(), n.to_le_bytes()].concat());
        for part in 0..3 {
            other
                .shared
                .journal
                .note((0..100_000).map(|n| Record::Touch(digest(part * 100_000 + n))));
            other.shared.journal.flush().unwrap();
        }
        assert!(last(round).exists(), "{round}");
        in_time(&time, "what is complete is merged and deleted", || journals() == 1);
        assert!(last(round).exists(), "{round}: it may yet be written to");
    }
    drop((leader, other));
}

/// A tier over a directory of LMCache's whose own sweep found it empty, and a file that LMCache
/// wrote since, with its sidecar.
pub fn foreign(layout: Layout, name: &str, dir: &Path) -> (Disk<Idle>, Key, std::path::PathBuf) {
    let disk = open_foreign(&ManualClock::new(), layout, dir);
    until_swept(&disk);
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, [7; LEN]).unwrap();
    if let Some(beside) = layout.sidecar(name) {
        fs::write(dir.join(beside), [7; 4096]).unwrap();
    }
    let foreign = disk.shared.data_dir.foreign().unwrap();
    let key = Key::new(Arc::clone(foreign.namespace().unwrap()), layout.key_of(name).unwrap());
    foreign.learn(&key);
    (disk, key, path)
}

/// Waits for the first sweep of its own.
pub fn until_swept(disk: &Disk<Idle>) {
    let late = std::time::Instant::now() + std::time::Duration::from_secs(300);
    while !disk.shared.data_dir.foreign().unwrap().may_evict() {
        assert!(std::time::Instant::now() < late, "it is swept");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A tier over a directory of this layout.
pub fn open_foreign(time: &ManualClock, layout: Layout, dir: &Path) -> Disk<Idle> {
    let mut config = DiskConfig::new(dir, 1 << 20);
    config.layout = layout;
    config.namespace = Some(Arc::new(Namespace::new("t", Digest::default())));
    config.clock = time.clock();
    Disk::open(config, Idle).unwrap()
}

pub const FOREIGN: [(Layout, &str); 3] = [
    (Layout::LmcacheMp, "org-SEP-m@0x02010201@0@00010203.data"),
    (Layout::Lmcache, "org-SEP-m@2@1@-1234@half.data"),
    (Layout::LmcacheGds, "18/85/org%2Fm%401%400%401a2b3c4d5e6f7788%40bfloat16.kvcache.safetensors"),
];

#[test]
fn a_remove_deletes_what_failed_its_checks_and_stayed_in_layouts_of_lmcache() {
    for (layout, name) in FOREIGN {
        let dir = tempfile::tempdir().unwrap();
        let (disk, key, path) = foreign(layout, name, dir.path());
        let shared = &disk.shared;
        let ctx = Ctx::within(std::time::Duration::from_secs(600));
        let file = shared.data_dir.find(key.digest(), 0).unwrap().unwrap();
        assert!(shared.mark_corrupt(key.digest(), file).is_none(), "{layout}: no sweep saw it");
        let remove = || disk.remove(&ctx, [key.clone()].into()).wait().unwrap();
        assert_eq!(remove().removed, 1, "{layout}");
        assert!(!path.exists() && !dir.path().join(format!("{name}.metadata")).exists());
        assert_eq!(remove().absent, 1, "{layout}");
        assert_eq!(Ledger::peek(&dir.path().join(".kvtier")).unwrap(), Some(0), "{layout}");
    }
}

#[test]
fn a_remove_leaves_a_file_under_a_keys_name_that_is_no_chunk() {
    for (layout, name) in FOREIGN {
        let dir = tempfile::tempdir().unwrap();
        let (disk, key, path) = foreign(layout, name, dir.path());
        fs::write(&path, "").unwrap();
        let ctx = Ctx::within(std::time::Duration::from_secs(600));
        assert_eq!(disk.remove(&ctx, [key].into()).wait().unwrap().absent, 1, "{layout}");
        assert!(path.exists(), "{layout}");
    }
}

/// A crash of the machine may leave it.
#[test]
fn a_second_file_without_a_chunk_is_deleted_when_it_is_old() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, name) = FOREIGN[2];
    let (disk, _, path) = foreign(layout, name, dir.path());
    let beside = dir.path().join(format!("{name}.metadata"));
    let other = dir.path().join("18/85/other.metadata");
    fs::write(&other, "of another program").unwrap();
    let scan = || {
        let shared = &disk.shared;
        shared.scan_foreign(shared.data_dir.foreign().unwrap()).unwrap();
        Ledger::peek(&dir.path().join(".kvtier")).unwrap().unwrap()
    };
    let now = disk.shared.clock.wall();
    let hour = std::time::Duration::from_secs(3600);
    let set_time = |path: &Path, time| {
        fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    };
    set_time(&beside, now - hour);
    set_time(&other, now - hour);
    assert_eq!(scan(), LEN as u64 + 4096);
    assert!(beside.exists(), "it has a chunk");
    fs::remove_file(&path).unwrap();
    fs::write(&beside, [7; 4096]).unwrap();
    assert_eq!(scan(), 4096, "its chunk may be written at this moment");
    // Also where the clock went back since.
    for time in [now - hour, now + hour] {
        fs::write(&beside, [7; 4096]).unwrap();
        set_time(&beside, time);
        assert_eq!(scan(), 0);
        assert!(!beside.exists() && other.exists());
    }
}

#[test]
fn a_file_that_another_program_put_there_is_counted_soon() {
    let dir = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    drop(open(other.path()));
    write(other.path(), &key(1));
    let path = |root| chunk_file_name::path(root, key(1).digest(), LEN as u64);
    disk.shared.check_ledger();
    disk.shared.check_ledger();
    assert!(!disk.shared.is_ledger_suspect());
    fs::copy(path(other.path()), path(dir.path())).unwrap();
    assert!(disk.shared.find_on_disk(&key(1), Some(LEN as u64)).is_some());
    assert!(disk.shared.is_ledger_suspect(), "no process counted it");
}

#[test]
fn what_lmcache_writes_over_a_file_that_failed_its_checks_is_found() {
    for (layout, name) in &FOREIGN[..2] {
        let dir = tempfile::tempdir().unwrap();
        let (disk, key, path) = foreign(*layout, name, dir.path());
        let shared = &disk.shared;
        let file = shared.data_dir.find(key.digest(), 0).unwrap().unwrap();
        shared.mark_corrupt(key.digest(), file);
        assert_eq!(shared.find_on_disk(&key, None), None, "{layout}");
        fs::write(dir.path().join("new"), [8; LEN]).unwrap();
        fs::rename(dir.path().join("new"), &path).unwrap();
        assert_eq!(shared.find_on_disk(&key, None), Some(LEN as u64), "{layout}");
    }
}

/// The ledger did not count it: nothing is released for it.
#[test]
fn a_file_that_lmcache_wrote_and_no_sweep_counted_leaves_the_total_alone_when_it_is_quarantined() {
    let dir = tempfile::tempdir().unwrap();
    let (layout, name) = FOREIGN[0];
    let (disk, key, path) = foreign(layout, name, dir.path());
    let shared = &disk.shared;
    shared.space.ledger.add(50_000).unwrap();
    // No place to keep it.
    fs::remove_dir(dir.path().join(".kvtier/quarantine")).unwrap();
    let file = shared.data_dir.find(key.digest(), 0).unwrap().unwrap();
    assert!(shared.quarantine_corrupt(key.digest(), LEN as u64, file) && !path.exists());
    shared.space.ledger.fold().unwrap();
    assert_eq!(Ledger::peek(&dir.path().join(".kvtier")).unwrap(), Some(50_000));
}

#[test]
fn a_link_that_takes_the_place_of_a_shard_is_found_and_costs_what_is_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let time = ManualClock::new();
    let key = key(1);
    let disk = open_on(&time, dir.path());
    write(dir.path(), &key);
    disk.shared.follow_changes();
    let shard = chunk_file_name::shard(dir.path(), key.digest().as_bytes()[0]);
    let moved = elsewhere.path().join("moved");
    fs::rename(&shard, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &shard).unwrap();
    let total = || Ledger::peek(&dir.path().join(".kvtier")).unwrap();
    in_time(&time, "the link is renamed, and nothing behind it is counted", || {
        let is_known = disk.shared.known_len(key.digest()).is_some();
        !shard.is_symlink() && total() == Some(0) && !is_known
    });
    assert!(shard.is_dir());
    assert_eq!(fs::read_dir(moved).unwrap().count(), 1);
    drop(disk);
}

/// Hands its transfers over, so that a test drops them.
#[derive(Debug)]
struct HandsOver(std::sync::mpsc::SyncSender<(Transfer, Finish)>);

impl Mover for HandsOver {
    fn submit(&self, transfer: Transfer, done: Finish) -> Result<(), Refused> {
        self.0.send((transfer, done)).unwrap();
        Ok(())
    }

    fn close(&self) {}

    fn describe(&self) -> String {
        "hands over".into()
    }
}

#[test]
fn a_load_that_the_mover_drops_is_answered_after_its_memory_and_its_reader_are_released() {
    let ns = Arc::new(Namespace::new("t", Digest::default()));
    let foreign = Key::new(Arc::clone(&ns), Layout::LmcacheMp.key_of(FOREIGN[0].1).unwrap());
    for (layout, key) in [(Layout::Kvtier, key(1)), (Layout::LmcacheMp, foreign)] {
        let dir = tempfile::tempdir().unwrap();
        let mut config = DiskConfig::new(dir.path(), 1 << 20);
        (config.layout, config.namespace) = (layout, Some(Arc::clone(key.namespace())));
        let (sender, transfers) = std::sync::mpsc::sync_channel(1);
        let disk = Disk::open(config, HandsOver(sender)).unwrap();
        match layout {
            Layout::Kvtier => write(dir.path(), &key),
            _ => fs::write(dir.path().join(FOREIGN[0].1), [7; LEN]).unwrap(),
        }
        let arena = kvtier_mem::Arena::new(kvtier_mem::ArenaConfig::heap(1 << 16)).unwrap();
        // The second is no part of the transfer.
        let into = [4096, LEN - 4096].map(|bytes| arena.lease(bytes).unwrap()).into();
        let ctx = Ctx::within(std::time::Duration::from_secs(600));
        let ticket = disk.load(&ctx, vec![Load { key: key.clone(), into }]);
        let (transfer, done) = transfers.recv().unwrap();
        assert!(disk.shared.readers.has(key.digest()));
        let shared = Arc::clone(&disk.shared);
        let digest = *key.digest();
        let (sender, seen) = std::sync::mpsc::sync_channel(1);
        let ticket = ticket.inspect(move |_| {
            let is_free = [&arena, &shared.memory.tails].map(|arena| {
                let stats = arena.stats();
                stats.free == stats.capacity
            });
            sender.send((shared.readers.has(&digest), is_free)).unwrap();
        });
        drop(transfer);
        drop(done);
        let error = ticket.wait().remove(0).result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{layout}");
        assert_eq!(seen.recv().unwrap(), (false, [true, true]), "{layout}");
    }
}

/// A peer counts the directory for long, or is stopped while it counts: bytes that this process
/// frees do not count for it until then.
#[test]
fn a_save_evicts_nothing_while_a_peer_recounts_the_ledger() {
    let (time, dir) = (ManualClock::new(), tempfile::tempdir().unwrap());
    let disk = open_on(&time, dir.path());
    (0..40).for_each(|n| write(dir.path(), &key(n)));
    disk.shared.follow_changes();
    assert_eq!(disk.usage().chunks, 40);
    let own = dir.path().join(".kvtier");
    let (begin, has_begun) = sync_channel::<()>(1);
    let (end, may_end) = sync_channel::<()>(1);
    std::thread::scope(|scope| {
        let peer = scope.spawn(move || {
            let total = Ledger::peek(&own).unwrap().unwrap();
            let ledger = Ledger::open(&own, true).unwrap();
            let count = || {
                begin.send(()).unwrap();
                let _ = may_end.recv();
                Ok(total)
            };
            ledger.recount(true, count).unwrap();
        });
        has_begun.recv().unwrap();
        let ctx = Ctx::within_on(&time.clock(), std::time::Duration::from_secs(1 << 20));
        let save = kvtier_core::Save { key: key(200), from: vec![vec![1; 1000].into()] };
        let save = disk.save(&ctx, vec![save]);
        in_time(&time, "the save is answered", || save.is_done());
        let saved = save.wait().remove(0).result;
        let left = disk.usage().chunks;
        end.send(()).unwrap();
        peer.join().unwrap();
        assert_eq!((saved.unwrap(), left), (Saved::Shed(ShedReason::Full), 40));
    });
}
