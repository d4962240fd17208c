//! S3 Express One Zone against a strict emulator.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use kvtier_s3::{
    BucketAddress, Checksum, Client, ErrorKind, Get, List, Provider, Put, StaticResolver,
};
use kvtier_testkit::s3::{Fault, Rule, Server};
use support::*;

const BUCKET: &str = "kv--use1-az4--x-s3";

fn emulator() -> (Server, Client) {
    let server = server(|setup| setup.bucket = BUCKET.into());
    let client = Client::new(config_of(endpoint(&server, BUCKET)));
    (server, client)
}

#[tokio::test]
async fn data_is_signed_by_a_session_and_sessions_by_the_base_credentials() {
    let (server, client) = emulator();
    let memory = Memory::new();
    let bytes = pattern(100_000);
    client.put("a/k", &memory.view(&bytes), &Put::default()).await.unwrap();
    let mut lease = memory.lease(bytes.len());
    client.get("a/k", &mut lease, &Get::default()).await.unwrap().unwrap();
    assert_eq!(lease.as_host().unwrap(), bytes);
    assert!(client.head_bucket().await.unwrap());
    let seen = server.seen();
    assert_eq!(seen[0].target, format!("/{BUCKET}?session"));
    assert_eq!(seen[0].header("x-amz-create-session-mode"), Some("ReadWrite"));
    for seen in &seen {
        assert_eq!(seen.status, 200, "{} {}", seen.method, seen.target);
        assert!(
            seen.header("authorization").unwrap().contains("/us-east-1/s3express/aws4_request")
        );
        assert_eq!(
            seen.header("x-amz-s3session-token").is_some(),
            !seen.target.contains("session")
        );
        assert!(seen.header("x-amz-security-token").is_none());
    }
    assert_eq!((server.sessions_made(), client.counts().checksums_verified), (1, 1));
    assert_eq!(client.endpoint().provider().checksum(), Checksum::Crc32c);
}

#[tokio::test]
async fn production_names_are_used_when_there_is_no_other_endpoint() {
    let server = server(|setup| setup.bucket = BUCKET.into());
    let memory = Memory::new();
    let host = format!("{BUCKET}.s3express-use1-az4.us-east-1.amazonaws.com");
    let client = at_aws(&server);
    assert_eq!(client.endpoint().provider(), Provider::Express);
    client.put("k", &memory.view(b"x"), &Put::default()).await.unwrap();
    let seen = server.seen();
    assert_eq!(
        (seen[0].target.as_str(), seen[0].header("host")),
        ("/?session", Some(host.as_str()))
    );
    assert_eq!(seen[1].target, "/k");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_make_one_session() {
    let server = server(|setup| setup.bucket = BUCKET.into());
    let mut config = config_of(endpoint(&server, BUCKET));
    // No request may hold the only permit while the session is created.
    config.requests_max = 1;
    let client = Client::new(config);
    server.put_object("k", vec![1; 10]);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let client = client.clone();
        tasks.spawn(async move { client.head("k").await.unwrap().unwrap().len() });
    }
    while let Some(len) = tasks.join_next().await {
        assert_eq!(len.unwrap(), 10);
    }
    assert_eq!(server.sessions_made(), 1);
}

#[tokio::test]
async fn a_session_that_the_store_ends_early_costs_one_repetition() {
    let (server, client) = emulator();
    server.put_object("k", vec![1; 10]);
    for made in 1..4 {
        assert!(client.list(&List::default(), None).await.is_ok());
        assert_eq!((server.sessions_made(), client.counts().retries), (made, made - 1));
        server.expire_sessions();
        // Sooner than that the next one is not given up.
        jump(Duration::from_secs(1)).await;
    }
}

#[tokio::test]
async fn a_session_slower_than_every_caller_is_made_once_all_the_same() {
    let (server, client) = emulator();
    server.script(Rule::next(Fault::Hang).containing("session"));
    let hasty = client.within(Duration::from_millis(50));
    for _ in 0..5 {
        hasty.list(&List::default(), None).await.unwrap_err();
    }
    soon("the session is asked for", || server.stalled() == 1).await;
    server.release();
    // One that waits: if what was begun for the others were lost with them, it would ask anew.
    client.list(&List::default(), None).await.unwrap();
    let asked = server.seen().iter().filter(|seen| seen.target.contains("session")).count();
    assert_eq!((asked, server.sessions_made()), (1, 1));
}

#[tokio::test]
async fn sessions_are_renewed_in_the_background_before_they_end() {
    let (server, client) = emulator();
    server.put_object("k", vec![1; 10]);
    server.session_life(300);
    assert!(client.list(&List::default(), None).await.is_ok());
    server.script(Rule::next(Fault::Hang).containing("session"));
    // By the store's clock it is past 70 % of its life, and good for a while yet.
    server.step_clock(230);
    let mut meanwhile = 0;
    let start = Instant::now();
    while server.sessions_made() < 2 {
        client.list(&List::default(), None).await.unwrap();
        meanwhile += usize::from(server.stalled() > 0);
        if meanwhile >= 5 {
            server.release();
        }
        assert!(start.elapsed() < Duration::from_secs(600), "it is not renewed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(meanwhile >= 5, "no request waits for the renewal: {meanwhile}");
    for _ in 0..20 {
        client.list(&List::default(), None).await.unwrap();
    }
    let refused = server.seen().iter().filter(|seen| seen.status >= 400).count();
    assert_eq!((refused, server.sessions_made(), client.counts().identity_failures), (0, 2, 0));
}

#[tokio::test]
async fn the_rules_of_directory_buckets_are_kept() {
    let (server, client) = emulator();
    let memory = Memory::new();
    for n in 0..7 {
        client.put(&format!("p/{n}"), &memory.view(b"x"), &Put::default()).await.unwrap();
    }
    assert_eq!(client.list(&List::under("p"), None).await.unwrap_err().kind(), ErrorKind::Invalid);
    let page = client.list(&List::under("p/"), None).await.unwrap();
    assert_eq!((page.entries.len(), page.entries[0].key.as_str()), (7, "p/6"), "in no order");
    assert!(client.delete_many(&["p/0", "p/1"]).await.unwrap().is_empty());
    let delete = server.seen().into_iter().rfind(|seen| seen.method == "POST").unwrap();
    assert!(
        delete.header("content-md5").is_none() && delete.header("x-amz-checksum-crc32c").is_some()
    );
    let bytes = pattern(11 * MIB);
    client
        .put_multipart(
            "m",
            &memory.view(&bytes),
            &Put::default(),
            kvtier_s3::Multipart::new(5 * MIB, 2),
        )
        .await
        .unwrap();
    assert_eq!(server.object("m").as_deref(), Some(&bytes));
}

/// A client that uses production's names, all of which lead to the emulator.
fn at_aws(server: &Server) -> Client {
    let host = format!("{BUCKET}.s3express-use1-az4.us-east-1.amazonaws.com");
    let mut config = config_of(BucketAddress::new(format!("http://{host}")).resolve().unwrap());
    config.resolver = Box::new(StaticResolver(server.address()));
    Client::new(config)
}

#[tokio::test]
async fn directory_buckets_are_made_and_unmade_by_the_base_credentials_elsewhere() {
    let server = server(|setup| setup.bucket = BUCKET.into());
    let memory = Memory::new();
    for client in [at_aws(&server), Client::new(config_of(endpoint(&server, BUCKET)))] {
        client.create_bucket().await.unwrap();
        client.put("a/k", &memory.view(b"x"), &Put::default()).await.unwrap();
        assert_eq!(client.delete_bucket().await.unwrap_err().code(), Some("BucketNotEmpty"));
        client.delete("a/k").await.unwrap();
        client.delete_bucket().await.unwrap();
        client.delete_bucket().await.unwrap();
        assert!(!client.head_bucket().await.unwrap());
        client.create_bucket().await.unwrap();
        assert!(client.head_bucket().await.unwrap());
    }
    let seen = server.seen();
    let made: Vec<_> =
        seen.iter().filter(|seen| seen.method == "PUT" && !seen.target.ends_with("a/k")).collect();
    assert_eq!(made.iter().map(|seen| seen.status).collect::<Vec<_>>(), [409, 200, 409, 200]);
    assert_eq!(made[0].header("host"), Some("s3express-control.us-east-1.amazonaws.com"));
    for request in made {
        assert_eq!(request.target, format!("/{BUCKET}"));
        assert!(
            request.header("authorization").unwrap().contains("/us-east-1/s3express/aws4_request")
        );
        assert!(request.header("x-amz-s3session-token").is_none());
    }
}

#[tokio::test]
async fn a_directory_bucket_without_a_zone_in_its_name_cannot_be() {
    let server = server(|_| {});
    let place = BucketAddress::new(server.url())
        .bucket("bucket")
        .region("us-east-1")
        .provider(Provider::Express);
    let error = Client::new(config_of(place.resolve().unwrap())).create_bucket().await.unwrap_err();
    assert_eq!((error.kind(), error.op()), (ErrorKind::Invalid, Some("create_bucket")));
    assert!(error.to_string().contains("NAME--ZONE--x-s3") && server.seen().is_empty());
}

#[tokio::test]
async fn a_reader_asks_for_no_more_than_reading() {
    let server = server(|setup| setup.bucket = BUCKET.into());
    let memory = Memory::new();
    server.put_object("k", vec![1; 10]);
    let mut config = config_of(endpoint(&server, BUCKET));
    config.read_only = true;
    let client = Client::new(config);
    assert!(client.head("k").await.unwrap().is_some());
    assert_eq!(server.seen()[0].header("x-amz-create-session-mode"), Some("ReadOnly"));
    let error = client.put("k", &memory.view(b"x"), &Put::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn a_store_without_sessions_is_detected() {
    let server = server(|_| {});
    let mut place = BucketAddress::new(server.url()).bucket("bucket").region("us-east-1");
    place = place.provider(Provider::Express);
    let error = Client::new(config_of(place.resolve().unwrap())).head("k").await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unsupported), "{error}");
}

/// One request of `vectors/express.jsonl` or of ours: host and method, path, query, and the names
/// of what is signed, with the body's hash.
type Asked = (String, String, Vec<String>, Vec<String>);

fn asked<'h>(method: &str, target: &str, header: impl Fn(&str) -> &'h str) -> Asked {
    let authorization = header("authorization");
    assert!(authorization.contains("/us-east-1/s3express/aws4_request, "), "{authorization}");
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut query: Vec<_> =
        query.split('&').filter(|pair| !pair.is_empty()).map(str::to_owned).collect();
    query.sort();
    let signed = authorization.split_once("SignedHeaders=").unwrap().1.split(',').next().unwrap();
    let hash = header("x-amz-content-sha256");
    let method = format!("{method} {}", header("host"));
    (method, path.to_owned(), query, signed.split(';').chain([hash]).map(str::to_owned).collect())
}

#[tokio::test]
async fn requests_are_those_of_boto3() {
    let server = server(|setup| setup.bucket = BUCKET.into());
    let memory = Memory::new();
    let host = format!("{BUCKET}.s3express-use1-az4.us-east-1.amazonaws.com");
    let client = |read_only| {
        let mut config = config_of(BucketAddress::new(format!("http://{host}")).resolve().unwrap());
        config.resolver = Box::new(StaticResolver(server.address()));
        // As boto3 was configured.
        (config.checksum, config.sign_bodies, config.read_only) = (Checksum::None, true, read_only);
        Client::new(config)
    };
    let writer = client(false);
    let mut lease = memory.lease(13);
    let mut part = memory.lease(5);
    let hello = memory.view(b"hello express");
    writer.put("dir/obj 1", &hello, &Put::default()).await.unwrap();
    writer.get("dir/obj 1", &mut lease, &Get::default()).await.unwrap().unwrap();
    writer.get("dir/obj 1", &mut part, &Get::range(0..5)).await.unwrap().unwrap();
    writer.head("dir/obj 1").await.unwrap().unwrap();
    writer.put("once", &memory.view(b"x"), &Put::if_absent()).await.unwrap();
    writer.list(&List::under("dir/"), None).await.unwrap();
    writer.delete("dir/obj 1").await.unwrap();
    assert!(writer.head_bucket().await.unwrap());
    assert!(client(true).head_bucket().await.unwrap());
    writer.delete("once").await.unwrap();
    writer.delete_bucket().await.unwrap();
    writer.create_bucket().await.unwrap();
    let seen: Vec<_> = server
        .seen()
        .into_iter()
        .filter(|seen| !(seen.method == "DELETE" && seen.target == "/once"))
        .collect();
    assert!(seen.iter().all(|seen| seen.status < 300));
    let mut ours: Vec<_> = seen
        .iter()
        .map(|seen| asked(&seen.method, &seen.target, |name| seen.header(name).unwrap()))
        .collect();
    let mut theirs: Vec<_> = include_str!("../vectors/express.jsonl")
        .lines()
        .map(|line| {
            let case: serde_json::Value = serde_json::from_str(line).unwrap();
            let text = |name: &str| case[name].as_str().unwrap();
            asked(text("method"), &format!("{}?{}", text("path"), text("query")), |name| {
                case["headers"][name].as_str().unwrap()
            })
        })
        .collect();
    for all in [&mut ours, &mut theirs] {
        all.sort();
        all.dedup();
    }
    // The one difference: boto3 names the mode of a session only when configured, we always do.
    theirs.retain(|(_, _, query, signed)| {
        query.iter().all(|pair| pair != "session")
            || signed.iter().any(|name| name.ends_with("mode"))
    });
    assert_eq!(ours, theirs);
}
