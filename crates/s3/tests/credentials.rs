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
use tokio::sync::Semaphore;

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
    Credentials::temporary(
        "AKIDTEST",
        "secret/test+key",
        Some("token/+=".into()),
        Some(end.try_into().unwrap()),
    )
}

fn client_of(
    server: &Server,
    answer: fn(u64) -> Result<Credentials, Error>,
) -> (Client, Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let source = Arc::new(Source(Arc::clone(&asked), answer));
    (Client::new(patient(server, source)), asked)
}

/// Settings with which nothing fails because this machine is busy, and these credentials.
fn patient(server: &Server, source: Arc<dyn Provide>) -> Config {
    let mut config = config(server);
    config.credentials = source;
    config
}

#[tokio::test]
async fn the_token_is_sent_and_the_source_asked_once() {
    let server = server(|_| {});
    let (client, asked) = client_of(&server, |_| Ok(lasting(3600)));
    for _ in 0..5 {
        client.list(&List::default(), None).await.unwrap();
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert!(
        server.seen().iter().all(|seen| seen.header("x-amz-security-token") == Some("token/+="))
    );
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

/// What a source gives, one after the other.
const TOKENS: [&str; 4] = ["first", "second", "third", "fourth"];

fn rotated(n: u64) -> Result<Credentials, Error> {
    let token = TOKENS[usize::try_from(n).unwrap()].to_owned();
    Ok(Credentials::temporary("AKIDTEST", "secret/test+key", Some(token), None))
}

/// The store calls this token expired, in HEADs by the status alone.
fn expired(token: &'static str) -> Rule {
    Rule::next(Fault::Error(400, "ExpiredToken"))
        .with("x-amz-security-token", token)
        .times(1_000_000)
}

fn requests(server: &Server, method: &str) -> usize {
    server.seen().iter().filter(|seen| seen.method == method).count()
}

#[tokio::test]
async fn heads_alone_have_expired_credentials_replaced() {
    let server = server(|_| {});
    server.put_object("k", vec![1; 100]);
    let (client, asked) = client_of(&server, rotated);
    server.put_object("empty", Vec::new());
    for (n, key) in ["k", "absent", "empty"].into_iter().enumerate() {
        server.script(expired(TOKENS[n]));
        let mut heads = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let client = client.clone();
            heads.spawn(async move { client.head(key).await });
        }
        for found in heads.join_all().await {
            assert_eq!(found.unwrap().is_some(), key != "absent", "all of them are sent again");
        }
        assert_eq!(asked.load(Ordering::SeqCst), n as u64 + 2);
        // One probe, which is refused and then repeated with the new credentials.
        assert_eq!(requests(&server, "GET"), 2 * (n + 1));
        let ranged =
            |seen: &kvtier_testkit::s3::SeenRequest| seen.header("range") == Some("bytes=0-0");
        assert!(server.seen().iter().all(|seen| seen.method == "HEAD" || ranged(seen)));
        jump(Duration::from_secs(11)).await;
    }
}

#[tokio::test]
async fn heads_alone_have_a_wrong_clock_corrected() {
    let server = server(|_| {});
    server.put_object("k", vec![1; 100]);
    let (client, _) = client_of(&server, rotated);
    assert!(client.head("k").await.unwrap().is_some());
    server.script(Rule::next(Fault::Error(403, "RequestTimeTooSkewed")).times(2));
    assert!(client.head("k").await.unwrap().is_some());
    assert_eq!((requests(&server, "HEAD"), requests(&server, "GET")), (3, 2));
}

#[tokio::test]
async fn a_store_that_refuses_heads_is_asked_for_the_reason_now_and_then() {
    let server = server(|_| {});
    let (client, asked) = client_of(&server, rotated);
    server.script(Rule::next(Fault::Error(403, "AccessDenied")).times(1_000_000));
    let mut explained = 0;
    let begun = tokio::time::Instant::now();
    for _ in 0..200 {
        let error = client.head("k").await.unwrap_err();
        assert_eq!((error.kind(), error.status()), (ErrorKind::Denied, Some(403)));
        explained += usize::from(error.report().contains("AccessDenied"));
        jump(Duration::from_millis(100)).await;
    }
    // Two in twenty seconds, and more only where the requests themselves take long.
    let seconds = begun.elapsed().as_secs() as usize;
    assert!(explained >= 2 && 20 * explained < 10 * seconds, "{explained} in {seconds} s");
    assert_eq!((requests(&server, "HEAD"), requests(&server, "GET")), (200, explained));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn what_is_still_valid_stays_in_use_while_the_source_fails() {
    let server = server(|_| {});
    let failing = |n| {
        if n == 0 {
            Ok(lasting(3600))
        } else {
            Err(Error::new(ErrorKind::Io, "the source is away"))
        }
    };
    let (client, asked) = client_of(&server, failing);
    client.list(&List::default(), None).await.unwrap();
    // By the store's clock they are past 70 % of their life, and good for a while yet.
    server.step_clock(2600);
    let start = Instant::now();
    while client.counts().identity_failures == 0 {
        client.list(&List::default(), None).await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(600), "no caller asked for others");
    }
    for _ in 0..20 {
        client.list(&List::default(), None).await.unwrap();
    }
    // The next is tried five seconds after the failure, which is not before `start`. Both clocks
    // count whole seconds.
    if start.elapsed() < Duration::from_secs(2) {
        assert_eq!(asked.load(Ordering::SeqCst), 2, "one failure is not repeated at once");
    }
    server.step_clock(3700);
    let error = client.list(&List::default(), None).await.unwrap_err();
    assert!(error.to_string().contains("the source is away"), "{error}");
}

#[tokio::test]
async fn a_source_that_fails_at_first_is_asked_again() {
    let server = server(|_| {});
    let late =
        |n| if n == 0 { Err(Error::new(ErrorKind::Io, "not yet")) } else { Ok(lasting(3600)) };
    let (client, _) = client_of(&server, late);
    assert!(client.list(&List::default(), None).await.is_err());
    assert!(client.list(&List::default(), None).await.is_ok());
}

/// How often the source was asked by listings every 50 ms for twenty seconds, and how many seconds
/// these were: what this machine does meanwhile comes on top of them.
async fn asked_in_twenty_seconds(client: &Client, asked: &AtomicU64) -> (u64, u64) {
    let begun = tokio::time::Instant::now();
    for _ in 0..400 {
        assert_eq!(
            client.list(&List::default(), None).await.unwrap_err().kind(),
            ErrorKind::Denied
        );
        jump(Duration::from_millis(50)).await;
    }
    (asked.load(Ordering::SeqCst), begun.elapsed().as_secs())
}

#[tokio::test]
async fn a_source_that_goes_on_failing_is_asked_less_and_less() {
    let server = server(|_| {});
    let (client, asked) =
        client_of(&server, |_| Err(Error::new(ErrorKind::Denied, "no role today")));
    let (times, seconds) = asked_in_twenty_seconds(&client, &asked).await;
    assert!(times >= 3 && 20 * times < 15 * seconds, "{times} times in {seconds} s");
    assert_eq!(server.seen().len(), 0);
}

#[tokio::test]
async fn a_store_that_calls_everything_expired_does_not_make_us_ask_all_the_time() {
    let server = server(|_| {});
    let (client, asked) = client_of(&server, |_| Ok(lasting(3600)));
    server.script(Rule::next(Fault::Error(403, "ExpiredToken")).times(1_000_000));
    let (times, seconds) = asked_in_twenty_seconds(&client, &asked).await;
    assert!(times >= 2 && 20 * times < 6 * seconds, "{times} times in {seconds} s");
    server.heal();
    jump(Duration::from_secs(1)).await;
    client.list(&List::default(), None).await.unwrap();
}

#[tokio::test]
async fn callers_that_repeat_what_is_refused_send_few_requests() {
    for code in ["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"] {
        let server = server(|_| {});
        let (client, _) = client_of(&server, |_| Ok(lasting(3600)));
        client.list(&List::default(), None).await.unwrap();
        server.script(Rule::next(Fault::Error(403, code)).times(1_000_000));
        let all = async || {
            let mut callers = tokio::task::JoinSet::new();
            for _ in 0..16 {
                let client = client.clone();
                callers.spawn(async move { client.list(&List::default(), None).await });
            }
            callers.join_all().await
        };
        let begun = tokio::time::Instant::now();
        for _ in 0..200 {
            for refused in all().await {
                assert_eq!(refused.unwrap_err().kind(), ErrorKind::Denied);
            }
            jump(Duration::from_millis(50)).await;
        }
        let sent = server.seen().len();
        let seconds = begun.elapsed().as_secs() as usize;
        let is_few = sent >= 20 && sent < 20 * seconds;
        assert!(is_few, "{code}: {sent} requests of 3,200 listings in {seconds} s");
        server.heal();
        jump(Duration::from_secs(1)).await;
        client.list(&List::default(), None).await.unwrap();
        assert!(all().await.iter().all(Result::is_ok), "{code}: nothing is left of it");
    }
}

#[tokio::test]
async fn a_store_whose_clock_is_ahead_does_not_make_us_ask_all_the_time() {
    let server = server(|setup| setup.clock_ahead_s = 7200);
    let (client, asked) = client_of(&server, |_| Ok(lasting(3600)));
    let begun = Instant::now();
    for _ in 0..50 {
        client.list(&List::default(), None).await.unwrap();
    }
    // Once by our clock and once by the store's. Then the credentials seem to have expired, and are
    // good for five seconds each. The estimate of the store's clock may step by as much as an
    // answer takes, so a slow machine is allowed twice the seconds that it took.
    let (times, seconds) = (asked.load(Ordering::SeqCst), begun.elapsed().as_secs());
    assert!(times <= 2 + 2 * seconds, "{times} times in {seconds} s");
}

/// A source that takes its time, until it may, and gives something or nothing.
#[derive(Debug)]
struct Slow {
    asked: Arc<AtomicU64>,
    may: Arc<Semaphore>,
    gives: bool,
}

impl Provide for Slow {
    fn provide(&self) -> Provided<'_> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Box::pin(async {
            drop(self.may.acquire().await);
            if self.gives {
                Ok(lasting(3600))
            } else {
                Err(Error::new(ErrorKind::Denied, "no role today"))
            }
        })
    }
}

fn slow(server: &Server, gives: bool) -> (Client, Arc<AtomicU64>, Arc<Semaphore>) {
    let asked = Arc::new(AtomicU64::new(0));
    let may = Arc::new(Semaphore::new(0));
    let source = Arc::new(Slow { asked: Arc::clone(&asked), may: Arc::clone(&may), gives });
    (Client::new(patient(server, source)), asked, may)
}

#[tokio::test]
async fn a_source_slower_than_every_caller_is_asked_once_all_the_same() {
    let server = server(|_| {});
    let (client, asked, may) = slow(&server, true);
    let hasty = client.within(Duration::from_millis(50));
    for _ in 0..5 {
        hasty.list(&List::default(), None).await.unwrap_err();
    }
    may.add_permits(1);
    // One that waits: if what was begun for the others were lost with them, it would ask anew.
    client.list(&List::default(), None).await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn one_failure_is_reported_to_all_waiters() {
    let server = server(|_| {});
    let (client, asked, may) = slow(&server, false);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let client = client.clone();
        tasks.spawn(async move { client.list(&List::default(), None).await.unwrap_err() });
    }
    // On this one thread all of them are in line before that.
    let answer = async {
        soon("it is asked", || asked.load(Ordering::SeqCst) > 0).await;
        may.add_permits(1000);
    };
    for error in tokio::join!(tasks.join_all(), answer).0 {
        assert!(
            error.kind() == ErrorKind::Denied && error.to_string().contains("no role today"),
            "{error}"
        );
    }
    assert_eq!((asked.load(Ordering::SeqCst), server.seen().len()), (1, 0));
    client.list(&List::default(), None).await.unwrap_err();
    assert_eq!(asked.load(Ordering::SeqCst), 2, "who comes later has another try");
}
