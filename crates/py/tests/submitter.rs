//! The thread that starts the jobs of an engine. Its file needs no interpreter, which a Rust test
//! program does not have, so it is compiled into this one.

use std::future::{Future, poll_fn, ready};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

#[allow(dead_code)]
#[path = "../src/catch_panic.rs"]
mod catch_panic;
// What the module uses of it, this test may not.
#[allow(dead_code)]
#[path = "../src/engine/submitter.rs"]
mod submitter;

use catch_panic::Panicked;
use submitter::Submitter;

/// Far above what a step takes.
const STEP_MAX: Duration = Duration::from_secs(600);

struct Woken(SyncSender<()>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        // One wake-up that waits stands for all.
        let _ = self.0.try_send(());
    }
}

fn waker() -> (Waker, Receiver<()>) {
    let (sender, woken) = sync_channel(1);
    (Waker::from(Arc::new(Woken(sender))), woken)
}

/// Polls a future when it is woken, as the engine's queue does.
fn wait<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let (waker, woken) = waker();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        woken.recv_timeout(STEP_MAX).expect("the job never ends");
    }
}

fn submitter() -> Submitter {
    Submitter::start("kvtier-test").expect("a thread")
}

#[test]
fn a_job_that_panics_while_it_is_made_ends_and_has_released_what_it_held() {
    let submitter = submitter();
    let held = Arc::new(());
    let theirs = Arc::clone(&held);
    let started = submitter.future(move || {
        assert!(Arc::strong_count(&theirs) == 0, "the panic of this test");
        ready(1)
    });
    assert_eq!(wait(started), Err(Panicked));
    assert_eq!(Arc::strong_count(&held), 1, "what the job held is released by its end");
    // The thread goes on.
    assert_eq!(wait(submitter.future(|| ready(2))), Ok(2));
}

#[test]
fn a_job_that_panics_at_its_first_poll_ends_and_has_released_what_it_held() {
    let submitter = submitter();
    let held = Arc::new(());
    let theirs = Arc::clone(&held);
    let started = submitter.future(move || {
        poll_fn(move |_| -> Poll<u8> {
            panic!("{}: the panic of this test", Arc::strong_count(&theirs))
        })
    });
    assert_eq!(wait(started), Err(Panicked));
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn a_job_that_panics_at_a_later_poll_ends_and_has_released_what_it_held() {
    let submitter = submitter();
    let held = Arc::new(());
    let theirs = Arc::clone(&held);
    let mut polls = 0;
    let started = submitter.future(move || {
        poll_fn(move |context| -> Poll<u8> {
            polls += 1;
            assert!(polls < 3, "{}: the panic of this test", Arc::strong_count(&theirs));
            context.waker().wake_by_ref();
            Poll::Pending
        })
    });
    assert_eq!(wait(started), Err(Panicked));
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn jobs_that_end_at_once_or_later_return_their_output() {
    let submitter = submitter();
    assert_eq!(wait(submitter.future(|| ready(7))), Ok(7));
    let mut polls = 0;
    let later = submitter.future(move || {
        poll_fn(move |context| {
            polls += 1;
            context.waker().wake_by_ref();
            if polls < 5 { Poll::Pending } else { Poll::Ready(polls) }
        })
    });
    assert_eq!(wait(later), Ok(5));
}

#[test]
fn a_future_that_is_not_needed_never_begins_on_its_caller_nor_after_it_was_dropped() {
    let submitter = submitter();
    let (release, released) = sync_channel::<()>(0);
    let (begun, has_begun) = sync_channel(1);
    // The thread hangs, as in a call of the kernel.
    submitter.run(move || {
        begun.send(()).expect("the test waits");
        released.recv_timeout(STEP_MAX).expect("released");
    });
    has_begun.recv_timeout(STEP_MAX).expect("the thread runs");
    let has_run = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&has_run);
    let dropped = submitter.future_if_free(move || ready(theirs.swap(true, Ordering::SeqCst)));
    drop(dropped.expect("there is space"));
    let kept = submitter.future_if_free(|| ready(2)).expect("there is space");
    // Each waits, until nothing more can: the caller gets none, and begins nothing itself.
    let waiting: Vec<_> = std::iter::from_fn(|| submitter.future_if_free(|| ready(0))).collect();
    assert!(!waiting.is_empty());
    release.send(()).expect("the thread waits");
    assert_eq!(wait(kept), Ok(2));
    assert!(!has_run.load(Ordering::SeqCst), "what nothing waits for does not begin");
}
