//! What tickets, batches, the gate and the timekeeper promise, with real threads. What is promised
//! about time is tested on a manual clock.
#![cfg(not(shuttle))]
#![allow(clippy::unwrap_used)]

mod common;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use common::{all_free, arena, load};
use kvtier_core::{
    Batch, Clock, Error, ErrorKind, Expire, Gate, GateLimits, Load, Loaded, ManualClock, Ticket,
    Timekeeper, ticket,
};

const HIT: Loaded = Loaded::Hit { len: 1 };

fn far() -> Instant {
    Instant::now() + Duration::from_secs(600)
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_ticket_is_a_future_that_wakes_once() {
    let (completer, ticket) = ticket::<Result<u32, Error>>();
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut ticket = pin!(ticket);
    assert!(ticket.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    completer.complete(Ok(7));
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    assert!(matches!(ticket.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(7))));
}

#[test]
fn a_dropped_completer_answers_closed() {
    let (completer, ticket) = ticket::<Result<u32, Error>>();
    let waiter = thread::spawn(move || ticket.wait());
    drop(completer);
    assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn a_dropped_slot_answers_closed_for_its_op_alone() {
    let arena = arena();
    let (_, mut slots, ticket) =
        Batch::<Load, Loaded>::new(far(), vec![common::key(0), common::key(1)]);
    drop(slots.pop().unwrap());
    assert!(!ticket.is_done());
    slots.pop().unwrap().finish(load(&arena, 0), Ok(HIT));
    let answers = ticket.wait();
    assert_eq!(answers[0].result.as_ref().unwrap(), &HIT);
    assert_eq!(answers[1].result.as_ref().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(answers[1].op.key, common::key(1));
}

#[test]
fn a_batch_answers_in_order_whatever_the_order_of_finishing() {
    let arena = arena();
    let (_, slots, ticket) = Batch::new(far(), (0..8).map(common::key).collect());
    for (n, slot) in slots.into_iter().enumerate().rev() {
        slot.finish(load(&arena, n as u64), Ok(Loaded::Hit { len: n as u64 }));
    }
    for (n, done) in (0..8).zip(ticket.wait()) {
        assert_eq!(
            (done.op.key.clone(), done.result.unwrap()),
            (common::key(n), Loaded::Hit { len: n })
        );
    }
}

#[test]
fn cancel_is_seen_by_what_has_not_begun() {
    let (_, slots, ticket) = Batch::<Load, Loaded>::new(far(), vec![common::key(0)]);
    assert_eq!(slots[0].is_over(), None);
    ticket.cancel();
    assert_eq!(slots[0].is_over(), Some(ErrorKind::Canceled));
}

#[test]
fn at_the_deadline_the_ticket_resolves_and_the_memory_returns_later() {
    let arena = arena();
    let time = ManualClock::new();
    let timers = Timekeeper::start_on(time.clock(), "test").unwrap();
    let gate = Gate::new(GateLimits::new(4, 1 << 20));
    let deadline = time.now() + Duration::from_millis(20);
    let (batch, mut slots, ticket) =
        Batch::<Load, Loaded>::new_on(&time.clock(), deadline, vec![common::key(0)]);
    timers.schedule(deadline, &batch.expiry());
    let slot = slots.pop().unwrap();
    slot.attach(gate.enter(4096).unwrap());
    let op = load(&arena, 0);
    time.advance(Duration::from_millis(19));
    assert!(!ticket.is_done() && slot.is_over().is_none(), "not before its time");
    time.advance(Duration::from_millis(1));
    assert!(ticket.is_done(), "at once");
    let answers = ticket.wait();
    assert_eq!(answers[0].result.as_ref().unwrap_err().kind(), ErrorKind::Timeout);
    assert!(answers[0].op.into.is_empty(), "the medium has it");
    assert_eq!(slot.is_over(), Some(ErrorKind::Timeout));
    assert_eq!((gate.stats().ops, gate.stats().stranded_bytes), (0, 4096));
    let closed = gate.close();
    assert!(!closed.is_done(), "stranded ops are waited for");
    slot.finish(op, Ok(HIT));
    closed.wait().unwrap();
    assert!(all_free(&arena));
    assert_eq!(gate.stats().stranded_bytes, 0);
}

#[test]
fn a_full_stranded_budget_throttles_until_memory_returns() {
    let mut limits = GateLimits::new(64, 1 << 20);
    limits.stranded_bytes_max = 8192;
    let gate = Gate::new(limits);
    let mut passes: Vec<_> = (0..2).map(|_| gate.enter(4096).unwrap()).collect();
    passes.iter_mut().for_each(kvtier_core::Pass::strand);
    assert_eq!(gate.enter(1).unwrap_err(), ErrorKind::Throttled);
    let ready = gate.ready(far());
    assert!(!ready.is_done());
    passes.pop();
    ready.wait().unwrap();
    assert!(gate.enter(1).is_ok());
    assert_eq!((gate.stats().throttled, gate.stats().stranded_total), (1, 2));
}

/// Ops of no bytes or of one use memory too, as long as the medium has not answered.
#[test]
fn small_stranded_ops_are_bounded_by_their_number() {
    let gate = Gate::new(GateLimits::new(8, 1 << 20));
    let mut stranded = Vec::new();
    while let Ok(mut pass) = gate.enter(stranded.len() as u64 % 2) {
        pass.strand();
        stranded.push(pass);
        assert!(stranded.len() <= 32, "{:?}", gate.stats());
    }
    assert_eq!((gate.stats().stranded_ops, gate.stats().stranded_bytes), (32, 16));
    let ready = gate.ready(far());
    assert!(!ready.is_done());
    stranded.pop();
    ready.wait().unwrap();
    drop(stranded);
    assert_eq!((gate.stats().stranded_ops, gate.stats().stranded_bytes), (0, 0));
    assert!(gate.enter(1).is_ok());
}

#[test]
fn stranding_an_op_lets_waiters_in() {
    let gate = Gate::new(GateLimits::new(1, 1 << 20));
    let mut pass = gate.enter(10).unwrap();
    assert_eq!(gate.enter(10).unwrap_err(), ErrorKind::Throttled);
    let ready = gate.ready(far());
    assert!(!ready.is_done());
    pass.strand();
    assert!(ready.is_done(), "the op in its way is stranded now");
    assert!(gate.enter(10).is_ok());
}

#[test]
fn after_a_refusal_ready_waits_until_another_op_has_ended() {
    let gate = Gate::new(GateLimits::new(8, 100));
    let small = gate.enter(60).unwrap();
    assert_eq!(gate.enter(80).unwrap_err(), ErrorKind::Throttled);
    let ready = gate.ready(far());
    assert!(!ready.is_done(), "there is capacity, but not for 80");
    drop(small);
    ready.wait().unwrap();
    assert!(gate.enter(80).is_ok());
    assert!(gate.enter(1000).is_ok(), "an op larger than the budget passes alone");
}

#[test]
fn waiters_end_at_their_deadline_and_when_the_gate_closes() {
    let gate = Gate::new(GateLimits::new(1, 100));
    let time = ManualClock::new();
    let timers = Timekeeper::start_on(time.clock(), "test").unwrap();
    let pass = gate.enter(1).unwrap();
    let soon = time.now() + Duration::from_millis(10);
    let late = gate.ready(soon);
    let closed = gate.ready(far());
    timers.schedule(soon, &gate.expiry());
    time.advance(Duration::from_millis(10));
    assert_eq!(late.wait().unwrap_err().kind(), ErrorKind::Timeout);
    let close = gate.close();
    assert_eq!(closed.wait().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(gate.enter(1).unwrap_err(), ErrorKind::Closed);
    assert!(!close.is_done());
    drop(pass);
    close.wait().unwrap();
}

#[test]
fn callers_beyond_the_limit_of_waiters_are_refused() {
    let mut limits = GateLimits::new(1, 100);
    limits.waiters_max = 1;
    let gate = Gate::new(limits);
    let _pass = gate.enter(1).unwrap();
    let _first = gate.ready(far());
    assert_eq!(gate.ready(far()).wait().unwrap_err().kind(), ErrorKind::Throttled);
}

#[derive(Default)]
struct Log(Mutex<Vec<Instant>>, Option<Duration>);

impl Expire for Log {
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut calls = self.0.lock().unwrap();
        calls.push(now);
        self.1.filter(|_| calls.len() < 2).map(|later| now + later)
    }
}

#[test]
fn the_timekeeper_calls_in_order_of_time_and_again_when_asked() {
    let time = ManualClock::new();
    let timers = Timekeeper::start_on(time.clock(), "test").unwrap();
    let began = time.now();
    let ms = Duration::from_millis;
    let again = Arc::new(Log(Mutex::default(), Some(ms(40))));
    let late = Arc::new(Log::default());
    let never = Arc::new(Log::default());
    timers.schedule(began + ms(25), &(late.clone() as Arc<dyn Expire>));
    timers.schedule(began + ms(5), &(again.clone() as Arc<dyn Expire>));
    timers.schedule(began + ms(600_000), &(never.clone() as Arc<dyn Expire>));
    let calls = || [&again, &late, &never].map(|log| log.0.lock().unwrap().clone());
    time.advance(ms(4));
    assert_eq!(calls(), [vec![], vec![], vec![]]);
    (5..=100).for_each(|_| time.advance(ms(1)));
    assert_eq!(calls(), [vec![began + ms(5), began + ms(45)], vec![began + ms(25)], vec![]]);
}

/// The one test of the timekeeper on the machine's clock: it wakes up by itself.
#[test]
fn on_the_real_clock_a_timer_fires_by_itself_and_not_early() {
    let timers = Timekeeper::start("test").unwrap();
    let soon = Instant::now() + Duration::from_millis(5);
    let (batch, _slots, ticket) = Batch::<Load, Loaded>::new(soon, vec![common::key(0)]);
    timers.schedule(far(), &batch.expiry());
    timers.schedule(soon, &batch.expiry());
    assert_eq!(ticket.wait()[0].result.as_ref().unwrap_err().kind(), ErrorKind::Timeout);
    assert!(Clock::real().now() >= soon);
}

#[test]
fn a_panic_in_one_timer_does_not_stop_the_others() {
    struct Panics;
    impl Expire for Panics {
        fn expire(&self, _: Instant) -> Option<Instant> {
            panic!("on purpose")
        }
    }
    let clock = Timekeeper::start("test").unwrap();
    let panics: Arc<dyn Expire> = Arc::new(Panics);
    clock.schedule(Instant::now(), &panics);
    let (batch, _slots, ticket) = Batch::<Load, Loaded>::new(Instant::now(), vec![common::key(0)]);
    clock.schedule(Instant::now(), &batch.expiry());
    assert_eq!(ticket.wait()[0].result.as_ref().unwrap_err().kind(), ErrorKind::Timeout);
}

#[test]
fn ops_that_end_in_time_leave_no_timers() {
    let clock = Timekeeper::start("test").unwrap();
    let keep: Arc<dyn Expire> = Arc::new(Log::default());
    clock.schedule(Instant::now() + Duration::from_secs(300), &keep);
    for _ in 0..10_000 {
        let (batch, slots, ticket) = Batch::<Load, Loaded>::new(far(), vec![common::key(0)]);
        clock.schedule(far(), &batch.expiry());
        drop((slots, batch));
        assert_eq!(ticket.wait().len(), 1);
    }
    let text = format!("{clock:?}");
    let timers: usize =
        text.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap();
    assert!(timers < 1000, "{text}");
}

#[test]
fn a_ticket_with_its_result_is_done() {
    let ticket = Ticket::ready(Ok::<_, Error>(1));
    assert!(ticket.is_done());
    assert_eq!(ticket.wait().unwrap(), 1);
}

/// A timer whose object is dropped is due at once, without a notice to the thread that carries it
/// out. `advance` waits for that thread, which must not wait for a notice meanwhile.
#[test]
fn a_clock_moves_on_while_the_objects_of_timers_are_dropped() {
    struct Idle;
    impl Expire for Idle {
        fn expire(&self, _now: Instant) -> Option<Instant> {
            None
        }
    }
    let time = ManualClock::new();
    let timers = Timekeeper::start_on(time.clock(), "test").unwrap();
    let (drops, dropped) = std::sync::mpsc::sync_channel::<Arc<dyn Expire>>(64);
    let dropper = std::thread::spawn(move || dropped.into_iter().for_each(drop));
    for _ in 0..20_000 {
        for _ in 0..4 {
            let idle: Arc<dyn Expire> = Arc::new(Idle);
            timers.schedule(time.now() + Duration::from_secs(3600), &idle);
            drops.send(idle).unwrap();
        }
        time.advance(Duration::from_nanos(1));
    }
    drop(drops);
    dropper.join().unwrap();
}

#[test]
fn a_ticket_that_gave_its_result_panics_and_does_not_block() {
    let (done, is_done) = std::sync::mpsc::sync_channel::<()>(1);
    let waiting = std::thread::spawn(move || {
        let _done = done;
        let mut ticket = Ticket::<Result<u32, Error>>::ready(Ok(7));
        let polled = Pin::new(&mut ticket).poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_ready());
        let _ = ticket.wait();
    });
    let ended = is_done.recv_timeout(Duration::from_secs(600));
    assert_eq!(ended, Err(std::sync::mpsc::RecvTimeoutError::Disconnected), "it blocks");
    let panic = waiting.join().unwrap_err();
    assert!(panic.downcast_ref::<String>().unwrap().contains("had given its answer"));
}
