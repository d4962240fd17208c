//! Victims that wait to be deleted, and the bytes that waiting saves have requested.
//!
//! One task deletes (`ops::evict`). Saves push victims, announce how many bytes they need, and
//! notify the task. A save that gives up withdraws its bytes when its [`WaitingSave`] is dropped,
//! so that the task never deletes for a save that has ended.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvtier_index::{IndexEntry, ReserveRequest, TenantId};
use tokio::sync::Notify;

/// Victims chosen by saves, and what wakes the task that deletes them.
#[derive(Debug, Default)]
pub struct EvictionQueue {
    victims: Mutex<Vec<IndexEntry>>,
    /// Bytes of the saves that wait for space, by tenant.
    requested: Mutex<HashMap<TenantId, u64>>,
    wake: Notify,
}

impl EvictionQueue {
    /// Wakes the task that deletes: there may be victims.
    pub fn notify(&self) {
        self.wake.notify_one();
    }

    /// Waits until [`notify`](EvictionQueue::notify) was called.
    pub async fn notified(&self) {
        self.wake.notified().await;
    }

    /// Adds victims, and wakes the task.
    pub fn push(&self, victims: Vec<IndexEntry>) {
        self.victims.lock().unwrap_or_else(PoisonError::into_inner).extend(victims);
        self.notify();
    }

    /// Takes all victims.
    pub fn take(&self) -> Vec<IndexEntry> {
        std::mem::take(&mut *self.victims.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Bytes that waiting saves need.
    pub fn requested_bytes(&self) -> u64 {
        self.requested().values().sum()
    }

    /// Bytes that waiting saves need, by tenant.
    pub fn requested_by_tenant(&self) -> HashMap<TenantId, u64> {
        self.requested().clone()
    }

    fn requested(&self) -> MutexGuard<'_, HashMap<TenantId, u64>> {
        self.requested.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A save that waits for space. Its bytes count as requested until this is dropped.
#[derive(Debug)]
pub struct WaitingSave<'a> {
    queue: &'a EvictionQueue,
    request: ReserveRequest,
}

impl<'a> WaitingSave<'a> {
    /// Adds the bytes of a save to what is requested.
    pub fn new(queue: &'a EvictionQueue, request: ReserveRequest) -> Self {
        *queue.requested().entry(request.tenant).or_default() += request.bytes;
        WaitingSave { queue, request }
    }
}

impl Drop for WaitingSave<'_> {
    fn drop(&mut self) {
        let mut requested = self.queue.requested();
        if let Some(sum) = requested.get_mut(&self.request.tenant) {
            *sum -= self.request.bytes;
            if *sum == 0 {
                requested.remove(&self.request.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use kvtier_evict::PolicyKind;
    use kvtier_index::{Chunk, Index, IndexConfig};
    use kvtier_key::Digest;

    use super::*;

    #[test]
    fn a_save_that_stops_waiting_withdraws_its_bytes() {
        let queue = EvictionQueue::default();
        let request = |tenant, bytes| ReserveRequest::new(bytes).with_tenant(TenantId(tenant));
        let first = WaitingSave::new(&queue, request(1, 5));
        let second = WaitingSave::new(&queue, request(1, 7));
        let other = WaitingSave::new(&queue, request(2, 1));
        assert_eq!(queue.requested_bytes(), 13);
        drop(first);
        assert_eq!(queue.requested_by_tenant(), [(TenantId(1), 7), (TenantId(2), 1)].into());
        drop((second, other));
        assert!(queue.requested_by_tenant().is_empty());
    }

    #[test]
    fn victims_wake_the_task_that_takes_them() {
        let mut index = Index::new(IndexConfig::new(1000), PolicyKind::Lru.build()).unwrap();
        let digest = Digest([1; 32]);
        let _ = index.insert(Chunk::new(digest, 1, 1));
        let queue = EvictionQueue::default();
        let is_woken = || {
            let mut context = Context::from_waker(Waker::noop());
            std::pin::pin!(queue.notified()).poll(&mut context).is_ready()
        };
        assert!(!is_woken());
        queue.push(vec![index.known(&digest).unwrap()]);
        assert!(is_woken() && !is_woken());
        let taken: Vec<Digest> = queue.take().iter().map(|entry| entry.chunk.digest).collect();
        assert!(taken == [digest] && queue.take().is_empty());
        queue.notify();
        assert!(is_woken());
    }
}
