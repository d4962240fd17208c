//! Uploads over faults: refused early, repeated, in parts, and hung.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use kvtier_s3::{ErrorKind, Put, Stored};
use kvtier_testkit::s3::{Fault, Rule};
use support::scene::Scene;
use support::*;

const LEN: usize = 300_000;

/// A server that sleeps so long is not waited for, on the busiest machine.
const ASLEEP: Duration = Duration::from_secs(7200);
/// What does not wait for it is there within this time.
const SOON: Duration = Duration::from_secs(600);
/// The idle timeout of clients that must detect the fault in another way.
const PATIENT: Duration = Duration::from_secs(3000);

#[tokio::test]
async fn an_upload_refused_early_ends_and_its_connection_with_it() {
    let scene = Scene::of(LEN);
    let large = scene.memory.view(&pattern(32 * MIB));
    scene.server.script(Rule::next(Fault::Early(403, "AccessDenied")).times(2));
    let error = scene.client.put("new", &large, &Put::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Denied, Some("AccessDenied")));
    scene.server.heal();
    scene.server.script(Rule::next(Fault::Early(503, "SlowDown")));
    assert!(matches!(
        scene.client.put("new", &large, &Put::default()).await.unwrap(),
        Stored::New { .. }
    ));
    assert!(scene.server.object("new").as_deref().map(Vec::as_slice) == large.as_host());
    assert!(scene.client.counts().early_answers >= 1, "{:?}", scene.client.counts());
    drop(large);
    scene.end().await;
}

#[tokio::test]
async fn uploads_survive_what_downloads_survive() {
    for fault in [
        Fault::Error(503, "SlowDown"),
        Fault::Hangup,
        Fault::Html(502),
        Fault::Error(400, "RequestTimeout"),
        Fault::Error(409, "ConditionalRequestConflict"),
    ] {
        let scene = Scene::of(LEN);
        scene.server.script(Rule::next(fault.clone()));
        let view = scene.memory.view(&scene.bytes);
        assert!(
            matches!(
                scene.client.put("new", &view, &Put::if_absent()).await.unwrap(),
                Stored::New { .. }
            ),
            "{fault:?}"
        );
        assert_eq!(server_bytes(&scene, "new"), scene.bytes);
        drop(view);
        scene.end().await;
    }
    let scene = Scene::of(LEN);
    scene.server.script(Rule::next(Fault::DoneThenError(500, "InternalError")));
    let view = scene.memory.view(&scene.bytes);
    assert_eq!(
        scene.client.put("new", &view, &Put::if_absent()).await.unwrap(),
        Stored::Present,
        "our own first attempt"
    );
}

fn server_bytes(scene: &Scene, key: &str) -> Vec<u8> {
    scene.server.object(key).unwrap().to_vec()
}

#[tokio::test]
async fn multipart_uploads_are_finished_or_given_up() {
    let view = |scene: &Scene| scene.memory.view(&pattern(11 * MIB));
    let parts = kvtier_s3::Multipart::new(5 * MIB, 2);
    // A success that carries an error, then a real one.
    let scene = Scene::of(LEN);
    scene.server.script(
        Rule::next(Fault::OkThenError("InternalError")).method("POST").containing("uploadId"),
    );
    assert!(matches!(
        scene.client.put_multipart("m", &view(&scene), &Put::default(), parts).await.unwrap(),
        Stored::New { .. }
    ));
    assert_eq!((server_bytes(&scene, "m"), scene.server.uploads()), (pattern(11 * MIB), 0));
    // It was done, though the answer said otherwise.
    scene.server.script(
        Rule::next(Fault::DoneThenError(200, "InternalError"))
            .method("POST")
            .containing("uploadId"),
    );
    assert!(matches!(
        scene.client.put_multipart("m2", &view(&scene), &Put::default(), parts).await.unwrap(),
        Stored::New { .. }
    ));
    scene.server.script(
        Rule::next(Fault::DoneThenError(500, "InternalError"))
            .method("POST")
            .containing("uploadId"),
    );
    assert!(matches!(
        scene.client.put_multipart("m3", &view(&scene), &Put::default(), parts).await.unwrap(),
        Stored::New { .. }
    ));
    // It fails for good: at a part, at the end, by its deadline.
    scene.server.script(
        Rule::next(Fault::Error(403, "AccessDenied"))
            .method("PUT")
            .containing("partNumber=2")
            .times(2),
    );
    assert_eq!(
        scene
            .client
            .put_multipart("x", &view(&scene), &Put::default(), parts)
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::Denied
    );
    scene.server.heal();
    scene.server.script(
        Rule::next(Fault::OkThenError("AccessDenied")).method("POST").containing("uploadId"),
    );
    assert!(scene.client.put_multipart("x", &view(&scene), &Put::default(), parts).await.is_err());
    // Time enough to come that far.
    scene.server.script(Rule::next(Fault::Stall(ASLEEP)).method("PUT").containing("partNumber=3"));
    let hasty = scene.client.within(SOON);
    let large = view(&scene);
    let put = Put::default();
    let upload = hasty.put_multipart("x", &large, &put, parts);
    let error = jumping(SOON, || scene.server.stalled() > 0, upload).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    drop((hasty, large));
    soon("no upload is left", || scene.server.uploads() == 0).await;
    assert_eq!(scene.client.counts().aborts, 3);
    assert!(scene.server.object("x").is_none());
    // The server still sleeps.
    assert!(scene.memory.is_whole());
}

#[tokio::test]
async fn hung_uploads_are_aborted_when_others_succeed() {
    let scene = Scene::with(LEN, |config| {
        config.requests_max = 6;
        config.stall_max = PATIENT;
        config.deadline = PATIENT;
    });
    scene.server.script(Rule::next(Fault::Clog).times(1000));
    let view = scene.memory.view(&pattern(16 * MIB));
    let put = Put::default();
    let clogged = async {
        let upload = async |key| scene.client.put(key, &view, &put).await.unwrap();
        tokio::join!(upload("a"), upload("b"), upload("c"));
    };
    let healing = async {
        let hasty = scene.client.within(Duration::from_millis(100));
        let small = scene.memory.view(b"x");
        let start = Instant::now();
        while scene.client.counts().breaker_opened == 0 {
            hasty.put("small", &small, &put).await.unwrap_err();
            assert!(start.elapsed() < SOON, "{:?}", scene.client.counts());
        }
        scene.server.heal();
        let times = [Duration::from_millis(100), SOON];
        until_well(&scene.client, times, async |hasty| hasty.put("small", &small, &put).await)
            .await;
    };
    let start = Instant::now();
    tokio::join!(clogged, healing);
    assert!(start.elapsed() < PATIENT - SOON, "{:?}", start.elapsed());
    drop(view);
    // The server does not see that a connection ended whose bytes it never reads.
    assert!(scene.memory.is_whole());
}

#[tokio::test]
async fn uploads_that_hang_leave_a_way_for_others() {
    let scene = Scene::with(LEN, |config| {
        config.stall_max = PATIENT;
        config.deadline = PATIENT;
    });
    // They are taken, and never answered.
    scene
        .server
        .script(Rule::next(Fault::Stall(ASLEEP)).method("PUT").containing("hung").times(100));
    let view = scene.memory.view(&scene.bytes);
    let put = Put::default();
    let names = (0..15).map(|n| format!("hung-{n}")).collect::<Vec<_>>();
    let hanging = async {
        let mut all: Vec<_> =
            names.iter().map(|name| Box::pin(scene.client.put(name, &view, &put))).collect();
        std::future::poll_fn(|cx| {
            all.retain_mut(|one| one.as_mut().poll(cx).is_pending());
            if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    };
    let others = async {
        // As many as may; each of them is sent within that time.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let began = Instant::now();
        for n in 0..20 {
            scene.client.put(&format!("new-{n}"), &view, &put).await.unwrap();
        }
        assert!(began.elapsed() < PATIENT / 2, "{:?}", began.elapsed());
        scene.get().await.unwrap();
    };
    tokio::select! {
        () = hanging => panic!("nothing ended them"),
        () = others => {}
    }
    drop(view);
    // The server still sleeps.
    assert!(scene.memory.is_whole());
}
