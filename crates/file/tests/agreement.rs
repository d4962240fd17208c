//! What all who share a directory agree upon, and who is refused.
#![allow(clippy::unwrap_used)]

mod common;

use kvtier_core::{Digest, ErrorKind, Namespace, Observe, Saved, Tier};
use kvtier_file::FileTier;
use kvtier_testkit::conformance::Fixture;
use std::fs;
use std::sync::Arc;

use common::*;

#[test]
fn a_smaller_cap_deletes_nothing_without_shrink() {
    let dir = tempfile::tempdir().unwrap();
    let f = open(dir.path(), 10);
    f.store(&f.keys(0..6), LEN);
    assert!(!absent(&f, 5));
    drop(f);
    let e = FileTier::open(config(dir.path(), 4)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid);
    let caps = [10, 4].map(|chunks: u64| (chunks * FILE + FILE / 2).to_string());
    assert!(
        caps.iter().all(|cap| e.to_string().contains(cap)) && e.to_string().contains("shrink"),
        "{e}"
    );
    assert_eq!(files(dir.path()).len(), 6);
    // A smaller cap that all fits under is a cap like any other, and is noted.
    drop(open(dir.path(), 7));
    assert!(
        FileTier::open(config(dir.path(), 5))
            .unwrap_err()
            .to_string()
            .contains(&(7 * FILE + FILE / 2).to_string())
    );
    drop(open(dir.path(), 20));
    let f = Fixture::new(FileTier::open(config(dir.path(), 4).with_shrink(true)).unwrap());
    assert_eq!(files(dir.path()).len(), 4);
    assert!(!absent(&f, 5));
}

/// Saves chunk `n` of a namespace; the text of the error if it is `Invalid`.
fn save_in(f: &Fixture, ns: &Namespace, n: u64, len: usize) -> Option<String> {
    let done = f.save_with(f.save_op(&Fixture::key_in(ns.clone(), n), len));
    match done.result {
        Ok(saved) => (saved != Saved::Stored).then(|| panic!("{saved:?}")),
        Err(e) if e.kind() == ErrorKind::Invalid => Some(e.to_string()),
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn a_process_with_another_geometry_is_refused_and_the_error_names_both() {
    let dir = tempfile::tempdir().unwrap();
    let a = open(dir.path(), 50);
    let b = open(dir.path(), 50);
    let ns = Namespace::new("a tenant", Digest([7; 32]));
    // What the first save of whole chunks teaches holds for all who share the directory, now and
    // after a restart.
    let whole = ns.clone().with_partial(false);
    assert_eq!(save_in(&a, &whole, 0, LEN), None);
    let c = open(dir.path(), 50);
    for f in [&a, &b, &c] {
        let e = save_in(f, &whole, 1, LEN / 2).unwrap();
        assert!(
            e.contains(&format!("{LEN} whole")) && e.contains(&format!("{} whole", LEN / 2)),
            "{e}"
        );
        let e = save_in(f, &ns, 1, LEN).unwrap();
        assert!(
            e.contains(&format!("{LEN} whole")) && e.contains("partial") && !e.contains("tenant"),
            "{e}"
        );
    }
    let op = c.load_op(&Fixture::key_in(ns.clone(), 0), LEN);
    assert_eq!(c.load_with(op).result.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(save_in(&b, &whole, 2, LEN), None);
    // Another tenant, and another layout, are another's affair; a declared size is taken over where
    // none was known.
    let other = Namespace::new("other", Digest([7; 32]));
    assert_eq!(save_in(&b, &other, 0, 5000), None);
    assert_eq!(save_in(&a, &other.clone().with_chunk_bytes(0, 8192), 1, 4096), None);
    assert!(save_in(&a, &other, 2, 8193).unwrap().contains("8192 partial"));
    assert!(
        save_in(&c, &other.with_chunk_bytes(0, 4096), 3, 4096).unwrap().contains("8192 partial")
    );
    assert_eq!(save_in(&a, &Namespace::new("a tenant", Digest([8; 32])), 1, 17), None);
}

#[test]
fn a_tier_that_says_its_namespace_opens_no_directory_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let ns = |layout, bytes| {
        Arc::new(Namespace::new("t", Digest([layout; 32])).with_chunk_bytes(0, bytes))
    };
    let open = |ns| FileTier::open(config(dir.path(), 10).with_namespace(ns));
    drop(open(ns(1, 4096)).unwrap());
    drop(open(ns(1, 4096)).unwrap());
    for other in [ns(1, 8192), Arc::new(Namespace::new("t", Digest([1; 32])))] {
        let e = open(other).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid);
        assert!(
            e.to_string().contains(&format!("{}: 0=4096 partial", Digest([1; 32]).to_hex())),
            "{e}"
        );
    }
    drop(open(Arc::new(Namespace::new("u", Digest([2; 32])))).unwrap());
    // Another model of the tenant is another's affair, and holds its own.
    drop(open(ns(2, 8192)).unwrap());
    assert_eq!(open(ns(2, 4096)).unwrap_err().kind(), ErrorKind::Invalid);
    // But where files do not say of which model they are, there is one.
    let dir = tempfile::tempdir().unwrap();
    let open = |ns| {
        FileTier::open(
            config(dir.path(), 10).with_layout(kvtier_file::Layout::LmcacheMp).with_namespace(ns),
        )
    };
    drop(open(ns(1, 4096)).unwrap());
    assert_eq!(open(ns(2, 4096)).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn peers_have_one_cap_without_shrink() {
    for layout in [kvtier_file::Layout::Kvtier, kvtier_file::Layout::LmcacheMp] {
        let dir = tempfile::tempdir().unwrap();
        let open = |chunks, shrink| {
            let it =
                FileTier::open(config(dir.path(), chunks).with_layout(layout).with_shrink(shrink));
            it.map_err(|e| (e.kind(), e.to_string()))
        };
        let cap = |chunks: u64| (chunks * FILE + FILE / 2).to_string();
        let refused = |chunks, theirs| {
            let (kind, what) = open(chunks, false).unwrap_err();
            assert_eq!(kind, ErrorKind::Invalid);
            assert!(
                what.contains(&cap(chunks))
                    && what.contains(&cap(theirs))
                    && what.contains("shrink"),
                "{what}"
            );
        };
        drop(open(30, false).unwrap());
        // The first after a restart decides, also where another was noted.
        let first = open(10, false).unwrap();
        let second = open(10, false).unwrap();
        refused(4, 10);
        refused(20, 10);
        drop(open(4, true).unwrap());
        drop(first);
        refused(20, 10);
        drop(second);
        drop(open(20, false).unwrap());
    }
    // Shares that come to one number are one cap.
    let dir = tempfile::tempdir().unwrap();
    let share = |share| FileTier::open(config(dir.path(), 1).with_capacity_share(share));
    let _first = share(0.5).unwrap();
    drop(share(0.5).unwrap());
    assert_eq!(share(0.25).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn a_reserve_as_large_as_the_file_system_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path(), 4));
    let e = FileTier::open(config(dir.path(), 4).with_free_min(1 << 62)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid);
    assert!(
        e.to_string().contains(&(1_u64 << 62).to_string()) && e.to_string().contains("free_min"),
        "{e}"
    );
}

#[test]
fn kinds_of_chunks_beyond_the_most_are_saved_and_not_noted() {
    let dir = tempfile::tempdir().unwrap();
    let manifest = dir.path().join(".kvtier/manifest");
    let tier = Arc::new(FileTier::open(config(dir.path(), 50)).unwrap());
    let mut f = Fixture::new(
        kvtier_testkit::ModelTier::open(kvtier_testkit::ModelConfig::default()).unwrap(),
    );
    f.tier = Arc::clone(&tier) as Arc<dyn Tier>;
    // Of chunks of any length there is nothing to note.
    assert_eq!(save_in(&f, &Namespace::new("any", Digest([7; 32])), 0, LEN), None);
    let head = fs::read_to_string(&manifest).unwrap();
    assert!(!head.contains("chunk "), "{head}");
    let many: String = (0..4096).map(|n| format!("chunk t 0 m {n} 0: 4096 whole\n")).collect();
    // Before the line with the checksum, which is made anew.
    let body = head[..head.rfind("crc: ").unwrap()].to_owned() + &many;
    let crc = kvtier_core::key::BlockSums::from_bytes(body.as_bytes()).whole();
    // In one step, as tiers replace it: the open tier rebuilds a manifest that it reads half written.
    let draft = manifest.with_extension("draft");
    fs::write(&draft, format!("{body}crc: {crc:08x}\n")).unwrap();
    fs::rename(draft, &manifest).unwrap();
    let full = || tier.status().reasons.iter().any(|reason| reason.contains("4096 kinds"));
    assert!(!full());
    let whole = Namespace::new("one more", Digest([7; 32])).with_partial(false);
    assert_eq!(save_in(&f, &whole, 0, LEN), None);
    assert_eq!(save_in(&f, &whole, 1, LEN), None);
    assert!(full() && !fs::read_to_string(&manifest).unwrap().contains("more"));
    // Nor does it keep a tier out.
    drop(FileTier::open(config(dir.path(), 50).with_namespace(Arc::new(whole))).unwrap());
}
