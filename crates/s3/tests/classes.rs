//! What fails is left alone, and nothing else: a store that cannot delete still loads.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use kvtier_s3::{ErrorKind, Get, List, Put};
use kvtier_testkit::s3::{Fault, Rule};
use support::scene::Scene;

const LEN: usize = 100_000;
/// A load under trouble may take so long, beside tests of other programs.
const LOAD_MAX: Duration = Duration::from_millis(500);

/// Loads without a pause while `trouble` goes on; each must come, right and soon. Returns how many did.
async fn load_through(scene: &Scene, trouble: impl Future<Output = ()>) -> u32 {
    let mut loads = 0;
    let loading = async {
        loop {
            let (mut lease, began) = (scene.memory.lease(LEN), Instant::now());
            let got = scene.client.get("k", &mut lease, &Get::default()).await;
            got.unwrap_or_else(|e| panic!("{e}: {:?}", scene.client.counts())).unwrap();
            assert!(lease.as_host().unwrap() == scene.bytes, "wrong bytes");
            assert!(began.elapsed() < LOAD_MAX, "{:?}: {:?}", began.elapsed(), scene.client.counts());
            loads += 1;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = trouble => {}
        () = loading => {}
    }
    loads
}

/// Does it by many hands again and again for so long; how often it failed with which kind.
async fn again_and_again<F>(time: Duration, work: impl Fn() -> F) -> Vec<ErrorKind>
where
    F: Future<Output = Result<(), kvtier_s3::Error>>,
{
    let (end, kinds) = (Instant::now() + time, std::cell::RefCell::new(Vec::new()));
    let hand = async || {
        while Instant::now() < end {
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
    let stall = Fault::Stall(Duration::from_secs(50));
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
        let hasty = scene.client.within(Duration::from_millis(100));
        let trouble = async {
            let time = Duration::from_millis(700);
            let one = again_and_again(time, || hasty.delete("gone"));
            let many = again_and_again(time, async || hasty.delete_many(&["a", "b"]).await.map(drop));
            let (one, many) = tokio::join!(one, many);
            for kinds in [one, many] {
                assert_eq!(kinds.contains(&ErrorKind::Unavailable), opens, "{fault:?}: {kinds:?}");
            }
        };
        let loads = load_through(&scene, trouble).await;
        assert!(loads > 20, "{fault:?}: {loads} loads");
        assert_eq!(scene.client.requests_limit(), limit, "{fault:?} does not slow loads down");
        // What failed left loads the means to repeat.
        scene.server.heal();
        scene.server.script(Rule::next(Fault::Error(500, "InternalError")).method("GET").times(3));
        assert!(scene.client.get("k", &mut scene.memory.lease(LEN), &Get::default()).await.unwrap().is_some());
        let healed = Instant::now();
        while hasty.delete("gone").await.is_err() {
            assert!(healed.elapsed() < Duration::from_secs(2), "{fault:?}: {:?}", scene.client.counts());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn uploads_and_listings_that_fail_leave_loads_alone() {
    let scene = Scene::of(LEN);
    scene.server.script(Rule::next(Fault::Error(500, "InternalError")).method("PUT").times(1_000_000));
    let listing = Rule::next(Fault::Error(500, "InternalError")).containing("list-type").times(1_000_000);
    scene.server.script(listing);
    let hasty = scene.client.within(Duration::from_millis(100));
    let view = scene.memory.view(b"x");
    let loads = load_through(&scene, async {
        let time = Duration::from_millis(500);
        let puts = again_and_again(time, async || hasty.put("new", &view, &Put::default()).await.map(drop));
        let lists = again_and_again(time, async || hasty.list(&List::default(), None).await.map(drop));
        let (puts, lists) = tokio::join!(puts, lists);
        assert!(puts.contains(&ErrorKind::Unavailable) && lists.contains(&ErrorKind::Unavailable));
    })
    .await;
    assert!(loads > 20, "{loads} loads");
    let error = hasty.list(&List::default(), None).await.unwrap_err();
    assert!(error.to_string().contains("listings"), "who is left alone is said: {error}");
}

#[tokio::test]
async fn loads_that_fail_stop_loads_and_no_uploads() {
    let scene = Scene::of(LEN);
    scene.server.script(Rule::next(Fault::Error(500, "InternalError")).method("GET").times(1_000_000));
    let hasty = scene.client.within(Duration::from_millis(100));
    let load = async || hasty.get("k", &mut scene.memory.lease(LEN), &Get::default()).await.map(drop);
    let kinds = again_and_again(Duration::from_millis(200), load).await;
    assert!(kinds.contains(&ErrorKind::Unavailable));
    hasty.put("new", &scene.memory.view(b"x"), &Put::default()).await.unwrap();
    hasty.delete("new").await.unwrap();
}
