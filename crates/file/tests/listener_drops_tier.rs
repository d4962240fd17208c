//! A listener may hold a tier, and drop it wherever it is called: on the thread that follows other
//! processes, or on the one that sweeps.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvtier_core::{Event, Listener, Namespace, Observe, Saved};
use kvtier_file::{FileTier, Layout};
use kvtier_testkit::conformance::Fixture;

use common::*;

/// Drops a tier at the first event of a chunk, and notes on which thread.
#[derive(Debug, Default)]
struct Owner {
    tier: Mutex<Option<Arc<FileTier>>>,
    thread: Mutex<Option<String>>,
    is_over: AtomicBool,
}

impl Listener for Owner {
    fn on_events(&self, _events: &[Event]) {
        let Some(tier) = self.tier.lock().unwrap().take() else { return };
        *self.thread.lock().unwrap() = std::thread::current().name().map(str::to_owned);
        assert!(Arc::into_inner(tier).is_some(), "it is the last one");
        self.is_over.store(true, Ordering::Release);
    }
}

fn owned(tier: FileTier) -> Arc<Owner> {
    let tier = Arc::new(tier);
    let owner = Arc::new(Owner::default());
    tier.listen(Arc::clone(&owner) as Arc<dyn Listener>);
    *owner.tier.lock().unwrap() = Some(tier);
    owner
}

#[test]
fn a_tier_that_ends_on_the_thread_that_keeps_its_directory_does_all_once_more() {
    let dir = tempfile::tempdir().unwrap();
    // It leads, and so it is the one that writes the order of use down at its end.
    let first = FileTier::open(config(dir.path(), 20)).unwrap();
    let late = Instant::now() + Duration::from_secs(600);
    let evictor = dir.path().join(".kvtier/evictor");
    while !fs::File::open(&evictor).is_ok_and(|file| file.try_lock().is_err()) {
        assert!(Instant::now() < late, "it does not lead");
        std::thread::sleep(Duration::from_millis(10));
    }
    let f = open(dir.path(), 20);
    let owner = owned(first);
    let _ = fs::remove_file(dir.path().join(".kvtier/snapshot"));
    assert_eq!(f.save(&f.key(1), LEN), Saved::Stored);
    f.eventually("it is dropped, and returns", || owner.is_over.load(Ordering::Acquire));
    assert_eq!(owner.thread.lock().unwrap().as_deref(), Some("file-maint"));
    f.eventually("the order of use is written", || dir.path().join(".kvtier/snapshot").exists());
    let staging = || fs::read_dir(dir.path().join(".kvtier/tmp")).unwrap().count();
    f.eventually("its staging directory goes", || staging() == 1);
}

#[test]
fn a_tier_that_ends_on_the_thread_that_sweeps_ends() {
    let dir = tempfile::tempdir().unwrap();
    let ns = Arc::new(Namespace::new("t", kvtier_core::Digest::default()));
    let config = config(dir.path(), 20).with_layout(Layout::LmcacheMp).with_namespace(ns);
    let owner = owned(FileTier::open(config.with_sweep_every(Duration::from_millis(20))).unwrap());
    fs::write(dir.path().join("org-SEP-m@0x02010201@0@0000000000000001.data"), [1; 100]).unwrap();
    let f = Fixture::new(
        kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap(),
    );
    f.eventually("it is dropped, and returns", || owner.is_over.load(Ordering::Acquire));
    assert_eq!(owner.thread.lock().unwrap().as_deref(), Some("file-sweeper"));
    f.eventually("its staging directory goes", || {
        fs::read_dir(dir.path().join(".kvtier/tmp")).unwrap().count() == 0
    });
}
