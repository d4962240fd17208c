//! What answers say of the store beside what was asked is believed for a while, and never after one
//! that a proxy could have given.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use kvtier_s3::{BucketAddress, Client, ErrorKind, Get, List, Provider, Put};
use kvtier_testkit::s3::{Fault, Foreign, Rule, Server};
use support::*;

/// A client that does not repeat what fails.
fn scene() -> (Server, Client, Memory) {
    let server = server(|_| {});
    let mut config = config(&server);
    config.retries_max = 0;
    (server, Client::new(config), Memory::new())
}

fn foreign(status: u16, body: &str) -> Fault {
    Fault::Foreign(Foreign::new(status, body))
}

#[tokio::test]
async fn a_store_whose_answers_lose_their_ids_has_misses_again() {
    let (server, client, _) = scene();
    server.put_object("k", vec![1]);
    assert!(client.head("k").await.unwrap().is_some());
    server.script(Rule::next(foreign(404, "")).times(1000));
    let error = client.head("none").await.unwrap_err();
    assert!(
        error.is_retryable(),
        "without the id that it had a moment ago it is a proxy's: {error}"
    );
    jump(Duration::from_secs(61)).await;
    assert!(client.head("none").await.unwrap().is_none());
    // As soon as there are ids again, what has none is doubtful again.
    server.heal();
    assert!(client.head("none").await.unwrap().is_none());
    server.script(Rule::next(foreign(404, "")));
    client.head("none").await.unwrap_err();
}

#[tokio::test]
async fn nothing_counts_as_deleted_by_an_answer_that_may_be_a_proxys() {
    let (server, client, _) = scene();
    server.put_object("k", vec![1]);
    server.script(Rule::next(foreign(404, "")).times(1000));
    // There was no id yet, so that nothing speaks against the answer but what it would have us
    // believe.
    assert!(client.head("k").await.unwrap().is_none());
    let error = client.delete("k").await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    server.heal();
    client.delete("k").await.unwrap();
    assert!(server.object("k").is_none());
    server.script(Rule::next(Fault::Error(404, "NoSuchKey")));
    client.delete("k").await.unwrap();
}

#[tokio::test]
async fn stores_that_always_give_ids_have_no_misses_without() {
    for provider in [Provider::Aws, Provider::Ceph, Provider::Minio] {
        let server = server(|_| {});
        let place = BucketAddress::new(server.url())
            .bucket("bucket")
            .region("us-east-1")
            .provider(provider);
        let mut config = config_of(place.resolve().unwrap());
        config.retries_max = 0;
        let client = Client::new(config);
        server.script(Rule::next(foreign(404, "")).method("HEAD"));
        client.head("none").await.unwrap_err();
        assert!(client.head("none").await.unwrap().is_none(), "{provider:?}");
    }
}

/// A node that takes bodies only with their hash signed.
fn refuses_unsigned() -> Rule {
    Rule::next(Fault::Error(403, "AccessDenied"))
        .with("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
        .times(u32::MAX)
}

/// Puts an object; how many requests that took, and whether the last of them had the body's hash
/// signed.
async fn put(server: &Server, client: &Client, memory: &Memory) -> (usize, bool) {
    let before = server.seen().len();
    drop(client.put("k", &memory.view(b"body"), &Put::default()).await);
    let seen = server.seen();
    let last = seen.last().unwrap();
    (seen.len() - before, last.header("x-amz-content-sha256") != Some("UNSIGNED-PAYLOAD"))
}

#[tokio::test]
async fn one_refusal_does_not_have_all_bodies_hashed() {
    let (server, client, memory) = scene();
    let put = async || put(&server, &client, &memory).await;
    let denied = || Rule::next(Fault::Error(403, "AccessDenied"));
    assert_eq!(put().await, (1, false));
    server.script(denied());
    assert_eq!(put().await, (2, true), "that one is sent again with its hash");
    assert_eq!(put().await, (1, false));
    for _ in 0..3 {
        server.script(denied());
        assert_eq!(put().await, (2, true));
    }
    assert_eq!(put().await, (1, true), "three in a row, which the hash helped");
    jump(Duration::from_secs(601)).await;
    assert_eq!(put().await, (1, false));
    // The store's own word is enough, and expires too.
    server.script(Rule::next(Fault::Error(400, "XAmzContentSHA256Mismatch")));
    assert_eq!((put().await, put().await), ((2, true), (1, true)));
    jump(Duration::from_secs(601)).await;
    assert_eq!(put().await, (1, false));
}

#[tokio::test]
async fn one_upload_in_parts_through_a_bad_node_does_not_have_all_bodies_hashed() {
    let (server, client, memory) = scene();
    let view = memory.view(&pattern(4 * 5 * MIB));
    server.script(refuses_unsigned());
    client
        .put_multipart("k", &view, &Put::default(), kvtier_s3::Multipart::new(5 * MIB, 4))
        .await
        .unwrap();
    assert!(client.counts().unsigned_refused >= 1, "parts were sent again");
    server.heal();
    assert_eq!(put(&server, &client, &memory).await, (1, false));
}

#[tokio::test]
async fn uploads_at_the_same_time_through_a_bad_node_count_once() {
    let (server, client, memory) = scene();
    server.script(refuses_unsigned());
    let view = &memory.view(b"body");
    let how = &Put::default();
    let (a, b, c, d) = tokio::join!(
        client.put("a", view, how),
        client.put("b", view, how),
        client.put("c", view, how),
        client.put("d", view, how)
    );
    assert!([a, b, c, d].iter().all(Result::is_ok));
    assert_eq!(client.counts().unsigned_refused, 4);
    server.heal();
    assert_eq!(put(&server, &client, &memory).await, (1, false));
}

#[tokio::test]
async fn where_the_hash_does_not_help_it_is_tried_again_only_after_a_while() {
    let (server, client, memory) = scene();
    let put = async || put(&server, &client, &memory).await;
    let denied = || Rule::next(Fault::Error(403, "AccessDenied")).times(1000);
    server.script(denied());
    assert_eq!((put().await, put().await), ((2, true), (1, false)));
    jump(Duration::from_secs(61)).await;
    assert_eq!(put().await, (2, true));
    server.heal();
    assert_eq!(put().await, (1, false));
}

#[tokio::test]
async fn one_refusal_does_not_make_all_deletes_single() {
    let (server, client, _) = scene();
    let methods = async || {
        let before = server.seen().len();
        assert!(client.delete_many(&["a", "b"]).await.unwrap().is_empty());
        server.seen()[before..].iter().map(|seen| seen.method.clone()).collect::<Vec<_>>()
    };
    let many = ["POST"];
    let single = ["DELETE", "DELETE"];
    for refusal in [foreign(501, "<html>not here</html>"), foreign(405, ""), Fault::Html(501)] {
        server.script(Rule::next(refusal).method("POST"));
        assert_eq!(methods().await, [&many[..], &single].concat());
        assert_eq!(methods().await, many);
    }
    server.script(Rule::next(Fault::Html(501)).method("POST").times(3));
    for _ in 0..3 {
        assert_eq!(methods().await, [&many[..], &single].concat());
    }
    assert_eq!(methods().await, single, "three in a row");
    jump(Duration::from_secs(61)).await;
    assert_eq!(methods().await, many);
    server.script(Rule::next(Fault::Error(501, "NotImplemented")).method("POST"));
    assert_eq!(methods().await, [&many[..], &single].concat());
    assert_eq!(methods().await, single, "the store's own word is enough");
    jump(Duration::from_secs(61)).await;
    assert_eq!(methods().await, many);
}

#[tokio::test]
async fn a_deadline_that_has_passed_says_nothing_about_the_store() {
    let (server, client, memory) = scene();
    server.put_object("k", vec![1; 100]);
    let mut lease = memory.lease(100);
    client.get("k", &mut lease, &Get::default()).await.unwrap();
    let before = (server.seen().len(), server.accepted(), client.connections_idle());
    let late = client.until(std::time::Instant::now());
    for _ in 0..30 {
        let error = late.get("k", &mut lease, &Get::default()).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.attempts(), error.op()),
            (ErrorKind::Timeout, 0, Some("get"))
        );
    }
    assert_eq!(
        before,
        (server.seen().len(), server.accepted(), client.connections_idle()),
        "nothing is begun"
    );
    assert_eq!((client.counts().breaker_opened, client.counts().deadlines), (0, 30));
    client.get("k", &mut lease, &Get::default()).await.unwrap();
}

#[tokio::test]
async fn less_time_than_the_store_needs_says_nothing_about_it() {
    let (server, client, memory) = scene();
    server.put_object("k", vec![1; 100]);
    server.script(Rule::next(Fault::Hang).times(1000));
    let mut lease = memory.lease(100);
    let whole = Get::default();
    for n in 1..=2 {
        let slow = async {
            soon("it hangs", || server.stalled() == n).await;
            jump(Duration::from_secs(10)).await;
            server.release();
        };
        let (got, ()) = tokio::join!(client.get("k", &mut lease, &whole), slow);
        got.unwrap();
    }
    let hasty = client.within(Duration::from_millis(10));
    for _ in 0..30 {
        let error = hasty.get("k", &mut lease, &Get::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{}", error.report());
    }
    assert_eq!(client.counts().breaker_opened, 0);
    server.heal();
    client.get("k", &mut lease, &Get::default()).await.unwrap();
}

#[tokio::test]
async fn a_listing_that_repeats_its_token_ends() {
    let (server, client, _) = scene();
    let page = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken></ListBucketResult>";
    server.script(Rule::next(foreign(200, page)).containing("list-type").times(2));
    let first = client.list(&List::default(), None).await.unwrap();
    assert_eq!(first.next.as_deref(), Some("t"));
    let error = client.list(&List::default(), first.next.as_deref()).await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("does not end"), "{error}");
    let page = "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>\
                <NextUploadIdMarker>i</NextUploadIdMarker></ListMultipartUploadsResult>";
    server.script(Rule::next(foreign(200, page)).containing("uploads").times(2));
    let first = client.list_uploads("", None).await.unwrap();
    let error = client.list_uploads("", first.next.as_ref()).await.unwrap_err();
    assert!(error.to_string().contains("does not end"), "{error}");
}

#[tokio::test]
async fn a_listing_that_goes_round_ends_with_an_error_and_is_whole_when_the_store_is_well() {
    let (server, client, _) = scene();
    let page = |next: u32| {
        let body = format!(
            "<ListBucketResult><IsTruncated>true</IsTruncated>\
             <NextContinuationToken>t{next}</NextContinuationToken></ListBucketResult>"
        );
        Rule::next(foreign(200, &body)).containing("list-type")
    };
    // Tokens 0, 1, and then 2, 3, 4 for ever.
    for n in 0..40u32 {
        server.script(page(if n < 2 { n } else { 2 + (n - 2) % 3 }));
    }
    let mut next = None;
    let error = loop {
        match client.list(&List::default(), next.as_deref()).await {
            Ok(page) => next = page.next,
            Err(e) => break e,
        }
        assert!(server.seen().len() <= 20, "it goes on");
    };
    assert!(error.is_retryable() && error.to_string().contains("does not end"), "{error}");
    server.heal();
    assert_eq!(client.list(&List::default(), None).await.unwrap().next, None);
}
