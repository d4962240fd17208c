//! Credentials that expire, fail and change.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kvtier_s3::creds::{Provide, Provided};
use kvtier_s3::{Client, Config, Credentials, Error, ErrorKind, List};
use kvtier_testkit::s3::{Fault, Rule, Server};
use support::*;

/// A source that counts, and does what its number says.
#[derive(Debug)]
struct Source<F>(Arc<AtomicU64>, F);

impl<F> Provide for Source<F>
where
    F: Fn(u64) -> Result<Credentials, Error> + std::fmt::Debug + Send + Sync + 'static,
{
    fn provide(&self) -> Provided<'_> {
        let answer = (self.1)(self.0.fetch_add(1, Ordering::SeqCst));
        Box::pin(async { answer })
    }
}

fn lasting(seconds: u64) -> Credentials {
    let end = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + seconds;
    Credentials::temporary("AKIDTEST", "secret/test+key", Some("token/+=".into()), Some(end.try_into().unwrap()))
}

fn client_of(server: &Server, answer: fn(u64) -> Result<Credentials, Error>) -> (Client, Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let source = Arc::new(Source(Arc::clone(&asked), answer));
    let mut config = Config::with_provider(endpoint(server, "bucket"), source);
    config.deadline = Duration::from_secs(5);
    (Client::new(config), asked)
}

#[tokio::test]
async fn the_token_is_sent_and_the_source_asked_once() {
    let server = server(|_| {});
    let (client, asked) = client_of(&server, |_| Ok(lasting(3600)));
    for _ in 0..5 {
        client.list(&List::default(), None).await.unwrap();
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert!(server.seen().iter().all(|seen| seen.header("x-amz-security-token") == Some("token/+=")));
}

#[tokio::test]
async fn what_the_store_calls_expired_is_replaced_once() {
    let server = server(|_| {});
    let (client, asked) = client_of(&server, |_| Ok(lasting(3600)));
    client.list(&List::default(), None).await.unwrap();
    server.script(Rule::next(Fault::Error(400, "ExpiredToken")));
    client.list(&List::default(), None).await.unwrap();
    assert_eq!((asked.load(Ordering::SeqCst), client.counts().retries), (2, 1));
    server.script(Rule::next(Fault::Error(400, "ExpiredToken")).times(2));
    let error = client.list(&List::default(), None).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Denied, Some("ExpiredToken")));
    client.list(&List::default(), None).await.unwrap();
}

#[tokio::test]
async fn what_is_still_valid_stays_in_use_while_the_source_fails() {
    let server = server(|_| {});
    let failing = |n| if n == 0 { Ok(lasting(6)) } else { Err(Error::new(ErrorKind::Io, "the source is away")) };
    let (client, asked) = client_of(&server, failing);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(4400) {
        client.list(&List::default(), None).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(
        (asked.load(Ordering::SeqCst), client.counts().identity_failures),
        (2, 1),
        "one failure is not repeated at once"
    );
    tokio::time::sleep(Duration::from_millis(1800)).await;
    let error = client.list(&List::default(), None).await.unwrap_err();
    assert!(error.to_string().contains("the source is away"), "{error}");
}

#[tokio::test]
async fn a_source_that_fails_at_first_is_asked_again() {
    let server = server(|_| {});
    let late = |n| if n == 0 { Err(Error::new(ErrorKind::Io, "not yet")) } else { Ok(lasting(3600)) };
    let (client, _) = client_of(&server, late);
    assert!(client.list(&List::default(), None).await.is_err());
    assert!(client.list(&List::default(), None).await.is_ok());
}

#[tokio::test]
async fn a_store_whose_clock_is_ahead_does_not_make_us_ask_all_the_time() {
    let server = server(|setup| setup.clock_ahead_s = 7200);
    let (client, asked) = client_of(&server, |_| Ok(lasting(3600)));
    for _ in 0..50 {
        client.list(&List::default(), None).await.unwrap();
    }
    assert!(asked.load(Ordering::SeqCst) <= 2, "{} times", asked.load(Ordering::SeqCst));
}

/// A source that takes its time, and gives something or nothing.
#[derive(Debug)]
struct Slow(Arc<AtomicU64>, bool);

impl Provide for Slow {
    fn provide(&self) -> Provided<'_> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            if self.1 { Ok(lasting(3600)) } else { Err(Error::new(ErrorKind::Denied, "no role today")) }
        })
    }
}

fn slow(server: &Server, gives: bool) -> (Client, Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let source = Arc::new(Slow(Arc::clone(&asked), gives));
    (Client::new(Config::with_provider(endpoint(server, "bucket"), source)), asked)
}

#[tokio::test]
async fn a_source_slower_than_every_caller_is_asked_once_all_the_same() {
    let server = server(|_| {});
    let (client, asked) = slow(&server, true);
    let (hasty, begun) = (client.within(Duration::from_millis(50)), Instant::now());
    let mut late = 0;
    while hasty.list(&List::default(), None).await.is_err() {
        late += 1;
        assert!(begun.elapsed() < Duration::from_secs(1), "what was fetched is lost");
    }
    assert!(late >= 4, "{late}");
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn one_failure_is_told_to_all_who_waited_for_it() {
    let server = server(|_| {});
    let (client, asked) = slow(&server, false);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let client = client.clone();
        tasks.spawn(async move { client.list(&List::default(), None).await.unwrap_err() });
    }
    for error in tasks.join_all().await {
        assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("no role today"), "{error}");
    }
    assert_eq!((asked.load(Ordering::SeqCst), server.seen().len()), (1, 0));
    client.list(&List::default(), None).await.unwrap_err();
    assert_eq!(asked.load(Ordering::SeqCst), 2, "who comes later has another try");
}
