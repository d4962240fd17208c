//! The protocol of the [module](super) against an adversary: a few processes that save, remove,
//! evict, clear the dead and recount over one directory in memory, each of which may be killed
//! before any of its steps. The scheduler stops them anywhere, for as long as it likes, and a test
//! damages the ledger. Reads and writes of it may fail, and a write that fails may have arrived, or a
//! part of it. The ledger is the real one; the lock, its bytes and the files are here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::thread;

use super::*;
use crate::data_dir::usage_scan;

/// Keys and the bytes of their chunks.
const KEYS: [u64; 3] = [1, 1, 2];
const CAP: u64 = 4;
const PROCESSES: usize = 3;
/// What each process does before it goes.
const ACTIONS: u32 = 4;
/// A process that is killed makes fewer steps than this.
const STEPS_MAX: u64 = 40;

/// Where a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the staging directory of a process; its name states that many bytes.
    Draft { owner: usize, stated: u64 },
    /// The chunk of a key.
    Chunk(usize),
}

#[derive(Clone, Copy, Debug)]
struct OneFile {
    place: Place,
    len: u64,
}

/// What all processes share: the directory, and what the kernel keeps for them.
#[derive(Debug, Default)]
struct World {
    ledger: Vec<u8>,
    /// Who has the ledger's lock, and who the registration lock.
    locks: [Option<usize>; 2],
    files: BTreeMap<u64, OneFile>,
    inodes: u64,
    living: BTreeMap<usize, bool>,
}

impl World {
    fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.len).sum()
    }

    fn total(&self) -> Option<u64> {
        contents(&self.ledger).map(|contents| contents.total)
    }

    fn kill(&mut self, process: usize) {
        self.living.insert(process, false);
        self.locks.iter_mut().filter(|by| **by == Some(process)).for_each(|by| *by = None);
    }

    /// What must hold after each step.
    fn check(&self) {
        assert!(self.bytes() <= CAP, "more bytes than the cap: {self:?}");
        if let Some(total) = self.total() {
            assert!(self.bytes() <= total, "the total {total} is too low: {self:?}");
        }
    }

    fn chunk(&self, key: usize) -> Option<u64> {
        let is_it = |file: &OneFile| file.place == Place::Chunk(key);
        self.files.iter().find(|(_, file)| is_it(file)).map(|(inode, _)| *inode)
    }

    fn rename(&mut self, inode: u64, to: Place) -> io::Result<()> {
        self.files.get_mut(&inode).ok_or(io::ErrorKind::NotFound)?.place = to;
        Ok(())
    }
}

fn contents(bytes: &[u8]) -> Option<LedgerContents> {
    #[derive(Debug)]
    struct Bytes<'a>(&'a [u8]);
    impl LockedFile for Bytes<'_> {
        fn lock_within(&self, _: Duration) -> io::Result<()> {
            Ok(())
        }
        fn unlock(&self) -> io::Result<()> {
            Ok(())
        }
        fn read(&self, bytes: &mut [u8]) -> io::Result<()> {
            let there = self.0.get(..bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            bytes.copy_from_slice(there);
            Ok(())
        }
        fn write(&self, _: &[u8]) -> io::Result<()> {
            Err(io::ErrorKind::ReadOnlyFilesystem.into())
        }
    }
    read(&Bytes(bytes)).unwrap()
}

/// A process as the kernel sees it: it makes steps until it is killed.
#[derive(Clone, Debug)]
struct Process {
    id: usize,
    world: Arc<Mutex<World>>,
    /// Steps until it is killed.
    left: Arc<AtomicU64>,
    /// Its calls on the ledger's file may fail.
    fails: bool,
}

const LEDGER: usize = 0;
const REGISTRATION: usize = 1;

impl Process {
    fn start(world: &Arc<Mutex<World>>, id: usize, steps: u64) -> Self {
        world.lock().unwrap().living.insert(id, true);
        let left = Arc::new(AtomicU64::new(steps));
        Process { id, world: Arc::clone(world), left, fails: false }
    }

    /// A process on whose calls the ledger's file may fail.
    fn failing(self) -> Self {
        Process { fails: true, ..self }
    }

    /// Fails one of four calls of a process whose calls may fail.
    fn may_fail(&self) -> io::Result<()> {
        let fails = self.fails && thread_rng().gen_range(0..4) == 0;
        if fails { Err(io::Error::other("the medium fails")) } else { Ok(()) }
    }

    /// One indivisible step. Fails from the moment on at which the process is killed, and
    /// then does nothing any more: what a ledger does with such errors changes nothing either.
    fn step<T>(&self, act: impl FnOnce(&mut World) -> io::Result<T>) -> io::Result<T> {
        let mut world = self.world.lock().unwrap();
        if !world.living[&self.id] {
            return Err(io::Error::other("killed"));
        }
        if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            world.kill(self.id);
            return Err(io::Error::other("killed"));
        }
        let done = act(&mut world);
        world.check();
        done
    }

    fn lock(&self, which: usize) -> io::Result<()> {
        // A process that waits gives up at some time, also at once.
        let tries = thread_rng().gen_range(1..4);
        for _ in 0..tries {
            let is_ours = self.step(|world| {
                let by = world.locks[which].get_or_insert(self.id);
                Ok(*by == self.id)
            })?;
            if is_ours {
                return Ok(());
            }
            thread::yield_now();
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn unlock(&self, which: usize) -> io::Result<()> {
        self.step(|world| {
            world.locks[which].take_if(|by| *by == self.id);
            Ok(())
        })
    }

    /// Makes an empty unfinished file.
    fn create(&self, stated: u64) -> io::Result<u64> {
        self.step(|world| {
            world.inodes += 1;
            let place = Place::Draft { owner: self.id, stated };
            world.files.insert(world.inodes, OneFile { place, len: 0 });
            Ok(world.inodes)
        })
    }

    fn unlink(&self, inode: u64) -> io::Result<bool> {
        self.step(|world| Ok(world.files.remove(&inode).is_some()))
    }

    /// All files at one place, as a directory lists them.
    fn list(&self, is_wanted: impl Fn(Place) -> bool) -> io::Result<Vec<(u64, OneFile)>> {
        self.step(|world| {
            let files = world.files.iter().filter(|(_, file)| is_wanted(file.place));
            Ok(files.map(|(inode, file)| (*inode, *file)).collect())
        })
    }

    fn peers(&self) -> io::Result<usage_scan::Peers> {
        self.step(|world| {
            let living = world.living.values().filter(|lives| **lives).count();
            // Each start and each end changes one of the two.
            let last_change = (world.living.len() as i64, living as i64);
            Ok(usage_scan::Peers { any: living > 1, last_change })
        })
    }
}

impl LockedFile for Process {
    fn lock_within(&self, _: Duration) -> io::Result<()> {
        self.lock(LEDGER)
    }

    fn unlock(&self) -> io::Result<()> {
        Process::unlock(self, LEDGER)
    }

    fn read(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.may_fail()?;
        self.step(|world| {
            let there = world.ledger.get(..bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            bytes.copy_from_slice(there);
            Ok(())
        })
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let done = self.may_fail();
        let arrived =
            if done.is_ok() { bytes.len() } else { thread_rng().gen_range(0..=bytes.len()) };
        self.step(|world| {
            world.ledger.resize(world.ledger.len().max(arrived), 0);
            world.ledger[..arrived].copy_from_slice(&bytes[..arrived]);
            Ok(())
        })?;
        done
    }
}

/// A tier's side of the protocol, as `space.rs`, `save.rs` and `ledger/recount.rs` have it.
struct Tier {
    process: Process,
    ledger: Ledger<Process>,
}

impl Tier {
    fn open(process: Process) -> Self {
        let ledger = Ledger::with_file(Some(process.clone()), true);
        Tier { process, ledger }
    }

    fn act(&self) -> io::Result<()> {
        let key = thread_rng().gen_range(0..KEYS.len());
        match thread_rng().gen_range(0..12) {
            0..3 => self.save(key),
            3 => self.remove(key),
            // As eviction does for a save: what cannot be released may be exchanged.
            4..7 => self.remove(1).and(self.save(0)),
            7 => self.recycle(0, 1),
            8 => self.remove_stale(),
            9 | 10 => self.recount(true),
            _ => self.ledger.fold(),
        }
    }

    fn save(&self, key: usize) -> io::Result<()> {
        let mut made = None;
        let bytes = KEYS[key];
        let mut make = || {
            made = self.process.create(bytes).ok();
            made.is_some()
        };
        let claimed = self.ledger.claim(bytes, CAP, &mut make)?;
        let Some(draft) = made else {
            return if claimed == Claimed::Damaged { self.recount(false) } else { Ok(()) };
        };
        if claimed != Claimed::Granted {
            return self.process.unlink(draft).map(drop);
        }
        self.process.step(|world| {
            world.files.get_mut(&draft).ok_or(io::ErrorKind::NotFound)?.len = bytes;
            Ok(())
        })?;
        self.publish(draft, key)
    }

    /// Swaps the unfinished file with the chunk that is there, if there is one, and deletes that.
    fn publish(&self, draft: u64, key: usize) -> io::Result<()> {
        let since = self.ledger.generation();
        let replaced = self.process.step(|world| {
            let there = world.chunk(key);
            if let Some(there) = there {
                let place = Place::Draft { owner: self.process.id, stated: KEYS[key] };
                world.rename(there, place)?;
            }
            world.rename(draft, Place::Chunk(key)).map(|()| there)
        })?;
        let Some(replaced) = replaced else { return Ok(()) };
        self.process.unlink(replaced)?;
        self.ledger.release(KEYS[key], since)
    }

    fn remove(&self, key: usize) -> io::Result<()> {
        let since = self.ledger.generation();
        let was_there = self.process.step(|world| {
            let there = world.chunk(key);
            Ok(there.and_then(|there| world.files.remove(&there)).is_some())
        })?;
        if was_there { self.ledger.release(KEYS[key], since) } else { Ok(()) }
    }

    /// Takes a victim's file for another chunk of the same length.
    fn recycle(&self, victim: usize, key: usize) -> io::Result<()> {
        let since = self.ledger.generation();
        let taken = self.process.step(|world| {
            let Some(there) = world.chunk(victim) else { return Ok(None) };
            let place = Place::Draft { owner: self.process.id, stated: KEYS[victim] };
            world.rename(there, place).map(|()| Some(there))
        })?;
        let Some(draft) = taken else { return Ok(()) };
        if self.ledger.is_still(since) {
            return self.publish(draft, key);
        }
        self.process.unlink(draft)?;
        self.ledger.release(KEYS[victim], since)
    }

    fn recount(&self, always: bool) -> io::Result<()> {
        let count = || usage_scan::count(|| self.process.peers(), |seen| self.pass(seen));
        self.ledger.recount(always, count).map(drop)
    }

    /// Unfinished files first, one staging directory after the other, then the chunks.
    fn pass(&self, seen: &mut usage_scan::SeenFiles) -> io::Result<()> {
        for of in 0..=PROCESSES {
            let is_theirs = |place| matches!(place, Place::Draft { owner, .. } if owner == of);
            for (inode, file) in self.process.list(is_theirs)? {
                let Place::Draft { stated, .. } = file.place else { continue };
                seen.file(inode, file.len.max(stated));
            }
        }
        for key in 0..KEYS.len() {
            let files = self.process.list(|place| place == Place::Chunk(key))?;
            files.into_iter().for_each(|(inode, file)| seen.file(inode, file.len));
        }
        Ok(())
    }

    /// Deletes what the dead left unfinished, and releases what was granted for certain.
    fn remove_stale(&self) -> io::Result<()> {
        let since = self.ledger.generation();
        self.process.lock(REGISTRATION)?;
        let dead = self.process.step(|world| {
            Ok(world.living.iter().filter(|(_, lives)| !**lives).map(|(id, _)| *id).collect())
        });
        let dead: Vec<usize> = dead?;
        let left = self
            .process
            .list(|place| matches!(place, Place::Draft { owner, .. } if dead.contains(&owner)))?;
        let mut granted = 0;
        for (inode, file) in left {
            let Place::Draft { stated, .. } = file.place else { continue };
            granted += if file.len > 0 { stated } else { 0 };
            self.process.unlink(inode)?;
        }
        self.process.unlock(REGISTRATION)?;
        if granted > 0 { self.ledger.release(granted, since) } else { Ok(()) }
    }
}

/// A directory with one chunk, whose process is gone.
fn directory() -> Arc<Mutex<World>> {
    let world = Arc::new(Mutex::new(World::default()));
    let first = Tier::open(Process::start(&world, 0, u64::MAX));
    first.recount(false).and_then(|()| first.save(1)).unwrap();
    world.lock().unwrap().kill(0);
    world
}

fn lives_of_a_directory() {
    let world = directory();
    let lives = (1..=PROCESSES).map(|id| {
        let is_killed = thread_rng().gen_range(0..3) > 0;
        let steps = if is_killed { thread_rng().gen_range(0..STEPS_MAX) } else { u64::MAX };
        let process = Process::start(&world, id, steps);
        let fails = thread_rng().gen_range(0..3) == 0;
        let tier = Tier::open(if fails { process.failing() } else { process });
        thread::spawn(move || {
            // What fails is tried no more; the next action meets what it left.
            (0..ACTIONS).for_each(|_| drop(tier.act()));
            // It goes without a word, as all do here.
            tier.process.world.lock().unwrap().kill(id);
        })
    });
    let lives: Vec<_> = lives.collect();
    if thread_rng().gen_range(0..4) == 0 {
        let world = Arc::clone(&world);
        thread::spawn(move || world.lock().unwrap().ledger.fill(0)).join().unwrap();
    }
    lives.into_iter().for_each(|life| life.join().unwrap());
    // All are dead. One that comes finds what they left, and puts it right.
    let last = Tier::open(Process::start(&world, PROCESSES + 1, u64::MAX));
    while last.remove_stale().is_err() || last.recount(true).is_err() {}
    let world = world.lock().unwrap();
    let is_draft = |file: &OneFile| matches!(file.place, Place::Draft { .. });
    assert!(!world.files.values().any(is_draft), "{world:?}");
    assert_eq!(world.total(), Some(world.bytes()), "{world:?}");
}

/// What only two processes that stop at the right steps show.
fn an_eviction_beside_a_recount() {
    let world = directory();
    let [evicts, recounts] = [1, 2].map(|id| Tier::open(Process::start(&world, id, u64::MAX)));
    evicts.ledger.fold().unwrap();
    let other = thread::spawn(move || recounts.recount(true));
    evicts.remove(1).and(evicts.save(0)).unwrap();
    drop(other.join().unwrap());
    world.lock().unwrap().check();
}

/// A process that comes while another, alone until then, counts. It moves a file behind the reader,
/// and may be gone before the count ends.
fn a_start_beside_a_recount() {
    let world = directory();
    let recounts = Tier::open(Process::start(&world, 1, u64::MAX));
    let other = thread::spawn(move || recounts.recount(true));
    let starts = Tier::open(Process::start(&world, 2, u64::MAX));
    starts.recycle(1, 0).unwrap();
    if thread_rng().gen_range(0..2) == 0 {
        world.lock().unwrap().kill(2);
    }
    drop(other.join().unwrap());
    world.lock().unwrap().check();
}

/// A process that takes the same file twice beside a recount moves it behind the reader twice.
fn a_file_taken_twice_beside_a_recount() {
    let world = directory();
    let [takes, recounts] = [1, 2].map(|id| Tier::open(Process::start(&world, id, u64::MAX)));
    takes.ledger.fold().unwrap();
    let other = thread::spawn(move || recounts.recount(true));
    takes.recycle(1, 0).and(takes.recycle(0, 1)).unwrap();
    drop(other.join().unwrap());
    world.lock().unwrap().check();
}

#[test]
fn the_total_is_never_too_low_and_the_bytes_never_pass_the_cap() {
    let runs = if std::env::var_os("KVTIER_NIGHTLY").is_some() { 200_000 } else { 3_000 };
    shuttle::check_random(lives_of_a_directory, runs);
    shuttle::check_pct(lives_of_a_directory, runs, 4);
    shuttle::check_pct(an_eviction_beside_a_recount, 4 * runs, 3);
    shuttle::check_pct(a_start_beside_a_recount, runs, 3);
    shuttle::check_pct(a_file_taken_twice_beside_a_recount, 4 * runs, 6);
    shuttle::check_random(a_file_taken_twice_beside_a_recount, 4 * runs);
}
