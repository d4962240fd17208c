//! What a simulated process does: opens the tier, runs its jobs and its callers, and ends.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvtier_core::{Clock, Observe, Tier};
use kvtier_disk::Disk;

use super::Shared;
use super::callers::Callers;
use super::device::Device;
use super::process::{Killed, OnStack, ProcessTime, SimProcess};
use super::turn::Running;
use crate::key_events::{COMPARE_EVERY, KeyEvents};
use crate::queues::look_at_directory;

/// Starts the process, which waits for its first turn.
pub fn start(shared: &Arc<Shared>, process: &Arc<SimProcess>) -> io::Result<Running> {
    let (shared, process) = (Arc::clone(shared), Arc::clone(process));
    let on_stack = Rc::new(OnStack(Arc::clone(&process)));
    let (place, number) = (process.place, process.number);
    // The numbers are also the seeds of what the production code decides at random.
    Running::new(place, on_stack, number, move || {
        let ended = catch_unwind(AssertUnwindSafe(|| live(&shared, &process)));
        if let Err(cause) = ended
            && !cause.is::<Killed>()
        {
            let said = cause.downcast_ref::<String>().cloned().unwrap_or_default();
            process.world.finding("panic", format!("{} panicked: {said}", process.name()));
        }
        process.state().is_dead = true;
        process.drop_jobs();
    })
}

fn live(shared: &Arc<Shared>, process: &Arc<SimProcess>) {
    let began = process.world.elapsed();
    process.world.event(format_args!("{} opens the directory", process.name()));
    let clock = Clock::given(ProcessTime(Arc::clone(&shared.world)));
    let config = shared.setup.config(&shared.medium, clock);
    let tier = match Disk::open(config, device(process)) {
        Ok(tier) => tier,
        Err(e) => return cannot_open(shared, process, began, &e),
    };
    process.world.event(format_args!("{} is open", process.name()));
    if !shared.setup.is_counted_late() {
        shared.set_counted();
    }
    let mut callers = Callers::new(shared, process, tier);
    let events = KeyEvents::of(process.name(), callers.tier());
    run(process, &mut callers, &events);
    if !process.state().is_dead {
        compare_in_the_end(shared, process, callers.tier(), &events);
        check_usage(shared, process, callers.tier());
        check_status(shared, process, callers.tier());
        close(process, callers);
    }
}

/// Whether a start may fail: the device fails, or a stopped process holds a lock.
fn cannot_open(shared: &Shared, process: &SimProcess, began: Duration, e: &kvtier_core::Error) {
    let (world, name) = (&process.world, process.name());
    world.event(format_args!("{name} cannot open the directory: {:?}", e.kind()));
    if shared.is_well(began) && !process.state().is_dead {
        world.finding("open", format!("{name} cannot open the directory: {e:#}"));
    }
}

/// Runs what is due until the process is to close, or was killed inside of code that caught it.
fn run(process: &SimProcess, callers: &mut Callers, events: &KeyEvents) {
    let mut compare_at = process.world.elapsed();
    loop {
        if process.state().is_dead {
            return;
        }
        let shall_close = process.state().shall_close;
        if shall_close && callers.is_idle() {
            return;
        }
        if !shall_close && !callers.is_quiet() {
            callers.begin();
        }
        look_at_directory(&process.world, &process.name(), callers.tier());
        if compare_at <= process.world.elapsed() {
            events.compare(&process.world, callers.tier(), Duration::ZERO);
            compare_at = process.world.elapsed() + COMPARE_EVERY;
        }
        if let Some(job) = process.pop_job() {
            job();
            callers.check();
            note_counted(callers);
            continue;
        }
        callers.check();
        let job_at = process.next_job_at().unwrap_or(Duration::MAX);
        let caller_at =
            if shall_close || callers.is_quiet() { Duration::MAX } else { callers.next_at() };
        let at = job_at.min(caller_at).max(process.world.elapsed());
        wait_until(process, at);
    }
}

/// Waits, at the end of which it may be killed.
fn wait_until(process: &SimProcess, at: Duration) {
    process.wait_until(at);
    if process.state().calls_left == Some(0) {
        process.state().is_dead = true;
        process.world.event(format_args!("{} is killed while it waits", process.name()));
    }
}

/// From the first scan on the cap holds again, also after a crash.
fn note_counted(callers: &Callers) {
    let shared = callers.shared();
    if !shared.is_counted.load(Ordering::Relaxed) && callers.tier().usage().used_bytes.is_some() {
        shared.set_counted();
    }
}

/// After a time without operations the events say which chunks there are.
fn compare_in_the_end(
    shared: &Shared,
    process: &SimProcess,
    tier: &Disk<Device>,
    events: &KeyEvents,
) {
    if shared.is_quiet() {
        events.compare_all(&process.world, tier);
    } else {
        events.compare(&process.world, tier, Duration::ZERO);
    }
}

/// After a time without operations each process counts what is in the directory.
fn check_usage(shared: &Shared, process: &SimProcess, tier: &Disk<Device>) {
    let stored = shared.medium.counted_bytes(shared.setup.sidecar_bytes());
    let counted = tier.usage().used_bytes;
    if shared.is_quiet() && counted != Some(stored) {
        let what = format!(
            "{} counts {counted:?} bytes, {stored} are there, unfinished are {:?}",
            process.name(),
            shared.medium.leftovers()
        );
        process.world.finding("usage", what);
    }
}

/// After a time without faults and operations each process is well. Nothing but notes of what was is left in
/// its status, unless the medium is full all the time.
fn check_status(shared: &Shared, process: &SimProcess, tier: &Disk<Device>) {
    let status = tier.status();
    let is_failure =
        |reason: &&String| ["degraded", "read-only"].iter().any(|word| reason.starts_with(word));
    let failure = status.reasons.iter().find(is_failure);
    let is_well = status.healthy && failure.is_none();
    if shared.is_quiet() && !shared.has_quota && !is_well {
        let what = format!("{} is healthy {}, {failure:?}", process.name(), status.healthy);
        process.world.finding("status", what);
    }
}

fn close(process: &SimProcess, callers: Callers) {
    process.world.event(format_args!("{} closes", process.name()));
    let mut closing = Some(callers.tier().close());
    while closing.as_ref().is_some_and(|closing| !closing.is_done()) && !process.state().is_dead {
        match process.pop_job() {
            Some(job) => job(),
            None => wait_until(process, process.next_job_at().unwrap_or(process.world.elapsed())),
        }
    }
    drop(closing.take());
    drop(callers);
}

fn device(process: &SimProcess) -> Device {
    Device { world: Arc::clone(&process.world), medium: Arc::clone(&process.medium) }
}
