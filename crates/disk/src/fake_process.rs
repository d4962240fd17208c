//! The thread of a test as a simulated process over real files: its calls fail, or something else
//! happens before them. It waits for nothing.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use kvtier_os::simulated::{
    self, Arrived, Call, Entered, Identity, Job, KnownName, Name, Process, Write,
};

/// Calls `before` for each call of this thread until the guard is dropped.
pub fn enter(before: impl Fn(Call<'_>) -> Result<(), nix::Error> + 'static) -> Entered {
    enter_with_writes(before, |write| write.bytes.len())
}

/// The same, and of a write as many bytes arrive as `written` answers.
pub fn enter_with_writes(
    before: impl Fn(Call<'_>) -> Result<(), nix::Error> + 'static,
    written: impl Fn(Write<'_>) -> usize + 'static,
) -> Entered {
    let (began, slept) = (Instant::now(), Cell::default());
    simulated::enter(Rc::new(FakeProcess { before, written, began, slept }))
}

struct FakeProcess<F, W> {
    before: F,
    written: W,
    began: Instant,
    slept: Cell<Duration>,
}

impl<F, W> fmt::Debug for FakeProcess<F, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeProcess")
    }
}

impl<F, W> Process for FakeProcess<F, W>
where
    F: Fn(Call<'_>) -> Result<(), nix::Error>,
    W: Fn(Write<'_>) -> usize,
{
    fn before(&self, call: Call<'_>) -> Result<(), nix::Error> {
        (self.before)(call)
    }

    fn after(&self, _: Call<'_>) {}

    fn failed(&self, _: Call<'_>, _: nix::Error) {}

    fn written(&self, write: Write<'_>) -> Arrived {
        Arrived { bytes: (self.written)(write), error: None }
    }

    fn read_len(&self, bytes: usize) -> usize {
        bytes
    }

    fn names_in(&self, _: Name<'_>) -> Option<Vec<KnownName>> {
        None
    }

    fn attribute(&self, _: u64) -> Option<Vec<u8>> {
        None
    }

    fn identity(&self) -> Identity {
        Identity { host: "host".into(), pid: 1, started_ms: 1, booted_s: 1 }
    }

    fn random_bytes(&self) -> [u8; 32] {
        [7; 32]
    }

    fn now(&self) -> Instant {
        self.began + self.slept.get()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn sizes(&self) -> (u64, u64) {
        (1 << 40, 1 << 40)
    }

    fn sleep(&self, time: Duration) {
        self.slept.set(self.slept.get() + time);
    }

    fn later(&self, _: Duration, _: Job) {}
}
