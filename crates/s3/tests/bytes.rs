//! Objects from and into bytes of the caller's own, without leases.
#![allow(clippy::unwrap_used)]

mod support;

use bytes::Bytes;
use kvtier_s3::{Client, ErrorKind, Put, Stored};
use kvtier_testkit::s3::{Fault, Rule};
use support::*;

#[tokio::test]
async fn bytes_of_every_owner_and_size_come_back_equal() {
    let server = server(|_| {});
    let client = client(&server);
    for len in [0, 1, 1500, 65_536, 3 * MIB + 7] {
        let bytes = pattern(len);
        let stored = client.put_bytes("k", bytes.clone(), &Put::default()).await.unwrap();
        assert!(matches!(stored, Stored::New { .. }));
        let got = client.get_bytes("k", len).await.unwrap().unwrap();
        assert_eq!(got, bytes, "{len}");
        client.put_bytes("k", Bytes::from(bytes), &Put::default()).await.unwrap();
        assert_eq!(client.get_bytes("k", 4 * MIB).await.unwrap().unwrap(), got, "{len}");
    }
    client.put_bytes("k", b"static", &Put::default()).await.unwrap();
    assert_eq!(client.get_bytes("k", 6).await.unwrap().unwrap(), b"static"[..]);
    assert_eq!(client.get_bytes("absent", 6).await.unwrap(), None);
}

#[tokio::test]
async fn an_object_above_the_limit_is_refused_before_memory_is_allocated() {
    let server = server(|_| {});
    let client = client(&server);
    client.put_bytes("k", pattern(4097), &Put::default()).await.unwrap();
    let error = client.get_bytes("k", 4096).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("4097") && error.to_string().contains("4096"), "{error}");
    assert!(server.seen().iter().all(|seen| seen.method != "GET"));
}

/// The HEAD and the GET see two versions of different lengths; the result is one of them, whole.
#[tokio::test]
async fn an_object_that_is_replaced_during_a_read_is_read_again() {
    let server = server(|_| {});
    let client = client(&server);
    client.put_bytes("k", pattern(1000), &Put::default()).await.unwrap();
    // The first GET is refused, and the object is replaced before the client repeats it.
    server.script(Rule::next(Fault::SlowDown(1)).method("GET"));
    let read = tokio::spawn(async move { client.get_bytes("k", MIB).await });
    while server.seen().iter().all(|seen| seen.method != "GET") {
        tokio::task::yield_now().await;
    }
    server.put_object("k", pattern(2000));
    assert_eq!(read.await.unwrap().unwrap().unwrap(), pattern(2000));
    let heads = server.seen().iter().filter(|seen| seen.method == "HEAD").count();
    assert_eq!(heads, 2);
}

/// Two requests, one deadline.
#[tokio::test]
async fn a_read_of_two_requests_ends_by_its_deadline() {
    let server = server(|_| {});
    let mut config = config(&server);
    config.deadline = std::time::Duration::from_millis(300);
    let client = Client::new(config);
    let patient = client.within(std::time::Duration::from_secs(600));
    patient.put_bytes("k", pattern(1000), &Put::default()).await.unwrap();
    server.script(Rule::next(Fault::Stall(std::time::Duration::from_secs(3600))).method("GET"));
    let error = client.get_bytes("k", MIB).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    server.heal();
}
