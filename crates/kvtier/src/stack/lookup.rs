//! Lookups: each tier is asked for the keys that the tiers above it do not have.

use std::sync::Arc;

use kvtier_core::{Bitmap, Ctx, Digest, Error, ErrorKind, Hold, Key, LookedUp, Mode, Presence};

use super::holds::{HOLDS_MAX, Parts};
use super::{Inner, add};

impl Inner {
    /// Asks the tiers from the top, each for the keys that the tiers above it do not have, and
    /// records which tier has which key. If a tier fails or cannot say, a key that no other tier
    /// has is `Unknown`.
    ///
    /// # Errors
    /// The last tier's error, if every tier failed.
    pub async fn lookup(
        &self,
        ctx: &Ctx,
        keys: &[Key],
        mode: Mode,
        hold: Hold,
    ) -> Result<LookedUp, Error> {
        let mut found = vec![Presence::Miss; keys.len()];
        let mut tiers = vec![Bitmap::new(keys.len()); self.tiers.len()];
        let mut held = Parts::new();
        let mut failed = None;
        let mut answered = keys.is_empty();
        for (at, tier) in self.tiers.iter().enumerate() {
            // A tier is asked only for what the faster ones do not have, so the answer names the
            // fastest tier of each key.
            let missing: Vec<usize> = (0..keys.len()).filter(|i| !found[*i].is_hit()).collect();
            if missing.is_empty() {
                break;
            }
            let ask: Arc<[Key]> = missing.iter().map(|i| keys[*i].clone()).collect();
            // Only in the last tier does a miss end the prefix: a tier below may still have the key.
            let mode = if at + 1 == self.tiers.len() { mode } else { Mode::Each };
            match tier.lookup(&self.ctx_for(at, ctx), ask, mode, hold).await {
                Ok(answer) if !self.is_worth(ctx, at, bytes_of(&answer)) => {
                    answered = true;
                    add(
                        &self.counters.skipped_slow,
                        answer.found.iter().filter(|found| found.is_hit()).count() as u64,
                    );
                    // These hits are not used. Their hold would keep chunks from eviction for
                    // nothing.
                    self.release(answer.hold.map(|id| (at, id)).into_iter().collect());
                }
                Ok(answer) => {
                    answered = true;
                    for (i, presence) in missing.iter().zip(&answer.found) {
                        merge(&mut found[*i], *presence);
                        if presence.is_hit() {
                            tiers[at].insert(*i);
                        }
                    }
                    held.extend(answer.hold.map(|id| (at, id)));
                }
                Err(e) => {
                    add(&self.counters.tier_errors, 1);
                    // Other tiers may still answer. What only this tier may have is reported as
                    // unknown below.
                    failed = Some(e);
                }
            }
        }
        // The keys of a hold are collected only if a hold was asked for.
        let hits = || {
            keys.iter()
                .zip(&found)
                .filter(|(_, found)| found.is_hit())
                .map(|(key, _)| *key.digest())
        };
        let hold = self.keep(held, hold, || hits().collect())?;
        match failed {
            Some(e) if !answered => return Err(e),
            // A miss of the other tiers proves nothing about the tier that failed.
            Some(_) => found
                .iter_mut()
                .filter(|p| **p == Presence::Miss)
                .for_each(|p| *p = Presence::Unknown),
            None => {}
        }
        Ok(LookedUp::new(found, hold).with_tiers(tiers))
    }

    /// What the tiers have in memory: a hit in one is a hit, and a key is a miss only if no tier
    /// can have it.
    pub fn lookup_in_memory(&self, keys: &[Key]) -> Vec<Presence> {
        let mut found = vec![Presence::Miss; keys.len()];
        for tier in &self.tiers {
            let here = tier.lookup_in_memory(keys);
            found.iter_mut().zip(here).for_each(|(found, here)| merge(found, here));
        }
        found
    }

    fn keep(
        &self,
        held: Parts,
        hold: Hold,
        keys: impl FnOnce() -> Vec<Digest>,
    ) -> Result<Option<kvtier_core::HoldId>, Error> {
        let Hold::For(ttl) = hold else { return Ok(None) };
        // No tier had a hit, so there is nothing to hold and no id to hand out.
        if held.is_empty() {
            return Ok(None);
        }
        self.holds.keep(held, keys(), ttl).map(Some).map_err(|held| {
            // The caller gets no id and could never release the parts. Without this line they would
            // hold their chunks until they expire.
            self.release(held);
            Error::new(ErrorKind::Throttled, format!("{HOLDS_MAX} holds are out; release some"))
        })
    }

    pub fn release(&self, held: Parts) {
        held.into_iter().for_each(|(tier, id)| self.tiers[tier].release(id));
    }
}

/// Adds what one more tier says about a key to what the tiers above it say.
fn merge(found: &mut Presence, here: Presence) {
    // `Unknown` replaces a miss, and only a hit replaces `Unknown`: the key is no miss where any
    // tier might have it.
    if !found.is_hit() && here != Presence::Miss {
        *found = here;
    }
}

fn bytes_of(answer: &LookedUp) -> u64 {
    let bytes = |found: &Presence| match found {
        Presence::Hit { len } => *len,
        _ => 0,
    };
    answer.found.iter().map(bytes).sum()
}
