//! Time: deadlines, cancel, close, and what happens when it is too much.

use std::time::{Duration, Instant};

use kvtier_core::{Ctx, ErrorKind, Hold, Loaded, MissReason, Mode, Saved, ShedReason};

use super::Fixture;

const LEN: usize = 9000;
/// What "at once" may take on a machine that does much else.
const SOON: Duration = Duration::from_secs(600);

/// An op whose time is up is answered `Timeout` at once, and its memory is returned.
pub fn a_deadline_in_the_past_is_a_timeout_at_once(make: &dyn Fn() -> Fixture) {
    let f = make();
    f.store(&f.keys([0]), LEN);
    let late = Ctx::within(Duration::ZERO);
    let start = Instant::now();
    let loaded =
        f.tier.load(&late, vec![f.load_op(&f.key(0), LEN), f.load_op(&f.key(1), LEN)]).wait();
    assert_eq!(loaded.len(), 2);
    loaded
        .into_iter()
        .for_each(|d| assert_eq!(d.result.expect_err("late").kind(), ErrorKind::Timeout));
    let saved = f.tier.save(&late, vec![f.save_op(&f.key(2), LEN)]).wait();
    saved
        .into_iter()
        .for_each(|d| assert_eq!(d.result.expect_err("late").kind(), ErrorKind::Timeout));
    // These may have their answer at hand.
    if let Err(error) = f.tier.lookup(&late, f.keys([0]), Mode::Each, Hold::None).wait() {
        assert_eq!(error.kind(), ErrorKind::Timeout);
    }
    if let Err(error) = f.tier.remove(&late, f.keys([9])).wait() {
        assert_eq!(error.kind(), ErrorKind::Timeout);
    }
    // A tier that waits for its medium here would hang where the medium does.
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    home(&f);
}

/// Waits until every lease is back.
fn home(f: &Fixture) {
    f.eventually("all memory is home", || {
        let now = f.arena.stats();
        now.free == now.capacity
    });
}

/// Who drops a ticket gets no answer and loses nothing else: after close all memory is back.
pub fn dropped_tickets_lose_no_memory(make: &dyn Fn() -> Fixture) {
    let f = make();
    f.store(&f.keys(0..8), LEN);
    for n in 0..32 {
        drop(
            f.tier.load(
                &f.ctx(),
                vec![f.load_op(&f.key(n % 8), LEN), f.load_op(&f.key(n + 100), LEN)],
            ),
        );
        drop(f.tier.save(&f.ctx(), vec![f.save_op(&f.key(n + 200), LEN)]));
    }
    f.tier.close().wait().expect("close");
    let now = f.arena.stats();
    assert_eq!(now.free, now.capacity, "close resolved before the memory was back");
}

/// A canceled ticket still gets its answer, each op either done or `Canceled`.
pub fn cancel_is_answered(make: &dyn Fn() -> Fixture) {
    let f = make();
    f.store(&f.keys(0..8), LEN);
    let ops = (0..8).map(|n| f.load_op(&f.key(n), LEN)).collect();
    // A cancellation is a wish: an op may have ended before it, so both answers are right.
    let ticket = f.tier.load(&f.ctx(), ops);
    ticket.cancel();
    let answers = ticket.wait();
    assert_eq!(answers.len(), 8);
    for done in answers {
        match done.result {
            Ok(loaded) => assert_eq!(loaded, Loaded::Hit { len: LEN as u64 }),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Canceled),
        }
        assert_eq!(done.op.into.len(), 1, "the memory comes back");
    }
    assert_eq!(f.load(&f.key(0), LEN), Loaded::Hit { len: LEN as u64 }, "and nothing latches");
}

/// A closed tier answers `Closed` to everything, with the memory; closing again is fine.
pub fn closed_is_closed(make: &dyn Fn() -> Fixture) {
    let f = make();
    f.store(&f.keys([0]), LEN);
    f.tier.close().wait().expect("close");
    // Destructors and operators both close.
    f.tier.close().wait().expect("close again");
    let closed = |kind| assert_eq!(kind, ErrorKind::Closed);
    let loaded = f.load_with(f.load_op(&f.key(0), LEN));
    closed(loaded.result.expect_err("closed").kind());
    let saved = f.save_with(f.save_op(&f.key(1), LEN));
    closed(saved.result.expect_err("closed").kind());
    assert_eq!((loaded.op.into.len(), saved.op.from.len()), (1, 1));
    closed(
        f.tier
            .lookup(&f.ctx(), f.keys([0]), Mode::Each, Hold::None)
            .wait()
            .expect_err("closed")
            .kind(),
    );
    closed(f.tier.remove(&f.ctx(), f.keys([0])).wait().expect_err("closed").kind());
    closed(f.tier.ready(&f.ctx()).wait().expect_err("closed").kind());
    // Without an answer, so it must only not panic.
    f.tier.release(kvtier_core::HoldId(1));
    assert!(!f.tier.status().healthy);
}

/// An idle tier is ready, also before its first operation.
pub fn ready_resolves(make: &dyn Fn() -> Fixture) {
    let f = make();
    f.tier.ready(&f.ctx()).wait().expect("ready");
    f.store(&f.keys([0]), LEN);
    f.tier.ready(&f.ctx()).wait().expect("ready");
}

/// More than the caps allow is answered, op by op, done or `Throttled`, while the caller never
/// waits to submit; what was throttled can be had later.
pub fn too_much_is_throttled_and_never_blocks(make: &dyn Fn() -> Fixture) {
    let f = make();
    // A few more than the tier takes at once.
    let many = f.tier.caps().ops_max.saturating_add(64);
    if many > 8192 {
        // No arena of the suite holds so much at once; the gate's own tests cover it.
        return;
    }
    let start = Instant::now();
    let ops = (0..u64::from(many)).map(|n| f.load_op(&f.key(n), 1)).collect();
    let loads = f.tier.load(&f.ctx(), ops);
    let saves = f.tier.save(&f.ctx(), vec![f.save_op(&f.key(0), LEN)]);
    assert!(start.elapsed() < SOON, "submitting took {:?}", start.elapsed());
    let allowed =
        [Loaded::Miss(MissReason::Absent), Loaded::Miss(MissReason::Length), Loaded::Throttled];
    let answers = loads.wait();
    assert_eq!(answers.len(), many as usize);
    for done in answers {
        assert!(allowed.contains(&done.result.expect("an answer that is no error")));
        assert_eq!(done.op.into.len(), 1, "the memory comes back");
    }
    for done in saves.wait() {
        let saved = done.result.expect("an answer that is no error");
        assert!([Saved::Stored, Saved::Shed(ShedReason::Throttled)].contains(&saved), "{saved:?}");
    }
    f.tier.ready(&f.ctx()).wait().expect("ready again");
    // And throttling does not last.
    assert_ne!(f.save(&f.key(0), LEN), Saved::Shed(ShedReason::Throttled));
}
