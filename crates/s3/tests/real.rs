//! The same operations against a real server, where the environment names one:
//!
//! `S3_ENDPOINT`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, and if need be `AWS_REGION`,
//! `S3_PROVIDER` (`ceph`, `swift`, ...), `S3_CA` (a PEM file), `S3_HTTP2` (`auto`: over HTTP/2
//! where it is chosen), `S3_NO_SIGNATURES` (it checks none) and `S3_VIRTUAL_HOST` (the domain
//! before which buckets stand). A bucket of its own is made and deleted.
#![allow(clippy::unwrap_used)]
// What a store does differently is worth a line with --nocapture.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod support;

use std::sync::atomic::{AtomicU32, Ordering};

use kvtier_s3::creds::from_env;
use kvtier_s3::{
    BucketAddress, Client, Conditional, Config, Credentials, Endpoint, ErrorKind, Get, Http2, List,
    Provider, Put, RootCerts, StaticResolver, Stored, Style,
};
use support::*;

fn var(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn place() -> Option<Endpoint> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let Some(url) = var("S3_ENDPOINT") else {
        eprintln!("skipped: S3_ENDPOINT names no server");
        return None;
    };
    let bucket = format!("kvtier-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let region = var("AWS_REGION").unwrap_or_else(|| "us-east-1".into());
    let provider =
        var("S3_PROVIDER").map_or(Provider::Other, |name| Provider::named(&name).unwrap());
    Some(
        BucketAddress::new(url).bucket(bucket).region(region).provider(provider).resolve().unwrap(),
    )
}

fn config(endpoint: Endpoint) -> Config {
    let mut config = Config::new(endpoint, from_env(var).unwrap().unwrap());
    if let Some(path) = var("S3_CA") {
        config.root_certs = RootCerts::Pem(std::fs::read(path).unwrap());
    }
    if let Some(http2) = var("S3_HTTP2") {
        config.http2 = Http2::named(&http2).unwrap();
    }
    config
}

/// A client with a bucket of its own.
async fn scene() -> Option<Client> {
    let client = Client::new(config(place()?));
    client.create_bucket().await.unwrap();
    Some(client)
}

/// Deletes everything and the bucket.
async fn end(client: &Client) {
    loop {
        let page = client.list(&List::default(), None).await.unwrap();
        let keys: Vec<_> = page.entries.iter().map(|entry| entry.key.as_str()).collect();
        assert_eq!(client.delete_many(&keys).await.unwrap(), []);
        if page.next.is_none() {
            break;
        }
    }
    client.delete_bucket().await.unwrap();
    let counts = client.counts();
    let http2 = var("S3_HTTP2").is_some_and(|http2| http2 != "off");
    assert_eq!(
        (counts.connections_http2 > 0, counts.connections_http11 > 0),
        (http2, !http2),
        "{counts:?}"
    );
}

#[tokio::test]
async fn objects_ranges_versions_and_conditions() {
    let (Some(client), memory) = (scene().await, Memory::new()) else { return };
    for len in [0, 1, 65_536, 5 * MIB + 3] {
        let bytes = pattern(len);
        client
            .put("a/k", &memory.view(&bytes), &Put::default().meta("kvtier", "AbC 1=="))
            .await
            .unwrap();
        let mut lease = memory.lease(len);
        let object = client.get("a/k", &mut lease, &Get::default()).await.unwrap().unwrap();
        assert!(lease.as_host().unwrap() == bytes);
        assert_eq!((object.len(), object.meta("kvtier")), (len as u64, Some("AbC 1==")));
        assert_eq!(client.head("a/k").await.unwrap().unwrap().len(), len as u64);
    }
    let bytes = pattern(5 * MIB + 3);
    let mut lease = memory.lease(bytes.len());
    client.get_parallel("a/k", &mut lease, MIB, 4).await.unwrap().unwrap();
    assert!(lease.as_host().unwrap() == bytes);
    let mut part = memory.lease(1000);
    let object = client.get("a/k", &mut part, &Get::range(77..1077)).await.unwrap().unwrap();
    assert_eq!((part.as_host().unwrap(), object.total()), (&bytes[77..1077], bytes.len() as u64));
    let outside =
        client.get("a/k", &mut part, &Get::range(10 << 20..(10 << 20) + 1000)).await.unwrap_err();
    assert_eq!((outside.kind(), outside.status()), (ErrorKind::Invalid, Some(416)));
    let stale =
        client.get("a/k", &mut lease, &Get::default().if_match("\"0123\"")).await.unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::Conflict);
    assert!(client.get("none", &mut part, &Get::default()).await.unwrap().is_none());
    assert!(client.head("none").await.unwrap().is_none());
    client.delete("none").await.unwrap();
    conditional(&client, &memory).await;
    assert!(client.clock_offset().abs() <= 2);
    end(&client).await;
    assert!(!client.head_bucket().await.unwrap());
    println!("{:?}", client.counts());
}

/// A conditional PUT is what the provider's profile says.
async fn conditional(client: &Client, memory: &Memory) {
    let one = memory.view(b"one");
    let two = memory.view(b"two");
    client.put("c", &one, &Put::default()).await.unwrap();
    let second = client.put("c", &two, &Put::if_absent()).await;
    match client.endpoint().provider().conditional() {
        Conditional::Honoured => assert_eq!(second.unwrap(), Stored::Present),
        Conditional::Ignored => assert!(matches!(second.unwrap(), Stored::New { .. })),
        Conditional::Refused => assert_eq!(second.unwrap_err().kind(), ErrorKind::Unsupported),
        _ => println!("a conditional PUT: {second:?}"),
    }
}

#[tokio::test]
async fn a_probe_finds_what_the_profile_says() {
    let (Some(client), memory) = (scene().await, Memory::new()) else { return };
    client.put("probe", &memory.view(b"other bytes"), &Put::default()).await.unwrap();
    let probe = client.probe("probe/").await.unwrap();
    println!("{probe:#?}");
    assert!(
        probe.ranges
            && probe.listing.complete
            && probe.listing.sorted
            && probe.listing.pages
            && probe.deletes_many
    );
    let usual = client.endpoint().provider().conditional();
    assert!(usual == Conditional::Unknown || probe.conditional == usual);
    let sum = client.endpoint().provider().checksum();
    assert!(
        probe.sums.iter().all(|found| found.checksum != sum || (found.verified && found.returned))
    );
    let page = client.list(&List::default(), None).await.unwrap();
    assert_eq!(page.entries.len(), 1, "{page:?}");
    end(&client).await;
}

#[tokio::test]
async fn odd_keys_listings_and_deletes() {
    let (Some(client), memory) = (scene().await, Memory::new()) else { return };
    let long = "k".repeat(900);
    let mut keys = vec![
        "a b",
        "a+b",
        "n//dbl",
        "n/./dot",
        "n/../up",
        "100%25",
        "é世",
        "~!*'()",
        "?x=1&y",
        "a;b,c:d@e",
        "&<>\"",
        &long,
    ];
    for key in &keys {
        client.put(key, &memory.view(key.as_bytes()), &Put::default()).await.unwrap();
        let mut lease = memory.lease(key.len());
        client.get(key, &mut lease, &Get::default()).await.unwrap().unwrap();
        assert_eq!(lease.as_host().unwrap(), key.as_bytes());
    }
    let mut list = List::default();
    list.page_max = 5;
    let mut found = Vec::new();
    let mut next = None::<String>;
    loop {
        let page = client.list(&list, next.as_deref()).await.unwrap();
        found.extend(page.entries.into_iter().map(|entry| entry.key));
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    keys.sort_unstable();
    found.sort();
    assert_eq!(found, keys);
    let mut folded = List::under("n/");
    folded.delimiter = Some("/".into());
    let page = client.list(&folded, None).await.unwrap();
    assert_eq!((page.entries.len(), page.prefixes.len()), (0, 3), "{page:?}");
    end(&client).await;
}

#[tokio::test]
async fn multipart_uploads() {
    let (Some(client), memory) = (scene().await, Memory::new()) else { return };
    let bytes = pattern(11 * MIB);
    client
        .put_multipart(
            "m",
            &memory.view(&bytes),
            &Put::default().meta("a", "b"),
            kvtier_s3::Multipart::new(5 * MIB, 2),
        )
        .await
        .unwrap();
    let mut lease = memory.lease(bytes.len());
    let object = client.get("m", &mut lease, &Get::default()).await.unwrap().unwrap();
    assert!(lease.as_host().unwrap() == bytes && object.meta("a") == Some("b"));
    // Parts that are too small are found out at the end; whatever the store says, no upload is
    // left.
    let small = client
        .put_multipart(
            "s",
            &memory.view(&bytes[..3000]),
            &Put::default(),
            kvtier_s3::Multipart::new(1000, 2),
        )
        .await;
    println!("parts that are too small: {small:?}");
    for _ in 0..100 {
        if client.list_uploads("", None).await.unwrap().uploads.is_empty() {
            return end(&client).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("an upload is left");
}

#[tokio::test]
async fn wrong_secrets_regions_and_buckets() {
    let (Some(client), memory) = (scene().await, Memory::new()) else { return };
    let view = memory.view(b"x");
    let endpoint = client.endpoint();
    let mut thief = config(endpoint.clone());
    let access = var("AWS_ACCESS_KEY_ID").unwrap();
    thief.credentials = std::sync::Arc::new(Credentials::new(access, "wrong"));
    let denied = Client::new(thief).put("k", &view, &Put::default()).await;
    println!("wrong secret: {denied:?}");
    // Some servers for tests check no signatures.
    assert!(
        denied.is_err_and(|e| e.kind() == ErrorKind::Denied) || var("S3_NO_SIGNATURES").is_some()
    );
    let lost = BucketAddress::new(var("S3_ENDPOINT").unwrap())
        .bucket(endpoint.bucket())
        .region("eu-nowhere-9")
        .provider(endpoint.provider());
    let lost = Client::new(config(lost.resolve().unwrap()));
    assert!(lost.put("k", &view, &Put::default()).await.is_ok(), "the region is learned");
    println!(
        "wrong region: {} moves, now {}",
        lost.counts().region_moves,
        lost.endpoint().region()
    );
    let none = BucketAddress::new(var("S3_ENDPOINT").unwrap())
        .bucket("kvtier-none")
        .region(endpoint.region());
    let none = Client::new(config(none.resolve().unwrap()));
    assert!(!none.head_bucket().await.unwrap());
    assert_eq!(none.list(&List::default(), None).await.unwrap_err().kind(), ErrorKind::NotFound);
    end(&client).await;
}

#[tokio::test]
async fn virtual_hosts() {
    let Some(domain) = var("S3_VIRTUAL_HOST") else {
        return eprintln!("skipped: S3_VIRTUAL_HOST names no domain");
    };
    let (Some(client), memory) = (scene().await, Memory::new()) else { return };
    let url = var("S3_ENDPOINT").unwrap();
    let port = url.rsplit(':').next().unwrap().trim_end_matches('/');
    let scheme = url.split("://").next().unwrap();
    let place = BucketAddress::new(format!("{scheme}://{domain}:{port}"))
        .bucket(client.endpoint().bucket())
        .region(client.endpoint().region());
    let mut other = config(place.style(Style::Virtual).resolve().unwrap());
    other.resolver = Box::new(StaticResolver(format!("127.0.0.1:{port}").parse().unwrap()));
    let other = Client::new(other);
    other.put("a b/c", &memory.view(b"virtual"), &Put::default()).await.unwrap();
    let mut lease = memory.lease(7);
    client.get("a b/c", &mut lease, &Get::default()).await.unwrap().unwrap();
    assert_eq!(lease.as_host().unwrap(), b"virtual");
    end(&client).await;
}
