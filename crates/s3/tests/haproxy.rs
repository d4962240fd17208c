//! HTTP/2 of another implementation: haproxy with TLS before a plain server. Skipped, and said so,
//! where haproxy is not installed.
#![allow(clippy::unwrap_used)]

mod support;

use kvtier_s3::{ErrorKind, Get, Http2, Put};
use kvtier_testkit::s3::{Fault, Rule, Server};
use support::proxy::{Front, every_operation};
use support::*;

fn plain() -> Server {
    Server::start(Default::default()).unwrap()
}

#[tokio::test]
async fn every_operation_over_http2() {
    let server = plain();
    // The usual window throttles uploads; it must not stop them.
    let Some(front) = Front::haproxy(&server, "alpn h2,http/1.1", 65_535) else { return };
    let client = front.http2(Http2::Auto);
    every_operation(&client, &server).await;
    let counts = client.counts();
    assert!(
        (1..=4).contains(&counts.connections_http2) && counts.connections_http11 == 0,
        "{counts:?}"
    );
    let control = counts.copied_http2_bytes - counts.bytes_in - counts.bytes_out;
    assert!(control < 4096, "the copy ledger: {counts:?}");
}

#[tokio::test]
async fn faults_behind_it_are_repaired() {
    let server = plain();
    let memory = Memory::new();
    let Some(front) = Front::haproxy(&server, "alpn h2,http/1.1", 1 << 20) else { return };
    let bytes = pattern(300_000);
    server.put_object("k", bytes.clone());
    for fault in [
        Fault::Error(503, "SlowDown"),
        Fault::Html(502),
        Fault::Hangup,
        Fault::Cut(150_000),
        Fault::CloseAfter,
    ] {
        let client = front.http2(Http2::Auto);
        server.script(Rule::next(fault.clone()));
        let mut lease = memory.lease(bytes.len());
        let got = client.get("k", &mut lease, &Get::default()).await;
        got.unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        assert!(lease.as_host().unwrap() == bytes, "{fault:?}");
    }
    let large = memory.view(&pattern(32 * MIB));
    server.script(Rule::next(Fault::Early(403, "AccessDenied")).times(2));
    let client = front.http2(Http2::Auto);
    let error = client.put("new", &large, &Put::default()).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Denied | ErrorKind::Io), "{error}");
    server.heal();
    client.put("new", &large, &Put::default()).await.unwrap();
}

#[tokio::test]
async fn it_falls_back_where_http2_is_not_offered_or_not_asked_for() {
    let server = plain();
    let Some(old) = Front::haproxy(&server, "alpn http/1.1", 65_535) else { return };
    let Some(new) = Front::haproxy(&server, "alpn h2,http/1.1", 65_535) else { return };
    for (front, http2) in [(&old, Http2::Auto), (&old, Http2::PriorKnowledge), (&new, Http2::Off)] {
        let client = front.http2(http2);
        assert!(client.head_bucket().await.unwrap());
        assert_eq!((client.counts().connections_http11, client.counts().connections_http2), (1, 0));
    }
}
