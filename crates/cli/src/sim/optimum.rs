//! The hits of the best policy, which uses the future of the trace (Belady's MIN).

use std::collections::BinaryHeap;

use super::blocks::Blocks;
use super::cache::Hits;

const NEVER: u32 = u32::MAX;

/// The optimum for a number of blocks: it evicts the block whose next use is furthest, of several the
/// deepest, and need not admit a block at all. A block is used no earlier than the one before it in
/// its chain, so what it has of a request is a prefix: this is the optimum of prefix hits, too.
pub fn run(blocks: &Blocks, capacity: usize) -> Hits {
    // Belady's optimum needs the future: it evicts the block whose next use is furthest away.
    let next = next_uses(blocks);
    // When a block that is there is used next, +1; 0 = it is not there.
    let mut there = vec![0u32; blocks.distinct()];
    let mut order: BinaryHeap<(u32, u32, u32)> = BinaryHeap::new();
    let mut len = 0usize;
    let mut hits = Hits::default();
    let mut at = 0;
    for request in 0..blocks.requests() {
        let chain = blocks.chain(request);
        hits.asked += chain.len() as u64;
        // Counted before this request changes the cache.
        hits.prefix += chain.iter().take_while(|block| there[**block as usize] != 0).count() as u64;
        hits.blocks += chain.iter().filter(|block| there[**block as usize] != 0).count() as u64;
        for (depth, block) in (0..).zip(chain) {
            let again = next[at];
            at += 1;
            let was = std::mem::replace(
                &mut there[*block as usize],
                if again == NEVER { 0 } else { again + 1 },
            );
            // A block that was there and is used again is counted once.
            len = len + usize::from(again != NEVER) - usize::from(was != 0);
            // A block that is never used again is not kept at all.
            if again != NEVER {
                // Of blocks with the same next use the deepest goes first: it is of no use without
                // those before it.
                order.push((again, depth, *block));
            }
            while len > capacity {
                // The heap keeps old entries of blocks that were used again. They are skipped when
                // they come up.
                let (again, _, furthest) = order.pop().expect("what is there is in the order");
                if there[furthest as usize] == again + 1 {
                    there[furthest as usize] = 0;
                    len -= 1;
                }
            }
        }
    }
    hits
}

/// For each block of each request, the next request that asks for it.
fn next_uses(blocks: &Blocks) -> Vec<u32> {
    let mut last = vec![NEVER; blocks.distinct()];
    let mut next = Vec::new();
    // From the end, so that `last` always has the next use after the current request.
    for request in (0..blocks.requests()).rev() {
        for block in blocks.chain(request).iter().rev() {
            next.push(last[*block as usize]);
        }
        // After the whole request: a block that is in it twice has its next use in a later one.
        blocks.chain(request).iter().for_each(|block| last[*block as usize] = request as u32);
    }
    next.reverse();
    next
}
