//! Which process runs: one at a time, each on a stack of its own on the scheduler's thread, so that a run is the
//! same each time and a change of turns costs no more than a call.

use std::fmt;
use std::io;
use std::rc::Rc;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, Yielder};
use kvtier_os::simulated::{self, Process};
use scoped_tls::{ScopedKey, scoped_thread_local};

use super::PROCESSES;

/// As large as that of a thread.
const STACK_BYTES: usize = 2 << 20;

/// What a process gives its turn back with.
type Pause = Yielder<(), ()>;

scoped_thread_local!(static FIRST: Pause);
scoped_thread_local!(static SECOND: Pause);
scoped_thread_local!(static THIRD: Pause);
scoped_thread_local!(static FOURTH: Pause);

/// One for each process that may run beside the others: what is set on one stack is unset on that stack.
static PAUSES: [&ScopedKey<Pause>; PROCESSES] = [&FIRST, &SECOND, &THIRD, &FOURTH];

/// A stack with a process on it, which runs while the scheduler lets it.
pub struct Running {
    stack: Coroutine<(), (), ()>,
    process: Rc<dyn Process>,
    /// The state of the random numbers that the production code draws: each process has its own.
    random: u64,
}

impl Running {
    /// Prepares `live` to run as this process, whose place no other has meanwhile.
    pub fn new(
        place: usize,
        process: Rc<dyn Process>,
        seed: u64,
        live: impl FnOnce() + 'static,
    ) -> io::Result<Self> {
        let run = move |pause: &Pause, ()| PAUSES[place].set(pause, live);
        let stack = Coroutine::with_stack(DefaultStack::new(STACK_BYTES)?, run);
        Ok(Running { stack, process, random: seed })
    }

    /// Whether it has run to its end.
    pub fn has_ended(&self) -> bool {
        self.stack.done()
    }

    /// Lets the process run until it pauses or ends.
    pub fn go_on(&mut self) {
        let entered = simulated::enter(Rc::clone(&self.process));
        fastrand::seed(self.random);
        self.stack.resume(());
        self.random = fastrand::get_seed();
        drop(entered);
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Running({:?})", self.process)
    }
}

/// Gives the turn of the process at this place, which runs now, back to the scheduler.
pub fn pause(place: usize) {
    PAUSES[place].with(|pause| pause.suspend(()));
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::directory::medium::{Journal, Medium};
    use crate::directory::process::{OnStack, SimProcess};
    use crate::world::World;

    /// Each process draws what it would draw by itself, is the simulated process while it runs, and none
    /// is while the scheduler runs.
    #[test]
    fn processes_take_turns_and_share_nothing() {
        let world = Arc::new(World::with_own_time(7, false));
        let medium = Arc::new(Medium::new(Journal::Ordered).unwrap());
        let drawn = Arc::new(Mutex::new(Vec::new()));
        let mut all = Vec::new();
        for number in 0..PROCESSES as u64 {
            let (place, drawn) = (number as usize, Arc::clone(&drawn));
            let process = Arc::new(SimProcess::new(number, place, &world, &medium));
            let live = move || {
                for turn in 0..3 {
                    let pid = kvtier_os::identity().unwrap().pid;
                    drawn.lock().unwrap().push((turn, pid, fastrand::u64(..)));
                    pause(place);
                }
            };
            all.push(Running::new(place, Rc::new(OnStack(process)), number, live).unwrap());
        }
        while all.iter().any(|running| !running.has_ended()) {
            all.iter_mut().filter(|running| !running.has_ended()).for_each(Running::go_on);
            assert!(kvtier_os::identity().is_none());
        }
        let mut expected = Vec::new();
        for number in 0..PROCESSES as u64 {
            let mut rng = fastrand::Rng::with_seed(number);
            expected.extend((0..3).map(|turn| (turn, 1000 + number as u32, rng.u64(..))));
        }
        expected.sort_by_key(|(turn, pid, _)| (*turn, *pid));
        assert_eq!(*drawn.lock().unwrap(), expected);
    }
}
