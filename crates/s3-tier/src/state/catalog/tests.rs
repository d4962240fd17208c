use kvtier_evict::PolicyKind;
use kvtier_index::{IndexConfig, TenantNames};
use kvtier_key::{KeyId, Namespace};

use super::*;

fn catalog() -> Catalog {
    let index = Index::new(IndexConfig::new(u64::MAX), PolicyKind::Lru.build()).unwrap();
    Catalog::new(index, Duration::from_secs(60), Duration::from_secs(1))
}

fn chunk(n: u32) -> Chunk {
    Chunk::new(Digest::derive("test", &n.to_le_bytes()), 10, 10)
}

#[test]
fn a_reported_chunk_is_unseen_in_a_reused_slot_too() {
    let mut catalog = catalog();
    let a = chunk(1);
    let b = chunk(2);
    let InsertOutcome::New(slot) = catalog.insert_unseen(a) else { panic!("new") };
    catalog.confirm(&a.digest, 1000);
    assert_eq!(catalog.known(&a.digest, 1000), Some(Some(10)));
    catalog.forget(&a.digest).unwrap();
    assert_eq!(catalog.insert_unseen(b), InsertOutcome::New(slot), "the slot is reused");
    assert_eq!(catalog.known(&b.digest, 1000), None, "unseen");
}

#[test]
fn a_held_chunk_stays_fresh_unless_it_is_invalidated() {
    let mut catalog = catalog();
    let a = chunk(1);
    let _ = catalog.insert_unseen(a);
    catalog.index.hold(&[a.digest], u64::MAX).unwrap();
    assert_eq!(catalog.known(&a.digest, 500), None, "reported, and held");
    catalog.confirm(&a.digest, 500);
    assert_eq!(catalog.known(&a.digest, 10_000_000), Some(Some(10)));
    catalog.invalidate(&a.digest);
    assert_eq!(catalog.known(&a.digest, 500), None);
}

#[test]
fn an_answer_to_an_earlier_request_makes_a_chunk_no_older() {
    let mut catalog = catalog();
    let a = chunk(1);
    let _ = catalog.insert_unseen(a);
    [16_000, 1600].into_iter().for_each(|seen_ms| catalog.confirm(&a.digest, seen_ms));
    let fresh_until = 16_000 + catalog.fresh_hit_max.as_millis() as u64;
    assert_eq!(catalog.known(&a.digest, fresh_until - 1), Some(Some(10)));
    assert_eq!(catalog.known(&a.digest, fresh_until), None);
}

#[test]
fn without_freshness_every_lookup_asks() {
    let index = Index::new(IndexConfig::new(u64::MAX), PolicyKind::Lru.build()).unwrap();
    let mut catalog = Catalog::new(index, Duration::ZERO, Duration::ZERO);
    let a = chunk(1);
    let _ = catalog.insert_unseen(a);
    for now_ms in [0, 1, SEEN_STEP_MS, 10 * SEEN_STEP_MS] {
        catalog.confirm(&a.digest, now_ms);
        assert_eq!(catalog.known(&a.digest, now_ms), None, "at {now_ms} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn one_absent_key_does_not_take_the_place_of_another() {
    let mut catalog = catalog();
    let [a, b] = [1, 2].map(|n| chunk(n).digest);
    [a, b].into_iter().for_each(|digest| catalog.note_absent(digest));
    assert_eq!([a, b].map(|digest| catalog.known(&digest, 16)), [Some(None); 2]);
}

#[tokio::test(start_paused = true)]
async fn a_corrupt_object_is_checked_again_after_a_while() {
    let mut catalog = catalog();
    let a = chunk(1);
    let _ = catalog.insert_unseen(a);
    assert_eq!(catalog.note_corrupt(&a.digest, Some("one")), None);
    assert!(catalog.is_corrupt(&a.digest, Some("one")) && catalog.is_corrupt(&a.digest, None));
    assert!(!catalog.is_corrupt(&a.digest, Some("two")), "another version");
    tokio::time::advance(CORRUPT_FOR).await;
    assert!(!catalog.is_corrupt(&a.digest, Some("one")));
    assert_eq!(catalog.note_corrupt(&a.digest, None), None);
    assert!(catalog.is_corrupt(&a.digest, Some("one")), "no version is known");
}

/// What a listing shows of it may be older.
#[tokio::test(start_paused = true)]
async fn a_key_that_was_absent_a_moment_ago_is_remembered_until_it_is_there_again() {
    let mut catalog = catalog();
    let (a, time) = (chunk(1), Duration::from_secs(5));
    assert!(!catalog.was_absent_within(&a.digest, time));
    catalog.note_absent(a.digest);
    tokio::time::advance(time / 2).await;
    assert!(catalog.was_absent_within(&a.digest, time));
    let _ = catalog.insert_unseen(a);
    assert!(!catalog.was_absent_within(&a.digest, time), "it is there again");
    catalog.forget(&a.digest).unwrap();
    tokio::time::advance(time / 2).await;
    assert!(!catalog.was_absent_within(&a.digest, time), "too long ago");
}

#[test]
fn names_are_dropped_with_their_chunks() {
    let mut catalog = catalog();
    let a = chunk(1);
    catalog.note_name(&a.digest, "unknown");
    assert_eq!(catalog.names_len(), 0);
    let _ = catalog.insert_unseen(a);
    catalog.note_name(&a.digest, "m@1");
    catalog.forget(&a.digest).unwrap();
    assert_eq!(catalog.names_len(), 0);
}

fn key(tenant: &str) -> Key {
    let id = KeyId::from_engine_text("m@1@0@ab@half").unwrap();
    Key::new(Namespace::new(tenant, Digest::default()).into(), id)
}

/// A catalog with this chunk.
fn with(chunk: Chunk) -> Catalog {
    let mut catalog = catalog();
    let _ = catalog.insert_unseen(chunk);
    catalog
}

#[test]
fn a_chunk_is_a_hit_for_as_long_as_hits_are_fresh() {
    let a = chunk(1);
    let mut catalog = with(a);
    catalog.confirm(&a.digest, 160_000);
    assert_eq!(catalog.seen.ms(catalog.index.slot(&a.digest).unwrap()), 160_000);
    assert_eq!(catalog.known(&a.digest, 219_999), Some(Some(10)));
    assert_eq!(catalog.known(&a.digest, 220_000), None);
}

#[tokio::test(start_paused = true)]
async fn a_miss_expires() {
    let mut catalog = catalog();
    let a = chunk(1);
    assert_eq!(catalog.known(&a.digest, 0), None);
    catalog.note_absent(a.digest);
    assert_eq!(catalog.known(&a.digest, 0), Some(None));
    tokio::time::advance(Duration::from_millis(999)).await;
    assert_eq!(catalog.known(&a.digest, 0), Some(None));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(catalog.known(&a.digest, 0), None);
}

#[test]
fn a_victim_is_a_miss_and_so_is_a_member_of_an_incomplete_set() {
    let [a, b, c, missing] = [1, 2, 3, 4].map(chunk);
    let mut catalog = with(a);
    let _ = catalog.index.begin_evict(&a.digest);
    assert_eq!(catalog.known(&a.digest, 0), Some(None), "a victim");
    catalog.index.declare_set(&[b.digest, missing.digest]).unwrap().unwrap();
    let _ = (catalog.insert_unseen(b), catalog.insert_unseen(c));
    assert_eq!(catalog.known(&b.digest, 0), Some(None), "a member");
    assert!(catalog.is_hidden(&b.digest));
    assert!(!catalog.is_hidden(&missing.digest) && !catalog.is_hidden(&c.digest));
    assert_eq!(catalog.note_corrupt(&c.digest, None), None);
    assert!(!catalog.is_hidden(&c.digest), "it is corrupt");
}

#[test]
fn an_object_without_a_known_raw_length_is_found_by_its_own() {
    let [encoded, plain] = [Chunk::new(chunk(1).digest, UNKNOWN_LEN, 20), chunk(2)];
    let mut catalog = with(encoded);
    let _ = catalog.insert_unseen(plain);
    assert!(!catalog.has_object_of(&encoded.digest, 20, 16), "unseen");
    [encoded, plain].iter().for_each(|chunk| catalog.confirm(&chunk.digest, 16));
    assert!(catalog.has_object_of(&encoded.digest, 20, 16));
    assert!(!catalog.has_object_of(&encoded.digest, 21, 16));
    assert!(!catalog.has_object_of(&encoded.digest, 20, 100_000), "too long ago");
    assert!(!catalog.has_object_of(&plain.digest, 10, 16), "its raw length is known");
}

#[test]
fn facts_are_those_of_one_version_of_one_object() {
    let [a, b] = [1, 2].map(chunk);
    let mut catalog = with(a);
    let _ = catalog.insert_unseen(b);
    catalog.note_facts(&chunk(3).digest, "one", 3);
    catalog.note_facts(&b.digest, "one", 7);
    assert_eq!(catalog.crc_of(&b.digest, "one"), Some(7));
    assert_eq!(catalog.crc_of(&b.digest, "two"), None);
    assert_eq!(catalog.crc_of(&a.digest, "one"), None);
    assert_eq!(catalog.crc_of(&chunk(3).digest, "one"), None);
}

#[test]
fn chunks_count_for_the_tenants_of_their_keys() {
    let (alice, bob) = (key("alice"), key("bob"));
    let mut catalog = with(Chunk::new(*alice.digest(), 10, 10));
    catalog.note_tenants(&[alice.clone(), alice.clone(), bob]);
    assert_eq!(catalog.tenant("alice"), TenantId::NONE, "the tenant key is unknown");
    catalog.set_tenant_key(TenantKey::new([1; 32]));
    let ids = TenantNames::new(TenantKey::new([1; 32]));
    let ids = ["alice", "bob"].map(|name| ids.id(name));
    assert_eq!(ids.map(|id| catalog.tenant_name(id)), ["alice", "bob"]);
    assert_eq!(catalog.tenant("alice"), ids[0]);
    let tenant_of = |catalog: &Catalog| catalog.index.known(alice.digest()).unwrap().chunk.tenant;
    assert_eq!(tenant_of(&catalog), TenantId::NONE);
    assert!(!catalog.set_tenant(&key("")));
    assert!(catalog.set_tenant(&alice), "it had none");
    assert_eq!(tenant_of(&catalog), ids[0]);
    assert!(!catalog.set_tenant(&alice));
}

#[test]
fn a_chunk_keeps_its_tenant_while_the_tenant_key_is_unknown() {
    let alice = key("alice");
    let mut catalog = with(Chunk::new(*alice.digest(), 10, 10).with_tenant(TenantId(7)));
    assert!(!catalog.set_tenant(&alice));
    assert_eq!(catalog.index.known(alice.digest()).unwrap().chunk.tenant, TenantId(7));
}

#[test]
fn quotas_are_those_of_single_tenants_then_that_of_the_others() {
    let mut catalog = catalog();
    catalog.set_tenant_key(TenantKey::new([1; 32]));
    let mut quotas = Quotas::new();
    quotas.others = Some(50);
    quotas.by_tenant.insert("alice".to_owned(), 100);
    catalog.set_quotas(&quotas);
    let ids = ["alice", "bob"].map(|name| catalog.tenant(name));
    assert_eq!(ids.map(|id| catalog.quota_of(id)), [Some(100), Some(50)]);
    catalog.set_quota("alice", None);
    catalog.set_quota("bob", Some(70));
    assert_eq!(ids.map(|id| catalog.quota_of(id)), [Some(50), Some(70)]);
}

#[test]
fn misses_are_forgotten_only_where_there_are_too_many() {
    let mut catalog = catalog();
    let digest = |n: usize| {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        Digest(bytes)
    };
    (0..ABSENT_MAX).for_each(|n| catalog.note_absent(digest(n)));
    assert_eq!(catalog.absent.len(), ABSENT_MAX);
    catalog.note_absent(digest(ABSENT_MAX));
    assert!(catalog.absent.len() == 1 && catalog.absent_for(&digest(ABSENT_MAX)).is_some());
}

#[test]
fn a_name_is_the_last_that_was_noted() {
    let a = chunk(1);
    let mut catalog = with(a);
    assert_eq!(catalog.name(&a.digest), None);
    for name in ["m@1", "m@2", "m@2"] {
        catalog.note_name(&a.digest, name);
        assert_eq!(catalog.name(&a.digest).as_deref(), Some(name));
    }
}

#[test]
fn a_second_corrupt_object_leaves_the_mark_of_the_first_until_it_is_cleared() {
    let [a, b] = [1, 2].map(chunk);
    let mut catalog = with(a);
    let _ = catalog.insert_unseen(b);
    for chunk in [a, b] {
        assert_eq!(catalog.note_corrupt(&chunk.digest, Some("one")), None);
    }
    assert!([a, b].iter().all(|chunk| catalog.is_corrupt(&chunk.digest, Some("one"))));
    catalog.clear_corrupt(&a.digest);
    assert!(!catalog.is_corrupt(&a.digest, None) && !catalog.index.is_suspect(&a.digest));
    assert!(catalog.corrupt.len() == 1 && catalog.is_corrupt(&b.digest, None));
}

#[test]
fn the_length_of_an_object_may_be_unknown_and_so_may_that_of_its_chunk() {
    let lengths = [(10, 10), (10, 6), (UNKNOWN_LEN, 6), (10, 0)];
    let answers = lengths.map(|(len, bytes)| {
        let a = Chunk::new(chunk(1).digest, len, bytes);
        let catalog = with(a);
        (catalog.listed_bytes(&a.digest), catalog.encoded_bytes(&a.digest))
    });
    assert_eq!(answers, [(Some(10), None), (Some(6), Some(6)), (Some(6), None), (None, Some(0))]);
}

#[test]
fn a_key_that_changed_is_noted_for_a_running_listing() {
    let mut catalog = catalog();
    catalog.changed_keys.begin();
    catalog.note_changed(chunk(1).digest);
    assert!(catalog.changed_keys.has(&chunk(1).digest));
    assert!(!catalog.changed_keys.has(&chunk(2).digest));
}

#[cfg(feature = "simulate")]
#[test]
fn a_simulation_sees_how_much_is_remembered() {
    let mut catalog = catalog();
    catalog.note_absent(chunk(1).digest);
    catalog.note_absent(chunk(2).digest);
    assert_eq!(catalog.note_corrupt(&chunk(3).digest, None), None);
    assert_eq!((catalog.lengths().absent, catalog.lengths().corrupt), (2, 1));
}
