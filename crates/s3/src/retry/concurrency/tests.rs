//! The limits by themselves.

use super::*;
use crate::retry::in_flight::ABANDONED_MAX;

#[test]
fn it_is_cut_grows_back_and_loses_no_permit() {
    let limit = ClassLimit::new(16);
    let counters = Counters::default();
    let start = Instant::now();
    let mut held: Vec<_> = (0..16).map(|_| limit.try_acquire().unwrap()).collect();
    assert!(limit.try_acquire().is_none());
    limit.overloaded(start, &counters);
    limit.overloaded(start, &counters);
    assert_eq!((limit.current(), counters.read().limit_cuts), (12, 1));
    held.truncate(12);
    assert!(limit.try_acquire().is_none(), "the cut swallowed four");
    held.clear();
    for n in 1..20 {
        limit.overloaded(start + CUT_EVERY * n, &counters);
    }
    assert_eq!(limit.current(), 1);
    let only = limit.try_acquire().unwrap();
    assert!(limit.try_acquire().is_none());
    drop(only);
    for _ in 0..1000 {
        limit.succeeded(start, Duration::from_millis(1), &counters);
    }
    assert_eq!(limit.current(), 16);
    let held: Vec<_> = std::iter::from_fn(|| limit.try_acquire()).collect();
    assert_eq!(held.len(), 16);
}

#[tokio::test]
async fn kinds_have_a_pace_of_their_own_and_one_number_together() {
    let limits = ConcurrencyLimits::new(16);
    let counters = Counters::default();
    let free = |kind| std::iter::from_fn(|| limits.try_acquire(kind)).collect::<Vec<_>>();
    for (kind, places) in [
        (RequestKind::Read, 16),
        (RequestKind::Write, 15),
        (RequestKind::Delete, 4),
        (RequestKind::Control, 4),
    ] {
        assert_eq!(free(kind).len(), places, "{kind:?}");
    }
    for n in 0..20 {
        limits.kind(RequestKind::Delete).overloaded(Instant::now() + CUT_EVERY * n, &counters);
    }
    assert_eq!(free(RequestKind::Delete).len(), 1);
    assert_eq!(free(RequestKind::Read).len(), 16, "loads are as fast as before");
    let writes = free(RequestKind::Write);
    let loads = free(RequestKind::Read);
    assert_eq!((writes.len(), loads.len(), free(RequestKind::Delete).len()), (15, 1, 0));
    // Other requests may wait for a session, so a session waits for no permit.
    limits.acquire(RequestKind::Session).await;
    drop((writes, loads));
    assert_eq!(free(RequestKind::Read).len(), 16, "no place is lost");
}

/// All permits of writes that there are.
fn all_writes(limits: &ConcurrencyLimits) -> Vec<RequestPermit> {
    std::iter::from_fn(|| limits.try_acquire(RequestKind::Write)).collect()
}

#[tokio::test(start_paused = true)]
async fn where_all_hang_one_more_goes_each_second_and_no_place_is_lost() {
    let limits = ConcurrencyLimits::new(16);
    let counters = Counters::default();
    let hung = all_writes(&limits);
    let began = Instant::now();
    // A limit that was cut meanwhile changes nothing: all that are out hang.
    (0..20)
        .for_each(|n| limits.kind(RequestKind::Write).overloaded(began + CUT_EVERY * n, &counters));
    let mut more = Vec::new();
    for n in 1..=ABANDONED_MAX {
        // It hangs as well.
        more.push(limits.acquire(RequestKind::Write).await);
        let (waited, due) = (began.elapsed(), SILENT_AFTER * n as u32);
        assert!((due..due + CHECK_AGAIN_AFTER * 2).contains(&waited), "{n}: {waited:?}");
    }
    let in_flight_max = limits.kind(RequestKind::Write).in_flight_max();
    assert_eq!((limits.abandoned(), in_flight_max), (ABANDONED_MAX, 15 + ABANDONED_MAX));
    let next = tokio::time::timeout(SILENT_AFTER * 9, limits.acquire(RequestKind::Write));
    assert!(next.await.is_err(), "no more than the most beyond the limit");
    drop((hung, more));
    let in_flight_max = limits.kind(RequestKind::Write).in_flight_max();
    assert_eq!((limits.abandoned(), in_flight_max), (0, 1));
    assert_eq!(all_writes(&limits).len(), 1, "as the limit says");
    let succeed =
        || limits.kind(RequestKind::Write).succeeded(began, Duration::from_millis(1), &counters);
    (0..1000).for_each(|_| succeed());
    assert_eq!(all_writes(&limits).len(), 15, "no place is lost");
    assert_eq!(limits.all.available_permits(), 16);
}

/// Requests that are given up one after the other say nothing of the others.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_given_up_unanswered_puts_nothing_off() {
    let limits = Arc::new(ConcurrencyLimits::new(16));
    let mut hung = all_writes(&limits);
    let counters = Counters::default();
    let began = Instant::now();
    (0..20)
        .for_each(|n| limits.kind(RequestKind::Write).overloaded(began + CUT_EVERY * n, &counters));
    let give_up = async {
        loop {
            tokio::time::sleep(SILENT_AFTER / 2).await;
            hung.pop();
        }
    };
    tokio::select! {
        _ = limits.acquire(RequestKind::Write) => {}
        () = give_up => {}
    }
    assert!(began.elapsed() < SILENT_AFTER + CHECK_AGAIN_AFTER * 2, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_moves_keeps_its_place() {
    let limits = ConcurrencyLimits::new(16);
    let writes = all_writes(&limits);
    let silences: Vec<_> = writes.iter().map(|_| Arc::<Silence>::default()).collect();
    writes.iter().zip(&silences).for_each(|(permit, silence)| permit.watch(silence));
    let mut next = pin!(limits.acquire(RequestKind::Write));
    let long = SILENT_AFTER * 20;
    assert!(tokio::time::timeout(long, &mut next).await.is_err(), "long uploads");
    silences[7].begin();
    let one = tokio::time::timeout(SILENT_AFTER, &mut next).await;
    assert!(one.is_ok(), "one of them stopped");
    let counts = (limits.abandoned(), limits.all.available_permits());
    assert_eq!(counts, (1, 1), "its places went over, and no others");
}

#[tokio::test(start_paused = true)]
async fn prompt_answers_abandon_what_hangs_and_not_what_is_slow_as_usual() {
    let limits = ConcurrencyLimits::new(16);
    let counters = Counters::default();
    let usual = Duration::from_millis(20);
    let writes = limits.kind(RequestKind::Write);
    let hung = all_writes(&limits);
    writes.succeeded(Instant::now(), usual, &counters);
    assert_eq!(limits.abandoned(), 0, "none hangs yet");
    tokio::time::advance(SILENT_AFTER * 2).await;
    for n in 1..=5 {
        // Each success makes way for one: what waits is served as fast as it is answered.
        writes.succeeded(Instant::now(), usual, &counters);
        let one = limits.try_acquire(RequestKind::Write);
        assert!(one.is_some() && limits.abandoned() == n);
        std::mem::forget(one);
    }
    drop(hung);
    // A store that always needs two seconds: what has waited three does not hang.
    let limits = ConcurrencyLimits::new(16);
    let writes = limits.kind(RequestKind::Write);
    let slow = SILENT_AFTER * 2;
    writes.succeeded(Instant::now(), slow, &counters);
    let busy = all_writes(&limits);
    tokio::time::advance(SILENT_AFTER * 3).await;
    writes.succeeded(Instant::now(), slow, &counters);
    assert_eq!((limits.abandoned(), busy.len()), (0, 15));
}

/// A request that begins proves nothing: each takes the place of one that was given up, and hangs
/// as well.
#[tokio::test(start_paused = true)]
async fn requests_that_begin_put_nothing_off() {
    let limits = Arc::new(ConcurrencyLimits::new(16));
    let mut hung = all_writes(&limits);
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let limits = Arc::clone(&limits);
        waiting.spawn(async move { limits.acquire(RequestKind::Write).await });
    }
    for _ in 0..8 {
        tokio::time::sleep(SILENT_AFTER / 2).await;
        hung.pop();
        hung.push(waiting.join_next().await.unwrap().unwrap());
    }
    // One each second: those of the first one and a half are not a second old before.
    assert!(limits.abandoned() >= 2, "{}", limits.abandoned());
}

/// Of several that hang, one is answered after seconds. The others still hang.
#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_far_too_late_puts_nothing_off() {
    let limits = ConcurrencyLimits::new(16);
    let counters = Counters::default();
    let writes = limits.kind(RequestKind::Write);
    writes.succeeded(Instant::now(), Duration::from_millis(20), &counters);
    let _hung = all_writes(&limits);
    tokio::time::sleep(SILENT_AFTER * 2).await;
    writes.succeeded(Instant::now(), SILENT_AFTER * 2, &counters);
    let next = limits.acquire(RequestKind::Write);
    assert!(tokio::time::timeout(SILENT_AFTER / 2, next).await.is_ok());
}

/// Answers of a store that is slow as usual: what waits for longer than a second does not hang.
#[tokio::test(start_paused = true)]
async fn answers_put_it_off() {
    let limits = ConcurrencyLimits::new(16);
    let counters = Counters::default();
    let _slow = all_writes(&limits);
    let answers = async {
        for _ in 0..40 {
            let (now, usual) = (Instant::now(), SILENT_AFTER * 8);
            limits.kind(RequestKind::Write).succeeded(now, usual, &counters);
            tokio::time::sleep(SILENT_AFTER / 2).await;
        }
    };
    tokio::select! {
        _ = limits.acquire(RequestKind::Write) => panic!("one was abandoned"),
        () = answers => {}
    }
    assert_eq!(limits.abandoned(), 0);
}

/// Three places, all taken by requests that hang, two of them for half a second less. After a second
/// the first is abandoned for another request. Meanwhile the limit is cut to two.
async fn one_in_place_of_one_that_hangs(
    limits: &ConcurrencyLimits,
    counters: &Counters,
) -> (Vec<RequestPermit>, RequestPermit) {
    let kind = limits.kind(RequestKind::Delete);
    // What was slow of late raises the usual time, by which a prompt answer abandons others.
    kind.succeeded(Instant::now(), SILENT_AFTER / 2, counters);
    let mut hung = vec![limits.try_acquire(RequestKind::Delete).unwrap()];
    tokio::time::sleep(SILENT_AFTER / 2).await;
    hung.extend(std::iter::from_fn(|| limits.try_acquire(RequestKind::Delete)));
    kind.overloaded(Instant::now(), counters);
    let works = limits.acquire(RequestKind::Delete).await;
    assert_eq!((hung.len(), kind.current(), kind.in_flight_max()), (3, 2, 4));
    (hung, works)
}

/// The store works again. The place of the request that it answers pays the debt, and those that
/// hang have all places that are left.
#[tokio::test(start_paused = true)]
async fn where_a_debt_takes_the_place_that_works_one_that_hangs_is_abandoned() {
    let limits = ConcurrencyLimits::new(12);
    let counters = Counters::default();
    let (_hung, works) = one_in_place_of_one_that_hangs(&limits, &counters).await;
    let prompt = Duration::from_millis(10);
    let began = Instant::now();
    let answer = async {
        tokio::time::sleep(prompt).await;
        limits.kind(RequestKind::Delete).succeeded(Instant::now(), prompt, &counters);
        drop(works);
    };
    let (first, ()) = tokio::join!(limits.acquire(RequestKind::Delete), answer);
    // The other two have hung for a second then.
    let waited = began.elapsed();
    assert!((SILENT_AFTER / 2..SILENT_AFTER * 6 / 10).contains(&waited), "{waited:?}");
    assert_eq!(limits.abandoned(), 2);
    drop(first);
    assert!(limits.try_acquire(RequestKind::Delete).is_some(), "this place stays");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_comes_after_the_debt_is_paid_waits_for_none_that_hangs() {
    let limits = ConcurrencyLimits::new(12);
    let counters = Counters::default();
    let (hung, works) = one_in_place_of_one_that_hangs(&limits, &counters).await;
    let prompt = Duration::from_millis(10);
    tokio::time::sleep(SILENT_AFTER / 2).await;
    limits.kind(RequestKind::Delete).succeeded(Instant::now(), prompt, &counters);
    drop(works);
    let next = tokio::time::timeout(prompt, limits.acquire(RequestKind::Delete)).await;
    assert!(next.is_ok() && limits.abandoned() == 2);
    drop((hung, next));
    assert_eq!(limits.abandoned(), 0);
    assert!(limits.try_acquire(RequestKind::Delete).is_some(), "no place is lost");
    assert_eq!(limits.all.available_permits(), 12);
}

/// The answer to a probe, which has no place. Then the store hangs again.
#[tokio::test(start_paused = true)]
async fn after_one_answer_a_store_that_hangs_is_tried_once_each_second() {
    let limits = ConcurrencyLimits::new(16);
    let counters = Counters::default();
    let writes = limits.kind(RequestKind::Write);
    let usual = SILENT_AFTER / 4;
    writes.succeeded(Instant::now(), usual, &counters);
    let mut hung = all_writes(&limits);
    hung.push(limits.acquire(RequestKind::Write).await);
    tokio::time::sleep(SILENT_AFTER / 4).await;
    let began = Instant::now();
    for n in 0..5 {
        // Each that waits is answered by nothing.
        let answer = async {
            if n == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                writes.succeeded(Instant::now(), Duration::from_millis(1), &counters);
            }
        };
        let (next, ()) = tokio::join!(limits.acquire(RequestKind::Write), answer);
        hung.push(next);
    }
    // The last of the first ones began a quarter of a second before.
    let least = SILENT_AFTER * 4 + SILENT_AFTER / 2;
    assert!((least..SILENT_AFTER * 6).contains(&began.elapsed()), "{:?}", began.elapsed());
}

/// A delete that waits for a place of deletes gets none by a load that hangs.
#[tokio::test(start_paused = true)]
async fn a_request_of_another_kind_that_takes_nothing_from_the_waiter_is_not_abandoned() {
    let limits = ConcurrencyLimits::new(16);
    let deletes: Vec<_> = std::iter::from_fn(|| limits.try_acquire(RequestKind::Delete)).collect();
    let moving = Arc::<Silence>::default();
    deletes.iter().for_each(|permit| permit.watch(&moving));
    let load = limits.try_acquire(RequestKind::Read).unwrap();
    let next = limits.acquire(RequestKind::Delete);
    assert!(tokio::time::timeout(SILENT_AFTER * 20, next).await.is_err());
    assert_eq!((limits.abandoned(), limits.all.available_permits()), (0, 11));
    drop(load);
    assert_eq!(limits.all.available_permits(), 12, "the load had its places to the end");
}

/// Loads that hang take all places; writes, which have places of their kind, are sent all the same.
#[tokio::test(start_paused = true)]
async fn a_kind_is_not_kept_from_the_store_by_another_that_hangs() {
    let limits = ConcurrencyLimits::new(16);
    let loads: Vec<_> = std::iter::from_fn(|| limits.try_acquire(RequestKind::Read)).collect();
    assert_eq!(loads.len(), 16);
    let write = limits.acquire(RequestKind::Write);
    assert!(tokio::time::timeout(SILENT_AFTER * 2, write).await.is_ok());
}

#[test]
fn a_store_that_stays_slow_is_not_cut_for_ever() {
    let limit = ClassLimit::new(16);
    let counters = Counters::default();
    assert_eq!(limit.silence_min(), SILENCE_UNKNOWN);
    let mut now = Instant::now();
    let slow = Duration::from_secs(2);
    (0..100).for_each(|_| limit.succeeded(now, Duration::from_millis(1), &counters));
    assert_eq!(limit.silence_min(), SILENCE_MIN);
    for _ in 0..40 {
        now += slow;
        limit.succeeded(now, slow, &counters);
    }
    assert!(limit.current() < 16);
    for _ in 0..1000 {
        now += slow;
        limit.succeeded(now, slow, &counters);
    }
    assert_eq!((limit.current(), limit.silence_min()), (16, SILENCE_MAX));
}

#[test]
fn slow_first_bytes_cut_it_too() {
    let limit = ClassLimit::new(16);
    let counters = Counters::default();
    (0..10).for_each(|_| limit.succeeded(Instant::now(), Duration::from_millis(5), &counters));
    limit.succeeded(Instant::now(), Duration::from_secs(1), &counters);
    assert_eq!(limit.current(), 12);
}
