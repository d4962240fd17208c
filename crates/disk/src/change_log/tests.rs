use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind as Io, Write};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use kvtier_core::ManualClock;
use kvtier_index::{Chunk, journal as format};

use super::append::Appended;
use super::pending::PENDING_MAX;
use super::*;
use crate::data_dir::open_rw;

fn digest(n: u64) -> Digest {
    Digest::derive("test", &n.to_le_bytes())
}

fn record(n: u64) -> Record {
    Record::Insert(Chunk::new(digest(n), n + 1, 8192))
}

/// A log that has a segment.
fn open(dir: &Path, is_local: bool) -> ChangeLog {
    let _ = ChangeLog::create(dir, &Clock::real());
    ChangeLog::open(dir, is_local, &Clock::real())
}

fn newest(dir: &Path) -> u64 {
    *segment::numbers(dir).unwrap().last().unwrap()
}

/// A log whose segments are short.
fn open_short(dir: &Path, is_local: bool, clock: &Clock) -> ChangeLog {
    ChangeLog::create(dir, clock).unwrap();
    ChangeLog { segment_bytes_max: 600, ..ChangeLog::open(dir, is_local, clock) }
}

/// All records that are new.
fn read(log: &ChangeLog) -> Vec<Record> {
    let mut records = Vec::new();
    let followed = log.follow(u64::MAX, |record| records.push(*record)).unwrap();
    assert_eq!((followed.records, followed.is_more), (records.len(), false));
    records
}

/// All records that are new, and whether any were missed since the last call.
fn read_and_settle(log: &ChangeLog) -> (Vec<Record>, bool) {
    let records = read(log);
    let missed = log.has_missed();
    log.settle(log.missed());
    (records, missed)
}

fn append_bytes(dir: &Path, bytes: &[u8]) {
    let mut file = OpenOptions::new().append(true).open(segment::path(dir, newest(dir))).unwrap();
    file.write_all(bytes).unwrap();
}

#[test]
fn what_one_appends_the_other_reads_once() {
    for is_local in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let logs = [(); 2].map(|()| open(dir.path(), is_local));
        for log in &logs {
            log.append(record(0));
            log.append(record(1));
            log.append(Record::Remove(digest(0)));
            log.flush().unwrap();
        }
        for log in &logs {
            assert_eq!(
                log.follow(0, |_| panic!("it was read")).unwrap(),
                Followed { records: 0, is_more: true }
            );
            let (records, missed) = read_and_settle(log);
            assert!(records.len() >= 3 && records.contains(&record(1)) && !missed, "{records:?}");
            assert!(!log.follow(0, |_| panic!("it was read")).unwrap().is_more);
        }
        logs[0].append(record(3));
        logs[0].flush().unwrap();
        assert_eq!(
            logs.each_ref().map(read),
            [vec![], vec![record(3)]],
            "its own it need not read"
        );
        let late = open(dir.path(), is_local);
        assert_eq!(read_and_settle(&late), (vec![], false), "what was there before is listed");
    }
}

#[test]
fn nothing_is_missed_when_a_long_segment_is_followed_by_another() {
    let dir = tempfile::tempdir().unwrap();
    let [writer, other, reader] = [(); 3].map(|()| open(dir.path(), true));
    let first = newest(dir.path());
    let mut read_back = Vec::new();
    let mut written = Vec::new();
    for n in 0.. {
        let log = if n % 2 == 0 { &writer } else { &other };
        log.append(record(n));
        written.push(record(n));
        if n % 1000 == 0 {
            read_back.extend(read(&reader));
            if segment::numbers(dir.path()).unwrap() == [first + 1, first + 2] {
                break;
            }
        }
    }
    read_back.extend(read(&reader));
    read_back.dedup();
    assert!(
        read_back == written && !reader.has_missed(),
        "{} of {}",
        read_back.len(),
        written.len()
    );
    for number in [first + 1, first + 2] {
        let len = segment::path(dir.path(), number).metadata().unwrap().len();
        assert!(len <= SEGMENT_BYTES_MAX + 4096, "segment {number} has {len} bytes");
    }
}

/// The last records before a segment's end are read at once, not with the first append to its
/// successor.
#[test]
fn the_end_of_a_segment_is_read_before_anything_is_appended_to_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::real();
    let [writer, reader] = [(); 2].map(|()| open_short(dir.path(), true, &clock));
    let first = newest(dir.path());
    for n in 0..100 {
        writer.append(record(n));
        assert_eq!(read_and_settle(&reader), (vec![record(n)], false));
    }
    assert!(newest(dir.path()) > first + 5);
}

#[test]
fn a_reader_that_a_whole_segment_escaped_has_missed_something() {
    let dir = tempfile::tempdir().unwrap();
    let [writer, reader] = [(); 2].map(|()| open(dir.path(), true));
    writer.append(record(0));
    assert_eq!(read_and_settle(&reader), (vec![record(0)], false));
    let first = newest(dir.path());
    for n in 1..4 {
        writer.begin_next(first + n - 1).unwrap();
        writer.append(record(n));
    }
    let (records, missed) = read_and_settle(&reader);
    assert!(missed && records.contains(&record(3)), "{records:?}");
    assert_eq!(read_and_settle(&reader), (vec![], false));
    writer.append_lost();
    writer.flush().unwrap();
    assert!(read_and_settle(&reader) == (vec![], true) && writer.has_missed());
    fs::remove_dir_all(dir.path()).unwrap();
    writer.append(record(4));
    assert_eq!(writer.flush().unwrap_err().kind(), Io::NotFound);
    let (records, missed) = read_and_settle(&reader);
    assert!(missed && records.iter().all(|one| *one == record(4)), "{records:?}");
    fs::create_dir(dir.path()).unwrap();
    writer.flush().unwrap();
    assert_eq!(read_and_settle(&reader), (vec![record(4)], true));
}

/// The file system takes a part of a batch and answers no error: the records wait and are appended again. Who reads
/// in between does not take the part for all.
#[cfg(feature = "simulate")]
#[test]
fn a_batch_that_arrives_in_part_is_appended_again() {
    let dir = tempfile::tempdir().unwrap();
    let time = ManualClock::new();
    ChangeLog::create(dir.path(), &time.clock()).unwrap();
    let [writer, reader] = [(); 2].map(|()| ChangeLog::open(dir.path(), true, &time.clock()));
    let cut = crate::fake_process::enter_with_writes(|_| Ok(()), |write| write.bytes.len() - 1);
    writer.append(record(0));
    assert_eq!(writer.flush().unwrap_err().kind(), Io::WriteZero);
    assert!(writer.pending_records().0 > 0);
    assert_eq!(read_and_settle(&reader), (vec![], false));
    drop(cut);
    writer.flush().unwrap();
    assert_eq!(writer.pending_records().0, 0);
    assert_eq!(read_and_settle(&reader), (vec![record(0)], true), "a listing follows");
}

#[test]
fn a_torn_batch_is_missed_when_another_follows_or_it_stays_torn_or_its_segment_ends() {
    let dir = tempfile::tempdir().unwrap();
    let time = ManualClock::new();
    ChangeLog::create(dir.path(), &time.clock()).unwrap();
    let [writer, reader] = [(); 2].map(|()| ChangeLog::open(dir.path(), true, &time.clock()));
    let mut batch = Vec::new();
    format::encode(0, &[record(50)], &mut batch);
    let half = &batch[..batch.len() / 2];

    writer.append(record(0));
    append_bytes(dir.path(), half);
    assert_eq!(read_and_settle(&reader), (vec![record(0)], false), "it may be being written");
    append_bytes(dir.path(), &batch[half.len()..]);
    assert_eq!(read_and_settle(&reader), (vec![record(50)], false), "it was");

    append_bytes(dir.path(), half);
    assert_eq!(read_and_settle(&reader), (vec![], false));
    writer.append(record(1));
    assert_eq!(read_and_settle(&reader), (vec![record(1)], true), "without waiting for it");

    append_bytes(dir.path(), half);
    assert_eq!(read_and_settle(&reader), (vec![], false));
    time.advance(Duration::from_secs(2));
    assert_eq!(read_and_settle(&reader), (vec![], true));
    assert_eq!(read_and_settle(&reader), (vec![], false), "reported once");
    // As after the listing that this leads to.
    reader.rewind(reader.position());
    assert_eq!(read_and_settle(&reader), (vec![], false));
    time.advance(Duration::from_secs(2));
    assert_eq!(read_and_settle(&reader), (vec![], false), "once, also from an earlier position");

    append_bytes(dir.path(), half);
    writer.begin_next(newest(dir.path())).unwrap();
    assert_eq!(read_and_settle(&reader), (vec![], true));
}

/// A batch of another process that comes right behind ours, when another thread of ours has read
/// ours already.
#[test]
fn only_what_this_process_appended_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let [ours, other] = [(); 2].map(|()| open(dir.path(), true));
    let number = newest(dir.path());
    let segment = Segment::newest(dir.path()).unwrap().unwrap();
    let len = || segment.extent(dir.path(), true).unwrap().len;
    let before = ours.read_to(number);
    let start = len();
    append_bytes(dir.path(), &Pending { records: vec![record(0)], lost: false }.encode(0));
    let bytes = len() - start;
    assert_eq!(read(&ours), [record(0)]);
    other.append(record(1));
    ours.pass_over_own(number, before, Appended { bytes, len: len() });
    assert_eq!(read(&ours), [record(1)]);
    // Without any other it is not read.
    let before = ours.read_to(number);
    append_bytes(dir.path(), &Pending { records: vec![record(2)], lost: false }.encode(0));
    ours.pass_over_own(number, before, Appended { bytes, len: len() });
    assert_eq!(read(&ours), []);
}

#[test]
fn names_that_are_no_segments_stop_no_reader() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path(), true);
    for name in
        ["changes.007", "changes.+7", "changes.", "changes.18446744073709551615", "changes.1x"]
    {
        fs::write(dir.path().join(name), b"").unwrap();
    }
    log.append(record(0));
    assert_eq!(segment::numbers(dir.path()).unwrap().len(), 1);
    let link = segment::path(dir.path(), u64::MAX - 1);
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    assert!(Segment::newest(dir.path()).is_err(), "it ends");
    fs::remove_file(link).unwrap();
    assert!(Segment::newest(dir.path()).unwrap().is_some());
}

/// Longer than what is read at a time, with and without records behind it.
#[test]
fn garbage_of_any_length_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let [writer, reader] = [(); 2].map(|()| open(dir.path(), true));
    for (n, bytes) in [(0, 10), (1, 100_000), (2, 3 << 20), (3, 9 << 20)] {
        append_bytes(dir.path(), &vec![b'K'; bytes]);
        writer.append(record(n));
        let (records, missed) = read_and_settle(&reader);
        assert!(missed && records.contains(&record(n)), "{bytes} bytes: {records:?}");
    }
}

/// A process that was stopped while it kept a segment locked, as it does on a network mount.
#[test]
fn a_lock_that_is_kept_costs_one_wait_and_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let [writer, reader] = [(); 2].map(|()| open(dir.path(), false));
    let first = newest(dir.path());
    let stopped = open_rw(&segment::path(dir.path(), first)).unwrap();
    stopped.lock().unwrap();
    std::thread::scope(|scope| {
        let flushes = scope.spawn(|| {
            writer.append(record(0));
            writer.flush()
        });
        // While it waits for the lock, a save does not.
        (0..100).for_each(|n| writer.append(Record::Remove(digest(n))));
        flushes.join().unwrap().unwrap();
    });
    assert!(segment::numbers(dir.path()).unwrap() == [first, first + 1]);
    assert!(
        std::fs::File::open(segment::path(dir.path(), first)).unwrap().try_lock().is_err(),
        "it is kept still"
    );
    writer.flush().unwrap();
    let (records, missed) = read_and_settle(&reader);
    assert!(records.contains(&record(0)) && !missed);
}

#[test]
fn records_that_wait_too_long_are_dropped_and_that_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("own");
    let writer = open(&own, true);
    (0..PENDING_MAX as u64 + 10).for_each(|n| writer.append(record(n)));
    assert!(writer.flush().is_err() && writer.pending().records.len() < 20);
    fs::create_dir(&own).unwrap();
    let reader = open(&own, true);
    writer.flush().unwrap();
    assert!(read_and_settle(&reader).1);
}

/// What is removed while the directory is listed may be in the list.
#[test]
fn a_reader_that_goes_back_reads_again_what_changed_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::real();
    let [writer, reader] = [(); 2].map(|()| open_short(dir.path(), true, &clock));
    writer.append(record(0));
    assert_eq!(read(&reader), [record(0)]);
    let before = reader.position();
    (1..5).for_each(|n| writer.append(record(n)));
    assert_eq!(read(&reader).len(), 4);
    reader.rewind(before);
    assert_eq!(read(&reader), (1..5).map(record).collect::<Vec<_>>());
    assert!(!reader.has_missed());
}

/// Chunks as the file system has them, and each reader's index.
struct World {
    there: Mutex<BTreeSet<u64>>,
}

impl World {
    /// Publishes or deletes a chunk, and appends that.
    fn change(&self, log: &ChangeLog, n: u64) {
        let mut there = self.there.lock().unwrap();
        let exists = there.insert(n) || !there.remove(&n);
        drop(there);
        log.append(if exists { record(n) } else { Record::Remove(digest(n)) });
    }

    /// Takes a record over as a tier does: by what the file system says.
    fn apply(&self, index: &mut BTreeSet<Digest>, record: &Record) {
        let (Record::Insert(Chunk { digest: one, .. }) | Record::Remove(one)) = record else {
            return;
        };
        let there = self.there.lock().unwrap();
        if there.iter().any(|n| digest(*n) == *one) {
            index.insert(*one)
        } else {
            index.remove(one)
        };
    }

    fn list(&self) -> BTreeSet<Digest> {
        self.there.lock().unwrap().iter().map(|n| digest(*n)).collect()
    }
}

/// Several readers and writers, with new segments, torn batches, dead writers, lost logs, all at
/// random: in the end each reader has exactly what there is, or reports a miss.
#[test]
fn fault_seeds_of_the_change_log() {
    let seeds =
        std::env::var("KVTIER_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(200);
    let mut missed = 0;
    let mut exact = 0;
    for seed in 0..seeds {
        let is_local = seed % 3 != 0;
        let has_faults = seed % 2 == 0;
        let mut random = kvtier_testkit::Seed::new(seed);
        let dir = tempfile::tempdir().unwrap();
        let time = ManualClock::new();
        let world = World { there: Mutex::default() };
        let open = || open_short(dir.path(), is_local, &time.clock());
        let mut writers: Vec<ChangeLog> = (0..3).map(|_| open()).collect();
        let mut readers: Vec<(ChangeLog, BTreeSet<Digest>)> =
            (0..3).map(|_| (open(), BTreeSet::new())).collect();
        for _ in 0..300 {
            let who = random.below(3) as usize;
            match random.below(if has_faults { 24 } else { 18 }) {
                0..10 => world.change(&writers[who], random.below(12)),
                10..12 => writers[who].flush().unwrap(),
                12..18 => {
                    let (log, index) = &mut readers[who];
                    log.follow(u64::MAX, |record| world.apply(index, record)).unwrap();
                }
                18 => {
                    let bytes = [&b"KVTJ"[..], &[1, 0, 0, 0], b"torn"]
                        [..1 + random.below(3) as usize]
                        .concat();
                    append_bytes(dir.path(), &bytes);
                }
                // A process dies. Another that finds it dead reports that records may be missing.
                19 => {
                    writers[who] = open();
                    writers[who].append_lost();
                }
                20 => {
                    // As a writer does that was stopped before it, once with a number that is
                    // right.
                    segment::create(
                        dir.path(),
                        newest(dir.path()) + 1 - random.below(2) * random.below(6),
                    )
                    .unwrap();
                }
                21 if random.below(4) == 0 => segment::delete_up_to(dir.path(), u64::MAX).unwrap(),
                21 => writers[who].delete_strays().unwrap(),
                22 => time.advance(Duration::from_millis(random.below(1500))),
                _ => {
                    let (log, index) = &mut readers[who];
                    let missed = log.missed();
                    let position = log.position();
                    *index = world.list();
                    log.rewind(position);
                    log.settle(missed);
                }
            }
            if segment::numbers(dir.path()).unwrap().is_empty() {
                ChangeLog::create(dir.path(), &time.clock()).unwrap();
            }
        }
        writers.iter().for_each(|log| log.flush().unwrap());
        writers[0].delete_strays().unwrap();
        for (log, index) in &mut readers {
            log.follow(u64::MAX, |record| world.apply(index, record)).unwrap();
            let is_exact = *index == world.list();
            assert!(is_exact || log.has_missed(), "seed {seed}: wrong, and reports no miss");
            (missed, exact) = (
                missed + u64::from(log.has_missed()),
                exact + u64::from(is_exact && !log.has_missed()),
            );
        }
    }
    assert!(
        missed > seeds / 10 && exact > seeds / 10,
        "{missed} missed, {exact} exact: one of the two is not tried"
    );
}

/// The same with threads: writers race for each new segment, and readers read at their own pace.
#[test]
fn threads_that_race_for_each_new_segment_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::real();
    let world = World { there: Mutex::default() };
    let open = || open_short(dir.path(), true, &clock);
    let logs = [(); 3].map(|()| open());
    let first = newest(dir.path());
    let readers = [(); 2].map(|()| open());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let follow = |log: &ChangeLog| {
            let mut index = BTreeSet::new();
            loop {
                let is_last = done.load(Ordering::SeqCst);
                let missed = log.missed();
                let position = log.position();
                if log.has_missed() {
                    index = world.list();
                    log.rewind(position);
                    log.settle(missed);
                }
                log.follow(u64::MAX, |record| world.apply(&mut index, record)).unwrap();
                if is_last && !log.has_missed() {
                    return index;
                }
            }
        };
        let readers: Vec<_> = readers.iter().map(|log| scope.spawn(move || follow(log))).collect();
        let writers: Vec<_> = logs
            .iter()
            .zip(0..)
            .map(|(log, seed)| {
                let world = &world;
                scope.spawn(move || {
                    let mut random = kvtier_testkit::Seed::new(seed);
                    (0..2000).for_each(|_| world.change(log, random.below(50)));
                    log.flush().unwrap();
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::SeqCst);
        for reader in readers {
            assert_eq!(reader.join().unwrap(), world.list());
        }
    });
    assert!(newest(dir.path()) > first + 100);
}

#[test]
fn the_first_segment_is_made_by_one_process_at_a_time() {
    for is_local in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let log = ChangeLog::open(dir.path(), is_local, &Clock::real());
        // Another process has found none, and is about to make one.
        let registration = open_rw(&dir.path().join("lock")).unwrap();
        registration.lock().unwrap();
        log.append(record(0));
        assert_eq!(log.flush().unwrap_err().kind(), Io::WouldBlock);
        assert!(segment::numbers(dir.path()).unwrap().is_empty() && log.has_pending());
        ChangeLog::create(dir.path(), &Clock::real()).unwrap();
        drop(registration);
        let first = segment::numbers(dir.path()).unwrap();
        let reader = ChangeLog::open(dir.path(), is_local, &Clock::real());
        log.flush().unwrap();
        assert_eq!(segment::numbers(dir.path()).unwrap(), first);
        assert_eq!(read_and_settle(&reader), (vec![record(0)], false));
    }
}
