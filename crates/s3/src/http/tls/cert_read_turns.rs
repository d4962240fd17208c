//! Turns for looks at files of certificates. A look ends when its system calls do: on a mount that
//! hangs that may be never, and a thread in such a call cannot be stopped.
//!
//! One look runs at a time, so that connections made together read a file once. Where it has run
//! for [`HANGS_AFTER`], another may run beside it: the path may lead to a file system that works
//! again. No third one runs, so at most two threads hang.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use crate::local_clock::Instant;

/// A look that runs for this long counts as hanging. A local file takes less than a millisecond,
/// and a server of files that restarts some seconds.
pub const HANGS_AFTER: Duration = Duration::from_secs(30);

/// The right to look at files, until it is dropped.
pub type CertReadTurn = OwnedMutexGuard<()>;

/// Who looks at the files now.
#[derive(Debug, Default)]
pub struct CertReadTurns {
    usual: Arc<tokio::sync::Mutex<()>>,
    /// When the usual turn was last taken.
    taken: Mutex<Option<Instant>>,
    /// Taken only while the usual turn hangs.
    spare: Arc<tokio::sync::Mutex<()>>,
}

impl CertReadTurns {
    /// A turn, if one is free now.
    pub fn try_turn(&self) -> Option<CertReadTurn> {
        match Arc::clone(&self.usual).try_lock_owned() {
            Ok(turn) => Some(self.note_taken(turn)),
            Err(_) if self.hangs() => Arc::clone(&self.spare).try_lock_owned().ok(),
            Err(_) => None,
        }
    }

    /// Waits for a turn. The caller bounds the wait.
    pub async fn turn(&self) -> CertReadTurn {
        // Decided once: a turn that begins to hang during this wait frees the spare one for later
        // callers, which come with each connection.
        let hangs = self.hangs();
        tokio::select! {
            biased;
            turn = Arc::clone(&self.usual).lock_owned() => self.note_taken(turn),
            turn = Arc::clone(&self.spare).lock_owned(), if hangs => turn,
        }
    }

    fn note_taken(&self, turn: CertReadTurn) -> CertReadTurn {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        turn
    }

    /// Whether the usual turn was taken long ago; that says something only while it is not free.
    fn hangs(&self) -> bool {
        let taken = *self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.is_some_and(|taken| taken.elapsed() >= HANGS_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_hangs_lets_one_other_run_beside_it() {
        let turns = CertReadTurns::default();
        let first = turns.turn().await;
        tokio::time::advance(HANGS_AFTER / 2).await;
        assert!(turns.try_turn().is_none(), "it has not run for long");
        tokio::time::advance(HANGS_AFTER / 2).await;
        let second = turns.turn().await;
        tokio::time::advance(10 * HANGS_AFTER).await;
        assert!(turns.try_turn().is_none(), "two hang, and no third one is added");
        drop(second);
        let second = turns.try_turn().unwrap();
        drop(first);
        let first = turns.try_turn().unwrap();
        assert!(turns.try_turn().is_none(), "the usual turn was taken just now");
        drop((first, second));
        assert!(turns.try_turn().is_some());
    }
}
