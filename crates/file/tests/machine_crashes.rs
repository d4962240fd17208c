//! Crashes of the machine: a file system of its own is shut down at a random moment while a process
//! saves, and all that was not synced is lost. After each crash the directory opens, serves no
//! wrong byte, and has every chunk whose save was answered as durable.
//!
//! The test runs itself again as the process that saves. `KVTIER_CRASHES` says how many crashes;
//! without root, mkfs or xfs_io it says that it was not tried.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, SystemTime};

use kvtier_core::{Loaded, Saved};
use kvtier_disk::kvtier_codec::{
    Aes256Gcm, Chain, Decoder, Keyring, MasterKey, Stage, stage_by_name,
};
use kvtier_file::{Durability, FileConfig, FileTier, Layout, TierEncoding};
use kvtier_testkit::Seed;
use kvtier_testkit::conformance::Fixture;

const WORKER: &str = "KVTIER_CRASH_WORKER";
/// The smallest that mkfs.xfs makes.
const IMAGE_BYTES: u64 = 310 << 20;
/// The most chunks that a worker saves; those of all crashes of one file system together fit it.
const SAVES_MAX: u64 = 120;
const CHUNK_BYTES_MAX: u64 = 150_000;
/// The most crashes of one file system.
const LIFE_MAX: u64 = 6;

/// A file system, and the options that keep it from syncing without a request.
#[derive(Clone, Copy, Debug)]
struct Kind {
    make: &'static str,
    options: &'static str,
}

const KINDS: [Kind; 2] = [
    Kind { make: "mkfs.xfs", options: "loop" },
    Kind { make: "mkfs.ext4", options: "loop,noauto_da_alloc" },
];

/// How a directory is used until its file system is made anew.
#[derive(Clone, Copy, Debug)]
struct Use {
    layout: Layout,
    durability: Durability,
    capacity_bytes: u64,
    /// Chunks are stored by `zstd` and `aes-256-gcm`.
    encodes: bool,
}

impl Use {
    const DURABLE: Use = Use {
        layout: Layout::Kvtier,
        durability: Durability::Fdatasync,
        capacity_bytes: 1 << 30,
        encodes: false,
    };
    const ALL: [Use; 5] = [
        Use::DURABLE,
        // Every other save evicts.
        Use { durability: Durability::None, capacity_bytes: 4 << 20, ..Use::DURABLE },
        Use { durability: Durability::Syncfs, ..Use::DURABLE },
        Use { layout: Layout::LmcacheMp, ..Use::DURABLE },
        Use { encodes: true, ..Use::DURABLE },
    ];

    fn open(self, dir: &Path) -> Result<Fixture, kvtier_core::Error> {
        let config = FileConfig::new(dir, self.capacity_bytes)
            .with_layout(self.layout)
            .with_durability(self.durability)
            .with_flush_every(Duration::from_millis(50));
        let config = if self.encodes { config.with_encoding(encoding()) } else { config };
        // More than the small file system has, and nothing here fills it.
        FileTier::open(config.with_free_min(0)).map(Fixture::new)
    }

    fn is_durable(self) -> bool {
        self.durability != Durability::None
    }
}

fn encoding() -> Arc<TierEncoding> {
    let keys = Arc::new(Keyring::new());
    keys.insert(MasterKey::new(1, &[7; 32]).unwrap());
    let aes: Arc<dyn Stage> = Arc::new(Aes256Gcm::new(keys, 1));
    let chain = Chain::new(vec![stage_by_name("zstd").unwrap(), Arc::clone(&aes)]).unwrap();
    Arc::new(TierEncoding::new(chain, Decoder::new().with_stage(aes)))
}

fn len_of(n: u64) -> usize {
    (1 + n * 7919 % CHUNK_BYTES_MAX) as usize
}

/// A file system in a file, mounted.
struct Disk {
    kind: Kind,
    image: PathBuf,
    point: PathBuf,
    _dir: tempfile::TempDir,
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let out = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    if out.status.success() {
        Ok(())
    } else {
        Err(format!("{program}: {}", String::from_utf8_lossy(&out.stderr)))
    }
}

impl Disk {
    fn new(kind: Kind) -> Result<Self, String> {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk {
            kind,
            image: dir.path().join("image"),
            point: dir.path().join("mounted"),
            _dir: dir,
        };
        File::create(&disk.image).unwrap().set_len(IMAGE_BYTES).unwrap();
        fs::create_dir(&disk.point).unwrap();
        run(kind.make, &["-q", disk.image.to_str().unwrap()])?;
        disk.mount()?;
        Ok(disk)
    }

    fn mount(&self) -> Result<(), String> {
        run(
            "mount",
            &["-o", self.kind.options, self.image.to_str().unwrap(), self.point.to_str().unwrap()],
        )
    }

    /// Loses what is not on the device, and mounts it again: the file system replays its journal.
    fn crash(&self, end_users: impl FnOnce()) {
        run("xfs_io", &["-x", "-c", "shutdown", self.point.to_str().unwrap()]).unwrap();
        end_users();
        self.unmount().unwrap();
        self.mount().unwrap();
    }

    fn unmount(&self) -> Result<(), String> {
        let mut left = 500;
        loop {
            match run("umount", &[self.point.to_str().unwrap()]) {
                Err(_) if left > 0 => std::thread::sleep(Duration::from_millis(20)),
                other => return other,
            }
            left -= 1;
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = run("umount", &["-l", self.point.to_str().unwrap()]);
    }
}

/// The other process, and what it says.
struct Worker {
    child: Child,
    said: Receiver<String>,
}

impl Worker {
    /// This test program again, running only `the_worker`, which saves chunks from number `first`
    /// on.
    fn start(dir: &Path, usage: usize, first: u64) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["the_worker", "--exact", "--nocapture", "--test-threads=1"])
            .env(WORKER, format!("{usage} {first} {}", dir.display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Space for all of its lines.
        let (send, said) = sync_channel(SAVES_MAX as usize + 1);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let Some((_, word)) = line.rsplit_once("say ") else { continue };
                let _ = send.send(word.to_owned());
            }
        });
        Worker { child, said }
    }

    /// Lets it answer nothing more: in a file system that was shut down, a sync of a directory may
    /// be said to have succeeded.
    fn stop(&self) {
        run("kill", &["-STOP", &self.child.id().to_string()]).unwrap();
        // Until it has left the processor.
        std::thread::sleep(Duration::from_millis(5));
    }

    /// Kills it. Answers the numbers of the chunks whose saves were answered.
    fn end(mut self) -> BTreeSet<u64> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.said.iter().filter_map(|word| word.parse().ok()).collect()
    }
}

/// Saves chunks, says each that is stored, and loads some, until it is killed; nothing when the
/// tests are run as such.
#[test]
fn the_worker() {
    let Ok(task) = std::env::var(WORKER) else { return };
    let mut words = task.splitn(3, ' ');
    let usage = Use::ALL[words.next().unwrap().parse::<usize>().unwrap()];
    let first: u64 = words.next().unwrap().parse().unwrap();
    let f = usage.open(Path::new(words.next().unwrap())).unwrap();
    say("open");
    let next = AtomicU64::new(first);
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let f = &f;
            let next = &next;
            scope.spawn(move || {
                let mut seed = Seed::new(seed);
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n < first + SAVES_MAX {
                        let saved = f.save_with(f.save_op(&f.key(n), len_of(n))).result;
                        if matches!(saved, Ok(Saved::Stored)) {
                            say(&n.to_string());
                        }
                    }
                    let n = seed.below(first + SAVES_MAX);
                    loads(f, n);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
    });
}

fn say(word: &str) {
    let mut out = std::io::stdout().lock();
    // At once, as a whole.
    let _ = out.write_all(format!("say {word}\n").as_bytes());
    let _ = out.flush();
}

/// Whether the chunk is a hit, which is proven byte by byte.
fn loads(f: &Fixture, n: u64) -> bool {
    let key = f.key(n);
    let len = len_of(n);
    let done = f.load_with(f.load_op(&key, len));
    let Ok(Loaded::Hit { len }) = done.result else { return false };
    f.verify(&key, &done.op.into, len);
    true
}

/// Crashes one file system again and again. Answers how often.
fn life(disk: &Disk, usage: usize, seed: &mut Seed, crashes: u64) {
    let dir = disk.point.join("cache");
    let how = Use::ALL[usage];
    let mut answered = BTreeSet::new();
    let mut first = 0;
    for crash in 0..crashes {
        let what = format!("{:?}, {how:?}, crash {crash}", disk.kind);
        let worker = Worker::start(&dir, usage, first);
        // Some while the directory is opened.
        if seed.below(4) > 0 {
            assert_eq!(worker.said.recv().unwrap(), "open", "{what}");
            std::thread::sleep(Duration::from_millis(seed.below(600)));
        } else {
            std::thread::sleep(Duration::from_millis(seed.below(60)));
        }
        worker.stop();
        let canary = disk.point.join(format!("canary.{crash}"));
        fs::write(&canary, "lost").unwrap();
        let mut new = BTreeSet::new();
        disk.crash(|| new = worker.end());
        let is_lost = fs::read(&canary).map_or(true, |bytes| bytes.is_empty());
        assert!(is_lost || how.durability == Durability::Syncfs, "{what}: nothing was lost");
        answered.append(&mut new);
        first += SAVES_MAX;
        let f = how.open(&dir).unwrap_or_else(|e| panic!("{what}: {e}"));
        let hits = (0..first).filter(|n| loads(&f, *n)).collect::<BTreeSet<u64>>();
        let lost: Vec<u64> = answered.difference(&hits).copied().collect();
        assert!(
            lost.is_empty() || !how.is_durable(),
            "{what}: lost {lost:?} of {} answered",
            answered.len()
        );
        // Another each time: what was removed may be there again after a crash.
        let more = (1 << 40) + crash;
        assert_eq!(f.save(&f.key(more), 5000), Saved::Stored, "{what}");
        assert_eq!(f.remove(&f.keys([more])).removed, 1, "{what}");
        println!(
            "{what}: {} of {} answered chunks are there",
            answered.len() - lost.len(),
            answered.len()
        );
    }
}

#[test]
fn a_crash_of_the_machine_shuts_no_directory_and_costs_no_durable_chunk() {
    let crashes: u64 = std::env::var("KVTIER_CRASHES").map_or(2, |n| n.parse().unwrap());
    let number = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let mut seed = Seed::new(number);
    let each = crashes.div_ceil(KINDS.len() as u64);
    for kind in KINDS {
        let mut left = each;
        // Each run begins with another use.
        let mut usage = seed.below(Use::ALL.len() as u64) as usize;
        while left > 0 {
            let disk = match run("xfs_io", &["-V"]).and_then(|()| Disk::new(kind)) {
                Ok(disk) => disk,
                Err(why) => {
                    eprintln!("NOT TRIED: {why}");
                    break;
                }
            };
            // Every use in few crashes, long lives in many.
            let crashes = if each < 20 { 1 } else { 1 + seed.below(LIFE_MAX) }.min(left);
            life(&disk, usage % Use::ALL.len(), &mut seed, crashes);
            (left, usage) = (left - crashes, usage + 1);
        }
    }
}
