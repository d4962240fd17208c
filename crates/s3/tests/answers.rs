//! Not everything that says 200 is the store, and not all that the store says with 200 is a
//! success.
#![allow(clippy::unwrap_used)]

mod support;

use kvtier_s3::{Client, Error, ErrorKind, Get, List, Put, Stored};
use kvtier_testkit::s3::{Fault, Foreign, Rule, Server};
use support::*;

/// Bodies that are no answer to anything that is asked here.
const NO_ANSWERS: [&str; 7] = [
    "",
    "<html>please log in</html>",
    "<!DOCTYPE html><html><body>maintenance<br></body></html>",
    "<Error><Code>InternalError</Code></Error>",
    "<Error><Message>We encountered an internal error</Message></Error>",
    "<NoResult/>",
    "and now for something else",
];

/// A client that repeats once what fails.
fn scene() -> (Server, Client, Memory) {
    let server = server(|_| {});
    let mut config = config(&server);
    config.retries_max = 1;
    (server, Client::new(config), Memory::new())
}

fn page(status: u16, body: &str) -> Fault {
    Fault::Foreign(Foreign::new(status, body))
}

/// No failure for good: it may go well the next time.
fn passes(error: &Error, body: &str) {
    assert!(error.is_retryable() && error.kind() == ErrorKind::Io, "{body:?}: {}", error.report());
}

#[tokio::test]
async fn a_list_of_deletes_is_answered_by_its_own_document_or_nothing_is_deleted() {
    for body in NO_ANSWERS
        .into_iter()
        .chain(["<DeleteResult><Error><Code>AccessDenied</Code></Error></DeleteResult>"])
    {
        let (server, client, _) = scene();
        let keys = ["a", "b", "c"];
        keys.iter().for_each(|key| server.put_object(key, vec![1]));
        // Once: the next answer counts.
        server.script(Rule::next(page(200, body)).method("POST"));
        assert!(client.delete_many(&keys).await.unwrap().is_empty());
        assert!(server.keys("").is_empty(), "{body:?}");
        // Whatever is asked: nothing counts as deleted.
        keys.iter().for_each(|key| server.put_object(key, vec![1]));
        server.script(Rule::next(page(200, body)).times(1000));
        let deleted = client.delete_many(&keys).await;
        // An empty answer is how a single delete is confirmed.
        if !body.is_empty() {
            passes(&deleted.unwrap_err(), body);
        }
        server.heal();
        // Only the list: one by one they are deleted.
        server.script(Rule::next(page(200, body)).method("POST").times(1000));
        if !body.contains("InternalError") && !body.contains("Message") {
            assert!(client.delete_many(&keys).await.unwrap().is_empty());
            assert!(server.keys("").is_empty(), "{body:?}");
        }
    }
}

#[tokio::test]
async fn a_page_deletes_and_stores_nothing() {
    for (status, body) in
        [(200, "<html>please log in</html>"), (200, "maintenance"), (200, ""), (202, ""), (299, "")]
    {
        let (server, client, memory) = scene();
        server.put_object("k", vec![1]);
        for times in [1, 1000] {
            server.script(Rule::next(page(status, body)).times(times));
            let deleted = client.delete("k").await;
            assert_eq!(
                (deleted.is_ok(), server.object("k").is_none()),
                (times == 1, true),
                "{status} {body:?}"
            );
            server.heal();
            // An empty 200 that names a version says that something was stored.
            if (status, body) == (200, "") {
                continue;
            }
            let tagged = Foreign {
                headers: vec![("etag", "\"page\"".into())],
                ..Foreign::new(status, body)
            };
            server.script(Rule::next(Fault::Foreign(tagged)).times(times));
            let stored = client.put("new", &memory.view(b"x"), &Put::default()).await;
            assert_eq!(
                (stored.is_ok(), server.remove_object("new")),
                (times == 1, times == 1),
                "{status} {body:?}"
            );
            server.heal();
        }
    }
    // An empty 200 that names no version is a proxy's too.
    let (server, client, memory) = scene();
    server.script(Rule::next(page(200, "")).times(1000));
    passes(&client.put("new", &memory.view(b"x"), &Put::default()).await.unwrap_err(), "");
    // What was stored at the first attempt is there at the second.
    server.heal();
    server.script(Rule::next(Fault::Foreign(Foreign { done: true, ..Foreign::new(200, "") })));
    assert_eq!(
        client.put("new", &memory.view(b"x"), &Put::if_absent()).await.unwrap(),
        Stored::Present
    );
}

#[tokio::test]
async fn a_delete_that_may_not_be_the_stores_is_confirmed() {
    let (server, client, _) = scene();
    server.put_object("k", vec![1]);
    // It is done, by a store that answers 200.
    let done = Foreign { done: true, ..Foreign::new(200, "") };
    server.script(Rule::next(Fault::Foreign(done)).method("DELETE").times(1000));
    client.delete("k").await.unwrap();
    assert!(server.object("k").is_none());
    // It is never done.
    server.heal();
    server.put_object("k", vec![1]);
    server.script(Rule::next(page(200, "")).method("DELETE").times(1000));
    let error = client.delete("k").await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("still there"), "{error}");
    // All of it has one deadline.
    server.script(Rule::next(Fault::Hang).method("HEAD").times(1000));
    let error = client.within(std::time::Duration::from_secs(1)).delete("k").await.unwrap_err();
    assert!(error.kind() == ErrorKind::Timeout && error.to_string().contains("delete"), "{error}");
    server.release();
}

#[tokio::test]
async fn a_success_that_is_no_object_is_none() {
    for status in [200, 201, 202, 204, 299] {
        let (server, client, memory) = scene();
        server.put_object("k", vec![7; 100]);
        let mut lease = memory.lease(100);
        for times in [1, 1000] {
            server.script(Rule::next(page(status, "")).times(times));
            let got = client.get("k", &mut lease, &Get::at_most()).await;
            assert_eq!(
                got.as_ref().ok().and_then(Option::as_ref).map(|object| object.len()),
                (times == 1).then_some(100)
            );
            assert!(got.err().is_none_or(|e| e.is_retryable()), "{status}");
            server.heal();
            server.script(Rule::next(page(status, "")).times(times));
            let found = client.head("k").await;
            assert_eq!(found.is_ok(), times == 1, "{status}");
            server.heal();
        }
    }
}

#[tokio::test]
async fn an_upload_is_complete_when_its_own_document_says_so() {
    let long = format!("<Error><Code>{}</Code></Error>", "InternalError".repeat(12));
    for body in NO_ANSWERS.into_iter().chain(["   \n\n  ", "<ListBucketResult/>", &long]) {
        let (server, client, memory) = scene();
        let view = memory.view(&[1; 300]);
        let put = Put::default().meta("facts", "f");
        let upload = async || {
            client.put_multipart("k", &view, &put, kvtier_s3::Multipart::new(300, 1)).await
        };
        let instead = |done| Fault::Foreign(Foreign { done, ..Foreign::new(200, body) });
        let complete = |fault| Rule::next(fault).method("POST").containing("uploadId");
        // An older object of that length is not this one.
        server.put_object("k", vec![2; 300]);
        server.backdate("k", 3600);
        server.script(complete(instead(false)).times(1000));
        passes(&upload().await.unwrap_err(), body);
        assert!(server.object("k").unwrap()[0] == 2, "{body:?}");
        server.heal();
        // The next attempt has a good answer.
        server.script(complete(instead(false)));
        upload().await.unwrap_or_else(|e| panic!("{body:?}: {}", e.report()));
        assert!(server.object("k").unwrap()[0] == 1, "{body:?}");
        // It was done, and only the answer was lost.
        server.remove_object("k");
        server.script(complete(instead(true)));
        let stored = upload().await.unwrap_or_else(|e| panic!("{body:?}: {}", e.report()));
        assert!(matches!(stored, Stored::New { .. }) && server.object("k").is_some(), "{body:?}");
        soon("what was not completed is given up", || server.uploads() == 0).await;
    }
}

#[tokio::test]
async fn what_the_store_refuses_with_200_is_refused() {
    let (server, client, memory) = scene();
    let view = memory.view(&[1; 300]);
    for (code, kind) in [("AccessDenied", ErrorKind::Denied), ("InvalidPart", ErrorKind::Invalid)] {
        server.script(Rule::next(Fault::OkThenError(code)).method("POST").containing("uploadId"));
        let error = client
            .put_multipart("k", &view, &Put::default(), kvtier_s3::Multipart::new(300, 1))
            .await
            .unwrap_err();
        assert_eq!((error.kind(), error.code()), (kind, Some(code)), "{}", error.report());
    }
    server.script(
        Rule::next(Fault::OkThenError("PreconditionFailed")).method("POST").containing("uploadId"),
    );
    assert_eq!(
        client
            .put_multipart("k", &view, &Put::if_absent(), kvtier_s3::Multipart::new(300, 1))
            .await
            .unwrap(),
        Stored::Present
    );
    server
        .script(Rule::next(Fault::OkThenError("AccessDenied")).method("POST").containing("delete"));
    let error = client.delete_many(&["k"]).await.unwrap_err();
    assert_eq!((error.kind(), server.keys("")), (ErrorKind::Denied, vec![]));
}

#[tokio::test]
async fn uploads_begin_and_buckets_are_listed_by_their_own_documents() {
    for body in NO_ANSWERS {
        let (server, client, memory) = scene();
        server.put_object("k", vec![7; 100]);
        server.begin_upload("k", 60);
        let view = memory.view(&[1; 300]);
        for times in [1, 1000] {
            let fault = Rule::next(page(200, body)).times(times);
            server.script(fault.clone().containing("list-type"));
            match client.list(&List::default(), None).await {
                Ok(page) => assert!(times == 1 && page.entries.len() == 1, "{body:?}"),
                Err(e) => assert!(times > 1 && e.is_retryable(), "{body:?}: {e}"),
            }
            server.heal();
            server.script(fault.clone().containing("uploads"));
            match client.list_uploads("", None).await {
                Ok(found) => assert!(times == 1 && found.uploads.len() == 1, "{body:?}"),
                Err(e) => assert!(times > 1 && e.is_retryable(), "{body:?}: {e}"),
            }
            server.heal();
            server.script(fault.method("POST").containing("uploads"));
            let stored = client
                .put_multipart("new", &view, &Put::default(), kvtier_s3::Multipart::new(300, 1))
                .await;
            assert_eq!(stored.is_ok(), times == 1, "{body:?}");
            server.heal();
        }
    }
}

#[tokio::test]
async fn sessions_are_made_by_their_own_document() {
    const BUCKET: &str = "kv--use1-az4--x-s3";
    for body in NO_ANSWERS {
        let server = server(|setup| setup.bucket = BUCKET.into());
        let client = Client::new(config_of(endpoint(&server, BUCKET)));
        server.script(Rule::next(page(200, body)).containing("session"));
        assert!(client.head("k").await.unwrap().is_none(), "{body:?}");
        assert_eq!(server.sessions_made(), 1);
    }
}
