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
//! An exchange holds for twice the time until the next round, and a little more. A process that was stopped
//! meanwhile (not suspended with its machine, whose clock stands still then) goes on with what it had seen
//! before: until its next exchange it writes no more than before the first.
//!
//! In a large fleet a node reads what the evictor counts for all (`FleetTotals`) in place of the
//! journals of the others. Its budget is then renewed by newer totals alone, and is a quarter of its
//! part: the totals may lack what each node saved between its last two rounds and the one before, and
//! it saves on. The part is of what is free below the cap and a twentieth more, so budgets do not end
//! when little is free. Whatever the number of nodes, they pass the cap by a twentieth together, and
//! by one chunk each.
//!
//! Without totals, when little is free, budgets end: the evictor frees space then, and the others keep close to the
//! cap by `NodeState::reserve`.
//!
//! Where listings lag, budgets are half as large and renewed later (`state::listing_lag`): an exchange
//! may lack what others wrote shortly before.
//!
//! A simulation in the tests runs up to eight nodes that start within a second of each other; each alone
//! would fill the cap in 1 to 10 s.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// The part of the cap that a node may fill before its first exchange.
const FIRST_PART: u64 = 8;
/// Less free space than this part of the cap is little. By as much a large fleet may pass the cap.
const LITTLE_PART: u64 = 20;
/// Times that each node may fill its budget before all others have read of it.
const WINDOWS: u64 = 2;
/// Times that each node may fill its budget before the totals show it, and one more.
const TOTALS_WINDOWS: u64 = 4;

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
#[derive(Clone, Copy, Default, Debug)]
pub struct Exchange {
    /// How many nodes there are, this one included.
    pub nodes: usize,
    /// Bytes below the cap that no node is known to use.
    pub free: u64,
    /// The node started less than an interval ago: others that started with it may be unseen yet.
    pub is_early: bool,
    /// The evictor counted for all. `free` is then up to the cap and a twentieth more.
    pub is_by_totals: bool,
    /// Listings lag: it may lack what others wrote in the time before.
    pub listings_lag: bool,
    /// Until when it holds; `None` for ever.
    pub holds_until: Option<Instant>,
}

impl NodeBudget {
    /// An exchange ended.
    pub fn exchanged(&self, exchange: Exchange) {
        let mut state = self.state();
        let counts_on = state.last.is_none() && !exchange.listings_lag;
        let granted = if counts_on { state.granted } else { 0 };
        *state = State { last: Some(exchange), granted };
    }

    /// The exchange may have shown too few nodes: the limit is that before the first one again.
    pub fn forget_exchange(&self) {
        self.state().last = None;
    }

    /// Whether a save of `bytes` is within this node's budget. One save at a time always
    /// is, in a large fleet as long as anything is free.
    pub fn allows(&self, bytes: u64, cap: u64) -> bool {
        let state = self.state();
        let first = cap / FIRST_PART;
        // A large chunk must not be stuck. But if all nodes of a large fleet write one more chunk after
        // each exchange, nothing bounds them.
        let mut one_is_allowed = true;
        let budget = match state.last {
            None => first,
            Some(Exchange { nodes: 0 | 1, .. }) => u64::MAX,
            Some(exchange @ Exchange { nodes, free, is_by_totals: true, .. }) => {
                one_is_allowed = free > 0;
                free / (exchange.windows() * nodes as u64)
            }
            Some(Exchange { free, .. }) if free < cap / LITTLE_PART => u64::MAX,
            Some(exchange) => exchange.free / (exchange.windows() * exchange.nodes as u64),
        };
        let budget = if state.needs_exchange() { budget.min(first) } else { budget };
        (one_is_allowed && state.granted == 0) || state.granted.saturating_add(bytes) <= budget
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

    /// Whether there was none yet, or the last one holds no more.
    pub fn needs_exchange(&self) -> bool {
        self.state().needs_exchange()
    }

    /// Whether this node writes its journal in an early round: others exist, or may start soon and
    /// need it.
    pub fn is_journal_due(&self, cap: u64) -> bool {
        let state = self.state();
        let writes_much = state.is_early_and_alone() && state.granted > cap / FIRST_PART;
        writes_much || state.last.is_none_or(|last| last.nodes > 1)
    }

    /// Whether several nodes fill much free space, or may: then each reads the journals of all.
    pub fn is_filling(&self, cap: u64) -> bool {
        let is_filling =
            |last: Exchange| !last.is_by_totals && last.nodes > 1 && last.free >= cap / LITTLE_PART;
        self.state().last.is_none_or(is_filling)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exchange {
    /// One in which the evictor's count of all `nodes` was read.
    pub fn by_totals(nodes: usize, used: u64, cap: u64) -> Self {
        let free = cap.saturating_add(cap / LITTLE_PART).saturating_sub(used);
        Exchange { nodes, free, is_by_totals: true, ..Exchange::default() }
    }

    /// How many budgets of each node the free space must bear until all have seen what was written.
    fn windows(self) -> u64 {
        let windows = if self.is_by_totals { TOTALS_WINDOWS } else { WINDOWS };
        if self.listings_lag { 2 * windows } else { windows }
    }
}

impl State {
    fn needs_exchange(&self) -> bool {
        let has_expired = |last: Exchange| last.holds_until.is_some_and(|end| Instant::now() > end);
        self.last.is_none_or(has_expired)
    }

    fn is_early_and_alone(&self) -> bool {
        self.last.is_some_and(|last| last.nodes <= 1 && last.is_early)
    }
}

/// How a node of a model fills an empty bucket. A step has 50 ms.
#[cfg(test)]
pub(super) mod fill_model {
    use super::NodeBudget;

    pub const CAP: u64 = 1_000_000;

    /// A node writes up to `speed` bytes, as far as its budget and the cap allow. Answers whether it
    /// asks for an exchange. `others` is what it has read of the others.
    pub fn write(budget: &NodeBudget, wrote: &mut u64, others: u64, speed: u64) -> bool {
        let chunk = speed.min(CAP / 1000);
        let mut asks = false;
        for _ in 0..(speed / chunk) {
            if *wrote + others + chunk > CAP {
                return asks;
            }
            if !budget.allows(chunk, CAP) {
                return asks || budget.has_others();
            }
            asks |= budget.grant(chunk, CAP);
            *wrote += chunk;
        }
        asks
    }

    /// The time between rounds doubles, from a second to 30 s.
    pub fn is_round_due(start: usize, last_round: Option<usize>, step: usize) -> bool {
        last_round.is_none_or(|last| step - last >= last.saturating_sub(start).clamp(20, 600))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::fill_model::CAP;
    use super::*;

    #[test]
    fn one_node_takes_all_and_of_several_each_its_part() {
        let budget = NodeBudget::default();
        let alone = Exchange { nodes: 1, free: 740, is_early: true, ..Exchange::default() };
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
        budget.exchanged(Exchange { nodes: 2, free: 400, ..Exchange::default() });
        budget.grant(60, 800);
        assert!(budget.allows(40, 800) && !budget.allows(41, 800) && budget.is_filling(800));
        budget.exchanged(Exchange { nodes: 2, free: 39, ..Exchange::default() });
        budget.grant(60, 800);
        assert!(
            budget.allows(60, 800) && budget.has_others() && !budget.is_filling(800),
            "the evictor frees space"
        );
    }

    #[test]
    fn a_twentieth_of_the_cap_is_not_little() {
        let budget = NodeBudget::default();
        budget.exchanged(Exchange { nodes: 2, free: 40, ..Exchange::default() });
        budget.grant(10, 800);
        assert!(!budget.allows(1, 800) && budget.is_filling(800));
    }

    #[test]
    fn a_node_writes_its_journal_early_for_others_or_after_more_than_an_eighth_of_the_cap() {
        let budget = NodeBudget::default();
        let alone = Exchange { nodes: 1, free: 800, is_early: true, ..Exchange::default() };
        budget.exchanged(alone);
        budget.grant(100, 800);
        assert!(!budget.is_journal_due(800) && !budget.is_filling(800), "an eighth");
        budget.grant(1, 800);
        assert!(budget.is_journal_due(800));
        budget.exchanged(Exchange { nodes: 2, is_early: false, ..alone });
        assert!(budget.is_journal_due(800));
    }

    #[test]
    fn where_listings_lag_the_budget_is_half_as_large() {
        let budget = NodeBudget::default();
        let two = Exchange { nodes: 2, free: 400, listings_lag: true, ..Exchange::default() };
        budget.grant(100, 800);
        budget.exchanged(two);
        assert!(budget.allows(50, 800), "what was granted before is in journals");
        budget.grant(1, 800);
        assert!(budget.allows(49, 800) && !budget.allows(50, 800));
        budget.exchanged(Exchange { listings_lag: true, ..Exchange::by_totals(10, 640, 800) });
        budget.grant(1, 800);
        assert!(budget.allows(1, 800) && !budget.allows(2, 800), "an eightieth of 200");
        budget.exchanged(Exchange { nodes: 1, ..two });
        budget.grant(60, 800);
        budget.forget_exchange();
        assert!(budget.allows(40, 800) && !budget.allows(41, 800) && !budget.has_others());
        assert!(budget.is_journal_due(800) && budget.is_filling(800), "it looks for others");
    }

    #[tokio::test(start_paused = true)]
    async fn what_an_exchange_showed_does_not_hold_after_a_stop() {
        let second = Duration::from_secs(1);
        let budget = NodeBudget::default();
        assert!(budget.needs_exchange());
        let until = |end| Exchange { holds_until: Some(end), ..Exchange::default() };
        budget.exchanged(Exchange { nodes: 1, free: 800, ..until(Instant::now() + second) });
        budget.grant(60, 800);
        advance(second).await;
        assert!(budget.allows(740, 800) && !budget.needs_exchange());
        advance(second).await;
        assert!(budget.needs_exchange());
        assert!(budget.allows(40, 800) && !budget.allows(41, 800), "an eighth in all");
        budget.exchanged(Exchange { nodes: 4, free: 400, ..until(Instant::now()) });
        budget.grant(10, 800);
        advance(second).await;
        assert!(budget.allows(40, 800) && !budget.allows(41, 800), "never more than before");
        budget.exchanged(Exchange { nodes: 2, free: 800, ..until(Instant::now() + second) });
        assert!(budget.allows(200, 800), "nothing latches");
    }

    #[test]
    fn the_budget_of_a_large_fleet_is_a_part_of_what_the_evictor_counts_as_free() {
        let budget = NodeBudget::default();
        // 800 and a twentieth more, without 640: of the remaining 200 each of 10 nodes a 40th.
        budget.exchanged(Exchange::by_totals(10, 640, 800));
        budget.grant(2, 800);
        assert!(budget.allows(3, 800) && !budget.allows(4, 800));
        assert!(budget.has_others() && !budget.is_filling(800), "it reads no journals of others");
        budget.exchanged(Exchange::by_totals(10, 800, 800));
        budget.grant(1, 800);
        assert!(!budget.allows(1, 800), "the budget does not end when little is free");
        budget.exchanged(Exchange::by_totals(10, 839, 800));
        assert!(budget.allows(500, 800), "one large chunk, as long as anything is free");
        budget.grant(1, 800);
        assert!(!budget.allows(1, 800));
        budget.exchanged(Exchange::by_totals(10, 840, 800));
        assert!(!budget.allows(1, 800), "and none after that");
    }

    /// Nodes of a large fleet write as fast as they may. Each round of theirs writes the journal,
    /// then reads the totals. The evictor counts what is in journals, at its own times.
    #[test]
    fn a_large_fleet_passes_the_cap_by_a_twentieth_at_most() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let count = rng.usize(9..60);
            let mut nodes: Vec<FleetNode> = (0..count).map(|_| FleetNode::default()).collect();
            let (mut totals, mut version) = (0, 0);
            for _ in 0..5000 {
                let at = rng.usize(..count + 1);
                if at == count {
                    totals = nodes.iter().map(|node| node.shown).sum();
                    version += 1;
                    continue;
                }
                let node = &mut nodes[at];
                match rng.u32(..3) {
                    0 => {
                        node.shown = node.wrote;
                        if node.version != version {
                            node.version = version;
                            node.budget.exchanged(Exchange::by_totals(count, totals, CAP));
                        }
                    }
                    _ => node.write(rng.u64(1..CAP / 500)),
                }
            }
            let wrote: u64 = nodes.iter().map(|node| node.wrote).sum();
            let one_each = count as u64 * CAP / 500;
            assert!(wrote <= CAP + CAP / 20 + one_each, "seed {seed}: {wrote} of {CAP}");
            assert!(wrote >= CAP / 2, "seed {seed}: {wrote} of {CAP}");
        }
    }

    #[derive(Default)]
    struct FleetNode {
        budget: NodeBudget,
        wrote: u64,
        /// The bytes in its journals.
        shown: u64,
        /// The totals that it has read.
        version: u64,
    }

    impl FleetNode {
        fn write(&mut self, bytes: u64) {
            // Before the first exchange an eighth of the cap is allowed, which is another promise.
            if self.version > 0 && self.budget.allows(bytes, CAP) {
                self.budget.grant(bytes, CAP);
                self.wrote += bytes;
            }
        }
    }

    /// Nodes that start within a second on an empty bucket. Each writes so fast that it alone would
    /// fill the cap in 1 to 10 s. A step takes 50 ms. In a round a node writes its journal and
    /// reads those of the others.
    #[test]
    fn several_nodes_that_start_on_an_empty_bucket_do_not_fill_it_several_times() {
        let most = (0..400).map(bytes_written).max();
        assert!(most <= Some(CAP * 5 / 4), "{most:?} of {CAP}");
    }

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
        fn write(&mut self, own: usize, speed: u64) -> bool {
            let others = (0..self.known.len()).filter(|n| *n != own).map(|n| self.known[n]).sum();
            fill_model::write(&self.budget, &mut self.wrote, others, speed)
        }

        fn is_round_due(&self, step: usize) -> bool {
            fill_model::is_round_due(self.start, self.last_round, step)
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
        node.budget.exchanged(Exchange {
            nodes: there,
            free: CAP.saturating_sub(used),
            is_early,
            ..Exchange::default()
        });
        node.known = shown;
    }
}
