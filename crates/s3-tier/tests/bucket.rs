//! A bucket that does not exist: it is said at once, with what to do, and the tier works as soon as
//! it is there. And one whose listing does not end.
#![allow(clippy::unwrap_used)]

mod support;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_core::{Ctx, ErrorKind, Loaded, Observe, Saved, Tier};
use kvtier_s3::Client;
use kvtier_s3_tier::{S3Tier, TierConfig};
use kvtier_testkit::conformance::Fixture;
use kvtier_testkit::s3::{Fault, Foreign, Rule};
use support::tier::{PREFIX, World, plain_server, quick, within};
use support::{config_of, endpoint};

const LEN: usize = 10_000;
/// What must not hang; no measure of speed.
const PATIENCE: Duration = Duration::from_secs(180);
const SAID: &str = "the bucket bucket does not exist at http://";

#[test]
fn a_bucket_that_does_not_exist_is_said_and_used_once_it_exists() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for capped in [true, false] {
        let server = plain_server();
        let admin = Client::new(config_of(endpoint(&server, "bucket")));
        runtime.block_on(admin.delete_bucket()).unwrap();
        let mut config =
            TierConfig::new(config_of(endpoint(&server, "bucket"))).with_prefix(PREFIX);
        config.capacity_bytes = capped.then_some(64 << 20);
        let tier = Arc::new(S3Tier::open(config).unwrap());
        let mut suite = Fixture::new(kvtier_testkit::ModelTier::open(Default::default()).unwrap());
        suite.tier = Arc::clone(&tier) as Arc<_>;
        let said = || tier.status().reasons.iter().any(|reason| reason.starts_with(SAID));
        within(PATIENCE, "the status says so without any request of ours", said);
        assert!(!tier.status().healthy);
        let check = || tier.check(&Ctx::within(PATIENCE)).wait();
        let error = check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(
            error.to_string().contains(SAID) && error.to_string().contains("create it"),
            "{error}"
        );
        let key = suite.key(1);
        assert!(suite.save_with(suite.save_op(&key, LEN)).result.is_err());
        assert!(said(), "capped: {capped}");
        runtime.block_on(admin.create_bucket()).unwrap();
        within(PATIENCE, "it is found by itself", || !said() && tier.status().healthy);
        check().unwrap();
        assert_eq!(suite.save(&key, LEN), Saved::Stored);
        assert_eq!(suite.load(&key, LEN), Loaded::Hit { len: LEN as u64 });
        tier.close().wait().unwrap();
    }
}

#[test]
fn a_check_of_a_store_that_refuses_us_is_no_missing_bucket() {
    let server = plain_server();
    let mut config = config_of(endpoint(&server, "bucket"));
    config.credentials = Arc::new(kvtier_s3::Credentials::new("AKIDTEST", "another/secret"));
    let tier = S3Tier::open(TierConfig::new(config)).unwrap();
    let error = tier.check(&Ctx::within(PATIENCE)).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(!tier.status().reasons.iter().any(|reason| reason.contains("does not exist")));
}

#[test]
fn whether_puts_can_be_conditional_is_asked_until_it_is_known_and_one_refusal_does_not_end_it() {
    let server = Arc::new(plain_server());
    server.script(Rule::next(Fault::Error(404, "NoSuchBucket")).method("PUT").containing("probe-"));
    let world = World::over(Arc::clone(&server), |mut config| {
        config.if_absent = true;
        config
    });
    let next = Cell::new(0);
    let conditional = || world.count("conditional_puts");
    let save = |refused: bool| {
        next.set(next.get() + 1);
        let key = world.suite.key(next.get());
        let before = conditional();
        if refused {
            let name: &'static str = world.name(&key).leak();
            server.script(
                Rule::next(Fault::Error(501, "NotImplemented")).method("PUT").containing(name),
            );
        }
        assert_eq!(world.suite.save(&key, LEN), Saved::Stored);
        conditional() > before
    };
    within(PATIENCE, "it is found out though the first question was refused", || save(false));
    let probes: Vec<_> =
        server.seen().into_iter().filter(|seen| seen.target.contains("probe-")).collect();
    let methods: Vec<&str> = probes.iter().map(|seen| &*seen.method).collect();
    // What was not stored is not deleted.
    assert_eq!(methods, ["PUT", "PUT", "PUT", "DELETE"]);
    let path = |target: &str| target.split('?').next().map(str::to_owned);
    assert!(
        probes.iter().all(|seen| path(&seen.target) == path(&probes[0].target)),
        "one name for all"
    );
    for _ in 0..2 {
        assert!(save(true) && save(false), "one refusal is none for good");
    }
    assert!(save(true) && save(true) && save(true) && !save(false), "three in a row are");
}

#[test]
fn a_listing_that_goes_round_is_left_and_tried_again_with_pauses() {
    let world = World::with(quick);
    let page = |next: &str| {
        let body = format!(
            "<ListBucketResult><IsTruncated>true</IsTruncated>\
             <NextContinuationToken>{next}</NextContinuationToken></ListBucketResult>"
        );
        Rule::next(Fault::Foreign(Foreign::new(200, body))).containing("list-type")
    };
    for _ in 0..2000 {
        world.server.script(page("a"));
        world.server.script(page("b"));
    }
    let asked = || world.server.seen().iter().filter(|s| s.target.contains("list-type")).count();
    let (before, begun) = (asked(), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let (more, seconds) = (asked() - before, begun.elapsed().as_secs() as usize);
    assert!(more < 250 * seconds, "{more} listings in {seconds} s");
    assert!(world.count("sweeps") > 0);
    world.server.heal();
    let key = world.suite.key(1);
    world.write(&world.name(&key), &[7; 500], None);
    world.suite.eventually("the bucket is listed again", || world.used() == 500);
}
