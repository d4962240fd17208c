//! How much of the free space one of several nodes may fill before they have exchanged journals.
//!
//! A node learns of the saves of others from their journals alone. If each filled all the space
//! that it counts as free, the bucket would reach as many times the cap as there are nodes.
//!
//! An exchange is a round in which a node wrote its journal and read those of the others. Until the
//! next one it may write half of its part of the space that was free; the other half covers nodes
//! whose last exchange was earlier. A save beyond that requests an exchange and waits for it. One
//! save at a time is always allowed, so that a large chunk is never stuck.
//!
//! Before the first exchange the number of nodes is unknown: the limit is an eighth of the cap. A
//! node that finds itself alone has no limit. But others may start a moment later, so within its
//! first interval it writes its journal after each eighth of the cap, and what it wrote before the
//! first exchange counts until the second.
//!
//! When little is free, budgets end: the evictor frees space then, and the others keep close to the
//! cap by `NodeState::reserve`.
//!
//! A simulation in the tests runs up to eight nodes that start within a second of each other; each alone
//! would fill the cap in 1 to 10 s.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The part of the cap that a node may fill before its first exchange.
const FIRST_PART: u64 = 8;
/// Less free space than this part of the cap is little.
const LITTLE_PART: u64 = 20;

/// This node's part of the free space.
#[derive(Debug, Default)]
pub struct NodeBudget(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// What the last exchange showed.
    last: Option<Exchange>,
    /// Bytes of admitted saves since then; those before the first exchange count until the second.
    granted: u64,
}

/// What an exchange showed.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// How many nodes there are, this one included.
    pub nodes: usize,
    /// Bytes below the cap that no node is known to use.
    pub free: u64,
    /// The node started less than an interval ago: others that started with it may be unseen yet.
    pub is_early: bool,
}

impl NodeBudget {
    /// An exchange ended.
    pub fn exchanged(&self, exchange: Exchange) {
        let mut state = self.state();
        let granted = if state.last.is_none() { state.granted } else { 0 };
        *state = State { last: Some(exchange), granted };
    }

    /// Whether a save of `bytes` is within this node's budget. One save at a time always
    /// is.
    pub fn allows(&self, bytes: u64, cap: u64) -> bool {
        let state = self.state();
        let budget = match state.last {
            None => cap / FIRST_PART,
            Some(Exchange { nodes: 0 | 1, .. }) => return true,
            Some(Exchange { free, .. }) if free < cap / LITTLE_PART => return true,
            Some(Exchange { nodes, free, .. }) => free / (2 * nodes as u64),
        };
        state.granted == 0 || state.granted.saturating_add(bytes) <= budget
    }

    /// Admits a save. Returns whether an exchange is due: a node that has just started alone has no
    /// limit, but must show soon what it wrote, to nodes that start a moment later.
    pub fn grant(&self, bytes: u64, cap: u64) -> bool {
        let mut state = self.state();
        state.granted = state.granted.saturating_add(bytes);
        state.is_early_and_alone() && state.granted > cap / FIRST_PART
    }

    /// Whether there are other nodes, as of the last exchange.
    pub fn has_others(&self) -> bool {
        self.state().last.is_some_and(|last| last.nodes > 1)
    }

    /// Whether this node writes its journal in an early round: others exist, or may start soon and
    /// need it.
    pub fn is_journal_due(&self, cap: u64) -> bool {
        let state = self.state();
        let writes_much = state.is_early_and_alone() && state.granted > cap / FIRST_PART;
        writes_much || state.last.is_some_and(|last| last.nodes > 1)
    }

    /// Whether several nodes fill much free space: then each reads the journals of all.
    pub fn is_filling(&self, cap: u64) -> bool {
        self.state().last.is_some_and(|last| last.nodes > 1 && last.free >= cap / LITTLE_PART)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_early_and_alone(&self) -> bool {
        self.last.is_some_and(|last| last.nodes <= 1 && last.is_early)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_takes_all_and_of_several_each_its_part() {
        let budget = NodeBudget::default();
        let alone = Exchange { nodes: 1, free: 740, is_early: true };
        assert!(budget.allows(100, 800), "one save");
        budget.grant(60, 800);
        assert!(
            budget.allows(40, 800) && !budget.allows(41, 800),
            "an eighth before it is known who is there"
        );
        budget.exchanged(alone);
        assert!(budget.allows(740, 800) && !budget.is_journal_due(800));
        assert!(!budget.grant(40, 800) && budget.grant(1, 800), "what was granted before counts");
        assert!(budget.is_journal_due(800) && !budget.has_others());
        budget.exchanged(Exchange { is_early: false, ..alone });
        assert!(!budget.grant(740, 800) && budget.allows(740, 800) && !budget.has_others());
        budget.exchanged(Exchange { nodes: 2, free: 400, is_early: false });
        budget.grant(60, 800);
        assert!(budget.allows(40, 800) && !budget.allows(41, 800) && budget.is_filling(800));
        budget.exchanged(Exchange { nodes: 2, free: 39, is_early: false });
        budget.grant(60, 800);
        assert!(
            budget.allows(60, 800) && budget.has_others() && !budget.is_filling(800),
            "the evictor frees space"
        );
    }

    /// Nodes that start within a second on an empty bucket. Each writes so fast that it alone would
    /// fill the cap in 1 to 10 s. A step takes 50 ms. In a round a node writes its journal and
    /// reads those of the others.
    #[test]
    fn several_nodes_that_start_on_an_empty_bucket_do_not_fill_it_several_times() {
        let most = (0..400).map(bytes_written).max();
        assert!(most <= Some(CAP * 5 / 4), "{most:?} of {CAP}");
    }

    const CAP: u64 = 1_000_000;

    #[derive(Default)]
    struct Node {
        budget: NodeBudget,
        start: usize,
        wrote: u64,
        /// The bytes in its journals.
        shown: u64,
        /// The bytes of the others that it has read.
        known: Vec<u64>,
        last_round: Option<usize>,
    }

    fn bytes_written(seed: u64) -> u64 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let count = rng.usize(2..9);
        let speed = CAP / rng.u64(20..200);
        let new = |start| Node { start, known: vec![0; count], ..Node::default() };
        let mut nodes: Vec<Node> = (0..count).map(|_| new(rng.usize(0..20))).collect();
        for step in 0..2000 {
            for n in 0..count {
                if step >= nodes[n].start && nodes[n].write(n, speed) | nodes[n].is_round_due(step)
                {
                    round(&mut nodes, n, step);
                }
            }
        }
        nodes.iter().map(|node| node.wrote).sum()
    }

    impl Node {
        /// Whether it asks for an exchange.
        fn write(&mut self, own: usize, speed: u64) -> bool {
            let others: u64 =
                (0..self.known.len()).filter(|n| *n != own).map(|n| self.known[n]).sum();
            let chunk = speed.min(CAP / 1000);
            let mut asks = false;
            for _ in 0..(speed / chunk) {
                if self.wrote + others + chunk > CAP {
                    return asks;
                }
                if !self.budget.allows(chunk, CAP) {
                    return asks || self.budget.has_others();
                }
                asks |= self.budget.grant(chunk, CAP);
                self.wrote += chunk;
            }
            asks
        }

        fn is_round_due(&self, step: usize) -> bool {
            self.last_round
                .is_none_or(|last| step - last >= last.saturating_sub(self.start).clamp(20, 600))
        }
    }

    /// The time between rounds doubles, from a second to 30 s. A requested round follows after 3 s,
    /// or after 100 ms while no other node is known.
    fn round(nodes: &mut [Node], n: usize, step: usize) {
        let pause = if nodes[n].budget.has_others() { 60 } else { 2 };
        let is_asked = !nodes[n].is_round_due(step);
        if is_asked && nodes[n].last_round.is_some_and(|last| step - last < pause) {
            return;
        }
        nodes[n].last_round = Some(step);
        let there = nodes.iter().filter(|node| node.last_round.is_some()).count();
        if there > 1 || nodes[n].budget.is_journal_due(CAP) {
            nodes[n].shown = nodes[n].wrote;
        }
        let shown: Vec<u64> = nodes.iter().map(|node| node.shown).collect();
        let used =
            nodes[n].wrote + (0..shown.len()).filter(|m| *m != n).map(|m| shown[m]).sum::<u64>();
        let node = &mut nodes[n];
        let is_early = step < node.start + 600;
        node.budget.exchanged(Exchange { nodes: there, free: CAP.saturating_sub(used), is_early });
        node.known = shown;
    }
}
