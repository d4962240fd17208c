//! Eviction exactly as LMCache does it.

use crate::{Index, IndexEntry, InvalidConfig, VICTIMS_MAX};

/// LMCache's interval, in milliseconds.
const CHECK_EVERY_MS: u64 = 1000;

/// Eviction as LMCache 0.5.6 does it: once a second, if more than a share of the capacity is used,
/// a share of all chunks is evicted at once, counted in chunks. A save that needs more evicts just
/// in time, so the capacity is always kept.
///
/// ```
/// use kvtier_index::LmcacheEviction;
///
/// // At 90 % a fifth of the chunks is evicted at once, as LMCache does.
/// let compat = LmcacheEviction::new().with(0.9, 0.2);
/// assert!(compat.check().is_ok());
/// assert!(LmcacheEviction::new().with(-0.9, 0.2).check().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct LmcacheEviction {
    /// Above this share of the capacity chunks are evicted (LMCache's `trigger_watermark`).
    pub watermark: f64,
    /// The share of the chunks that is evicted (LMCache's `eviction_ratio`); clamped to 0 to 1, as
    /// there.
    pub ratio: f64,
}

impl LmcacheEviction {
    /// LMCache's defaults: above 0.8 of the capacity, 0.2 of the chunks.
    pub fn new() -> Self {
        LmcacheEviction { watermark: 0.8, ratio: 0.2 }
    }

    /// Sets both shares.
    pub fn with(mut self, watermark: f64, ratio: f64) -> Self {
        (self.watermark, self.ratio) = (watermark, ratio);
        self
    }

    /// Checks that the shares are numbers.
    ///
    /// # Errors
    ///
    /// For a share that is no number, and a negative watermark.
    pub fn check(&self) -> Result<(), InvalidConfig> {
        if self.watermark.is_finite() && self.ratio.is_finite() && self.watermark >= 0.0 {
            return Ok(());
        }
        Err(InvalidConfig {
            what: "trigger_watermark or eviction_ratio is no share",
            fix: "set them to 0 to 1",
        })
    }
}

impl Default for LmcacheEviction {
    fn default() -> Self {
        LmcacheEviction::new()
    }
}

/// The setting, and the time of the last check.
#[derive(Debug, Default)]
pub(crate) struct CompatState {
    compat: Option<LmcacheEviction>,
    looked_ms: Option<u64>,
    /// How many chunks are still to be evicted since then.
    due: usize,
}

impl Index {
    /// Switches LMCache's eviction on or off. The tier must call
    /// [`compat_victims`](Self::compat_victims) regularly.
    pub fn set_compat(&mut self, compat: Option<LmcacheEviction>) {
        self.compat = CompatState { compat, looked_ms: None, due: 0 };
    }

    /// The chunks to evict now by LMCache's rules, at most [`VICTIMS_MAX`] at a time: call it until
    /// it returns none. At most one share per second, and nothing if the rules are off. Treat them
    /// like [`victims`](Self::victims).
    pub fn compat_victims(&mut self, now_ms: u64) -> Vec<IndexEntry> {
        let Some(compat) = self.compat.compat else { return Vec::new() };
        // A share may take several batches. The next check waits until the last of them was
        // returned.
        if self.compat.due == 0 {
            self.compat.due = self.compat_share(compat, now_ms);
        }
        let wanted = self.compat.due.min(VICTIMS_MAX);
        let mut victims = Vec::with_capacity(wanted);
        while victims.len() < wanted {
            // The policy alone decides, as in LMCache: no sets and no shares of tenants.
            let Some(slot) = self.policy.victim() else { break };
            victims.push(self.start_evicting(slot));
        }
        // Everything else is held: the rest of the share is dropped and not owed to the next check.
        self.compat.due = if victims.len() < wanted { 0 } else { self.compat.due - wanted };
        victims
    }

    /// How many chunks to evict, once a second.
    fn compat_share(&mut self, compat: LmcacheEviction, now_ms: u64) -> usize {
        if self
            .compat
            .looked_ms
            .is_some_and(|looked| now_ms < looked.saturating_add(CHECK_EVERY_MS))
        {
            return 0;
        }
        // Also when nothing is evicted: LMCache looks once a second whatever it finds.
        self.compat.looked_ms = Some(now_ms);
        let usage = self.usage();
        if (usage.used as f64) < compat.watermark * usage.capacity as f64 {
            return 0;
        }
        self.expire_holds(now_ms);
        self.policy.set_time(now_ms);
        let all = self.policy.len();
        let ratio = compat.ratio.clamp(0.0, 1.0);
        // At least one chunk, or a small ratio of few chunks would never evict any.
        if ratio > 0.0 { ((all as f64 * ratio) as usize).max(all.min(1)) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use kvtier_evict::PolicyKind;
    use kvtier_key::Digest;

    use super::*;
    use crate::{Chunk, IndexConfig};

    #[test]
    fn a_share_above_one_batch_is_evicted_in_several() {
        let mut index = Index::new(IndexConfig::new(3000), PolicyKind::Lru.build()).unwrap();
        for n in 0..3000u32 {
            let _ = index.insert(Chunk::new(Digest::derive("test", &n.to_le_bytes()), 1, 1));
        }
        index.set_compat(Some(LmcacheEviction::new().with(0.9, 0.5)));
        let batches = [(); 3].map(|()| index.compat_victims(5).len());
        assert_eq!(batches, [1024, 476, 0]);
    }

    #[test]
    fn the_rest_of_a_share_is_dropped_where_all_others_are_held() {
        let mut index = Index::new(IndexConfig::new(3000), PolicyKind::Lru.build()).unwrap();
        let chunks = (0..3000u32).map(|n| Digest::derive("test", &n.to_le_bytes()));
        let chunks: Vec<Digest> = chunks.collect();
        for digest in &chunks {
            let _ = index.insert(Chunk::new(*digest, 1, 1));
        }
        let hold = index.hold(&chunks[500..], 60_000).unwrap();
        index.set_compat(Some(LmcacheEviction::new().with(0.9, 1.0)));
        assert_eq!(index.compat_victims(5).len(), 500);
        index.release(hold);
        assert_eq!(index.compat_victims(6).len(), 0);
    }

    #[test]
    fn both_shares_are_numbers_and_the_watermark_is_not_negative() {
        let is_right =
            |watermark, ratio| LmcacheEviction::new().with(watermark, ratio).check().is_ok();
        assert!(is_right(0.0, 0.0) && is_right(0.8, -0.2) && is_right(2.0, 2.0));
        for no_number in [f64::NAN, f64::INFINITY] {
            assert!(!is_right(no_number, 0.2) && !is_right(0.8, no_number));
        }
        assert!(!is_right(-0.1, 0.2));
    }

    #[test]
    fn at_the_watermark_chunks_are_evicted_and_below_it_none() {
        let mut index = Index::new(IndexConfig::new(1000), PolicyKind::Lru.build()).unwrap();
        index.set_compat(Some(LmcacheEviction::new().with(0.5, 0.1)));
        let _ = index.insert(Chunk::new(Digest([1; 32]), 1, 499));
        assert_eq!(index.compat_victims(0).len(), 0);
        let _ = index.insert(Chunk::new(Digest([2; 32]), 1, 1));
        assert_eq!(index.compat_victims(1000).len(), 1);
    }
}
