//! Every script of faults: the right bytes, back in time, nothing leaked.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use kvtier_s3::{Checksum, ErrorKind, Get, Hedge, List, Put};
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

/// Of a client that soon has enough of a server that stands still.
fn stalling() -> Scene {
    Scene::with(LEN, |config| config.stall_max = STALL_MAX)
}

#[tokio::test]
async fn faults_of_one_request_are_repaired_by_the_next() {
    // Who waits for its end takes longer than any other, on the busiest machine.
    let slow = ASLEEP;
    let faults = [
        Fault::Error(503, "SlowDown"),
        Fault::Error(500, "InternalError"),
        Fault::Html(502),
        Fault::Html(504),
        Fault::Hangup,
        Fault::Cut(0),
        Fault::Cut(1),
        Fault::Cut(LEN / 2),
        Fault::Cut(LEN - 1),
        Fault::Reset(0),
        Fault::Reset(LEN / 2),
        Fault::Stall(slow),
        Fault::Error(409, "OperationAborted"),
    ];
    for fault in faults {
        let stalls = matches!(fault, Fault::Stall(_));
        let scene = if stalls { stalling() } else { Scene::of(LEN) };
        scene.server.script(Rule::next(fault.clone()));
        let start = Instant::now();
        let patience = async {
            if stalls {
                soon("the server stalls", || scene.server.stalled() == 1).await;
                // Not until the next one is seen there: jumps would end that as well, which takes
                // as long as this machine does to connect.
                jump_until(STALL_MAX, "it is given up", || scene.client.counts().timeouts > 0)
                    .await;
            }
        };
        let (got, ()) = tokio::join!(scene.get(), patience);
        got.unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        assert!(start.elapsed() < SOON, "{fault:?} took {:?}", start.elapsed());
        let retries = scene.client.counts().retries;
        assert!(retries == 1 || stalls && retries > 0, "{fault:?}: {retries}");
        if !stalls {
            // Of a server that still sleeps the connection stays.
            scene.end().await;
        }
    }
}

#[tokio::test]
async fn a_broken_body_goes_on_where_it_ended_and_only_of_the_same_version() {
    let scene = Scene::of(LEN);
    scene.server.script(Rule::next(Fault::Cut(LEN / 3))).script(Rule::next(Fault::Cut(LEN / 3)));
    scene.get().await.unwrap();
    let seen = scene.server.seen();
    let ranges: Vec<_> =
        seen.iter().map(|seen| seen.header("range").unwrap_or_default().to_owned()).collect();
    assert_eq!(
        ranges,
        [
            String::new(),
            format!("bytes={}-{}", LEN / 3, LEN - 1),
            format!("bytes={}-{}", LEN / 3 * 2, LEN - 1)
        ]
    );
    assert!(seen[1].header("if-match").is_some());
    assert_eq!((scene.client.counts().resumes, scene.client.counts().bytes_in), (2, LEN as u64));
    scene.end().await;
}

#[tokio::test]
async fn an_object_replaced_in_between_is_never_mixed() {
    let scene = Scene::of(LEN);
    scene
        .server
        .script(Rule::next(Fault::Cut(LEN / 2)))
        .script(Rule::next(Fault::Error(503, "SlowDown")).times(100));
    let get = scene.get();
    let replace = async {
        soon("the first part was read", || scene.server.seen().len() >= 2).await;
        scene.server.put_object("k", vec![0; LEN]);
        // Not before: pauses may be as short as nothing.
        scene.server.heal();
    };
    let (got, ()) = tokio::join!(get, replace);
    assert_eq!(got.unwrap_err().kind(), ErrorKind::Conflict);
    scene.end().await;
}

#[tokio::test]
async fn answers_that_lie_about_their_length_land_nothing_outside() {
    for (fault, whole) in [
        (Fault::OverLong(5000), true),
        (Fault::Shorter(1), false),
        (Fault::Longer(1), false),
        (Fault::Chunked, true),
    ] {
        let scene = Scene::of(LEN);
        scene.server.script(Rule::next(fault.clone()));
        match scene.get().await {
            Ok(()) => assert!(whole, "{fault:?}"),
            Err(e) => assert!(!whole && e.kind() == ErrorKind::Corrupt, "{fault:?}: {e}"),
        }
        // What was too much does not spoil the next answer.
        scene.get().await.unwrap_or_else(|e| panic!("after {fault:?}: {e}"));
        scene.end().await;
    }
}

#[tokio::test]
async fn ranges_that_are_not_the_ones_asked_for_are_not_taken() {
    for (fault, kind) in
        [(Fault::WrongRange, ErrorKind::Corrupt), (Fault::IgnoreRange, ErrorKind::Unsupported)]
    {
        let scene = Scene::with(LEN, |config| config.retries_max = 1);
        scene.server.script(Rule::next(fault).times(2));
        let mut lease = scene.memory.lease(1000);
        let error = scene.client.get("k", &mut lease, &Get::range(5000..6000)).await.unwrap_err();
        assert_eq!((error.kind(), lease.init_len()), (kind, 0));
        scene.server.heal();
        scene.client.get("k", &mut lease, &Get::range(5000..6000)).await.unwrap().unwrap();
        assert_eq!(lease.as_host().unwrap(), &scene.bytes[5000..6000]);
        drop(lease);
        scene.end().await;
    }
}

#[tokio::test]
async fn a_body_that_breaks_at_a_store_that_ignores_ranges_is_read_anew_as_a_whole() {
    let scene = Scene::of(LEN);
    for cut in (1..LEN).step_by(LEN / 13).take(13) {
        let before = scene.server.seen().len();
        scene
            .server
            .script(Rule::next(Fault::Cut(cut)))
            .script(Rule::next(Fault::IgnoreRange).times(1000));
        scene.get().await.unwrap_or_else(|e| panic!("cut at {cut}: {}", e.report()));
        scene.server.heal();
        let seen = scene.server.seen().split_off(before);
        // Each has to show it for itself: another may be served by a store that does not.
        let ranges = seen.iter().filter(|seen| seen.header("range").is_some()).count();
        assert_eq!((seen.len(), ranges), (3, 1), "cut at {cut}");
    }
    assert_eq!(scene.client.counts().ranges_ignored, 13);
    assert!(!scene.client.ignores_ranges());
    // Several bodies of one object that break off: its ranges are asked for once.
    let before = scene.server.seen().len();
    scene.server.script(Rule::next(Fault::Cut(LEN / 2))).script(Rule::next(Fault::IgnoreRange));
    scene.server.script(Rule::next(Fault::Cut(LEN / 2)));
    scene.get().await.unwrap();
    let seen = scene.server.seen().split_off(before);
    assert_eq!(
        seen.iter().map(|seen| seen.header("range").is_some()).collect::<Vec<_>>(),
        [false, true, false, false]
    );
    scene.end().await;
}

#[tokio::test]
async fn one_answer_that_ignores_its_range_turns_off_no_other_resuming() {
    let scene = Scene::of(LEN);
    scene.server.script(Rule::next(Fault::Cut(LEN / 2))).script(Rule::next(Fault::IgnoreRange));
    scene.get().await.unwrap();
    assert_eq!(scene.client.counts().ranges_ignored, 1);
    let before = scene.server.seen().len();
    scene.server.script(Rule::next(Fault::Cut(LEN / 2)));
    scene.get().await.unwrap();
    let seen = scene.server.seen().split_off(before);
    assert_eq!(
        (seen.len(), seen[1].header("range").is_some()),
        (2, true),
        "what landed was thrown away"
    );
    scene.end().await;
}

#[tokio::test]
async fn parts_of_a_store_that_ignores_ranges_are_asked_for_once() {
    let scene = Scene::of(LEN);
    scene.server.script(Rule::next(Fault::IgnoreRange).times(1000));
    let mut lease = scene.memory.lease(LEN);
    for n in 1..=3 {
        assert!(!scene.client.ignores_ranges(), "after {} objects", n - 1);
        assert_eq!(
            scene.client.get_parallel("k", &mut lease, LEN / 4, 4).await.unwrap().unwrap().len(),
            LEN as u64
        );
        assert!(lease.as_host().unwrap() == scene.bytes);
        // The parts that were given up with the first may still arrive there, so requests are
        // distinguished apart by their header.
        let seen = scene.server.seen();
        let is_whole = |range: Option<&str>| range.is_none();
        let whole =
            seen.iter().filter(|seen| seen.method == "GET" && is_whole(seen.header("range")));
        assert_eq!(whole.count(), n, "one request, of the whole object");
    }
    assert!(scene.client.ignores_ranges(), "three in a row");
    let ranges = scene.client.counts().ranges_ignored;
    scene.client.get_parallel("k", &mut lease, LEN / 4, 4).await.unwrap().unwrap();
    assert_eq!(scene.client.counts().ranges_ignored, ranges);
    drop(lease);
    scene.end().await;
}

#[tokio::test]
async fn a_request_that_the_store_did_not_have_once_is_tried_again() {
    let scene = Scene::of(LEN);
    let posts = || scene.server.seen().iter().filter(|seen| seen.method == "POST").count();
    scene.server.script(Rule::next(Fault::Error(501, "NotImplemented")).method("POST"));
    for _ in 0..3 {
        assert_eq!(scene.client.delete_many(&["a", "b"]).await.unwrap(), []);
    }
    assert_eq!(posts(), 1, "one by one meanwhile");
    jump(Duration::from_secs(600)).await;
    assert_eq!(scene.client.delete_many(&["a", "b"]).await.unwrap(), []);
    assert_eq!(posts(), 2);
    scene.end().await;
}

#[tokio::test]
async fn a_flipped_bit_is_found_and_read_again() {
    for checksum in [Checksum::Crc32c, Checksum::Crc64Nvme, Checksum::Sha256] {
        let scene =
            Scene::with(LEN, |config| (config.checksum, config.retries_max) = (checksum, 2));
        scene.client.put("k", &scene.memory.view(&scene.bytes), &Put::default()).await.unwrap();
        scene.server.script(Rule::next(Fault::Flip));
        scene.get().await.unwrap();
        let counts = scene.client.counts();
        assert_eq!(
            (counts.checksum_failures, counts.checksums_verified, counts.retries),
            (1, 1, 1),
            "{checksum:?}"
        );
        scene.server.script(Rule::next(Fault::Flip).times(100));
        assert_eq!(scene.get().await.unwrap_err().kind(), ErrorKind::Corrupt);
        scene.end().await;
    }
}

#[tokio::test]
async fn a_body_that_is_not_what_its_checksum_says_is_not_stored() {
    let scene =
        Scene::with(LEN, |config| (config.checksum, config.retries_max) = (Checksum::Crc32c, 1));
    let mut put = Put::default();
    put.crc32c = Some(1);
    let error = scene.client.put("new", &scene.memory.view(&scene.bytes), &put).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Corrupt, Some("BadDigest")));
    assert!(scene.server.object("new").is_none());
    scene.end().await;
}

#[tokio::test]
async fn a_slow_drip_is_waited_for_and_a_stall_is_not() {
    let scene = Scene::of(LEN);
    scene.server.script(Rule::next(Fault::Drip(LEN / 8, Duration::from_millis(20))));
    scene.get().await.unwrap();
    assert_eq!(scene.client.counts().retries, 0, "it moved all the time");
    let before = scene.server.seen().len();
    scene.server.script(Rule::next(Fault::Stall(ASLEEP)).times(100));
    let start = tokio::time::Instant::now();
    let deadline = Duration::from_secs(400);
    let step = Duration::from_secs(10);
    let client = scene.client.within(deadline);
    let mut lease = scene.memory.lease(LEN);
    let whole = Get::default();
    let is_stuck = || scene.server.stalled() > 0;
    let error = jumping(step, is_stuck, client.get("k", &mut lease, &whole)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    // No stall by itself, nor all repetitions of it.
    assert!(start.elapsed() >= deadline, "{:?}", start.elapsed());
    assert_eq!((scene.client.counts().deadlines, scene.server.seen().len()), (1, before));
}

#[tokio::test]
async fn a_store_that_stalls_for_long_is_left_alone_and_back_within_two_seconds() {
    let scene = stalling();
    scene.server.script(Rule::next(Fault::Stall(ASLEEP)).times(1000));
    let hasty = scene.client.within(STALL_MAX + STALL_MAX / 4);
    let mut kinds = Vec::new();
    let start = Instant::now();
    while !kinds.contains(&ErrorKind::Unavailable) {
        let before = scene.server.stalled();
        let mut lease = scene.memory.lease(LEN);
        let whole = Get::default();
        let get = hasty.get("k", &mut lease, &whole);
        kinds.push(
            jumping(STALL_MAX / 4, || scene.server.stalled() > before, get)
                .await
                .unwrap_err()
                .kind(),
        );
        assert!(start.elapsed() < SOON, "{kinds:?}");
    }
    assert_eq!(kinds[0], ErrorKind::Timeout);
    let counts = scene.client.counts();
    assert!(counts.breaker_opened >= 1 && counts.breaker_refused >= 1);
    scene.server.heal();
    let mut away = Duration::ZERO;
    let step = Duration::from_millis(20);
    while hasty.get("k", &mut scene.memory.lease(LEN), &Get::default()).await.is_err() {
        assert!(away < Duration::from_secs(2), "still away: {:?}", scene.client.counts());
        jump(step).await;
        away += step;
    }
    assert!(scene.client.counts().breaker_closed >= 1);
    scene.get().await.unwrap();
}

#[tokio::test]
async fn a_storm_of_503_cuts_the_load_and_the_retries_and_passes() {
    let scene = Scene::of(LEN);
    // There is a connection: what follows has no time for a handshake on a busy machine.
    scene.get().await.unwrap();
    scene.server.script(Rule::next(Fault::Error(503, "SlowDown")).times(100_000));
    let limit = scene.client.requests_limit();
    let hasty = scene.client.within(Duration::from_millis(400));
    for _ in 0..20 {
        let error =
            hasty.get("k", &mut scene.memory.lease(LEN), &Get::default()).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Throttled | ErrorKind::Timeout), "{error}");
    }
    let counts = scene.client.counts();
    assert!(scene.client.requests_limit() < limit && counts.limit_cuts > 0);
    assert!(counts.retries <= 100, "the budget holds: {}", counts.retries);
    drop(hasty);
    scene.server.heal();
    let healed = Instant::now();
    while scene.get().await.is_err() {
        assert!(healed.elapsed() < SOON);
    }
    // A slow answer of a busy machine cuts it once more.
    while scene.client.requests_limit() < limit {
        assert!(scene.client.head("k").await.unwrap().is_some());
        assert!(healed.elapsed() < 2 * SOON, "full speed again");
    }
    scene.end().await;
}

#[tokio::test]
async fn a_pause_that_the_store_asks_for_is_kept() {
    let scene = Scene::of(LEN);
    scene.server.script(Rule::next(Fault::SlowDown(15)));
    let start = tokio::time::Instant::now();
    let asked = Duration::from_secs(15);
    let pause = async {
        soon("it is refused", || scene.client.counts().retries == 1).await;
        // No further, so that the next request has all its time.
        jump_until(Duration::from_millis(500), "the pause ends", || start.elapsed() >= asked).await;
    };
    let (got, ()) = tokio::join!(
        async {
            scene.get().await.unwrap();
            start.elapsed()
        },
        pause
    );
    assert!(got >= asked, "{got:?}");
    scene.end().await;
}

#[tokio::test]
async fn dead_idle_connections_cost_one_repetition_and_no_pause() {
    let scene = Scene::of(LEN);
    for _ in 0..5 {
        scene.get().await.unwrap();
        scene.server.disconnect();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    scene.server.script(Rule::next(Fault::CloseAfter).times(3));
    for _ in 0..5 {
        scene.get().await.unwrap();
    }
    let counts = scene.client.counts();
    assert_eq!((counts.retries, counts.breaker_opened), (0, 0));
    scene.end().await;
}

#[tokio::test]
async fn a_dropped_future_closes_its_connection_and_returns_the_memory() {
    let scene = Scene::of(LEN);
    let whole = Get::default();
    // A connection in the middle of a body is of no use, but a shared one is: unless nothing at all
    // was received on it, on a machine that stood still, so that it may be dead.
    let mut pauses_ms = [20, 200, 800, 3200].into_iter();
    loop {
        let pause =
            pauses_ms.next().expect("a connection of HTTP/2 on which an answer came is kept");
        let seen = scene.server.seen().len();
        scene.server.script(Rule::next(Fault::Drip(1000, Duration::from_millis(20))));
        let mut lease = scene.memory.lease(LEN);
        let begun = async {
            soon("the answer is on its way", || scene.server.seen().len() > seen).await;
            tokio::time::sleep(Duration::from_millis(pause)).await;
        };
        tokio::select! {
            got = scene.client.get("k", &mut lease, &whole) => panic!("{got:?}"),
            () = begun => {}
        }
        assert_eq!(lease.init_len(), 0);
        let idle = scene.client.connections_idle();
        assert!(idle <= usize::from(HTTP2), "{idle}");
        if idle == usize::from(HTTP2) {
            break;
        }
    }
    scene.get().await.unwrap();
    scene.end().await;
}

#[tokio::test]
async fn a_clock_that_is_off_is_corrected_within_bounds() {
    for ahead in [-3000, 1800] {
        let server = server(|setup| setup.clock_ahead_s = ahead);
        let client = client(&server);
        assert!(client.list(&List::default(), None).await.is_ok());
        assert!((client.clock_offset() - ahead).abs() <= 300);
        assert_eq!((client.counts().clock_corrections, server.seen().len()), (1, 2));
        client.list(&List::default(), None).await.unwrap();
        assert_eq!(server.seen().len(), 3);
    }
    let server = server(|setup| setup.clock_ahead_s = 30 * 24 * 3600);
    let error = client(&server).list(&List::default(), None).await.unwrap_err();
    assert_eq!((error.kind(), error.code()), (ErrorKind::Denied, Some("RequestTimeTooSkewed")));
    assert!(error.to_string().contains("clock"), "{error}");
}

#[tokio::test]
async fn a_slow_answer_is_hedged_within_its_budget() {
    // Nothing takes so long by itself: the clock jumps.
    let mut hedge = Hedge::after(Duration::from_secs(100));
    hedge.percent_max = 10;
    let scene = Scene::with(LEN, |config| config.hedge = Some(hedge));
    for _ in 0..40 {
        scene.get().await.unwrap();
    }
    let hedges = || scene.client.counts().hedges;
    assert_eq!(hedges(), 0, "none was slow");
    let hangs = async |before: usize| {
        soon("the server stalls", || scene.server.stalled() > before).await;
    };
    scene.server.script(Rule::next(Fault::Hang));
    let slow = async {
        hangs(0).await;
        jump_until(hedge.after, "it is hedged", || hedges() == 1).await;
    };
    let (got, ()) = tokio::join!(scene.get(), slow);
    got.unwrap();
    scene.server.release();
    let counts = scene.client.counts();
    assert!(counts.hedges_won == 1 && counts.retries == 0, "{counts:?}");
    scene.server.script(Rule::next(Fault::Hang).times(60));
    let mut gets = 41;
    for _ in 0..12 {
        let before = scene.server.stalled();
        let slow = async {
            hangs(before).await;
            // The wait for a hedge began before the server had the request, so this ends it.
            jump(hedge.after).await;
            loop {
                tokio::time::sleep(Duration::from_millis(5)).await;
                scene.server.release();
            }
        };
        tokio::select! {
            got = scene.get() => got.unwrap(),
            () = slow => {}
        }
        gets += 1;
    }
    let counts = scene.client.counts();
    assert!(
        counts.hedges > 1 && counts.hedges <= u64::div_ceil(gets, 10),
        "at most ten percent of the GETs: {} of {gets}",
        counts.hedges
    );
    scene.server.heal();
    soon("the losers are gone", || {
        scene.server.release();
        scene.server.connections() <= scene.client.connections_idle()
    })
    .await;
    scene.end().await;
}

#[tokio::test]
async fn after_the_first_byte_there_is_no_hedge_but_the_rest_of_the_same_version() {
    let mut hedge = Hedge::after(STALL_MAX / 2);
    hedge.percent_max = 100;
    let scene = Scene::with(LEN, |config| {
        (config.hedge, config.stall_max) = (Some(hedge), STALL_MAX);
    });
    scene.server.script(Rule::next(Fault::Drip(LEN / 2, ASLEEP)));
    scene.server.step_clock(100);
    let stall = async {
        // What the client learns from the head shows that it has it, and so the first byte.
        soon("the answer begins", || scene.client.clock_offset() > 50).await;
        // For more of it than that.
        tokio::time::sleep(Duration::from_millis(500)).await;
        jump_until(STALL_MAX, "it is given up", || scene.client.counts().timeouts > 0).await;
    };
    let (got, ()) = tokio::join!(scene.get(), stall);
    got.unwrap();
    let seen = scene.server.seen();
    assert_eq!(
        (seen.len(), scene.client.counts().hedges, scene.client.counts().resumes),
        (2, 0, 1)
    );
    // All of the half, unless this machine was slow.
    let range = seen[1].header("range").and_then(|range| range.strip_prefix("bytes="));
    let (from, to) = range.and_then(|range| range.split_once('-')).unwrap();
    assert!((1..=LEN / 2).contains(&from.parse().unwrap()), "{from}");
    assert_eq!(to, (LEN - 1).to_string());
    assert!(seen[1].header("if-match").is_some());
}

#[tokio::test]
async fn an_endpoint_that_is_not_there_says_so_soon() {
    let (dead, _kept) = dead();
    let place =
        kvtier_s3::BucketAddress::new(format!("http://{dead}")).bucket("b").resolve().unwrap();
    let mut config = config_of(place);
    config.retries_max = 2;
    let client = kvtier_s3::Client::new(config);
    let start = Instant::now();
    let error = client.head("k").await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Io, true));
    assert!(
        error.to_string().contains("cannot be reached")
            && std::error::Error::source(&error).is_some()
    );
    for _ in 0..20 {
        client.head("k").await.unwrap_err();
    }
    assert!(start.elapsed() < SOON, "the breaker ends the waiting: {:?}", start.elapsed());
    assert!(client.counts().breaker_opened >= 1 && client.counts().breaker_refused >= 1);
}

#[tokio::test]
async fn requests_that_hang_do_not_hold_up_those_after_the_recovery() {
    let scene = Scene::with(LEN, |config| {
        config.requests_max = 4;
        config.stall_max = PATIENT;
        config.deadline = PATIENT;
    });
    scene.server.script(Rule::next(Fault::Stall(ASLEEP)).times(1000));
    let hanging = async {
        tokio::try_join!(scene.get(), scene.get(), scene.get(), scene.get()).unwrap();
    };
    let healing = async {
        let hasty = scene.client.within(Duration::from_millis(60));
        let start = Instant::now();
        while scene.client.counts().breaker_opened == 0 {
            hasty.head("k").await.unwrap_err();
            assert!(start.elapsed() < SOON, "{:?}", scene.client.counts());
        }
        scene.server.heal();
        let times = [Duration::from_millis(60), SOON];
        until_well(&scene.client, times, async |hasty| hasty.head("k").await).await;
    };
    let start = Instant::now();
    tokio::join!(hanging, healing);
    assert!(start.elapsed() < PATIENT - SOON, "{:?}", start.elapsed());
}
