//! What fails is left alone, and nothing else: a store that cannot delete still loads.
#![allow(clippy::unwrap_used)]

mod support;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use kvtier_s3::{ErrorKind, Get, List, Put};
use kvtier_testkit::s3::{Fault, Rule};
use support::scene::Scene;

const LEN: usize = 100_000;
/// The longest time of a load under faults, even if this machine does something else for a while.
const LOAD_MAX: Duration = Duration::from_secs(600);
/// The faults end after this time, whatever was not observed.
const FAULT_MAX: Duration = Duration::from_secs(600);
/// The number of loads that succeed.
const LOADS: u32 = 20;

/// Loads without a pause while `fault_script` runs, which gets the number of loads; each must come,
/// right and soon. Returns how long the slowest took.
async fn load_through(scene: &Scene, fault_script: impl AsyncFnOnce(Rc<Cell<u32>>)) -> Duration {
    let loads = Rc::new(Cell::new(0));
    let slowest = Cell::new(Duration::ZERO);
    let loading = async {
        loop {
            let mut lease = scene.memory.lease(LEN);
            let began = Instant::now();
            let got = scene.client.get("k", &mut lease, &Get::default()).await;
            got.unwrap_or_else(|e| panic!("{e}: {:?}", scene.client.counts())).unwrap();
            assert!(lease.as_host().unwrap() == scene.bytes, "wrong bytes");
            assert!(
                began.elapsed() < LOAD_MAX,
                "{:?}: {:?}",
                began.elapsed(),
                scene.client.counts()
            );
            slowest.set(slowest.get().max(began.elapsed()));
            loads.set(loads.get() + 1);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = fault_script(Rc::clone(&loads)) => {}
        () = loading => {}
    }
    assert!(loads.get() >= LOADS, "{} loads", loads.get());
    slowest.get()
}

/// Does it by many hands again and again for so long, and until what failed is `enough`; how often
/// it failed with which kind.
async fn again_and_again<F>(
    time: Duration,
    enough: impl Fn(&[ErrorKind]) -> bool,
    work: impl Fn() -> F,
) -> Vec<ErrorKind>
where
    F: Future<Output = Result<(), kvtier_s3::Error>>,
{
    let began = Instant::now();
    let kinds = RefCell::new(Vec::new());
    let goes_on =
        || began.elapsed() < time || began.elapsed() < FAULT_MAX && !enough(&kinds.borrow());
    let hand = async || {
        while goes_on() {
            if let Err(e) = work().await {
                kinds.borrow_mut().push(e.kind());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let mut hands: Vec<_> = (0..24).map(|_| Box::pin(hand())).collect();
    std::future::poll_fn(|cx| {
        hands.retain_mut(|hand| hand.as_mut().poll(cx).is_pending());
        if hands.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    drop(hands);
    kinds.into_inner()
}

#[tokio::test]
async fn deletes_that_fail_never_stand_in_the_way_of_loads() {
    let stall = Fault::Stall(Duration::from_secs(3600));
    for (fault, opens) in [
        (Fault::Error(500, "InternalError"), true),
        (Fault::Error(503, "SlowDown"), false),
        (Fault::Hangup, true),
        (stall, true),
    ] {
        let scene = Scene::of(LEN);
        let limit = scene.client.requests_limit();
        for (method, marker) in [("DELETE", "bucket"), ("POST", "delete")] {
            let rule = Rule::next(fault.clone()).method(method).containing(marker).times(1_000_000);
            scene.server.script(rule);
        }
        // A refusal of each that comes late is one, and no silence.
        let client = scene.client.within(if opens { Duration::from_millis(100) } else { LOAD_MAX });
        let fault_script = async |loads: Rc<Cell<u32>>| {
            let time = Duration::from_millis(700);
            let enough = |kinds: &[ErrorKind]| {
                loads.get() >= LOADS && (!opens || kinds.contains(&ErrorKind::Unavailable))
            };
            let one = again_and_again(time, enough, || client.delete("gone"));
            let many = again_and_again(time, enough, async || {
                client.delete_many(&["a", "b"]).await.map(drop)
            });
            let (one, many) = tokio::join!(one, many);
            for kinds in [one, many] {
                assert_eq!(kinds.contains(&ErrorKind::Unavailable), opens, "{fault:?}: {kinds:?}");
            }
        };
        let slowest = load_through(&scene, fault_script).await;
        // A load that this machine made wait so long slows others down by itself.
        if slowest < Duration::from_millis(400) {
            assert_eq!(scene.client.requests_limit(), limit, "{fault:?} does not slow loads down");
        }
        // What failed left loads the means to repeat.
        scene.server.heal();
        scene.server.script(Rule::next(Fault::Error(500, "InternalError")).method("GET").times(3));
        assert!(
            scene
                .client
                .get("k", &mut scene.memory.lease(LEN), &Get::default())
                .await
                .unwrap()
                .is_some()
        );
        let healed = Instant::now();
        while client.delete("gone").await.is_err() {
            assert!(healed.elapsed() < FAULT_MAX, "{fault:?}: {:?}", scene.client.counts());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn uploads_and_listings_that_fail_leave_loads_alone() {
    let scene = Scene::of(LEN);
    scene
        .server
        .script(Rule::next(Fault::Error(500, "InternalError")).method("PUT").times(1_000_000));
    let listing =
        Rule::next(Fault::Error(500, "InternalError")).containing("list-type").times(1_000_000);
    scene.server.script(listing);
    let hasty = scene.client.within(Duration::from_millis(100));
    let view = scene.memory.view(b"x");
    load_through(&scene, async |loads: Rc<Cell<u32>>| {
        let time = Duration::from_millis(500);
        let enough =
            |kinds: &[ErrorKind]| loads.get() >= LOADS && kinds.contains(&ErrorKind::Unavailable);
        let puts = again_and_again(time, enough, async || {
            hasty.put("new", &view, &Put::default()).await.map(drop)
        });
        let lists = again_and_again(time, enough, async || {
            hasty.list(&List::default(), None).await.map(drop)
        });
        let (puts, lists) = tokio::join!(puts, lists);
        assert!(puts.contains(&ErrorKind::Unavailable) && lists.contains(&ErrorKind::Unavailable));
    })
    .await;
    // One in between looks whether they are answered again.
    let began = Instant::now();
    let message = async || hasty.list(&List::default(), None).await.unwrap_err().to_string();
    while !message().await.contains("listings") {
        assert!(began.elapsed() < FAULT_MAX, "who is left alone is said: {}", message().await);
    }
}

#[tokio::test]
async fn loads_that_fail_stop_loads_and_no_uploads() {
    let scene = Scene::of(LEN);
    scene
        .server
        .script(Rule::next(Fault::Error(500, "InternalError")).method("GET").times(1_000_000));
    let hasty = scene.client.within(Duration::from_millis(100));
    let load =
        async || hasty.get("k", &mut scene.memory.lease(LEN), &Get::default()).await.map(drop);
    let enough = |kinds: &[ErrorKind]| kinds.contains(&ErrorKind::Unavailable);
    let kinds = again_and_again(Duration::from_millis(200), enough, load).await;
    assert!(kinds.contains(&ErrorKind::Unavailable));
    scene.client.put("new", &scene.memory.view(b"x"), &Put::default()).await.unwrap();
    scene.client.delete("new").await.unwrap();
}
