//! The same promises under shuttle: every run is another interleaving of the threads.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::{all_free, arena, key, load};
use kvtier_core::{Batch, Error, ErrorKind, Gate, GateLimits, Load, Loaded, ticket};
use shuttle::thread;

const HIT: Loaded = Loaded::Hit { len: 1 };

/// Many interleavings by day, more by night.
fn explore(run: impl Fn() + Send + Sync + 'static) {
    let runs = if std::env::var_os("KVTIER_NIGHTLY").is_some() { 100_000 } else { 2_000 };
    shuttle::check_pct(run, runs, 3);
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(600)
}

#[test]
fn an_answer_is_never_missed() {
    explore(|| {
        let (completer, ticket) = ticket::<Result<u32, Error>>();
        let giver = thread::spawn(move || completer.complete(Ok(7)));
        assert_eq!(ticket.wait().unwrap(), 7);
        giver.join().unwrap();
    });
}

#[test]
fn an_answer_wakes_the_task_that_awaits_it() {
    explore(|| {
        let (completer, ticket) = ticket::<Result<u32, Error>>();
        let giver = thread::spawn(move || completer.complete(Ok(7)));
        assert_eq!(shuttle::future::block_on(ticket).unwrap(), 7);
        giver.join().unwrap();
    });
}

#[test]
fn a_dropped_completer_answers_closed() {
    explore(|| {
        let (completer, ticket) = ticket::<Result<u32, Error>>();
        let giver = thread::spawn(move || drop(completer));
        assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::Closed);
        giver.join().unwrap();
    });
}

#[test]
fn a_dropped_ticket_loses_no_memory_and_close_waits_for_it() {
    explore(|| {
        let arena = arena();
        let gate = Gate::new(GateLimits::new(4, 1 << 20));
        let (_, slots, ticket) = Batch::new(far(), vec![key(0), key(1)]);
        for (n, slot) in (0..2).zip(slots) {
            slot.attach(gate.enter(4096).unwrap());
            let op = load(&arena, n);
            thread::spawn(move || slot.finish(op, Ok(HIT)));
        }
        drop(ticket);
        gate.close().wait().unwrap();
        assert!(all_free(&arena), "close resolved before the memory was back");
    });
}

#[test]
fn cancel_races_the_worker_and_is_answered_either_way() {
    explore(|| {
        let arena = arena();
        let (_, mut slots, ticket) = Batch::new(far(), vec![key(0)]);
        let slot = slots.pop().unwrap();
        let op = load(&arena, 0);
        let worker = thread::spawn(move || match slot.is_over() {
            Some(kind) => slot.finish(op, Err(Error::new(kind, "over"))),
            None => slot.finish(op, Ok(HIT)),
        });
        ticket.cancel();
        let done = ticket.wait().pop().unwrap();
        assert!(matches!(done.result.map_err(|e| e.kind()), Ok(HIT) | Err(ErrorKind::Canceled)));
        assert_eq!(done.op.into.len(), 1);
        worker.join().unwrap();
    });
}

/// The deadline and the medium both end the op: one of them answers, and the memory is in the
/// result or back in its arena.
#[test]
fn a_deadline_that_races_completion_answers_once() {
    explore(|| {
        let arena = arena();
        let gate = Gate::new(GateLimits::new(4, 1 << 20));
        let deadline = Instant::now();
        let (batch, slots, ticket) = Batch::new(deadline, vec![key(0), key(1)]);
        let expiry = batch.expiry();
        let clock = thread::spawn(move || expiry.expire(deadline));
        for (n, slot) in (0..2).zip(slots) {
            let op = load(&arena, n);
            let gate = gate.clone();
            thread::spawn(move || {
                // The gate may be entered before or after the deadline.
                slot.attach(gate.enter(4096).unwrap());
                slot.finish(op, Ok(HIT));
            });
        }
        let answers = ticket.wait();
        assert_eq!(answers.len(), 2);
        for done in answers {
            match done.result {
                Ok(loaded) => assert_eq!((loaded, done.op.into.len()), (HIT, 1)),
                Err(error) => {
                    assert_eq!((error.kind(), done.op.into.len()), (ErrorKind::Timeout, 0))
                }
            }
        }
        assert_eq!(clock.join().unwrap(), None, "nothing to call again for");
    });
}

#[test]
fn stranded_memory_returns_and_the_gate_balances() {
    explore(|| {
        let arena = arena();
        let gate = Gate::new(GateLimits::new(1, 1 << 20));
        let deadline = Instant::now();
        let (batch, mut slots, ticket) = Batch::<Load, Loaded>::new(deadline, vec![key(0)]);
        let slot = slots.pop().unwrap();
        let op = load(&arena, 0);
        slot.attach(gate.enter(4096).unwrap());
        let expiry = batch.expiry();
        let clock = thread::spawn(move || expiry.expire(deadline));
        let medium = thread::spawn(move || slot.finish(op, Ok(HIT)));
        drop(ticket);
        gate.close().wait().unwrap();
        assert!(all_free(&arena));
        let now = gate.stats();
        assert_eq!((now.ops, now.bytes, now.stranded_bytes), (0, 0, 0));
        clock.join().unwrap();
        medium.join().unwrap();
    });
}

#[test]
fn a_full_stranded_budget_throttles_and_waiters_are_woken_when_it_empties() {
    explore(|| {
        let mut limits = GateLimits::new(8, 1 << 20);
        limits.stranded_bytes_max = 4096;
        let gate = Gate::new(limits);
        let mut pass = gate.enter(4096).unwrap();
        pass.strand();
        assert_eq!(gate.enter(1).unwrap_err(), ErrorKind::Throttled);
        let medium = thread::spawn(move || drop(pass));
        gate.ready(far()).wait().unwrap();
        assert!(gate.enter(1).is_ok());
        medium.join().unwrap();
    });
}

/// Many callers over a gate of one: each gets in, by asking, being turned away, and waiting.
#[test]
fn no_waiter_of_the_gate_is_lost() {
    explore(|| {
        let gate = Gate::new(GateLimits::new(1, 100));
        let callers: Vec<_> = [60, 80, 10]
            .map(|bytes| {
                let gate = gate.clone();
                thread::spawn(move || {
                    while gate.enter(bytes).is_err() {
                        gate.ready(far()).wait().unwrap();
                    }
                })
            })
            .into();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        gate.close().wait().unwrap();
    });
}

#[test]
fn close_races_waiters_and_answers_all() {
    explore(|| {
        let gate = Gate::new(GateLimits::new(1, 100));
        let pass = gate.enter(1).unwrap();
        let theirs = gate.clone();
        let waiter = thread::spawn(move || theirs.ready(far()).wait().map_err(|e| e.kind()));
        let theirs = gate.clone();
        let closer = thread::spawn(move || theirs.close().wait());
        drop(pass);
        closer.join().unwrap().unwrap();
        assert!(matches!(waiter.join().unwrap(), Ok(()) | Err(ErrorKind::Closed)));
        assert_eq!(gate.enter(1).unwrap_err(), ErrorKind::Closed);
    });
}
