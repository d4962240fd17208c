use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvtier_core::{
    Bitmap, Ctx, Digest, Error, ErrorKind, Hold, Key, LookedUp, Mode, Presence, Removed,
};

use super::flights::Flight;
use super::holds::{HOLDS_MAX, Parts};
use super::{Inner, add};

impl Inner {
    /// Asks the tiers from the top, each for what those above it have not, and notes who answered
    /// for what. Where one failed, what nobody else has is `Unknown`; an error only when all of
    /// them failed.
    pub async fn lookup(
        &self,
        ctx: &Ctx,
        keys: &[Key],
        mode: Mode,
        hold: Hold,
    ) -> Result<LookedUp, Error> {
        let mut found = vec![Presence::Miss; keys.len()];
        let mut tiers = vec![Bitmap::new(keys.len()); self.tiers.len()];
        let (mut held, mut failed, mut answered) = (Parts::new(), None, keys.is_empty());
        for (at, tier) in self.tiers.iter().enumerate() {
            let missing: Vec<usize> = (0..keys.len()).filter(|i| !found[*i].is_hit()).collect();
            if missing.is_empty() {
                break;
            }
            let ask: Arc<[Key]> = missing.iter().map(|i| keys[*i].clone()).collect();
            // Only the last tier may stop at its first miss: for it alone a miss ends the prefix.
            let mode = if at + 1 == self.tiers.len() { mode } else { Mode::Each };
            match tier.lookup(&self.ctx_for(at, ctx), ask, mode, hold).await {
                Ok(answer) if !self.is_worth(ctx, at, bytes_of(&answer)) => {
                    answered = true;
                    add(
                        &self.counters.skipped_slow,
                        answer.found.iter().filter(|found| found.is_hit()).count() as u64,
                    );
                    self.release(answer.hold.map(|id| (at, id)).into_iter().collect());
                }
                Ok(answer) => {
                    answered = true;
                    for (i, presence) in missing.iter().zip(&answer.found) {
                        found[*i] = *presence;
                        if presence.is_hit() {
                            tiers[at].insert(*i);
                        }
                    }
                    held.extend(answer.hold.map(|id| (at, id)));
                }
                Err(e) => {
                    add(&self.counters.tier_errors, 1);
                    failed = Some(e);
                }
            }
        }
        let hits = || {
            keys.iter()
                .zip(&found)
                .filter(|(_, found)| found.is_hit())
                .map(|(key, _)| *key.digest())
        };
        let hold = self.keep(held, hold, || hits().collect())?;
        match failed {
            Some(e) if !answered => return Err(e),
            Some(_) => found
                .iter_mut()
                .filter(|p| **p == Presence::Miss)
                .for_each(|p| *p = Presence::Unknown),
            None => {}
        }
        Ok(LookedUp::new(found, hold).with_tiers(tiers))
    }

    fn keep(
        &self,
        held: Parts,
        hold: Hold,
        keys: impl FnOnce() -> Vec<Digest>,
    ) -> Result<Option<kvtier_core::HoldId>, Error> {
        let Hold::For(ttl) = hold else { return Ok(None) };
        if held.is_empty() {
            return Ok(None);
        }
        self.holds.keep(held, keys(), ttl).map(Some).map_err(|held| {
            self.release(held);
            Error::new(ErrorKind::Throttled, format!("{HOLDS_MAX} holds are out; release some"))
        })
    }

    pub fn release(&self, held: Parts) {
        held.into_iter().for_each(|(tier, id)| self.tiers[tier].release(id));
    }

    /// Key by key, since only so the counts of several tiers add up. A tier that fails keeps none
    /// of the others from removing, but the answer is its error: the chunk may still be there.
    /// No load brings a chunk up while it is removed.
    pub async fn remove(&self, ctx: &Ctx, keys: &[Key]) -> Result<Removed, Error> {
        let (mut counts, mut failed) = (Removed::default(), None);
        for key in keys {
            let (mut removed, mut held) = (0, 0);
            let _flight = self.alone_with(ctx, key).await?;
            for tier in &self.tiers {
                // What the tier above gave up meanwhile is on its way to this one.
                self.settled(key).await;
                match tier.remove(ctx, [key.clone()].into()).await {
                    Ok(answer) => {
                        removed += answer.removed;
                        held += answer.held;
                    }
                    Err(e) => {
                        self.counters.tier_errors.fetch_add(1, Ordering::Relaxed);
                        failed = Some(e);
                    }
                }
            }
            match (held, removed) {
                (1.., _) => counts.held += 1,
                (0, 1..) => counts.removed += 1,
                (0, 0) => counts.absent += 1,
            }
        }
        failed.map_or(Ok(counts), Err)
    }
}

impl Inner {
    /// The flight of a key, after those that are under way have landed. `Timeout` when others go on
    /// until the deadline.
    async fn alone_with(&self, ctx: &Ctx, key: &Key) -> Result<Flight, Error> {
        loop {
            match self.flights.begin(key.digest()) {
                Ok(flight) => return Ok(flight),
                Err(landed) => drop(landed.await),
            }
            if self.time.now() >= ctx.deadline {
                let what = "it was loaded all the time until the deadline";
                return Err(Error::new(ErrorKind::Timeout, what)
                    .with_op("remove")
                    .with_key(*key.digest()));
            }
        }
    }
}

fn bytes_of(answer: &LookedUp) -> u64 {
    let bytes = |found: &Presence| match found {
        Presence::Hit { len } => *len,
        _ => 0,
    };
    answer.found.iter().map(bytes).sum()
}
