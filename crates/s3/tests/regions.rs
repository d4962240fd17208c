//! Another region is followed wherever a store names it; another host never, unless it is the same
//! service of AWS.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use kvtier_s3::creds::{Provide, Provided};
use kvtier_s3::{
    BucketAddress, Client, Config, Credentials, ErrorKind, Get, Provider, Put, Resolve, Resolved,
};
use kvtier_testkit::s3::{Elsewhere, Fault, Foreign, Rule, Server};
use support::*;

const REGION: &str = "eu-south-7";

/// Leads every name but those with `nowhere` in them to one address, and keeps the names.
#[derive(Clone, Debug)]
struct Names(SocketAddr, Arc<Mutex<Vec<String>>>);

impl Resolve for Names {
    fn resolve<'a>(&'a self, host: &'a str, _: u16) -> Resolved<'a> {
        self.1.lock().unwrap().push(host.to_owned());
        let found = match host.contains("nowhere") {
            true => Err(std::io::ErrorKind::NotFound.into()),
            false => Ok(vec![self.0]),
        };
        Box::pin(async { found })
    }
}

/// A client of AWS in the first region; the bucket is in another.
fn scene() -> (Server, Client, Names) {
    scene_at("http://s3.us-east-1.amazonaws.com", REGION)
}

/// A client of a bucket at this host of AWS; it is in that region.
fn scene_at(host: &str, region: &str) -> (Server, Client, Names) {
    let server = server(|setup| setup.region = region.into());
    let names = Names(server.address(), Arc::default());
    let place = BucketAddress::new(host).bucket("bucket").region("us-east-1").resolve().unwrap();
    assert_eq!(place.provider(), Provider::Aws);
    let mut config = config_of(place);
    config.resolver = Box::new(names.clone());
    (server, Client::new(config), names)
}

fn elsewhere(status: u16, header: Option<(&'static str, &str)>, inside: &str) -> Fault {
    let header = header.map(|(name, value)| (name, value.to_owned()));
    Fault::Elsewhere(Elsewhere { status, header, inside: inside.into() })
}

#[tokio::test]
async fn every_way_of_naming_the_region_is_understood() {
    let region = Some(("x-amz-bucket-region", REGION));
    let location = Some(("location", "http://bucket.s3.eu-south-7.amazonaws.com/k?x=1"));
    let ways = [
        elsewhere(301, region, "<Code>PermanentRedirect</Code>"),
        elsewhere(
            301,
            None,
            "<Code>PermanentRedirect</Code><Endpoint>bucket.s3.eu-south-7.amazonaws.com</Endpoint>",
        ),
        elsewhere(
            307,
            None,
            "<Code>TemporaryRedirect</Code><Endpoint>bucket.s3-eu-south-7.amazonaws.com</Endpoint>",
        ),
        elsewhere(307, location, ""),
        elsewhere(
            400,
            None,
            "<Code>AuthorizationHeaderMalformed</Code><Region>eu-south-7</Region>",
        ),
        elsewhere(403, region, ""),
    ];
    for way in ways {
        let (server, client, names) = scene();
        let memory = Memory::new();
        server.put_object("k", vec![7; 10]);
        server.script(Rule::next(way.clone()));
        client
            .get("k", &mut memory.lease(10), &Get::default())
            .await
            .unwrap_or_else(|e| panic!("{way:?}: {e}"));
        client.put("l", &memory.view(b"x"), &Put::default()).await.unwrap();
        let seen = server.seen();
        let counts = client.counts();
        let status: Vec<u16> = seen.iter().map(|seen| seen.status).collect();
        assert_eq!(
            (&status[1..], counts.region_moves),
            (&[200, 200][..], 1),
            "{way:?} is followed once"
        );
        assert_eq!(client.endpoint().region(), REGION);
        let host = "bucket.s3.eu-south-7.amazonaws.com";
        assert!(
            seen[1..].iter().all(|seen| seen.header("host") == Some(host)),
            "signed anew for {host}"
        );
        assert!(seen[1].header("authorization").unwrap().contains("/eu-south-7/s3/"));
        assert_eq!(*names.1.lock().unwrap(), ["bucket.s3.us-east-1.amazonaws.com", host]);
    }
}

#[tokio::test]
async fn the_response_to_a_head_has_only_headers() {
    let (server, client, _) = scene();
    server.put_object("k", vec![7; 10]);
    server.script(Rule::next(elsewhere(400, Some(("x-amz-bucket-region", REGION)), "")));
    assert_eq!(client.head("k").await.unwrap().unwrap().len(), 10);
}

#[tokio::test]
async fn no_other_host_is_followed() {
    let thief = server(|_| {});
    let url = format!("http://{}/k", thief.address());
    let endpoint =
        format!("<Code>TemporaryRedirect</Code><Endpoint>{}</Endpoint>", thief.address());
    let lures = [
        elsewhere(301, Some(("location", &url)), "<Code>PermanentRedirect</Code>"),
        elsewhere(302, Some(("location", &url)), ""),
        elsewhere(307, None, &endpoint),
        elsewhere(
            308,
            Some(("location", "http://bucket.s3.eu-south-7.amazonaws.com.evil.test/k")),
            "",
        ),
        elsewhere(301, Some(("x-amz-bucket-region", "evil.test/")), ""),
        elsewhere(301, Some(("x-amz-bucket-region", "x.evil.test")), ""),
        elsewhere(
            400,
            None,
            "<Code>AuthorizationHeaderMalformed</Code><Region>a@evil.test</Region>",
        ),
    ];
    for lure in lures {
        let (server, client, names) = scene();
        let memory = Memory::new();
        server.script(Rule::next(lure.clone()).times(100));
        let error = client.put("k", &memory.view(b"secret"), &Put::default()).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.is_retryable()),
            (ErrorKind::Invalid, false),
            "{lure:?}: {error}"
        );
        assert!(server.seen().len() <= 2, "{lure:?}: {} requests", server.seen().len());
        assert!(
            names.1.lock().unwrap().iter().all(|name| name == "bucket.s3.us-east-1.amazonaws.com"),
            "{names:?}"
        );
    }
    // A store of one's own redirects no client to AWS.
    let own = server(|_| {});
    let memory = Memory::new();
    let location = "http://bucket.s3.eu-south-7.amazonaws.com/k";
    own.script(Rule::next(elsewhere(307, Some(("location", location)), "")).times(100));
    let error = client(&own).put("k", &memory.view(b"secret"), &Put::default()).await.unwrap_err();
    assert_eq!((error.kind(), own.seen().len()), (ErrorKind::Invalid, 1));
    assert_eq!(thief.accepted(), 0);
}

#[tokio::test]
async fn a_store_that_cannot_decide_is_not_followed_for_ever() {
    let (server, client, _) = scene();
    let memory = Memory::new();
    for region in ["eu-west-1", "eu-west-2"].into_iter().cycle().take(20) {
        server.script(Rule::next(elsewhere(301, Some(("x-amz-bucket-region", region)), "")));
    }
    let error = client.put("k", &memory.view(b"x"), &Put::default()).await.unwrap_err();
    assert_eq!((error.kind(), server.seen().len()), (ErrorKind::Invalid, 5));
}

/// A region that one answer names: 301, 307, 400 or 403.
fn astray(region: &str) -> [Fault; 4] {
    let header = Some(("x-amz-bucket-region", region));
    let inside = format!("<Code>AuthorizationHeaderMalformed</Code><Region>{region}</Region>");
    [
        elsewhere(301, header, ""),
        elsewhere(307, header, ""),
        elsewhere(400, None, &inside),
        elsewhere(403, header, ""),
    ]
}

#[tokio::test]
async fn one_wrong_answer_is_survived_by_the_operation_that_gets_it() {
    // The first leads nowhere, the second to a server that rejects the credentials, the third is no
    // region.
    for region in ["us-nowhere-1", "eu-west-3", "zz_1"] {
        for wrong in astray(region) {
            let (server, client, _) = scene_at("http://s3.us-east-1.amazonaws.com", "us-east-1");
            let memory = Memory::new();
            server.script(Rule::next(wrong.clone()));
            client
                .put("k", &memory.view(b"x"), &Put::default())
                .await
                .unwrap_or_else(|e| panic!("{wrong:?}: {e}"));
            assert_eq!(client.endpoint().region(), "us-east-1", "{wrong:?}");
            assert!(server.seen().len() <= 3, "{wrong:?}");
        }
    }
    // At a store of one's own the region is a word that is signed, and any word is tried.
    for wrong in astray("zz-proxy-1") {
        let server = server(|_| {});
        let memory = Memory::new();
        let client = client(&server);
        server.script(Rule::next(wrong.clone()));
        client
            .put("k", &memory.view(b"x"), &Put::default())
            .await
            .unwrap_or_else(|e| panic!("{wrong:?}: {e}"));
        assert_eq!(
            (client.endpoint().region(), server.seen().len()),
            ("us-east-1", 3),
            "{wrong:?}"
        );
    }
}

#[tokio::test]
async fn a_region_that_refuses_is_left_and_its_reason_is_the_error() {
    let (server, client, _) = scene();
    let memory = Memory::new();
    let sent = || elsewhere(301, Some(("x-amz-bucket-region", REGION)), "");
    server.script(Rule::next(sent()));
    server.script(Rule::next(Fault::Error(403, "AccountProblem")));
    server.script(Rule::next(sent()));
    let error = client.put("k", &memory.view(b"x"), &Put::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Denied, Some("AccountProblem")));
    assert_eq!((server.seen().len(), client.endpoint().region()), (3, "us-east-1"));
    // Nothing was learned against it.
    server.script(Rule::next(sent()));
    client.put("k", &memory.view(b"x"), &Put::default()).await.unwrap();
    assert_eq!(client.endpoint().region(), REGION);
    // What it refuses now that it is proven is its own affair.
    server.script(Rule::next(Fault::Error(403, "AccountProblem")));
    client.put("k", &memory.view(b"x"), &Put::default()).await.unwrap_err();
    assert_eq!(client.endpoint().region(), REGION);
}

/// A source that counts.
#[derive(Debug)]
struct Source(Arc<AtomicU64>);

impl Provide for Source {
    fn provide(&self) -> Provided<'_> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { Ok(Credentials::new("AKIDTEST", "secret/test+key")) })
    }
}

#[tokio::test]
async fn credentials_that_expire_at_a_region_that_is_not_proven_are_read_again() {
    let server = server(|setup| setup.region = REGION.into());
    let place = BucketAddress::new("http://s3.us-east-1.amazonaws.com")
        .bucket("bucket")
        .region("us-east-1")
        .resolve()
        .unwrap();
    let asked = Arc::new(AtomicU64::new(0));
    let client = || {
        let source = Arc::new(Source(Arc::clone(&asked)));
        let mut config = Config::with_provider(place.clone(), source);
        config.deadline = std::time::Duration::from_secs(3600);
        config.resolver = Box::new(Names(server.address(), Arc::default()));
        Client::new(config)
    };
    let make = &client;
    let client = client();
    let memory = Memory::new();
    let sent = || elsewhere(301, Some(("x-amz-bucket-region", REGION)), "");
    server.script(Rule::next(sent()));
    server.script(Rule::next(Fault::Error(400, "ExpiredToken")));
    client.put("k", &memory.view(b"x"), &Put::default()).await.unwrap();
    assert_eq!(
        (asked.load(Ordering::SeqCst), server.seen().len(), client.endpoint().region()),
        (2, 3, REGION)
    );
    // Where new ones do not help either it may be the region, and what it said is the error.
    let client = make();
    let before = server.seen().len();
    for fault in
        [sent(), Fault::Error(400, "ExpiredToken"), Fault::Error(400, "ExpiredToken"), sent()]
    {
        server.script(Rule::next(fault));
    }
    let error = client.put("k", &memory.view(b"x"), &Put::default()).await.unwrap_err();
    assert_eq!((error.code(), asked.load(Ordering::SeqCst)), (Some("ExpiredToken"), 4));
    assert_eq!((server.seen().len() - before, client.endpoint().region()), (4, "us-east-1"));
}

#[tokio::test]
async fn a_region_that_cannot_be_reached_is_left() {
    let server = server(|setup| setup.region = "us-east-1".into());
    let (dead, _kept) = dead();
    let place =
        BucketAddress::new("http://s3.us-east-1.amazonaws.com").bucket("bucket").resolve().unwrap();
    let mut config = config_of(place);
    #[derive(Debug)]
    struct Two(SocketAddr, SocketAddr);
    impl Resolve for Two {
        fn resolve<'a>(&'a self, host: &'a str, _: u16) -> Resolved<'a> {
            Box::pin(
                async move { Ok(vec![if host.contains("us-east-1") { self.0 } else { self.1 }]) },
            )
        }
    }
    config.resolver = Box::new(Two(server.address(), dead));
    let client = Client::new(config);
    let memory = Memory::new();
    for wrong in astray("eu-west-3") {
        server.script(Rule::next(wrong));
        client.put("k", &memory.view(b"x"), &Put::default()).await.unwrap();
        assert_eq!(client.endpoint().region(), "us-east-1");
    }
}

#[tokio::test]
async fn names_that_were_chosen_for_what_they_are_are_never_left() {
    for host in [
        "http://s3-fips.us-east-1.amazonaws.com",
        "http://s3-fips.dualstack.us-east-1.amazonaws.com",
        "http://bucket.vpce-1a2b-3c4d.s3.us-east-1.vpce.amazonaws.com",
    ] {
        for wrong in astray("eu-west-3") {
            let (server, client, names) = scene_at(host, "us-east-1");
            let memory = Memory::new();
            server.script(Rule::next(wrong.clone()).times(9));
            let error = client.put("k", &memory.view(b"x"), &Put::default()).await.unwrap_err();
            assert!(
                error.report().contains("name that region's endpoint"),
                "{host}: {}",
                error.report()
            );
            assert_eq!((error.kind(), server.seen().len()), (ErrorKind::Invalid, 2), "{host}");
            let kept = names
                .1
                .lock()
                .unwrap()
                .iter()
                .all(|name| host.ends_with(name.trim_start_matches("bucket.")));
            assert!(kept, "{host}: {names:?}");
            server.heal();
            client.put("k", &memory.view(b"x"), &Put::default()).await.unwrap();
        }
    }
    for (host, there) in [
        (
            "http://s3.dualstack.us-east-1.amazonaws.com",
            "bucket.s3.dualstack.eu-south-7.amazonaws.com",
        ),
        ("http://s3-accelerate.amazonaws.com", "bucket.s3-accelerate.amazonaws.com"),
    ] {
        let (server, client, names) = scene_at(host, REGION);
        let memory = Memory::new();
        server.script(Rule::next(elsewhere(400, Some(("x-amz-bucket-region", REGION)), "")));
        client.put("k", &memory.view(b"x"), &Put::default()).await.unwrap();
        assert_eq!(names.1.lock().unwrap().last().map(String::as_str), Some(there));
    }
}

/// A client that learned a region, ten minutes later; what the configured endpoint says then. Eight
/// uploads at a time go to the learned region, each by one request, and one request asks.
async fn expired(answer: Fault, region: &str) {
    let (server, client, _) = scene();
    let memory = Memory::new();
    let view = memory.view(b"x");
    let put = async || client.put("k", &view, &Put::default()).await.unwrap();
    server.script(Rule::next(elsewhere(301, Some(("x-amz-bucket-region", REGION)), "")));
    put().await;
    put().await;
    assert_eq!((client.endpoint().region(), server.seen().len()), (REGION, 3));
    jump(std::time::Duration::from_secs(600)).await;
    server.script(Rule::next(answer).method("HEAD"));
    tokio::join!(put(), put(), put(), put(), put(), put(), put(), put());
    soon("the answer", || server.seen().iter().any(|seen| seen.method == "HEAD")).await;
    soon("it counts", || client.endpoint().region() == region).await;
    let mut retries = 1;
    if region == REGION {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        // The region works, whatever the configured endpoint answered: one failure changes nothing.
        server.script(Rule::next(Fault::Error(500, "InternalError")).method("PUT"));
        put().await;
        assert_eq!(client.endpoint().region(), REGION);
        retries += 1;
        tokio::join!(put(), put(), put(), put());
        assert_eq!(server.seen().len(), 3 + 8 + 1 + 2 + 4);
    }
    let heads = server.seen().iter().filter(|seen| seen.method == "HEAD").count();
    assert_eq!((heads, client.counts().retries), (1, retries), "one is of the first upload");
}

#[tokio::test]
async fn a_region_that_was_learned_is_asked_for_again_by_one_request() {
    expired(elsewhere(301, Some(("x-amz-bucket-region", REGION)), ""), REGION).await;
    expired(elsewhere(400, Some(("x-amz-bucket-region", REGION)), ""), REGION).await;
}

#[tokio::test]
async fn a_region_that_works_stays_where_the_configured_endpoint_says_nothing_of_use() {
    for fault in
        [Fault::Error(500, "InternalError"), Fault::Error(403, "AccessDenied"), Fault::Html(502)]
    {
        expired(fault, REGION).await;
    }
}

#[tokio::test]
async fn a_bucket_that_is_at_the_configured_endpoint_again_is_used_there() {
    expired(Fault::Foreign(Foreign::new(200, "")), "us-east-1").await;
}

#[tokio::test]
async fn buckets_are_made_in_their_region() {
    let server = server(|setup| setup.region = REGION.into());
    let mut config = config_of(
        BucketAddress::new(format!("http://bucket.s3.{REGION}.amazonaws.com")).resolve().unwrap(),
    );
    config.resolver = Box::new(Names(server.address(), Arc::default()));
    let client = Client::new(config);
    client.delete_bucket().await.unwrap();
    assert!(!client.head_bucket().await.unwrap());
    client.create_bucket().await.unwrap();
    assert!(client.head_bucket().await.unwrap());
}
