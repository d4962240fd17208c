//! Whole chunks as bytes through every kind of tier.
#![allow(clippy::unwrap_used)]
#![cfg(feature = "file")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::host;
use kvtier::file::{FileConfig, FileTier};
use kvtier::prelude::*;
use kvtier_testkit::{FaultTier, Faults};

fn key(name: &str) -> Key {
    Key::from_name(&Namespace::from_name("tests"), name)
}

fn round_trip(tier: &dyn Tier) {
    assert_eq!(tier.load_bytes(&key("a")).unwrap(), None);
    assert!(!tier.contains(&key("a")).unwrap() && !tier.remove_key(&key("a")).unwrap());
    let bytes = common::bytes(1, 100_001);
    assert_eq!(tier.save_bytes(&key("a"), bytes.clone()).unwrap(), Saved::Stored);
    assert_eq!(tier.save_bytes(&key("a"), bytes.clone()).unwrap(), Saved::Present);
    assert_eq!(tier.save_bytes(&key("b"), b"static bytes").unwrap(), Saved::Stored);
    assert_eq!(tier.load_bytes(&key("a")).unwrap(), Some(bytes));
    assert_eq!(tier.load_bytes(&key("b")).unwrap().as_deref(), Some(&b"static bytes"[..]));
    assert!(tier.remove_key(&key("a")).unwrap() && !tier.contains(&key("a")).unwrap());
    assert_eq!(tier.save_bytes(&key("c"), []).unwrap_err().kind(), ErrorKind::Invalid);
    tier.close().wait().unwrap();
    assert_eq!(tier.load_bytes(&key("b")).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(tier.save_bytes(&key("b"), [1]).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(tier.contains(&key("b")).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(tier.remove_key(&key("b")).unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn bytes_come_back_from_every_tier() {
    let dir = tempfile::tempdir().unwrap();
    let file = || FileTier::open(FileConfig::new(dir.path(), 64 << 20)).unwrap();
    round_trip(&*host(4 << 20));
    round_trip(&file());
    let stack = Stack::new("stack", vec![host(4 << 20), Arc::new(file())]).unwrap();
    stack.remove_key(&key("b")).unwrap();
    round_trip(&stack);
}

#[test]
fn throttled_ops_are_retried_and_failures_are_errors() {
    let mut faults = Faults::none();
    faults.throttled = 300;
    let tier = FaultTier::new(host(4 << 20), faults, 7).unwrap();
    for n in 0..50u8 {
        assert_eq!(tier.save_bytes(&key(&n.to_string()), vec![n; 5000]).unwrap(), Saved::Stored);
        assert_eq!(tier.load_bytes(&key(&n.to_string())).unwrap(), Some(vec![n; 5000]));
        assert!(tier.remove_key(&key(&n.to_string())).unwrap());
    }
    assert!(tier.met() > 50);
    let mut faults = Faults::all(0, Duration::ZERO);
    faults.failed = 1000;
    let tier = FaultTier::new(host(4 << 20), faults, 7).unwrap();
    assert!(tier.save_bytes(&key("a"), [1]).is_err());
    assert!(tier.load_bytes(&key("a")).is_err() && tier.contains(&key("a")).is_err());
}
