//! Space in the bucket, which a save reserves before its upload.

use kvtier_core::ShedReason;
use kvtier_index::{Refusal, Reservation, Reserve, ReserveRequest};
use tokio::time::Instant;

use crate::state::eviction_queue::WaitingSave;
use crate::state::shared::Shared;

/// Reserved space, which is released unless it is committed.
#[derive(Debug)]
pub struct SpaceReservation<'a> {
    shared: &'a Shared,
    reservation: Option<Reservation>,
}

impl SpaceReservation<'_> {
    /// Takes the reservation.
    pub fn spend(mut self) -> Option<Reservation> {
        self.reservation.take()
    }
}

impl Drop for SpaceReservation<'_> {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            self.shared.catalog().index.cancel(reservation);
            self.shared.freed.notify_waiters();
        }
    }
}

/// Reserves space. Waits for evictions, at most until `until`.
pub async fn reserve<'a>(
    shared: &'a Shared,
    want: &ReserveRequest,
    until: Instant,
) -> Result<SpaceReservation<'a>, ShedReason> {
    let mut waiting = None;
    loop {
        let freed = shared.freed.notified();
        tokio::pin!(freed);
        // Registered before the reservation is tried. A chunk that is deleted between the attempt
        // and the wait would otherwise wake nothing.
        freed.as_mut().enable();
        // Only the node with the lease deletes. Another one waits until the listing or the journal
        // shows that space became free.
        let evicts = !shared.compat && shared.node.may_evict(shared.now_ms());
        let (asked, writing) = {
            let mut catalog = shared.catalog();
            let limit = catalog.quota_of(want.tenant);
            let index = &mut catalog.index;
            let cap = index.usage().capacity;
            let is_shared = !shared.compat && want.bytes <= cap;
            let asked = match evicts {
                _ if is_shared && !shared.node.budget.allows(want.bytes, cap) => Reserve::Busy,
                true => index.reserve_for(shared.now_ms(), want),
                false => shared.node.reserve(index, want, limit),
            };
            // A node that has just started alone has no limit, but shows soon what it wrote.
            if matches!(asked, Reserve::Granted(_)) && shared.node.budget.grant(want.bytes, cap) {
                shared.node.request_round();
            }
            (asked, index.usage().reserved > 0)
        };
        match asked {
            Reserve::Granted(reservation) => {
                return Ok(SpaceReservation { shared, reservation: Some(reservation) });
            }
            // Handed to one task. It deletes up to a thousand with a request, so a lot of waiting
            // saves cost one request together.
            Reserve::Evict(victims) => shared.eviction_queue.push(victims),
            Reserve::Full(Refusal::TooLarge { .. }) => return Err(ShedReason::TooLarge),
            Reserve::Full(Refusal::NotWorth) => return Err(ShedReason::NotWorth),
            Reserve::Full(Refusal::Quota { .. }) => return Err(ShedReason::Quota),
            // A chunk that is being written can be evicted afterwards.
            Reserve::Full(Refusal::Held) if writing => {}
            Reserve::Busy => shared.eviction_queue.notify(),
            _ => return Err(ShedReason::Full),
        }
        // Counted while this future lives: the task evicts for all that wait, and a dropped save
        // counts no more.
        waiting.get_or_insert_with(|| WaitingSave::new(&shared.eviction_queue, *want));
        shared.node.request_exchange();
        if tokio::time::timeout_at(until, freed).await.is_err() {
            return Err(ShedReason::Full);
        }
    }
}

#[cfg(test)]
mod tests;
