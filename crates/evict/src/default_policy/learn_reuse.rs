//! Feeds the reuse model with what it learns from: chunks that return, evicted chunks (ghosts), and
//! chunks that are still being watched.

use super::ghost_sample::Ghost;
use super::reuse_class::{HITS_MAX, ReuseClass, gap_of};
use super::reuse_model::{Evidence, Watched, events_max};
use super::{EvictedChunk, KvPolicy};

/// The most slots scanned at a time, and the most buckets of ghosts.
const STRIPE: usize = 1 << 15;

/// The model is updated after as many uses as one in this many of the chunks,
const UPDATE_SHARE: usize = 8;
/// but not more often than after this many uses.
const UPDATE_USES_MIN: usize = 4096;

impl KvPolicy {
    /// Moves the deferred evictions into the table, before the table is read. Whether a tag is in
    /// the sample was checked when it was pushed.
    #[inline(never)]
    pub(super) fn flush_ghosts(&mut self) {
        let (all, len) = self.evicted.take();
        for gone in &all[..len] {
            if let Some(old) = self.history.push(gone.tag, gone.ghost) {
                // The replaced ghost did not return as long as it was remembered. That ended with
                // the eviction that replaced it, not now.
                self.returns.lost(
                    old.class.index(),
                    gone.at.wrapping_sub(old.stamp),
                    self.history.weight(),
                );
            }
        }
    }

    /// Remembers an evicted chunk, or one whose save was shed.
    pub(super) fn remember(&mut self, tag: u64, ghost: Ghost) {
        if self.evicted.push(EvictedChunk { tag, ghost, at: self.now }) {
            self.flush_ghosts();
        }
    }

    /// Learns from the return of an evicted chunk. Returns its new class.
    pub(super) fn returned(&mut self, ghost: Ghost) -> ReuseClass {
        // Only a sample of the evicted chunks is remembered: this return counts for all that the
        // ghost stands for, in the guard and in the model.
        let age = self.age(ghost.stamp);
        self.guard.missed(ghost.stamp, self.now, self.history.weight());
        self.returns.returned(ghost.class.index(), age, self.history.weight());
        // The request that it was part of stays as it was; the pause is known now.
        let request = ghost.class.last_request().with_gap(gap_of(age, self.nodes.len()));
        ReuseClass::seen((ghost.class.hits() + 1).min(HITS_MAX), request)
    }

    /// Removes a tag and returns its ghost. Most tags have none: they are not in the sample.
    pub(super) fn take_ghost(&mut self, tag: u64) -> Option<Ghost> {
        // Without this most inserts of a large cache would flush and read the table for nothing.
        if !self.history.samples(tag) {
            return None;
        }
        self.flush_ghosts();
        self.history.take(tag)
    }

    /// Updates the model after enough uses.
    pub(super) fn learn_if_due(&mut self) {
        let period = (self.nodes.len() / UPDATE_SHARE).max(UPDATE_USES_MIN) as u32;
        if self.age(self.learnt_at) >= period {
            self.learn();
        }
    }

    /// Scans a part of the watched chunks, and updates the model.
    pub(super) fn learn(&mut self) {
        self.learnt_at = self.now;
        self.flush_ghosts();
        // Each call scans one stripe, and the next call the next one. A stripe stands for all of
        // them, so that the time of a call does not grow with the cache.
        let mut watched = Watched::new();
        let share = |all: usize| (all.div_ceil(STRIPE), all.min(STRIPE));
        let (parts, len) = share(self.nodes.end());
        let from = self.stripe % parts.max(1) * STRIPE;
        for slot in from..(from + len).min(self.nodes.end()) {
            if self.nodes.is_tracked(slot as u32) {
                let node = self.nodes[slot as u32];
                watched.add(node.class().index(), self.age(node.stamp), parts as f32);
            }
        }
        // Ghosts have not returned yet either. Without them only what the policy kept would count,
        // and its mistakes would confirm themselves.
        let (parts, len) = share(self.history.buckets());
        let from = self.stripe % parts.max(1) * STRIPE;
        let weight = self.history.weight() * parts as f32;
        for ghost in self.history.ghosts(from..(from + len).min(self.history.buckets())) {
            watched.add(ghost.class.index(), self.age(ghost.stamp), weight);
        }
        self.stripe = self.stripe.wrapping_add(1);
        let evidence = Evidence {
            events_max: events_max(self.nodes.len()),
            request_chunks: self.request_chunks,
            class_weight: self.guard.class_weight(self.nodes.len()),
        };
        self.returns.learn(&watched, &evidence);
    }
}
