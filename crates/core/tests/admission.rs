//! What the admission to a tier promises.
#![cfg(not(shuttle))]
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{all_free, arena, load};
use kvtier_core::{
    Admission, Done, Error, ErrorKind, GateLimits, Hold, HoldId, Load, Loaded, LookedUp,
    ManualClock, Presence, Reply, Ticket, Timekeeper,
};

const HIT: Loaded = Loaded::Hit { len: 1 };

/// An admission of at most `ops` ops, on a clock that stands still.
fn admission(ops: u32) -> (Admission, ManualClock) {
    let time = ManualClock::new();
    let timers = Arc::new(Timekeeper::start_on(time.clock(), "test").unwrap());
    (Admission::new("shelf".into(), GateLimits::new(ops, u64::MAX), timers), time)
}

#[test]
fn each_op_of_a_batch_is_admitted_refused_throttled_or_closed() {
    let arena = arena();
    let (admission, time) = admission(1);
    let deadline = time.now() + Duration::from_secs(1);
    let ops: Vec<Load> = (0..3).map(|n| load(&arena, n)).collect();
    let (slots, ticket) = admission.batch(deadline, &ops);
    let refused = Error::new(ErrorKind::Invalid, "too large");
    let mut refusals = vec![None, Some(refused), None].into_iter();
    let admitted: Vec<_> = ops
        .into_iter()
        .zip(slots)
        .filter_map(|(op, slot)| {
            admission.admit(op, slot, refusals.next().unwrap(), Loaded::Throttled)
        })
        .collect();
    assert_eq!((admitted.len(), admission.gate().stats().ops), (1, 1));
    admitted.into_iter().for_each(|(op, slot)| slot.finish(op, Ok(HIT)));
    let answers: Vec<Result<Loaded, Error>> =
        ticket.wait().into_iter().map(|Done { result, .. }| result).collect();
    assert!(matches!(answers[0], Ok(HIT)) && matches!(answers[2], Ok(Loaded::Throttled)));
    let error = answers[1].as_ref().unwrap_err();
    assert_eq!((error.kind(), error.tier()), (ErrorKind::Invalid, Some("shelf")));
    assert_eq!(admission.gate().stats().ops, 0);

    drop(admission.gate().close());
    let ops = vec![load(&arena, 3)];
    let (mut slots, ticket) = admission.batch(deadline, &ops);
    for op in ops {
        assert!(admission.admit(op, slots.remove(0), None, Loaded::Throttled).is_none());
    }
    let error = ticket.wait().remove(0).result.unwrap_err();
    assert_eq!((error.kind(), error.tier()), (ErrorKind::Closed, Some("shelf")));
    assert!(all_free(&arena), "an answered op keeps its memory");
}

#[test]
fn a_batch_ends_at_its_deadline() {
    let arena = arena();
    let (admission, time) = admission(1);
    let ops = vec![load(&arena, 0)];
    let (slots, ticket) =
        admission.batch::<Load, Loaded>(time.now() + Duration::from_secs(1), &ops);
    time.advance(Duration::from_secs(1));
    assert_eq!(ticket.wait()[0].result.as_ref().unwrap_err().kind(), ErrorKind::Timeout);
    drop(slots);
}

#[test]
fn a_single_operation_returns_its_share_with_its_answer_and_close_waits_for_both() {
    let (admission, time) = admission(1);
    let admission = Arc::new(admission);
    let deadline = time.now() + Duration::from_secs(1);
    let (reply, ticket) = admission.begin::<u8>("remove", deadline);
    let (second, refused) = admission.begin::<u8>("remove", deadline);
    assert!(second.is_none());
    let error = refused.wait().unwrap_err();
    assert_eq!(
        (error.kind(), error.tier(), error.op()),
        (ErrorKind::Throttled, Some("shelf"), Some("remove"))
    );
    let ready = admission.ready(deadline);
    assert!(!ready.is_done());
    let theirs = Arc::clone(&admission);
    let used = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&used);
    let ticket = ticket.inspect(move |_| *seen.lock().unwrap() = Some(theirs.gate().stats().ops));
    assert!(reply.unwrap().complete(Ok(7)));
    assert_eq!((ticket.wait().unwrap(), *used.lock().unwrap()), (7, Some(0)), "free at the answer");
    assert!(ready.wait().is_ok());

    let (reply, ticket) = admission.begin::<u8>("remove", deadline);
    let closed = admission.gate().close();
    assert!(!closed.is_done());
    drop(reply);
    assert!(closed.is_done());
    assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(admission.closed("lookup").unwrap().op(), Some("lookup"));
}

#[test]
fn a_single_operation_ends_at_its_deadline_and_keeps_its_share_until_it_is_over() {
    let (admission, time) = admission(1);
    let (reply, ticket) = admission.begin::<u8>("remove", time.now() + Duration::from_secs(1));
    time.advance(Duration::from_secs(1));
    assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(admission.gate().stats().ops, 1);
    assert!(!reply.unwrap().complete(Ok(7)));
    assert_eq!(admission.gate().stats().ops, 0);
}

#[derive(Default)]
struct Holds(Mutex<Vec<u64>>);

impl Holds {
    fn release(&self, id: HoldId) {
        self.0.lock().unwrap().push(id.0);
    }

    fn released(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

#[test]
fn a_hold_is_released_with_an_answer_that_is_lost() {
    let holds = Arc::new(Holds::default());
    let found = |id| Ok(LookedUp::new(vec![Presence::Miss], Some(HoldId(id))));
    let asked = Hold::For(Duration::from_secs(1));
    let ticket = |id| Ticket::ready(found(id)).release_if_dropped(asked, &holds, Holds::release);
    assert!(ticket(1).wait().is_ok() && holds.released().is_empty());
    drop(ticket(2));
    assert_eq!(holds.released(), [2]);
    drop(Ticket::ready(found(3)).release_if_dropped(Hold::None, &holds, Holds::release));
    assert!(holds.released().is_empty(), "none was asked for");

    let (_, time) = admission(1);
    let late = time.now();
    let (reply, ticket) = Reply::new_on(&time.clock(), "lookup", late);
    reply.expiry().expire(late);
    reply.complete_or_release(found(4), |id| holds.release(id));
    assert_eq!(holds.released(), [4]);
    assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::Timeout);
    let (reply, ticket) = Reply::new_on(&time.clock(), "lookup", late);
    reply.complete_or_release(found(5), |id| holds.release(id));
    assert!(ticket.wait().is_ok() && holds.released().is_empty());
}
