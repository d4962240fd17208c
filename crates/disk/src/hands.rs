use std::sync::Arc;

use kvtier_core::Timekeeper;

use crate::line::{Line, Turn};
use crate::pool::{Lane, Pool};
use crate::syncer::Syncer;

/// Where the work of an op goes on.
#[derive(Clone, Debug)]
pub struct Hands {
    pub pool: Arc<Pool>,
    pub syncer: Arc<Syncer>,
    pub clock: Arc<Timekeeper>,
}

impl Hands {
    /// Puts an op into a line; `go_on` continues it on the pool when it is called, with the turn it
    /// got. `turn` is the one it had, if it was called before, and `seen` what [`Line::seen`]
    /// said before it found that it has to wait, `None` if it did not try.
    pub fn wait(
        &self,
        line: &Line,
        (turn, seen): (Option<Turn>, Option<u64>),
        lane: Lane,
        go_on: impl FnOnce(Turn) + Send + 'static,
    ) {
        let pool = Arc::clone(&self.pool);
        let call = Box::new(move |turn| pool.push(lane, move || go_on(turn)));
        if line.wait(call, turn, seen) {
            line.look_again_by(&self.clock);
        }
    }
}
