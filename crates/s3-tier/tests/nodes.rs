//! Several nodes at one bucket: what they learn of each other by their journals.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::key::{ChunkHash, KeyId, KvRank, ObjectKey};
use kvtier_core::{Digest, Key, Loaded, Namespace, Observe, Presence, Saved, ShedReason};
use kvtier_index::Quotas;
use kvtier_index::journal::{self, Record};
use kvtier_s3_tier::{Evictor, Layout, TierConfig};
use kvtier_testkit::conformance::Fixture;
use kvtier_testkit::s3::{Fault, Rule, Server};
use support::tier::{World, plain_server, quick, says, tenants, within};

const LEN: usize = 10_000;

#[test]
fn a_second_node_follows_and_both_know_what_the_other_does() {
    let server = plain_server();
    let cap = |config: TierConfig| quick(config).with_capacity(50 * LEN as u64);
    let first = World::over(Arc::clone(&server), cap);
    first.suite.eventually("the first evicts", || says(&first, "this node evicts"));
    let second = World::over(Arc::clone(&server), |config| {
        let mut config = cap(config);
        // What it learns, it learns from the journals.
        config.sync.sweep_every = Duration::from_secs(600);
        config
    });
    second.suite.eventually("the second follows", || says(&second, "another node evicts"));
    for n in 0..100 {
        // A node that does not evict is not stopped by journals that it has not read yet, as long as there
        // is space.
        within(Duration::from_secs(180), "a save finds space", || {
            second.save(&second.suite.key(n), LEN) == Saved::Stored
        });
    }
    within(Duration::from_secs(180), "the cap holds", || first.in_bucket() <= 49 * LEN as u64);
    within(Duration::from_secs(180), "the second learns what was evicted", || {
        second.used() == second.in_bucket()
    });
    assert!(first.count("evicted") > 40 && second.count("evicted") == 0);
}

/// LMCache's names do not follow from what journals contain.
#[test]
fn under_lmcaches_names_a_node_counts_and_evicts_what_others_save_without_waiting_for_a_listing() {
    let server = plain_server();
    let space = || Namespace::new("suite", Default::default());
    let node = || {
        World::over(Arc::clone(&server), |config| {
            let mut config = quick(config).with_capacity(50 * LEN as u64);
            config.layout = Layout::LmcacheMp;
            config.namespace = Some(Arc::new(space()));
            config.sync.sweep_every = Duration::from_secs(6000);
            config
        })
    };
    let first = node();
    first.suite.eventually("the first evicts", || says(&first, "this node evicts"));
    let second = node();
    second.suite.eventually("the second follows", || says(&second, "another node evicts"));
    let save = |n| {
        within(Duration::from_secs(180), "a save finds space", || {
            second.save(&Fixture::key_in(space(), n), LEN) == Saved::Stored
        })
    };
    (0..20).for_each(save);
    within(Duration::from_secs(180), "the first counts them", || first.used() == 20 * LEN as u64);
    assert_eq!(first.count("sweeps"), 1, "no listing has shown them");
    // The evictor asks for the names of those that have to go.
    (20..100).for_each(save);
    within(Duration::from_secs(180), "the cap holds", || first.in_bucket() <= 49 * LEN as u64);
    assert!(first.count("evicted") > 40);
    within(Duration::from_secs(180), "both count the same", || {
        [first.used(), second.used()] == [first.in_bucket(); 2]
    });
}

/// Chunks of another tenant make no space below a quota, though they alone have names.
#[test]
fn chunks_without_names_above_a_quota_cost_no_other_tenant_a_chunk() {
    let server = plain_server();
    let all = Arc::new(Namespace::new("", Digest([7; 32])).with_salts_as_tenants());
    let key = |salt: &str, n: u64| {
        let hash = ChunkHash::new(&n.to_be_bytes());
        let id = KeyId::from(ObjectKey::new("org/model", KvRank(0), 0, hash, salt).unwrap());
        Key::new(all.for_key(&id), id)
    };
    let quota = 20 * LEN as u64;
    let node = |quotas: Quotas| {
        World::over(Arc::clone(&server), |config| {
            let mut config = quick(config).with_capacity(1000 * LEN as u64).with_quotas(quotas);
            config = config.with_layout(Layout::LmcacheMp).with_namespace(Arc::clone(&all));
            config.sync.sweep_every = Duration::from_secs(6000);
            config
        })
    };
    let first = node(Quotas::new().with("a", quota));
    first.suite.eventually("the first evicts", || says(&first, "this node evicts"));
    (0..40).for_each(|n| first.save_in_time(&key("b", n), LEN));
    // It is not bound by the quota, so that the first has something to evict.
    let second = node(Quotas::new());
    second.suite.eventually("the second follows", || says(&second, "another node evicts"));
    (0..60).for_each(|n| second.save_in_time(&key("a", n), LEN));
    within(Duration::from_secs(180), "the quota holds", || {
        first.in_bucket() <= 40 * LEN as u64 + quota
    });
    let stays = |n: &u64| matches!(second.load(&key("b", *n), LEN), Loaded::Hit { .. });
    assert_eq!((0..40).filter(stays).count(), 40, "chunks of the other tenant");
    assert!(first.count("evicted") >= 40);
}

/// Saves what the evictor keeps at least on a node that follows another, and then chunks of a tenth
/// of what there may be.
fn large_chunks_find_space(key: impl Fn(u64) -> Key, change: impl Fn(TierConfig) -> TierConfig) {
    let server = plain_server();
    let all = 100 * LEN as u64;
    let first = World::over(Arc::clone(&server), |config| change(quick(config)));
    first.suite.eventually("the first evicts", || says(&first, "this node evicts"));
    let second = World::over(Arc::clone(&server), |config| change(quick(config)));
    second.suite.eventually("the second follows", || says(&second, "another node evicts"));
    (0..98).for_each(|n| second.save_in_time(&key(n), LEN));
    for n in 100..103 {
        within(Duration::from_secs(180), "a large chunk finds space", || {
            second.save(&key(n), 10 * LEN) != Saved::Shed(ShedReason::Full)
        });
        assert!(second.used() <= all + 10 * LEN as u64, "one at a time");
    }
    within(Duration::from_secs(180), "the first frees space", || {
        first.in_bucket() <= all - all / 50
    });
}

#[test]
fn a_chunk_of_a_tenth_of_the_cap_finds_space_on_a_node_that_follows() {
    let suite = |n| Fixture::key_in(Namespace::new("suite", Default::default()), n);
    large_chunks_find_space(suite, |config| config.with_capacity(100 * LEN as u64));
}

#[test]
fn a_chunk_of_a_tenth_of_its_tenants_quota_finds_space_on_a_node_that_follows() {
    let of_a = |n| Fixture::key_in(Namespace::new("a", Default::default()), n);
    large_chunks_find_space(of_a, |config| {
        config.with_quotas(Quotas::new().with("a", 100 * LEN as u64))
    });
}

/// Of these two nodes: a question that failed is asked again after a part of it. Who evicts makes no
/// difference to the tests.
const LEASE_TERM: Duration = Duration::from_secs(30);

/// A node that evicts, and one that follows it by its journals alone, of which it
/// reads what is new every so often.
fn leader_and_follower(server: &Arc<Server>, journal_every: Duration) -> (World, World) {
    let first = World::over(Arc::clone(server), |config| {
        let mut config = quick(config);
        // What is in a snapshot is deleted soon, and the second may be late.
        config.sync.snapshot_every = Duration::from_secs(600);
        config.sync.lease_term = LEASE_TERM;
        config
    });
    first.suite.eventually("the first evicts", || says(&first, "this node evicts"));
    let second = World::over(Arc::clone(server), |config| {
        let mut config = quick(config);
        (config.sync.sweep_every, config.sync.journal_every) =
            (Duration::from_secs(600), journal_every);
        config.sync.lease_term = LEASE_TERM;
        config
    });
    second.suite.eventually("the second has listed the bucket", || second.count("sweeps") == 1);
    (first, second)
}

#[test]
fn who_evicts_is_asked_again_when_the_first_answer_failed() {
    let server = plain_server();
    let denied = Rule::next(Fault::Error(403, "AccessDenied"));
    server.script(denied.method("GET").containing("/lease/").times(2));
    let (first, second) = leader_and_follower(&server, Duration::from_millis(200));
    assert_eq!(first.save(&first.suite.key(1), LEN), Saved::Stored);
    within(Duration::from_secs(180), "the second learns of a save", || second.used() == LEN as u64);
}

#[test]
fn journals_that_were_read_before_one_that_cannot_be_are_not_lost() {
    let server = plain_server();
    let (first, second) = leader_and_follower(&server, Duration::from_secs(3));
    let denied = Rule::next(Fault::Error(403, "AccessDenied"));
    server.script(denied.method("GET").containing("00000003").times(10_000));
    for n in 0..5 {
        // Each in a journal of its own.
        let before = first.count("journaled");
        assert_eq!(first.save(&first.suite.key(n), LEN), Saved::Stored);
        first.suite.eventually("it is written", || first.count("journaled") > before);
    }
    within(Duration::from_secs(180), "the second learns of the first of them", || {
        second.used() >= 2 * LEN as u64
    });
}

/// A node that learns from the journals alone, which are written every so often.
fn listener(server: &Arc<Server>, every: Duration) -> World {
    World::over(Arc::clone(server), |config| {
        let mut config = quick(config);
        (config.sync.sweep_every, config.sync.journal_every) = (Duration::from_secs(600), every);
        // What was seen is asked for again at once.
        config.fresh_hit_max = Duration::from_millis(1);
        config
    })
}

#[test]
fn a_node_that_never_evicts_learns_what_others_do() {
    let server = plain_server();
    let node = |evictor| {
        World::over(Arc::clone(&server), |config| {
            let mut config = quick(config);
            (config.sync.evictor, config.sync.sweep_every) = (evictor, Duration::from_secs(600));
            config
        })
    };
    let first = node(Evictor::Single);
    let second = node(Evictor::Never);
    let keys: Vec<Key> = (0..5).map(|n| first.suite.key(n)).collect();
    keys.iter().for_each(|key| first.save_in_time(key, LEN));
    within(Duration::from_secs(180), "it learns of saves", || second.used() == 5 * LEN as u64);
    assert_eq!(first.suite.remove(&Arc::from(keys[..2].to_vec())).removed, 2);
    within(Duration::from_secs(180), "it learns of deletes", || second.used() == 3 * LEN as u64);
}

#[test]
fn what_one_node_deleted_and_another_saved_again_at_once_is_counted_by_both() {
    let server = plain_server();
    let first = listener(&server, Duration::from_secs(1));
    first.suite.eventually("the first evicts", || says(&first, "this node evicts"));
    let second = listener(&server, Duration::from_secs(1));
    second.suite.eventually("the second follows", || says(&second, "another node evicts"));
    let key = second.suite.key(1);
    assert_eq!(second.save(&key, LEN), Saved::Stored);
    within(Duration::from_secs(180), "the first learns of it", || first.used() == LEN as u64);
    let merged = || (first.count("merged"), second.count("merged"));
    let before = merged();
    assert_eq!(first.suite.remove(&Arc::from([key.clone()])).removed, 1);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(second.save(&key, LEN), Saved::Stored);
    within(Duration::from_secs(180), "each learns of the other", || {
        merged().0 > before.0 && merged().1 > before.1
    });
    within(Duration::from_secs(180), "both count it", || {
        [first.used(), second.used()] == [LEN as u64; 2]
    });
    assert_eq!(first.in_bucket(), LEN as u64);
}

#[test]
fn what_a_journal_leaves_open_is_asked_of_the_bucket() {
    let server = plain_server();
    let world = listener(&server, Duration::from_millis(200));
    world.suite.eventually("it evicts", || says(&world, "this node evicts"));
    let keys: Vec<Key> = (0..3).map(|n| world.suite.key(n)).collect();
    keys.iter().for_each(|key| world.save_in_time(key, LEN));
    world.delete(&world.name(&keys[0]));
    // A build that writes all of an interval with one time reports that two of them went, perhaps
    // before they were saved.
    let now_ms =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis()
            as u64;
    let gone: Vec<Record> = keys[..2].iter().map(|key| Record::Remove(*key.digest())).collect();
    let mut bytes = Vec::new();
    journal::encode(now_ms, &gone, &mut bytes);
    server.put_object("kv/.kvtier/journal/other.1.2.0.00000000/00000001", bytes);
    within(Duration::from_secs(180), "it is read", || world.count("merged") == 2);
    within(Duration::from_secs(180), "the bucket is asked", || world.count("heads") >= 2);
    // It is counted a moment after it went.
    within(Duration::from_secs(180), "one of them is gone", || {
        (world.used(), world.count("deleted_externally")) == (2 * LEN as u64, 1)
    });
    assert_eq!(world.in_bucket(), 2 * LEN as u64);
}

#[test]
fn tenants_of_chunks_reach_nodes_that_only_read_journals_and_survive_a_kill() {
    let server = plain_server();
    let node = |evictor| {
        World::over(Arc::clone(&server), |config| {
            let mut config = quick(config).with_capacity(100 * LEN as u64);
            config.sync.evictor = evictor;
            // Neither snapshots nor listings help.
            config.sync.snapshot_every = Duration::from_secs(600);
            config.sync.sweep_every = Duration::from_secs(600);
            config
        })
    };
    let key = |tenant: &str, n| Fixture::key_in(Namespace::new(tenant, Default::default()), n);
    let evictor = node(Evictor::Single);
    let writer = node(Evictor::Never);
    let wanted = vec![("alice".to_owned(), LEN as u64), ("bob & co\n".to_owned(), 2 * LEN as u64)];
    for (tenant, n) in [("alice", 1), ("bob & co\n", 2), ("bob & co\n", 3)] {
        assert_eq!(writer.save(&key(tenant, n), LEN), Saved::Stored);
    }
    // Those two are still open.
    let after = node(Evictor::Never);
    for reader in [&evictor, &after] {
        let sums = || {
            let mut sums: Vec<u64> = tenants(reader).into_iter().map(|(_, bytes)| bytes).collect();
            sums.sort_unstable();
            sums
        };
        reader
            .suite
            .eventually("two tenants are distinguished", || sums() == [LEN as u64, 2 * LEN as u64]);
        assert!(tenants(reader).iter().all(|(name, _)| name.starts_with('~')), "and have no names");
        // A node with a chunk of a tenant has its whole usage.
        reader.suite.eventually("the tenants are those of the writer", || {
            for (tenant, n) in [("alice", 1), ("bob & co\n", 2)] {
                reader.lookup(&key(tenant, n));
            }
            tenants(reader) == wanted
        });
    }
    assert_eq!(tenants(&writer), wanted);
    assert!(server.keys("kv/.kvtier/snapshot/").is_empty());
}

#[test]
fn what_a_peer_saved_is_asked_for_before_it_counts_as_seen() {
    let server = plain_server();
    let slow = |mut config: TierConfig| {
        config.sync.journal_every = Duration::from_millis(200);
        config
    };
    let world = World::over(Arc::clone(&server), slow);
    within(Duration::from_secs(180), "it evicts", || says(&world, "this node evicts"));
    // Its slot is another's before.
    assert_eq!(world.save(&world.suite.key(1), LEN), Saved::Stored);
    world.suite.remove(&Arc::from([world.suite.key(1)]));
    let other = World::over(Arc::clone(&server), slow);
    let key = other.suite.key(2);
    assert_eq!(other.save(&key, LEN), Saved::Stored);
    within(Duration::from_secs(180), "its journal is merged", || world.tier.usage().chunks == 1);
    server.remove_object(&other.name(&key));
    assert_eq!(world.lookup(&key), Presence::Miss, "reported, never seen");
}
