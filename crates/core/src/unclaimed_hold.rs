//! Holds of lookups whose answer is lost: the answer releases them.

use std::sync::Arc;

use crate::{Error, Hold, HoldId, LookedUp, Reply, Ticket};

impl Ticket<Result<LookedUp, Error>> {
    /// Calls `release` with the hold of the answer if nothing takes the answer before the ticket is
    /// dropped. `hold` is what the lookup asked for; `owner` may be gone by then.
    pub fn release_if_dropped<S: Send + Sync + 'static>(
        self,
        hold: Hold,
        owner: &Arc<S>,
        release: fn(&S, HoldId),
    ) -> Self {
        if hold == Hold::None {
            return self;
        }
        // Weak: a ticket that its caller keeps must not keep a closed tier open.
        let owner = Arc::downgrade(owner);
        self.undo_if_dropped(move |answer| {
            if let (Ok(LookedUp { hold: Some(id), .. }), Some(owner)) = (answer, owner.upgrade()) {
                release(&owner, id);
            }
        })
    }
}

impl Reply<LookedUp> {
    /// Sends the answer. Calls `release` with its hold if the deadline came first.
    pub fn complete_or_release(self, found: Result<LookedUp, Error>, release: impl FnOnce(HoldId)) {
        let hold = found.as_ref().ok().and_then(|found| found.hold);
        // The caller got `Timeout` and never learns of the hold, so it would last until it expires.
        if !self.complete(found)
            && let Some(hold) = hold
        {
            release(hold);
        }
    }
}
