//! Who is at which key: of those who change one chunk each waits for the one before, and who looked
//! at it meanwhile learns that it changed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtier_key::Digest;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The keys that somebody is at; no more than ops in flight and victims of one batch.
#[derive(Debug, Default)]
pub struct Turns(Mutex<HashMap<Digest, Turn>>);

#[derive(Debug, Default)]
struct Turn {
    /// How many look, change or wait.
    here: u32,
    /// How many changes began.
    changes: u64,
    busy: bool,
    over: Arc<Notify>,
}

/// Somebody asks the bucket about a key.
#[derive(Debug)]
pub struct Look<'a> {
    turns: &'a Turns,
    digest: Digest,
    /// The changes that had begun; `None` when one was under way.
    changes: Option<u64>,
    began: Instant,
}

/// Somebody writes or deletes a key's object, alone.
#[derive(Debug)]
pub struct Change<'a> {
    turns: &'a Turns,
    digest: Digest,
    mine: bool,
}

impl Turns {
    /// Begins to look. What is seen is true for the index only if the look [is
    /// current](Look::is_current) in the end.
    pub fn look(&self, digest: &Digest) -> Look<'_> {
        let mut all = self.lock();
        let turn = all.entry(*digest).or_default();
        turn.here += 1;
        let changes = (!turn.busy).then_some(turn.changes);
        Look { turns: self, digest: *digest, changes, began: Instant::now() }
    }

    /// Waits until nobody else changes the key.
    pub async fn change(&self, digest: &Digest) -> Change<'_> {
        let mut change = self.join(digest);
        while !change.mine {
            let over = Arc::clone(&self.lock().entry(*digest).or_default().over);
            let notified = over.notified();
            if !change.try_begin() {
                notified.await;
            }
        }
        change
    }

    /// Changes the key if nobody else does.
    pub fn try_change(&self, digest: &Digest) -> Option<Change<'_>> {
        let mut change = self.join(digest);
        change.try_begin().then_some(change)
    }

    fn join(&self, digest: &Digest) -> Change<'_> {
        let mut change = Change { turns: self, digest: *digest, mine: false };
        self.lock().entry(*digest).or_default().here += 1;
        change.try_begin();
        change
    }

    fn leave(&self, digest: &Digest, change: bool) {
        let mut all = self.lock();
        let Some(turn) = all.get_mut(digest) else { return };
        turn.here -= 1;
        if change {
            turn.busy = false;
            turn.over.notify_one();
        }
        if turn.here == 0 {
            all.remove(digest);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Digest, Turn>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Look<'_> {
    /// When it began: what it shows of the bucket is no older than that.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Whether the key is as it was seen: nobody began to change it since, or was at it. Ask with
    /// the books in hand.
    pub fn is_current(&self) -> bool {
        let all = self.turns.lock();
        self.changes.is_some()
            && all.get(&self.digest).is_some_and(|turn| Some(turn.changes) == self.changes)
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        self.turns.leave(&self.digest, false);
    }
}

impl Change<'_> {
    fn try_begin(&mut self) -> bool {
        let mut all = self.turns.lock();
        if let Some(turn) = all.get_mut(&self.digest)
            && !self.mine
            && !turn.busy
        {
            (turn.busy, self.mine) = (true, true);
            turn.changes += 1;
        }
        self.mine
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.turns.leave(&self.digest, self.mine);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_take_turns_and_looks_learn_of_them() {
        let (turns, a, b) = (Turns::default(), Digest([1; 32]), Digest([2; 32]));
        let before = turns.look(&a);
        assert!(before.is_current());
        let first = turns.change(&a).await;
        assert!(!before.is_current());
        assert!(turns.try_change(&a).is_none());
        assert!(turns.try_change(&b).is_some());
        let during = turns.look(&a);
        let second = turns.change(&a);
        tokio::pin!(second);
        assert!(futures_pending(second.as_mut()).await);
        drop(first);
        drop(second.await);
        assert!(!during.is_current() && !before.is_current());
        let after = turns.look(&a);
        assert!(after.is_current());
        drop((before, during, after));
        assert!(turns.lock().is_empty(), "nobody is remembered");
    }

    #[tokio::test(start_paused = true)]
    async fn who_stops_waiting_takes_nobodys_turn() {
        let (turns, a) = (Turns::default(), Digest([1; 32]));
        let first = turns.change(&a).await;
        let mut gone = Box::pin(turns.change(&a));
        let mut stays = Box::pin(turns.change(&a));
        assert!(futures_pending(gone.as_mut()).await && futures_pending(stays.as_mut()).await);
        drop(first);
        drop(gone);
        drop(tokio::time::timeout(std::time::Duration::from_secs(600), stays).await.unwrap());
        assert!(turns.lock().is_empty());
    }

    async fn futures_pending<F: Future>(mut future: std::pin::Pin<&mut F>) -> bool {
        std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending()))
            .await
    }
}
