//! Derives the classes of chunks from requests.

use crate::SlotInfo;
use crate::slots::NIL;

use super::reuse_class::{self, HITS_MAX, LastRequest, RETAINED, ReuseClass, gap_of};
use super::{KvPolicy, SaveRun};

/// The mean covers about this many requests.
const REQUESTS_AVERAGED: f32 = 256.0;

impl KvPolicy {
    /// One request used these slots, given in the order of their chain.
    pub(super) fn use_chain(&mut self, chain: &[u32]) {
        let before = self.now;
        // The clock moves before anything is classified: `completes` counts on that.
        self.now = before.wrapping_add(chain.len() as u32);
        self.guard.count_uses(chain.len() + self.absent);
        // A single slot is mostly a deferred `touch`, and says nothing of the size of requests.
        if chain.len() > 1 {
            self.request_chunks += (chain.len() as f32 - self.request_chunks) / REQUESTS_AVERAGED;
        }
        // Before the loop, which overwrites the stamps that the pause is computed from.
        let request = self.last_request(chain);
        // From the tail to the head, so that the hits of later chunks reach earlier ones.
        let mut hits = 0;
        for (at, slot) in chain.iter().copied().enumerate().rev() {
            if !self.nodes.is_tracked(slot) {
                continue;
            }
            let node = self.nodes[slot];
            // Each chunk has a time of its own: heads of chains are used after what follows them.
            let stamp = before.wrapping_add((chain.len() - at) as u32);
            let is_hit = !self.completes(slot, chain.len());
            if self.guard.watches(slot) {
                self.guard.used(node.stamp, stamp, is_hit);
            }
            // Of present chunks every return is seen, so it stands for itself.
            if is_hit {
                self.returns.returned(node.class().index(), self.age(node.stamp), 1.0);
                hits = hits.max((node.class().hits() + 1).min(HITS_MAX));
            }
            // What is after it in the chain was hit no more often.
            hits = hits.max(node.class().hits());
            self.nodes[slot].set_fresh(false);
            // Without chains from the caller, the order of a request shows what follows what.
            if node.parent == NIL && at > 0 {
                self.attach(slot, chain[at - 1]);
            }
            // Retention ends by its deadline and not by a hit. A tail that was hit is a chunk like
            // others.
            let class = match node.class().is(RETAINED) {
                true => node.class().with_hits(hits),
                false if slot == self.tail && hits == 0 => reuse_class::TAIL,
                false => ReuseClass::seen(hits, request),
            };
            self.renew_at(slot, class, stamp);
        }
        self.guard.begin_request();
    }

    /// Whether a touch of `n` slots only completes the save of this one.
    pub(super) fn completes(&self, slot: u32, n: usize) -> bool {
        // Saving `n` chunks moved the clock by up to `n`, and this touch by `n` more. Other
        // requests may have come between: as many uses as a thirty-second of the chunks.
        let soon = (2 * n).max(self.nodes.len() / 32);
        self.nodes[slot].is_fresh() && self.age(self.nodes[slot].stamp) as usize <= soon
    }

    /// The request, as seen from its conversation: the pause since its deepest old chunk was used,
    /// and the number of chunks that it added.
    pub(super) fn last_request(&self, chain: &[u32]) -> LastRequest {
        let mut added = self.absent;
        for slot in chain.iter().rev().filter(|slot| self.nodes.is_tracked(**slot)) {
            let node = &self.nodes[*slot];
            if !self.completes(*slot, chain.len()) {
                // The new chunks are its children already.
                return LastRequest::new(
                    self.gap_since(*slot, usize::from(added > self.absent)),
                    added,
                );
            }
            // Saved just now and already hit: it returned after its eviction, and its class has the
            // pause since its last use.
            if node.class().hits() > 0 {
                return LastRequest::new(node.class().last_request().gap(), added);
            }
            added += 1;
        }
        LastRequest::new(reuse_class::NEW, added)
    }

    /// The pause of the conversation that continues after this chunk. After a chunk with several
    /// children, of which `own` belong to this conversation, a new conversation begins: they share
    /// a prompt.
    pub(super) fn gap_since(&self, slot: u32, own: usize) -> u8 {
        let node = self.nodes[slot];
        if usize::from(node.children()) > 1 + own {
            return reuse_class::NEW;
        }
        gap_of(self.age(node.stamp), self.nodes.len())
    }

    /// The class of a chunk without history, until its request is complete.
    pub(super) fn begins(&mut self, entry: &SlotInfo) -> ReuseClass {
        let parent = entry.parent.filter(|parent| self.nodes.is_tracked(*parent));
        let goes_on = self.run.chunks > 0 && entry.parent == Some(self.run.last);
        self.run =
            SaveRun { last: entry.slot, chunks: if goes_on { self.run.chunks + 1 } else { 1 } };
        // All chunks of one request share the pause before it.
        let gap = match parent {
            Some(parent) if goes_on => self.nodes[parent].class().last_request().gap(),
            Some(parent) => self.gap_since(parent, 0),
            None => reuse_class::NEW,
        };
        ReuseClass::seen(0, LastRequest::new(gap, self.run.chunks))
    }
}
