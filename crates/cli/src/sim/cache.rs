//! One policy over a trace: what a tier of a given size would have hit.

use kvtier::evict::{Policy, PolicyKind, SlotInfo};

use super::blocks::Blocks;
use super::caller_hints::Hints;

const NOWHERE: u32 = u32::MAX;

/// How a tier is run.
#[derive(Clone, Copy, Debug)]
pub struct SimTier {
    /// How many blocks it holds.
    pub capacity: usize,
    /// When it is full, it goes down to this many.
    pub mark: usize,
    /// The most victims at a time.
    pub batch: usize,
    /// Whether the policy gets each block's place in its chain, and each request's end. Otherwise
    /// it gets the order of lookups, and single saves.
    pub chain_known: bool,
}

/// What was asked for and what of it was there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Blocks asked for.
    pub asked: u64,
    /// Blocks that were there, and all before them in their request.
    pub prefix: u64,
    /// Blocks that were there.
    pub blocks: u64,
}

impl Hits {
    pub fn prefix_ratio(&self) -> f64 {
        self.prefix as f64 / self.asked as f64
    }

    pub fn block_ratio(&self) -> f64 {
        self.blocks as f64 / self.asked as f64
    }
}

struct Cache {
    policy: Box<dyn Policy>,
    tier: SimTier,
    slot_of: Vec<u32>,
    block_of: Vec<u32>,
    vacant: Vec<u32>,
    len: usize,
}

/// Runs a trace through a tier that evicts by a policy of this kind.
pub fn run(blocks: &Blocks, kind: PolicyKind, tier: SimTier, hints: &Hints) -> Hits {
    let mut cache = Cache {
        policy: kind.build(),
        tier,
        slot_of: vec![NOWHERE; blocks.distinct()],
        block_of: Vec::new(),
        vacant: Vec::new(),
        len: 0,
    };
    let mut hits = Hits::default();
    for request in 0..blocks.requests() {
        // The trace's own time: policies that learn pauses see those of the trace.
        cache.policy.set_time(blocks.time_ms(request));
        cache.request(blocks.chain(request), &mut hits);
        if let Some(hint) = hints.of(request) {
            let slots = cache.slots(blocks.chain(request));
            slots.into_iter().for_each(|slot| cache.policy.hint(slot, &hint));
        }
    }
    hits
}

impl Cache {
    fn slots(&self, chain: &[u32]) -> Vec<u32> {
        chain
            .iter()
            .map(|block| self.slot_of[*block as usize])
            .filter(|slot| *slot != NOWHERE)
            .collect()
    }

    /// Looks a chain up and holds the cached part of its prefix, saves the rest, and reports that all
    /// of it was used.
    fn request(&mut self, chain: &[u32], hits: &mut Hits) {
        let is_there = |block: &&u32| self.slot_of[**block as usize] != NOWHERE;
        let prefix = chain.iter().take_while(is_there).count();
        hits.asked += chain.len() as u64;
        hits.prefix += prefix as u64;
        hits.blocks += chain.iter().filter(is_there).count() as u64;
        let held = self.slots(&chain[..prefix]);
        if !self.tier.chain_known {
            self.policy.touch_chain(&held);
        }
        // As an engine holds what it reads: what the request saves must not evict its own prefix.
        held.iter().for_each(|slot| self.policy.pin(*slot));
        // The misses are computed and saved, each behind its predecessor.
        self.save(chain, prefix);
        if self.tier.chain_known {
            let there = self.slots(chain);
            self.policy.touch_request(&there, chain.len() - there.len());
        }
        // The last blocks of a chain first: policies that keep the order of unpins then evict them
        // before their parents.
        held.iter().rev().for_each(|slot| self.policy.unpin(*slot));
    }

    /// Saves the missing blocks after the first `prefix`, until the policy rejects one.
    fn save(&mut self, chain: &[u32], prefix: usize) {
        let mut parent = prefix.checked_sub(1).map(|last| self.slot_of[chain[last] as usize]);
        for (depth, block) in (prefix as u32..).zip(&chain[prefix..]) {
            let there = self.slot_of[*block as usize];
            if there != NOWHERE {
                if !self.tier.chain_known {
                    self.policy.touch(there);
                }
                parent = Some(there);
                continue;
            }
            if self.len >= self.tier.capacity && !self.make_space(parent) {
                // What follows a block that was not kept could not be used either.
                self.shed(&chain[depth as usize..]);
                return;
            }
            let slot = self.fill(*block);
            let entry = SlotInfo::new(slot, 1).with_tag(u64::from(*block) + 1);
            // Without chains a policy sees single blocks, as most caches do.
            let (known, at) = if self.tier.chain_known { (parent, depth) } else { (None, 0) };
            self.policy.insert(entry.with_chain(known, at));
            parent = Some(slot);
        }
    }

    /// Reports to the policy what was not saved.
    fn shed(&mut self, rest: &[u32]) {
        let absent = rest.iter().filter(|block| self.slot_of[**block as usize] == NOWHERE);
        absent.for_each(|block| self.policy.shed(u64::from(*block) + 1));
    }

    fn fill(&mut self, block: u32) -> u32 {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.block_of.push(NOWHERE);
            self.block_of.len() as u32 - 1
        });
        (self.slot_of[block as usize], self.block_of[slot as usize]) = (slot, block);
        self.len += 1;
        slot
    }

    /// Gives up a batch, at least one; `false` if nothing can go, or should for a block after
    /// `parent`.
    fn make_space(&mut self, parent: Option<u32>) -> bool {
        // From the high mark on a batch is evicted at once, as the tiers do.
        let wanted = (self.len + 1 - self.tier.mark.min(self.tier.capacity))
            .clamp(1, self.tier.batch.max(1));
        for done in 0..wanted {
            // Everything is pinned. One free slot is enough for this block.
            let Some(slot) = self.policy.victim_for(parent) else { return done > 0 };
            let block = std::mem::replace(&mut self.block_of[slot as usize], NOWHERE);
            self.slot_of[block as usize] = NOWHERE;
            self.policy.begin_evict(slot);
            // The tag outlives the slot: policies with ghost lists recognize the block by it.
            self.policy.evict(slot, u64::from(block) + 1);
            self.vacant.push(slot);
            self.len -= 1;
        }
        true
    }
}
