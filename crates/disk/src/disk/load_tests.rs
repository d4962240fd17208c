//! How a load ends that the mover refuses, or that could never be read here.

use kvtier_mem::{Arena, ArenaConfig, Lease};

use super::tests::{Idle, LEN, key, write};
use super::*;
use crate::mover::{Finish, Refused, Transfer};

/// Takes no transfer.
#[derive(Debug)]
struct Refuses {
    is_closed: bool,
}

impl Mover for Refuses {
    fn submit(&self, transfer: Transfer, _done: Finish) -> Result<(), Refused> {
        Err(Refused { transfer, closed: self.is_closed })
    }

    fn close(&self) {}

    fn describe(&self) -> String {
        "refuses".into()
    }
}

#[test]
fn a_load_that_the_mover_refuses_is_answered_and_its_memory_is_the_callers_again() {
    for is_closed in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let config = DiskConfig::new(dir.path(), 1 << 20);
        let disk = Disk::open(config, Refuses { is_closed }).unwrap();
        write(dir.path(), &key(1));
        disk.shared.follow_changes();
        let arena = Arena::new(ArenaConfig::heap(1 << 16)).unwrap();
        let into = [arena.lease(LEN).unwrap()].into();
        let ctx = Ctx::within(std::time::Duration::from_secs(600));
        let done = disk.load(&ctx, vec![Load { key: key(1), into }]).wait().remove(0);
        match (is_closed, done.result) {
            (true, Err(error)) => assert_eq!(error.kind(), ErrorKind::Closed),
            (false, Ok(loaded)) => assert_eq!(loaded, Loaded::Throttled),
            other => panic!("{other:?}"),
        }
        assert_eq!(done.op.into.len(), 1);
        assert!(!disk.shared.readers.has(key(1).digest()));
        let tails = disk.shared.memory.tails.stats();
        assert_eq!(tails.free, tails.capacity);
    }
}

#[test]
fn memory_that_is_not_aligned_needs_bounce_memory() {
    let refusal = |lease: Lease, bounce_bytes| {
        let op = Load { key: key(1), into: [lease].into() };
        let error = crate::load::refusal(&op, &Idle, bounce_bytes);
        error.map(|error| (error.kind(), error.to_string()))
    };
    let arena = Arena::new(ArenaConfig::heap(1 << 16)).unwrap();
    let lease = |skipped: usize| match skipped {
        0 => arena.lease(8192).unwrap(),
        _ => arena.lease(8192).unwrap().split_at(skipped).1,
    };
    for bounce_bytes in [0, 4096] {
        assert_eq!(refusal(lease(0), bounce_bytes), None);
    }
    assert_eq!(refusal(lease(100), 4096), None);
    let (kind, text) = refusal(lease(100), 0).unwrap();
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(text.contains("not aligned"), "{text}");
}
