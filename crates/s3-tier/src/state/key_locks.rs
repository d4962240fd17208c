//! A lock for each key that writers hold, and versions with which readers detect a write.
//!
//! Saves, deletes and evictions of one key must not overlap, or a delete could remove what a save
//! wrote. Each takes the key's [`WriteGuard`], and waits for the one before. Loads and lookups take
//! no lock, as a GET may last seconds. They take a [`ReadVersion`] before the request. After the
//! answer, with the catalog locked, they check whether a write began meanwhile or was running at
//! the start. If so, the answer may be older than the catalog: it is returned to the caller and not
//! entered.
//!
//! The check holds the catalog's lock, and a writer enters its result under that lock while it
//! holds the guard. So a reader either enters its answer before the writer's, or finds the version
//! changed.
//!
//! A state exists only while a guard or version of its key does. A waiter that is dropped passes
//! its wake-up on: `notify_one` stores a permit, and each waiter tries again after any wake-up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvtier_key::Digest;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The states of keys in use; at most operations in flight and victims of one batch.
#[derive(Debug, Default)]
pub struct KeyLocks(Mutex<HashMap<Digest, KeyState>>);

#[derive(Debug, Default)]
struct KeyState {
    /// How many readers, writers and waiters there are.
    users: u32,
    /// How many writes began.
    writes: u64,
    is_locked: bool,
    released: Arc<Notify>,
}

/// The state of a key when a request to the bucket began.
#[derive(Debug)]
pub struct ReadVersion<'a> {
    locks: &'a KeyLocks,
    digest: Digest,
    /// The number of writes at that time; `None` if one was running.
    writes: Option<u64>,
    began: Instant,
}

/// The exclusive right to write or delete a key's object.
#[derive(Debug)]
pub struct WriteGuard<'a> {
    locks: &'a KeyLocks,
    digest: Digest,
    held: bool,
}

impl KeyLocks {
    /// Begins a read. Enter the answer into the index only if the version [is
    /// current](ReadVersion::is_current) then.
    pub fn read(&self, digest: &Digest) -> ReadVersion<'_> {
        let mut all = self.lock();
        let state = all.entry(*digest).or_default();
        state.users += 1;
        let writes = (!state.is_locked).then_some(state.writes);
        ReadVersion { locks: self, digest: *digest, writes, began: Instant::now() }
    }

    /// Waits until no other writer holds the key.
    pub async fn write(&self, digest: &Digest) -> WriteGuard<'_> {
        let mut guard = self.join(digest);
        while !guard.held {
            let released = Arc::clone(&self.lock().entry(*digest).or_default().released);
            let notified = released.notified();
            if !guard.try_begin() {
                notified.await;
            }
        }
        guard
    }

    /// Takes the key if no other writer holds it.
    pub fn try_write(&self, digest: &Digest) -> Option<WriteGuard<'_>> {
        let mut guard = self.join(digest);
        guard.try_begin().then_some(guard)
    }

    /// Whether a writer holds the key now.
    pub fn is_written(&self, digest: &Digest) -> bool {
        self.lock().get(digest).is_some_and(|state| state.is_locked)
    }

    fn join(&self, digest: &Digest) -> WriteGuard<'_> {
        let mut guard = WriteGuard { locks: self, digest: *digest, held: false };
        self.lock().entry(*digest).or_default().users += 1;
        guard.try_begin();
        guard
    }

    fn leave(&self, digest: &Digest, is_write: bool) {
        let mut all = self.lock();
        let Some(state) = all.get_mut(digest) else { return };
        state.users -= 1;
        if is_write {
            state.is_locked = false;
            state.released.notify_one();
        }
        if state.users == 0 {
            all.remove(digest);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Digest, KeyState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadVersion<'_> {
    /// When the read began; its answer is no older.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Whether no write began since, or was running then. Call it with the catalog locked.
    pub fn is_current(&self) -> bool {
        let all = self.locks.lock();
        self.writes.is_some()
            && all.get(&self.digest).is_some_and(|state| Some(state.writes) == self.writes)
    }
}

impl Drop for ReadVersion<'_> {
    fn drop(&mut self) {
        self.locks.leave(&self.digest, false);
    }
}

impl WriteGuard<'_> {
    fn try_begin(&mut self) -> bool {
        let mut all = self.locks.lock();
        if let Some(state) = all.get_mut(&self.digest)
            && !self.held
            && !state.is_locked
        {
            (state.is_locked, self.held) = (true, true);
            state.writes += 1;
        }
        self.held
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        self.locks.leave(&self.digest, self.held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn writers_exclude_each_other_and_readers_detect_them() {
        let locks = KeyLocks::default();
        let a = Digest([1; 32]);
        let b = Digest([2; 32]);
        let before = locks.read(&a);
        assert!(before.is_current());
        let first = locks.write(&a).await;
        assert!(!before.is_current());
        assert!(locks.try_write(&a).is_none());
        assert!(locks.try_write(&b).is_some());
        let during = locks.read(&a);
        let second = locks.write(&a);
        tokio::pin!(second);
        assert!(futures_pending(second.as_mut()).await);
        drop(first);
        drop(second.await);
        assert!(!during.is_current() && !before.is_current());
        let after = locks.read(&a);
        assert!(after.is_current());
        drop((before, during, after));
        assert!(locks.lock().is_empty(), "no state is left");
    }

    #[tokio::test(start_paused = true)]
    async fn a_writer_that_stops_waiting_blocks_no_other() {
        let locks = KeyLocks::default();
        let a = Digest([1; 32]);
        let first = locks.write(&a).await;
        let mut gone = Box::pin(locks.write(&a));
        let mut stays = Box::pin(locks.write(&a));
        assert!(futures_pending(gone.as_mut()).await && futures_pending(stays.as_mut()).await);
        drop(first);
        drop(gone);
        drop(tokio::time::timeout(std::time::Duration::from_secs(600), stays).await.unwrap());
        assert!(locks.lock().is_empty());
    }

    async fn futures_pending<F: Future>(mut future: std::pin::Pin<&mut F>) -> bool {
        std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending()))
            .await
    }

    #[test]
    fn a_key_is_written_while_a_writer_holds_it() {
        let locks = KeyLocks::default();
        let a = Digest([1; 32]);
        let read = locks.read(&a);
        assert!(!locks.is_written(&a));
        let writer = locks.try_write(&a).unwrap();
        assert!(locks.is_written(&a) && !locks.is_written(&Digest([2; 32])));
        drop((writer, read));
        assert!(!locks.is_written(&a));
    }
}
