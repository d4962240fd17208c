//! Files that are gone and that this process did not delete.

use super::tests::{key, open};

#[test]
fn a_missing_file_is_a_reason_to_count_at_once_only_where_no_peer_may_have_deleted_it() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(dir.path());
    let shared = &disk.shared;
    let check = &shared.space.ledger_validity;
    let lose = |has_peers| {
        check.clear();
        // Index and ledger were never seen to agree.
        check.set_matched(None);
        check.set_has_peers(has_peers);
        shared.lost(key(1).digest(), 4096);
        check.is_suspect()
    };
    assert!(lose(false), "no record can explain it");
    assert!(!lose(true), "its record may come");
    let now = shared.clock.now();
    let late = now + std::time::Duration::from_secs(3);
    assert!(!check.has_unexplained(now) && check.has_unexplained(late));
    check.explained(key(1).digest());
    assert!(!check.has_unexplained(late));
}
