//! The end of an engine over a device that does not answer: it waits, and leaves the processor to
//! others. Needs a file system of its own that can be frozen, and so the right to mount one; where
//! that is refused the test says so and does nothing.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use kvtier_mem::{Arena, ArenaConfig};
use kvtier_uring::{Engine, EngineConfig, EngineKind, Job, Part};

/// Whether a command that needs rights succeeded.
fn can(program: &str, words: &[&str]) -> bool {
    Command::new(program).args(words).output().is_ok_and(|out| out.status.success())
}

/// A file system that stands still until this is dropped.
struct Frozen<'a>(&'a Path);

impl<'a> Frozen<'a> {
    fn mount(image: &Path, at: &'a Path) -> Option<Self> {
        let from = image.to_str()?;
        let to = at.to_str()?;
        (can("mkfs.ext4", &["-q", from]) && can("mount", &["-o", "loop", from, to]))
            .then_some(Frozen(at))
    }

    fn freeze(&self, is_frozen: bool) -> bool {
        can("fsfreeze", &[if is_frozen { "-f" } else { "-u" }, self.0.to_str().unwrap()])
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.freeze(false);
        can("umount", &["-l", self.0.to_str().unwrap()]);
    }
}

/// A thread of this process, from its line in `/proc`.
struct Thread {
    name: String,
    state: String,
    /// Processor time that it has used, in hundredths of a second.
    ticks: u64,
}

impl Thread {
    fn of(stat: &str) -> Option<Self> {
        let (head, rest) = stat.rsplit_once(')')?;
        let (_, name) = head.split_once('(')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let ticks = |n: usize| fields.get(n)?.parse::<u64>().ok();
        Some(Thread {
            name: name.to_string(),
            state: (*fields.first()?).to_string(),
            ticks: ticks(11)? + ticks(12)?,
        })
    }
}

fn threads() -> Vec<Thread> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .filter_map(|task| Thread::of(&fs::read_to_string(task.path().join("stat")).ok()?))
        .collect()
}

/// Processor time that the threads of this name have used, in hundredths of a second.
fn ticks(name: &str) -> u64 {
    threads().iter().filter(|thread| thread.name == name).map(|thread| thread.ticks).sum()
}

/// Whether a worker of io_uring waits in the kernel where no cancel reaches it.
fn has_stuck_worker() -> bool {
    threads().iter().any(|thread| thread.name.starts_with("iou-wrk") && thread.state == "D")
}

#[test]
fn an_engine_that_closes_over_a_stalled_device_waits_without_a_core() {
    let image = tempfile::NamedTempFile::new().unwrap();
    let at = tempfile::tempdir().unwrap();
    image.as_file().set_len(64 << 20).unwrap();
    let Some(frozen) = Frozen::mount(image.path(), at.path()) else {
        return eprintln!("NOT TRIED, cannot make and mount a file system here");
    };
    let file = Arc::new(File::create(at.path().join("file")).unwrap().into());
    if !frozen.freeze(true) {
        return eprintln!("NOT TRIED, cannot freeze a file system here");
    }
    let engine = Engine::new(EngineConfig::default().with_kind(EngineKind::Uring)).unwrap();
    let arena = Arena::new(ArenaConfig::heap(1 << 20)).unwrap();
    let (send, receive) = sync_channel(8);
    for n in 0..4 {
        let from = arena
            .lease(4096)
            .map(|mut lease| lease.write_at(0, &[7; 4096]).map(|()| lease.freeze()));
        let part = Part::Write { at: 4096 * n, from: from.unwrap().unwrap(), len: 4096 };
        let send = send.clone();
        engine
            .submit(Job::write(Arc::clone(&file)).with_part(part), move |_| send.send(()).unwrap())
            .unwrap();
    }
    // A worker of the kernel is in one of the writes: a cancel would end those that no worker has
    // begun, and the engine with them.
    let late = Instant::now() + Duration::from_secs(600);
    while !has_stuck_worker() {
        assert!(Instant::now() < late, "the writes do not begin");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::scope(|scope| {
        let closes = scope.spawn(|| engine.close());
        std::thread::sleep(Duration::from_millis(100));
        let (began, before) = (Instant::now(), ticks("kvtier-uring"));
        std::thread::sleep(Duration::from_secs(2));
        let used = ticks("kvtier-uring") - before;
        let took = began.elapsed();
        let is_waiting = !closes.is_finished();
        assert!(frozen.freeze(false));
        assert!(is_waiting, "the writes do not end while the file system stands still");
        // To look every 20 ms takes a few ticks of 200 in two seconds, however long these take.
        assert!(u128::from(used) * 100 < took.as_millis(), "{used} ticks in {took:?}");
        closes.join().unwrap();
    });
    (0..4).for_each(|_| receive.recv_timeout(Duration::from_secs(600)).unwrap());
}
