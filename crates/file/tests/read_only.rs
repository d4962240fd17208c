//! A directory on a read-only file system is served, and written again once it can be. Needs the right to mount; where that is refused the
//! test says so and does nothing.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::{Ctx, ErrorKind, Hold, Loaded, Mode, Observe, Saved, ShedReason, Tier};
use kvtier_disk::Layout;
use kvtier_file::{FileConfig, FileTier};
use kvtier_testkit::conformance::Fixture;

const LEN: usize = 100_000;
const CAP: u64 = 64 << 20;

/// A directory seen through a mount of its own.
struct View(tempfile::TempDir);

fn mount(words: &[&str]) -> Output {
    Command::new("mount").args(words).output().unwrap()
}

impl View {
    /// Read-only, unless mounting is refused here.
    fn of(dir: &Path) -> Option<Self> {
        let view = tempfile::tempdir().unwrap();
        let (from, to) = (dir.to_str().unwrap(), view.path().to_str().unwrap());
        let out = mount(&["--bind", from, to]);
        if !out.status.success() {
            eprintln!("NOT TRIED, cannot mount here: {}", String::from_utf8_lossy(&out.stderr));
            return None;
        }
        let view = View(view);
        view.remount("ro");
        Some(view)
    }

    fn remount(&self, how: &str) {
        let out = mount(&["-o", &format!("remount,bind,{how}"), self.path().to_str().unwrap()]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let out = Command::new("umount").arg("-l").arg(self.path()).status();
        assert!(std::thread::panicking() || out.is_ok_and(|status| status.success()), "cannot unmount");
    }
}

fn config(dir: &Path, layout: Layout) -> FileConfig {
    let fast = Duration::from_millis(20);
    let config = FileConfig::new(dir, CAP).with_layout(layout).with_flush_every(fast).with_sweep_every(fast);
    if layout.has_headers() { config.with_chunk_shape("1x1x131072x1".parse().unwrap()) } else { config }
}

fn open(dir: &Path, layout: Layout) -> (Arc<FileTier>, Fixture) {
    let tier = Arc::new(FileTier::open(config(dir, layout)).unwrap());
    let mut f = Fixture::new(kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap());
    f.tier = Arc::clone(&tier) as Arc<dyn Tier>;
    let f = if matches!(layout, Layout::Kvtier | Layout::LmcacheMp) { f } else { f.with_engine_keys() };
    (tier, f)
}

fn hits(f: &Fixture, numbers: std::ops::Range<u64>) -> usize {
    let ctx = Ctx::within(Duration::from_secs(120));
    let found = f.tier.lookup(&ctx, f.keys(numbers), Mode::Each, Hold::None).wait().unwrap().found;
    found.iter().filter(|found| found.is_hit()).count()
}

fn is_read_only(tier: &FileTier) -> bool {
    tier.status().reasons.iter().any(|reason| reason.starts_with("read-only"))
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let late = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < late, "{what}: not so for two minutes");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_read_only_directory_is_served_and_written_again_when_it_can_be() {
    for layout in Layout::ALL {
        let dir = tempfile::tempdir().unwrap();
        let (_, writer) = open(dir.path(), layout);
        writer.store(&writer.keys(0..4), LEN);
        let Some(view) = View::of(dir.path()) else { return };
        let (tier, reader) = open(view.path(), layout);
        assert!(is_read_only(&tier), "{layout}: {:?}", tier.status());
        assert_eq!(hits(&reader, 0..8), 4, "{layout}");
        (0..4).for_each(|n| assert_eq!(reader.load(&reader.key(n), LEN), Loaded::Hit { len: LEN as u64 }));
        // Who may write does, and is followed.
        writer.store(&writer.keys(4..6), LEN);
        assert_eq!(hits(&reader, 0..8), 6, "{layout}");
        let removed = tier.remove(&Ctx::within(Duration::from_secs(120)), reader.keys(0..1)).wait();
        assert_eq!(removed.unwrap_err().kind(), ErrorKind::Denied, "{layout}");
        assert_eq!(reader.save(&reader.key(6), LEN), Saved::Shed(ShedReason::ReadOnly), "{layout}");
        assert_eq!(tier.status().counter("io_errors"), 0, "{layout}: {:?}", tier.status());
        assert_eq!(hits(&writer, 0..8), 6, "{layout}: nothing went");

        view.remount("rw");
        eventually("writable again", || reader.save(&reader.key(6), LEN) == Saved::Stored);
        assert!(!is_read_only(&tier), "{layout}");
        assert_eq!((hits(&writer, 0..8), hits(&reader, 0..8)), (7, 7), "{layout}");
    }
}

#[test]
fn damage_on_a_read_only_file_system_is_a_miss() {
    let dir = tempfile::tempdir().unwrap();
    let (_, writer) = open(dir.path(), Layout::Kvtier);
    writer.store(&writer.keys(0..2), LEN);
    let path = kvtier_disk::name::path(dir.path(), writer.key(0).digest(), LEN as u64);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[LEN / 2] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let Some(view) = View::of(dir.path()) else { return };
    let (_, reader) = open(view.path(), Layout::Kvtier);
    for _ in 0..2 {
        assert!(matches!(reader.load(&reader.key(0), LEN), Loaded::Miss(_)));
        assert_eq!(reader.load(&reader.key(1), LEN), Loaded::Hit { len: LEN as u64 });
    }
    assert!(path.exists());
}

#[test]
fn what_is_no_directory_of_ours_is_refused_as_ever() {
    let dir = tempfile::tempdir().unwrap();
    let Some(view) = View::of(dir.path()) else { return };
    let e = FileTier::open(config(view.path(), Layout::Kvtier)).unwrap_err();
    assert!(e.to_string().contains("not a kvtier directory"), "{e}");
    // Files of another program need no manifest of ours.
    let (tier, reader) = open(view.path(), Layout::LmcacheMp);
    assert!(is_read_only(&tier) && hits(&reader, 0..3) == 0);
    view.remount("rw");
    eventually("writable", || reader.save(&reader.key(0), LEN) == Saved::Stored);
    let e = FileTier::open(config(view.path(), Layout::Lmcache)).unwrap_err();
    assert!(e.to_string().contains("say layout: lmcache-mp"), "{e}");
}
