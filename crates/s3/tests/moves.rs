//! What changes under a running client: where the name leads, and what time it is there.
#![allow(clippy::unwrap_used)]

mod support;

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvtier_s3::{BucketAddress, Client, Config, ErrorKind, Get, Resolve, Resolved};
use kvtier_testkit::s3::{Fault, Rule, Server};
use support::*;

const LEN: usize = 200_000;
/// Fewer than open the breaker, so that nothing is refused.
const WIDTH: usize = 6;
/// Who waits until nothing moves, as long as clients of these tests do, is later back than that.
const BACK_MAX: Duration = Duration::from_secs(300);

/// Answers with what the test says at that time; with nothing it fails.
#[derive(Clone, Debug)]
struct Names(Arc<Mutex<Vec<SocketAddr>>>);

impl Resolve for Names {
    fn resolve<'a>(&'a self, _: &'a str, _: u16) -> Resolved<'a> {
        Box::pin(async {
            let known = self.0.lock().unwrap().clone();
            if known.is_empty() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(known) }
        })
    }
}

struct Scene {
    client: Client,
    names: Names,
    memory: Memory,
    bytes: Vec<u8>,
}

impl Scene {
    /// A client of a name that leads to `server`.
    fn of(server: &Server) -> Self {
        Self::with(server, |_| {})
    }

    /// With other settings.
    fn with(server: &Server, change: impl FnOnce(&mut Config)) -> Self {
        let names = Names(Arc::new(Mutex::new(vec![server.address()])));
        let mut config = config_of(
            BucketAddress::new("http://s3.test:9000").bucket("bucket").resolve().unwrap(),
        );
        config.resolver = Box::new(names.clone());
        change(&mut config);
        Scene { client: Client::new(config), names, memory: Memory::new(), bytes: pattern(LEN) }
    }

    /// A server with the object; the first of each server has the same version.
    fn server() -> Server {
        let server = server(|_| {});
        server.put_object("k", pattern(LEN));
        server
    }

    async fn get(&self, client: &Client) -> Result<(), kvtier_s3::Error> {
        let mut lease = self.memory.lease(LEN);
        client.get("k", &mut lease, &Get::default()).await.map(|object| {
            assert!(object.is_some() && lease.as_host().unwrap() == self.bytes, "wrong bytes");
        })
    }

    /// Gets without a pause by several hands until `change` has happened and each succeeded once
    /// more. Returns how long after the change the last of them did, and how many gets failed.
    async fn through(&self, change: impl FnOnce()) -> (Duration, usize) {
        let changed = Cell::new(None::<Instant>);
        let failed = Cell::new(0);
        let hand = async || {
            loop {
                let before = changed.get();
                match self.get(&self.client).await {
                    Ok(()) if before.is_some() => break,
                    Ok(()) => {}
                    Err(_) => failed.set(failed.get() + 1),
                }
                let waited = changed.get().map_or(Duration::ZERO, |changed| changed.elapsed());
                assert!(waited < BACK_MAX, "not back: {:?}", self.client.counts());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let changing = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            change();
            changed.set(Some(Instant::now()));
        };
        let mut hands: Vec<_> = (0..WIDTH).map(|_| Box::pin(hand())).collect();
        let all = std::future::poll_fn(|cx| {
            hands.retain_mut(|hand| hand.as_mut().poll(cx).is_pending());
            if hands.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        });
        tokio::join!(all, changing);
        (changed.get().unwrap().elapsed(), failed.get())
    }

    /// Nothing is left of it all.
    async fn end(self, server: &Server) {
        assert!(self.memory.is_whole(), "memory leaked");
        drop(self.client);
        soon("all connections are closed", || server.connections() == 0).await;
        no_task_is_left().await;
    }
}

#[tokio::test]
async fn a_name_that_moves_while_bodies_are_on_their_way() {
    // What this machine does meanwhile keeps bodies from being on their way in one of these rounds,
    // and not in all.
    let mut tries = 0;
    while resumed_where_a_name_moved().await == 0 {
        tries += 1;
        assert!(tries < 5, "what had landed was kept");
    }
}

/// How many bodies went on elsewhere.
async fn resumed_where_a_name_moved() -> u64 {
    let old = Scene::server();
    let new = Scene::server();
    let scene = Scene::of(&old);
    old.script(Rule::next(Fault::Drip(LEN / 20, Duration::from_millis(20))).times(1000));
    let (took, failed) = scene
        .through(|| {
            *scene.names.0.lock().unwrap() = vec![new.address()];
            drop(old);
        })
        .await;
    let counts = scene.client.counts();
    assert!(failed == 0 && took < BACK_MAX, "{failed} failed, back after {took:?}: {counts:?}");
    scene.end(&new).await;
    counts.resumes
}

#[tokio::test]
async fn a_name_that_moves_away_from_an_address_without_a_server() {
    let old = Scene::server();
    let new = Scene::server();
    let scene = Scene::with(&old, |config| config.stall_max = Duration::from_secs(1));
    // The old address still takes connections and requests.
    let (took, failed) = scene
        .through(|| {
            old.script(Rule::next(Fault::Clog).times(100_000));
            *scene.names.0.lock().unwrap() = vec![new.address()];
        })
        .await;
    let counts = scene.client.counts();
    assert!(failed == 0 && took < BACK_MAX, "{failed} failed, back after {took:?}: {counts:?}");
    // And for those whose patience is shorter than a stall.
    *scene.names.0.lock().unwrap() = vec![old.address()];
    new.script(Rule::next(Fault::Clog).times(100_000));
    old.heal();
    let times = [100, 900].map(Duration::from_millis);
    until_well(&scene.client, times, async |hasty| scene.get(hasty).await).await;
    drop(new);
    scene.end(&old).await;
}

#[tokio::test]
async fn a_resolver_that_fails_takes_no_working_store_down() {
    let server = Scene::server();
    let scene = Scene::of(&server);
    let (took, failed) = scene
        .through(|| {
            scene.names.0.lock().unwrap().clear();
            server.disconnect();
        })
        .await;
    assert!(failed == 0 && took < BACK_MAX, "{failed} failed, back after {took:?}");
    scene.end(&server).await;
}

#[tokio::test]
async fn a_clock_that_steps_costs_each_request_one_repetition_at_most() {
    let server = Scene::server();
    let scene = Scene::of(&server);
    for step in [1800, -1800, 6 * 3600, 0] {
        let before = scene.client.counts();
        let (took, failed) = scene.through(|| server.step_clock(step)).await;
        let counts = scene.client.counts();
        assert!(failed == 0 && took < BACK_MAX, "{step}: {failed} failed, back after {took:?}");
        assert!(counts.clock_corrections > before.clock_corrections);
        assert!(counts.retries - before.retries <= 2 * WIDTH as u64, "{step}: {counts:?}");
        assert!((scene.client.clock_offset() - step).abs() <= 300);
        assert_eq!(counts.breaker_opened, 0);
    }
    // An implausible clock: said so at once, and nothing of it stays.
    server.step_clock(30 * 24 * 3600);
    let error = scene.get(&scene.client).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Denied, Some("RequestTimeTooSkewed")));
    assert!(scene.client.clock_offset().abs() <= 300);
    server.step_clock(0);
    scene.get(&scene.client).await.unwrap();
    scene.end(&server).await;
}
