//! Answers that something before the store gives in its place: they say nothing of an object.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::key::{ChunkHash, KeyId, KvRank, Namespace, ObjectKey};
use kvtier_core::{ErrorKind, Hold, Key, Loaded, MissReason, Mode, Presence, Tier};
use kvtier_s3_tier::{Layout, TierConfig};
use kvtier_testkit::s3::{Fault, Foreign, Rule};
use support::tier::{World, plain_server, quick};

const LEN: usize = 100_000;
const CHUNKS: u64 = 20;

/// A tier with a cap that asks for each chunk anew.
fn asking(change: impl FnOnce(TierConfig) -> TierConfig) -> World {
    World::over(plain_server(), |config| {
        let mut config = config.with_capacity(100 * LEN as u64);
        config.fresh_hit_max = Duration::ZERO;
        change(config)
    })
}

fn all(world: &World) -> Vec<Key> {
    (0..CHUNKS).map(|n| world.suite.key(n)).collect()
}

#[test]
fn a_login_page_in_place_of_an_answer_is_a_network_error_and_marks_nothing_corrupt() {
    let world = asking(|config| config);
    let keys = all(&world);
    world.suite.store(&keys, LEN);
    let used = world.used();
    for method in ["HEAD", "GET"] {
        world.server.script(Rule::next(Fault::Html(200)).method(method).times(100_000));
    }
    let asked: Arc<[Key]> = Arc::from(&keys[..1]);
    let found = world.tier.lookup(&world.suite.ctx(), asked, Mode::Each, Hold::None).wait();
    let error = found.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::Timeout), "{error:?}");
    let done = world.try_load(&keys[0], LEN);
    assert!(
        matches!(done.result.as_ref().unwrap_err().kind(), ErrorKind::Io | ErrorKind::Timeout),
        "{done:?}"
    );
    // As of an endpoint that is down: it is asked less and less.
    world.suite.eventually("requests are held back", || {
        drop(world.try_load(&keys[1], LEN));
        world.tier().client().counts().breaker_opened > 0
    });
    assert_eq!((world.count("corrupt_objects"), world.used()), (0, used));
    world.server.heal();
    for key in &keys {
        world.suite.eventually("all is as it was", || {
            matches!(world.try_load(key, LEN).result, Ok(Loaded::Hit { .. }))
        });
        assert!(world.lookup(key).is_hit());
    }
    assert_eq!((world.count("corrupt_objects"), world.used()), (0, used));
}

/// With the headers of the object, its facts too, where it has any.
#[test]
fn an_answer_that_contradicts_itself_is_a_network_error_and_marks_nothing_corrupt() {
    for layout in [Layout::Kvtier, Layout::LmcacheMp] {
        let world = asking(|config| config.with_layout(layout));
        let key = match layout {
            Layout::Kvtier => world.suite.key(1),
            _ => {
                let id =
                    ObjectKey::new("m", KvRank(0), 0, ChunkHash::new(&[1; 32]), "").unwrap().into();
                Key::new(Namespace::new("t", Default::default()).into(), id)
            }
        };
        world.save(&key, LEN);
        let [(name, _)] = &world.objects()[..] else { panic!("one object") };
        let object = world.runtime.block_on(world.outside.head(name)).unwrap().unwrap();
        // In our own layout no facts are a verdict of their own.
        let with_facts = if layout == Layout::Kvtier { &[true][..] } else { &[true, false] };
        for with_facts in with_facts {
            let header = |name: &'static str| (name, object.header(name).unwrap().to_owned());
            let mut headers = vec![header("etag"), header("last-modified")];
            headers.extend(with_facts.then(|| header("x-amz-meta-kvtier")));
            // Not asked for, and of other bytes.
            headers.push(("content-range", format!("bytes 7-{}/{}", LEN + 6, 2 * LEN)));
            let mut answer = Foreign::new(206, vec![9; LEN]);
            answer.headers = headers;
            world.server.script(
                Rule::next(Fault::Foreign(answer)).method("GET").containing("/kv/").times(100_000),
            );
            let done = world.try_load(&key, LEN);
            let kind = done.result.as_ref().unwrap_err().kind();
            assert!(matches!(kind, ErrorKind::Io | ErrorKind::Timeout), "{layout:?} {done:?}");
            assert_eq!(world.count("corrupt_objects"), 0);
            world.server.heal();
            assert!(world.lookup(&key).is_hit(), "{layout:?}");
            assert_eq!(world.load(&key, LEN), Loaded::Hit { len: LEN as u64 });
        }
    }
}

#[test]
fn what_has_another_length_than_is_listed_and_no_facts_is_an_error_until_a_listing_says_so_too() {
    let world = asking(|mut config| {
        config.sync.sweep_every = Duration::from_secs(3600);
        config
    });
    let key = world.suite.key(1);
    let name = world.name(&world.suite.key(1));
    world.save(&key, LEN);
    let good = world.server.object(&name).unwrap().to_vec();
    let facts = world.runtime.block_on(world.outside.head(&name)).unwrap().unwrap();
    // A page with a version and a date, as a web server sends its files.
    world.write(&name, b"<html>please log in</html>", None);
    assert_eq!(world.try_load(&key, LEN).result.unwrap_err().kind(), ErrorKind::Io);
    let found =
        world.tier.lookup(&world.suite.ctx(), Arc::from([key.clone()]), Mode::Each, Hold::None);
    assert_eq!(found.wait().unwrap_err().kind(), ErrorKind::Io);
    assert_eq!((world.count("corrupt_objects"), world.used()), (0, LEN as u64));
    world.write(&name, &good, facts.meta("kvtier"));
    assert!(world.lookup(&key).is_hit());
    assert_eq!(world.load(&key, LEN), Loaded::Hit { len: LEN as u64 });
    // Another program did replace it: the listing shows it.
    let listing = asking(quick);
    listing.save(&key, LEN);
    listing.write(&name, &[7; 5000], None);
    listing.suite.eventually("listed", || listing.used() == 5000);
    assert_eq!(listing.load(&key, LEN), Loaded::Miss(MissReason::Corrupt));
    assert_eq!(listing.lookup(&key), Presence::Miss);
    // A listing has the length of a suspect too.
    listing.write(&name, &[7; 6000], None);
    listing.suite.eventually("listed again", || listing.used() == 6000);
}

#[test]
fn a_version_that_this_process_saw_with_facts_is_no_hit_with_other_bytes_and_none() {
    for layout in [Layout::Lmcache, Layout::LmcacheMp] {
        let world = World::with(|config| config.with_layout(layout));
        let id = match layout {
            Layout::Lmcache => KeyId::from_engine_text("m@1@0@1a2b@half").unwrap(),
            _ => ObjectKey::new("m", KvRank(0), 0, ChunkHash::new(&[1; 32]), "").unwrap().into(),
        };
        let key = Key::new(Namespace::new("t", Default::default()).into(), id);
        assert_eq!(world.save(&key, LEN), kvtier_core::Saved::Stored);
        let [(name, _)] = &world.objects()[..] else { panic!("one object") };
        // The chunk alone: the tier has objects of its own below the prefix.
        let stripped = |fault| Rule::next(fault).method("GET").containing("/kv/m");
        // The same version, other bytes, no facts.
        world.server.script(stripped(Fault::Stripped { flipped: true }).times(1));
        assert_eq!(world.load(&key, LEN), Loaded::Hit { len: LEN as u64 }, "asked for once more");
        world.server.script(stripped(Fault::Stripped { flipped: true }).times(50));
        let done = world.try_load(&key, LEN);
        assert_eq!(done.result.unwrap_err().kind(), ErrorKind::Io, "{layout:?}");
        world.server.heal();
        // The same version and the same bytes without facts: another program may have written them
        // anew.
        world.server.script(stripped(Fault::Stripped { flipped: false }).times(1));
        assert_eq!(world.load(&key, LEN), Loaded::Hit { len: LEN as u64 });
        assert_eq!(world.count("unverified"), 1);
        // Another version is another program's.
        world.write(name, &vec![9; LEN], None);
        let done = world.try_load(&key, LEN);
        assert_eq!(
            (done.result.unwrap(), world.count("unverified")),
            (Loaded::Hit { len: LEN as u64 }, 2)
        );
        assert_eq!(world.count("corrupt_objects"), 0);
    }
}
