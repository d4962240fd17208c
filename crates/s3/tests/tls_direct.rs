//! Records of TLS sealed and opened by us: the same bytes, the same ends, fewer copies; beside
//! rustls and haproxy.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::atomic::Ordering;

use kvtier_s3::{BucketAddress, Client, Config, ErrorKind, Get, Put, RootCerts};
use kvtier_testkit::s3::{Fault, Rule, Server};
use support::*;

fn direct(mut config: Config) -> Client {
    config.tls_direct = true;
    Client::new(config)
}

fn before(front: &front::Front) -> Client {
    let mut config = config_of(
        BucketAddress::new(format!("https://{}", front.address))
            .bucket("bucket")
            .resolve()
            .unwrap(),
    );
    config.root_certs = RootCerts::Pem(front.ca.clone().into_bytes());
    direct(config)
}

#[tokio::test]
async fn bytes_are_as_right_and_sessions_are_resumed() {
    let server = server(|_| {});
    let memory = Memory::new();
    let front = front::Front::before(&server).await;
    let client = before(&front);
    for len in [0, 1, 16_383, 16_384, 16_385, 3 * MIB + 1] {
        let bytes = pattern(len);
        client.put("k", &memory.view(&bytes), &Put::default()).await.unwrap();
        assert_eq!(server.object("k").as_deref(), Some(&bytes));
        let mut lease = memory.lease(len);
        client.get("k", &mut lease, &Get::default()).await.unwrap().unwrap();
        assert!(lease.as_host().unwrap() == bytes);
    }
    assert_eq!((client.counts().connections, client.counts().connections_direct), (1, 1));
    server.disconnect();
    client.head("k").await.unwrap().unwrap();
    assert_eq!((front.resumed.load(Ordering::SeqCst), client.counts().connections_direct), (1, 2));
}

#[tokio::test]
async fn bodies_are_not_copied() {
    let server = server(|_| {});
    let memory = Memory::new();
    let front = front::Front::before(&server).await;
    let client = before(&front);
    let bytes = pattern(10 * MIB);
    server.put_object("k", bytes.clone());
    let mut lease = memory.lease(bytes.len());
    for _ in 0..4 {
        client.get("k", &mut lease, &Get::default()).await.unwrap().unwrap();
        assert!(lease.as_host().unwrap() == bytes);
    }
    // The records at both ends of a body, whose beginning comes with the head and whose end has no
    // space for the record's type.
    let copied = client.counts().copied_tls_bytes;
    assert!(copied <= 4 * 3 * 16_384, "{copied} bytes were copied");
}

#[tokio::test]
async fn haproxy_is_understood() {
    let server = Server::start(Default::default()).unwrap();
    for (options, is_direct) in [
        ("ssl-min-ver TLSv1.3 ciphersuites TLS_AES_128_GCM_SHA256", true),
        ("ssl-min-ver TLSv1.3 ciphersuites TLS_AES_256_GCM_SHA384", true),
        ("ssl-min-ver TLSv1.3 ciphersuites TLS_CHACHA20_POLY1305_SHA256", true),
        ("ssl-max-ver TLSv1.2", false),
    ] {
        let Some(front) = proxy::Front::haproxy(&server, options, 65_535) else { return };
        let client = direct(front.config());
        proxy::every_operation(&client, &server).await;
        let counts = client.counts();
        assert_eq!(
            counts.connections_direct,
            if is_direct { counts.connections } else { 0 },
            "{options}"
        );
    }
}

#[tokio::test]
async fn faults_are_repaired_and_nothing_leaks() {
    let server = server(|_| {});
    let memory = Memory::new();
    let front = front::Front::before(&server).await;
    let bytes = pattern(300_000);
    server.put_object("k", bytes.clone());
    for fault in [
        Fault::Error(503, "SlowDown"),
        Fault::Html(502),
        Fault::Hangup,
        Fault::Cut(150_000),
        Fault::CloseAfter,
    ] {
        let client = before(&front);
        server.script(Rule::next(fault.clone()));
        let mut lease = memory.lease(bytes.len());
        let got = client.get("k", &mut lease, &Get::default()).await;
        got.unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        assert!(lease.as_host().unwrap() == bytes, "{fault:?}");
    }
    assert!(memory.is_whole());
}

#[tokio::test]
async fn a_body_that_is_longer_than_the_memory_stays_outside() {
    let server = server(|_| {});
    let memory = Memory::new();
    let front = front::Front::before(&server).await;
    server.put_object("k", pattern(100_000));
    let mut lease = memory.lease(99_999);
    let error = before(&front).get("k", &mut lease, &Get::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[tokio::test]
async fn unknown_certificates_are_denied() {
    let server = server(|_| {});
    let other = front::Front::before(&server).await;
    let front = front::Front::before(&server).await;
    let mut config = config_of(
        BucketAddress::new(format!("https://{}", front.address))
            .bucket("bucket")
            .resolve()
            .unwrap(),
    );
    config.root_certs = RootCerts::Pem(other.ca.clone().into_bytes());
    assert_eq!(direct(config).head("k").await.unwrap_err().kind(), ErrorKind::Denied);
}
