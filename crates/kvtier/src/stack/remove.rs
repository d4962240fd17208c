//! Removes: from every tier, while no load of the key is in flight.

use std::sync::atomic::Ordering;

use kvtier_core::{Ctx, Error, ErrorKind, Key, Removed};

use super::Inner;
use super::single_flight::Flight;

impl Inner {
    /// Removes key by key, so that the counts of several tiers add up to one per key. No load
    /// promotes a chunk while it is removed.
    ///
    /// # Errors
    /// The last tier's error, if a tier failed: it may still hold the chunk. The other tiers remove
    /// it all the same.
    pub async fn remove(&self, ctx: &Ctx, keys: &[Key]) -> Result<Removed, Error> {
        let mut counts = Removed::default();
        let mut failed = None;
        for key in keys {
            let mut removed = 0;
            let mut held = 0;
            // No load of the key is under way now, and none begins a flight until this one is
            // dropped. Loads without a flight do not promote.
            let _flight = self.begin_flight(ctx, key).await?;
            for tier in &self.tiers {
                // The tier above may have evicted the chunk into this one meanwhile.
                self.settled(key).await;
                match tier.remove(ctx, [key.clone()].into()).await {
                    Ok(answer) => {
                        removed += answer.removed;
                        held += answer.held;
                    }
                    Err(e) => {
                        self.counters.tier_errors.fetch_add(1, Ordering::Relaxed);
                        // The other tiers are asked all the same: every copy less is a gain.
                        failed = Some(e);
                    }
                }
            }
            // One held copy keeps the chunk alive, whatever the other tiers removed.
            match (held, removed) {
                (1.., _) => counts.held += 1,
                (0, 1..) => counts.removed += 1,
                (0, 0) => counts.absent += 1,
            }
        }
        failed.map_or(Ok(counts), Err)
    }

    /// Begins the flight of a key, after every flight under way has ended.
    ///
    /// # Errors
    /// `Timeout` if other loads of the key follow each other until the deadline.
    async fn begin_flight(&self, ctx: &Ctx, key: &Key) -> Result<Flight, Error> {
        loop {
            match self.flights.begin(key.digest()) {
                Ok(flight) => return Ok(flight),
                Err(landed) => drop(landed.await),
            }
            // Checked after the wait. A flight itself ends by its own deadline, so this loop cannot
            // hang.
            if self.time.now() >= ctx.deadline {
                let what = "loads of this key were in flight until the deadline";
                return Err(Error::new(ErrorKind::Timeout, what)
                    .with_op("remove")
                    .with_key(*key.digest()));
            }
        }
    }
}
