//! A directory on a read-only file system is served, and written again once it can be. Needs the
//! right to mount; where that is refused the test says so and does nothing.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod common;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::{Ctx, ErrorKind, Hold, Loaded, Mode, Observe, Saved, ShedReason, Tier};
use kvtier_disk::Layout;
use kvtier_file::{FileConfig, FileTier};
use kvtier_testkit::conformance::Fixture;

const LEN: usize = 100_000;
/// The payload padded to pages, and the footer.
const FILE: u64 = 25 * 4096 + 4096;
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
        let from = dir.to_str().unwrap();
        let to = view.path().to_str().unwrap();
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
        assert!(
            std::thread::panicking() || out.is_ok_and(|status| status.success()),
            "cannot unmount"
        );
    }
}

fn config(dir: &Path, layout: Layout) -> FileConfig {
    let fast = Duration::from_millis(20);
    let config =
        FileConfig::new(dir, CAP).with_layout(layout).with_flush_every(fast).with_sweep_every(fast);
    if layout.has_headers() {
        config.with_chunk_shape("1x1x131072x1".parse().unwrap())
    } else {
        config
    }
}

fn open(dir: &Path, layout: Layout) -> (Arc<FileTier>, Fixture) {
    let tier = Arc::new(FileTier::open(config(dir, layout)).unwrap());
    let mut f = Fixture::new(
        kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap(),
    );
    f.tier = Arc::clone(&tier) as Arc<dyn Tier>;
    let f = match layout {
        Layout::Kvtier | Layout::LmcacheMp => f,
        Layout::VllmFs => f.with_vllm_keys(),
        _ => f.with_engine_keys(),
    };
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
        (0..4).for_each(|n| {
            assert_eq!(reader.load(&reader.key(n), LEN), Loaded::Hit { len: LEN as u64 })
        });
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

/// Reading needs no lock, so a directory of an earlier format is served as long as it is read-only.
/// Once it can be written, it is left alone until it is upgraded.
#[test]
fn a_directory_of_an_earlier_format_is_served_read_only_and_written_only_when_upgraded() {
    let dir = common::golden_of_format_2("kvtier");
    let Some(view) = View::of(dir.path()) else { return };
    let (tier, f) = open(view.path(), Layout::Kvtier);
    let is_hit = |n| matches!(f.load(&common::golden_key(n), 100), Loaded::Hit { .. });
    assert!((0..common::GOLDEN_CHUNKS).all(is_hit));
    assert_eq!(f.save(&f.key(1), LEN), Saved::Shed(ShedReason::ReadOnly));
    view.remount("rw");
    eventually("the status names the next step", || {
        let reasons = tier.status().reasons;
        assert_eq!(f.save(&f.key(1), LEN), Saved::Shed(ShedReason::ReadOnly), "{reasons:?}");
        reasons.iter().any(|reason| reason.contains("kvtier migrate"))
    });
    assert!(!dir.path().join(".kvtier/lock").exists());
    kvtier_disk::inspect::Upgrade::run(dir.path()).unwrap();
    eventually("writable now", || f.save(&f.key(1), LEN) == Saved::Stored);
    assert!((0..common::GOLDEN_CHUNKS).all(is_hit));
}

/// Another mount over the directory, which is read-only: what the tier has open can be written, and
/// what it opens cannot. The kernel refuses to make a mount read-only while files on it are open
/// for writing.
struct Cover<'a>(&'a Path);

impl<'a> Cover<'a> {
    fn over(dir: &'a Path) -> Option<Self> {
        // Read-only before it is there: the tier opens files all the time.
        let view = View::of(dir)?;
        let out = mount(&["--bind", view.path().to_str().unwrap(), dir.to_str().unwrap()]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        Some(Cover(dir))
    }
}

impl Drop for Cover<'_> {
    fn drop(&mut self) {
        let out = Command::new("umount").arg("-l").arg(self.0).status();
        assert!(
            std::thread::panicking() || out.is_ok_and(|status| status.success()),
            "cannot unmount"
        );
    }
}

#[test]
fn a_file_system_that_turns_read_only_is_served_until_it_is_writable_again() {
    for layout in Layout::ALL {
        let dir = tempfile::tempdir().unwrap();
        let (tier, f) = open(dir.path(), layout);
        f.store(&f.keys(0..4), LEN);
        let Some(cover) = Cover::over(dir.path()) else { return };
        eventually("the status says so", || is_read_only(&tier));
        assert_eq!(f.save(&f.key(9), LEN), Saved::Shed(ShedReason::ReadOnly), "{layout}");
        (0..4).for_each(|n| {
            assert_eq!(f.load(&f.key(n), LEN), Loaded::Hit { len: LEN as u64 }, "{layout}")
        });
        assert_eq!(hits(&f, 0..8), 4, "{layout}");
        drop(cover);
        eventually("writable again", || f.save(&f.key(9), LEN) == Saved::Stored);
        assert!(!is_read_only(&tier) && hits(&f, 0..10) == 5, "{layout}");
    }
}

/// A file system of its own that its kernel has made read-only after an error. Its mount flags do
/// not show it.
#[test]
fn a_file_system_that_refuses_writes_after_an_error_is_served() {
    let image = tempfile::NamedTempFile::new().unwrap();
    let at = tempfile::tempdir().unwrap();
    image.as_file().set_len(64 << 20).unwrap();
    let from = image.path().to_str().unwrap();
    let to = at.path().to_str().unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-O", "^has_journal", from]).status();
    if !made.is_ok_and(|status| status.success())
        || !mount(&["-o", "loop,errors=remount-ro", from, to]).status.success()
    {
        eprintln!("NOT TRIED, cannot make and mount a file system here");
        return;
    }
    let mounted = Cover(at.path());
    let (tier, f) = open(&at.path().join("tier"), Layout::Kvtier);
    f.store(&f.keys(0..4), LEN);
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let device = mounts
        .lines()
        .find_map(|line| line.split_once(&format!(" {to} ")))
        .unwrap()
        .0
        .rsplit('/')
        .next()
        .unwrap();
    if std::fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "1").is_err() {
        eprintln!("NOT TRIED, this kernel makes no errors on demand");
        return;
    }
    for n in 4..20 {
        assert_eq!(
            f.save(&f.key(n), LEN),
            Saved::Shed(ShedReason::ReadOnly),
            "{:?}",
            tier.status()
        );
        assert!(is_read_only(&tier), "{:?}", tier.status());
        // Longer than a round of the background thread, which must not take it for writable.
        std::thread::sleep(Duration::from_millis(10));
    }
    (0..4).for_each(|n| assert_eq!(f.load(&f.key(n), LEN), Loaded::Hit { len: LEN as u64 }));
    assert_eq!(tier.status().counter("io_errors"), 0, "{:?}", tier.status());
    drop((tier, f));
    drop(mounted);
}

#[test]
fn damage_on_a_read_only_file_system_is_a_miss() {
    let dir = tempfile::tempdir().unwrap();
    let (_, writer) = open(dir.path(), Layout::Kvtier);
    writer.store(&writer.keys(0..2), LEN);
    let path = kvtier_disk::chunk_file_name::path(dir.path(), writer.key(0).digest(), LEN as u64);
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
    // A process that may write saves it again.
    std::fs::remove_file(&path).unwrap();
    let (_, writer) = open(dir.path(), Layout::Kvtier);
    assert_eq!(writer.save(&writer.key(0), LEN), Saved::Stored);
    assert_eq!(reader.load(&reader.key(0), LEN), Loaded::Hit { len: LEN as u64 });
    assert_eq!(hits(&reader, 0..2), 2);
}

/// What has to be done when the file system becomes writable fails at first: it is done later, or
/// the cap would not hold.
#[test]
fn a_ledger_that_cannot_be_opened_at_first_is_opened_later() {
    let dir = tempfile::tempdir().unwrap();
    let (_, writer) = open(dir.path(), Layout::Kvtier);
    writer.store(&writer.keys(0..4), LEN);
    drop(writer);
    let Some(view) = View::of(dir.path()) else { return };
    let (tier, f) = open(view.path(), Layout::Kvtier);
    let ledger = dir.path().join(".kvtier/ledger");
    std::fs::remove_file(&ledger).unwrap();
    std::fs::create_dir(&ledger).unwrap();
    // A directory in its place is renamed away, unless something is mounted there.
    let mounted = tempfile::tempdir().unwrap();
    let out = mount(&["--bind", mounted.path().to_str().unwrap(), ledger.to_str().unwrap()]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let cover = Cover(&ledger);
    view.remount("rw");
    eventually("it has failed", || tier.status().counter("io_errors") > 1);
    assert!(is_read_only(&tier));
    drop(cover);
    eventually("writable again", || f.save(&f.key(6), LEN) == Saved::Stored);
    let count = || {
        std::fs::read(&ledger)
            .unwrap()
            .get(8..16)
            .map(|n| u64::from_le_bytes(n.try_into().unwrap()))
    };
    eventually("what is there is counted", || count() == Some(5 * FILE));
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
