//! Why an operation failed stays visible: in its error, behind the breaker, at the deadline. Never
//! a secret.
#![allow(clippy::unwrap_used)]

mod support;

use std::io;
use std::time::Duration;

use kvtier_s3::{BucketAddress, Client, Error, ErrorKind, Get, Resolve, Resolved};
use kvtier_testkit::s3::{Fault, Rule};
use support::*;

const KEY_ID: &str = "AKIDTEST";
const SECRET: &str = "secret/test+key";

/// Gets until the breaker refuses; the error of that, and one from before.
async fn until_refused(client: &Client) -> (Error, Error) {
    let memory = Memory::new();
    let mut before = None;
    for _ in 0..100 {
        let error = client.get("k", &mut memory.lease(100), &Get::default()).await.unwrap_err();
        match error.kind() {
            ErrorKind::Unavailable => {
                return (before.expect("the breaker does not open at once"), error);
            }
            _ => before = Some(error),
        }
    }
    panic!("the breaker never opened: {before:?}");
}

fn names_causes(error: &Error, causes: &[&str]) {
    let report = error.report();
    assert!(causes.iter().all(|cause| report.contains(cause)), "{report}");
    assert!(report.contains("attempt") && error.elapsed().is_some(), "{report}");
    assert!(!report.contains(SECRET) && !report.contains(KEY_ID), "{report}");
}

#[tokio::test]
async fn a_refused_connection_is_named_behind_the_breaker_too() {
    let (address, _kept) = dead();
    let endpoint = BucketAddress::new(format!("http://{address}"))
        .bucket("bucket")
        .region("us-east-1")
        .resolve()
        .unwrap();
    let mut config = config_of(endpoint);
    config.retries_max = 2;
    let client = Client::new(config);
    assert!(client.outages().is_empty());
    let (before, refused) = until_refused(&client).await;
    names_causes(&before, &["cannot be reached", "Connection refused"]);
    assert_eq!((before.kind(), before.attempts()), (ErrorKind::Io, 3));
    names_causes(&refused, &["reads failed", "cannot be reached", "Connection refused"]);
    let source = std::error::Error::source(&refused).expect("the last failure");
    assert!(source.to_string().contains("cannot be reached"), "{source}");
    let outages = client.outages();
    assert!(outages.len() == 1 && outages[0].contains("Connection refused"), "{outages:?}");
}

/// A resolver that resolves no name.
#[derive(Debug)]
struct NoNames;

impl Resolve for NoNames {
    fn resolve<'a>(&'a self, _: &'a str, _: u16) -> Resolved<'a> {
        Box::pin(async { Err(io::Error::other("Name or service not known")) })
    }
}

#[tokio::test]
async fn a_name_that_cannot_be_resolved_is_named_behind_the_breaker_too() {
    let endpoint = BucketAddress::new("http://store.invalid:9000")
        .bucket("bucket")
        .region("us-east-1")
        .resolve()
        .unwrap();
    let mut config = config_of(endpoint);
    config.resolver = Box::new(NoNames);
    let client = Client::new(config);
    let (before, refused) = until_refused(&client).await;
    for error in [before, refused] {
        names_causes(&error, &["store.invalid cannot be resolved", "Name or service not known"]);
    }
    assert!(client.outages()[0].contains("Name or service not known"));
}

#[tokio::test]
async fn a_failure_before_the_deadline_is_reported_at_the_deadline() {
    let server = server(|_| {});
    server.script(Rule::next(Fault::Error(500, "InternalError")).times(1));
    server.script(Rule::next(Fault::Stall(Duration::from_secs(3600))).times(100));
    let deadline = Duration::from_secs(500);
    let memory = Memory::new();
    let client = client(&server).within(deadline);
    let mut lease = memory.lease(100);
    let whole = Get::default();
    let get = client.get("k", &mut lease, &whole);
    let error = jumping(deadline, || server.stalled() > 0, get).await.unwrap_err();
    assert_eq!((error.kind(), error.attempts()), (ErrorKind::Timeout, 2), "{}", error.report());
    names_causes(&error, &["the deadline passed", "2 attempts", "InternalError"]);
}
