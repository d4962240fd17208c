//! Slots, waiting and budgets under shuttle: every run is another interleaving of the threads.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used)]

use kvtier_mem::{Arena, ArenaConfig, Budget, Lease};
use std::future::Future;

use shuttle::future::block_on;
use shuttle::thread;

const PAGE: usize = 4096;

/// Many interleavings by day, more by night.
fn explore(run: impl Fn() + Send + Sync + 'static) {
    let runs = if std::env::var_os("KVTIER_NIGHTLY").is_some() { 100_000 } else { 2_000 };
    shuttle::check_pct(run, runs, 3);
}

/// Two slots, three threads that lease, write and free: no slot is leased twice, none is lost.
#[test]
fn a_slot_is_leased_once_at_a_time() {
    explore(|| {
        let arena = Arena::new(ArenaConfig::heap(2 * PAGE).with_slots(PAGE)).unwrap();
        let work = |me: u8| {
            let arena = arena.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let Ok(mut lease) = arena.lease(PAGE) else { continue };
                    lease.write_at(0, &[me; 8]).unwrap();
                    thread::yield_now();
                    assert_eq!(lease.as_host().unwrap(), [me; 8]);
                }
            })
        };
        let threads: Vec<_> = (1..=3).map(work).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(arena.stats().free, 2 * PAGE);
        let both: Vec<Lease> = (0..2).map(|_| arena.lease(PAGE).unwrap()).collect();
        assert_ne!(both[0].addr(), both[1].addr());
    });
}

#[test]
fn no_waiter_for_memory_is_lost() {
    explore(|| {
        let arena = Arena::new(ArenaConfig::heap(PAGE)).unwrap();
        let work = || {
            let arena = arena.clone();
            thread::spawn(move || drop(block_on(arena.lease_waiting(PAGE)).unwrap()))
        };
        let threads: Vec<_> = (0..3).map(|_| work()).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(arena.stats().free, PAGE);
    });
}

/// A waiter gives up while memory is freed: the next waiter is served.
#[test]
fn giving_up_makes_way() {
    explore(|| {
        let budget = Budget::new(10);
        let held = budget.acquire("first", 10).unwrap();
        let gives_up = {
            let budget = budget.clone();
            thread::spawn(move || {
                let mut wait = Box::pin(budget.acquire_waiting("second", 10));
                let waker = std::task::Waker::noop();
                drop(wait.as_mut().poll(&mut std::task::Context::from_waker(waker)));
            })
        };
        let waits = {
            let budget = budget.clone();
            thread::spawn(move || drop(block_on(budget.acquire_waiting("third", 10)).unwrap()))
        };
        drop(held);
        gives_up.join().unwrap();
        waits.join().unwrap();
        assert_eq!(budget.stats().used, 0);
    });
}
