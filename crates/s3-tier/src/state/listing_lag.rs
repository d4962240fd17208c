//! Whether listings of the store lag, and what that means for the budget of this node.
//!
//! A node that has stored a journal object and then lists all journals finds it, unless the listing is of
//! an earlier time. Then journals of others may be missing too: a node that finds none may not be alone.
//!
//! Where listings lag, a node younger than [`LAG`] keeps to the limit before its first exchange, whatever it
//! finds. Later several nodes renew their budgets at most once in [`LAG`]: what others stored before their
//! last renewal but one is listed then. Their budgets are half as large (`state::node_budget`).
//!
//! A store whose listings are current is not taken for one that lags, and pays nothing.

use std::time::Duration;

use tokio::time::Instant;

use crate::state::node_budget::NodeBudget;

/// Delay within which stores that lag list a new object.
pub const LAG: Duration = Duration::from_secs(5);
/// So long after the last listing that lacked an object listings count as current again.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// What this node's own journal shows of the store's listings.
#[derive(Debug)]
pub struct ListingLag {
    /// The journal object that the next listing must have, and when it was sent.
    stored: Option<(String, Instant)>,
    /// When a listing lacked one.
    seen: Option<Instant>,
    /// Objects stay for this time. Later they may be merged and deleted.
    objects_stay: Duration,
    /// When this node announced itself, and when its budget was renewed last.
    announced: Instant,
    renewed: Instant,
}

impl ListingLag {
    /// That of a node that has not announced itself yet. Journal objects stay for this time at least.
    pub fn new(objects_stay: Duration) -> Self {
        let now = Instant::now();
        ListingLag { stored: None, seen: None, objects_stay, announced: now, renewed: now }
    }

    /// From now on listings that are current show this node to others.
    pub fn announced(&mut self) {
        self.announced = Instant::now();
        self.renewed = self.announced;
    }

    /// The store has confirmed a journal object that was sent then.
    pub fn stored(&mut self, name: String, sent: Instant) {
        self.stored = Some((name, sent));
    }

    /// All journals were listed.
    pub fn listed(&mut self, has: impl FnOnce(&str) -> bool) {
        let Some((name, sent)) = self.stored.take() else { return };
        if sent.elapsed() < self.objects_stay && !has(&name) {
            self.seen = Some(Instant::now());
        }
    }

    /// Whether listings lag, as far as seen lately.
    pub fn is_seen(&self) -> bool {
        self.seen.is_some_and(|seen| seen.elapsed() < FORGOTTEN)
    }

    /// An exchange ended. When the budget may be renewed, unless now.
    pub fn puts_off_renewal(&self, budget: &NodeBudget) -> Option<Instant> {
        let is_new = self.announced.elapsed() < LAG;
        if !self.is_seen() || !(is_new || budget.has_others()) {
            return None;
        }
        if is_new {
            // By chance an earlier listing may have had all that was stored, but for other nodes.
            budget.forget_exchange();
        }
        Some(self.renewed + LAG).filter(|due| *due > Instant::now())
    }

    /// The budget was renewed.
    pub fn renewed(&mut self) {
        self.renewed = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::state::node_budget::Exchange;
    use crate::state::node_budget::fill_model::{self, CAP};

    #[tokio::test(start_paused = true)]
    async fn a_listing_lags_that_lacks_what_was_stored_before() {
        let mut lag = ListingLag::new(Duration::from_secs(30));
        lag.listed(|_| false);
        assert!(!lag.is_seen(), "nothing was stored");
        lag.stored("a/1".into(), Instant::now());
        lag.listed(|name| name == "a/1");
        lag.listed(|_| false);
        assert!(!lag.is_seen(), "it was listed at once, and may be deleted since");
        lag.stored("a/2".into(), Instant::now());
        advance(Duration::from_secs(30)).await;
        lag.listed(|_| false);
        assert!(!lag.is_seen(), "it may be merged and deleted");
        lag.stored("a/3".into(), Instant::now());
        lag.listed(|name| name == "a/2");
        assert!(lag.is_seen());
        advance(Duration::from_secs(59)).await;
        assert!(lag.is_seen());
        advance(Duration::from_secs(1)).await;
        assert!(!lag.is_seen(), "nothing latches");
    }

    #[tokio::test(start_paused = true)]
    async fn where_listings_lag_a_new_node_waits_and_several_renew_their_budgets_seldom() {
        let second = Duration::from_secs(1);
        let budget = NodeBudget::default();
        let alone = Exchange { nodes: 1, free: 800, ..Exchange::default() };
        let mut lag = ListingLag::new(Duration::from_secs(30));
        lag.announced();
        let announced = Instant::now();
        assert_eq!(lag.puts_off_renewal(&budget), None, "no lag is seen");
        budget.exchanged(alone);
        budget.grant(1, 800);
        assert!(budget.allows(800, 800));
        lag.stored("a/1".into(), Instant::now());
        lag.listed(|_| false);
        assert_eq!(lag.puts_off_renewal(&budget), Some(announced + LAG));
        assert!(!budget.allows(100, 800), "an eighth, as before the first exchange");
        advance(LAG).await;
        assert_eq!(lag.puts_off_renewal(&budget), None);
        budget.exchanged(alone);
        lag.renewed();
        assert_eq!(lag.puts_off_renewal(&budget), None, "it is alone");
        budget.exchanged(Exchange { nodes: 2, ..alone });
        lag.renewed();
        advance(4 * second).await;
        assert_eq!(lag.puts_off_renewal(&budget), Some(Instant::now() + second));
        assert!(budget.has_others(), "its budget stays");
        advance(second).await;
        assert_eq!(lag.puts_off_renewal(&budget), None);
        lag.renewed();
        advance(FORGOTTEN - 2 * LAG - second).await;
        lag.renewed();
        advance(second).await;
        assert_eq!(lag.puts_off_renewal(&budget), None, "no lag was seen for a minute");
    }

    /// A step of the simulation.
    const STEP: Duration = Duration::from_millis(50);

    /// Nodes that start within a second, on a store that lists each object up to a second late, or at
    /// once. Each writes so fast that it alone would fill the cap in 1 to 10 s.
    #[tokio::test(start_paused = true)]
    async fn nodes_that_start_together_fill_a_bucket_whose_listings_lag_once() {
        for seed in 0..40 {
            for lag_max in [0, 20] {
                let wrote = bytes_written(seed, lag_max).await;
                let (least, most) = (CAP * 4 / 5, CAP * 4 / 3);
                assert!((least..=most).contains(&wrote), "seed {seed}, lag {lag_max}: {wrote}");
            }
        }
    }

    struct Node {
        budget: NodeBudget,
        lag: ListingLag,
        start: usize,
        wrote: u64,
        /// When each journal is listed, and what the node had written by then.
        journals: Vec<(usize, u64)>,
        /// What others had written, as far as it has read.
        known: u64,
        last_round: Option<usize>,
    }

    async fn bytes_written(seed: u64, lag_max: usize) -> u64 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let count = rng.usize(2..9);
        let speed = CAP / rng.u64(20..200);
        let mut nodes: Vec<Node> = (0..count).map(|_| Node::new(rng.usize(0..20))).collect();
        for step in 0..2000 {
            for n in 0..count {
                if nodes[n].start == step {
                    nodes[n].lag.announced();
                }
                let is_on = step >= nodes[n].start;
                if is_on && (nodes[n].write(speed) | nodes[n].is_round_due(step)) {
                    round(&mut nodes, n, step, rng.usize(0..=lag_max));
                }
            }
            advance(STEP).await;
        }
        nodes.iter().map(|node| node.wrote).sum()
    }

    impl Node {
        fn new(start: usize) -> Self {
            Node {
                budget: NodeBudget::default(),
                lag: ListingLag::new(Duration::from_secs(90)),
                start,
                wrote: 0,
                journals: Vec::new(),
                known: 0,
                last_round: None,
            }
        }

        fn write(&mut self, speed: u64) -> bool {
            fill_model::write(&self.budget, &mut self.wrote, self.known, speed)
        }

        fn is_round_due(&self, step: usize) -> bool {
            fill_model::is_round_due(self.start, self.last_round, step)
        }

        /// What a listing shows of it: how much it had written.
        fn shown(&self, step: usize) -> Option<u64> {
            self.journals.iter().filter(|(from, _)| *from <= step).map(|(_, wrote)| *wrote).max()
        }
    }

    /// A requested round follows after 3 s, or
    /// after 100 ms while no other node is known.
    fn round(nodes: &mut [Node], n: usize, step: usize, late: usize) {
        let pause = if nodes[n].budget.has_others() { 60 } else { 2 };
        let is_soon = nodes[n].last_round.is_some_and(|last| step - last < pause);
        if !nodes[n].is_round_due(step) && is_soon {
            return;
        }
        let others: Vec<u64> =
            (0..nodes.len()).filter(|m| *m != n).filter_map(|m| nodes[m].shown(step)).collect();
        let node = &mut nodes[n];
        let is_first = node.last_round.replace(step).is_none();
        if is_first || !others.is_empty() || node.budget.is_journal_due(CAP) {
            node.journals.push((step + late, node.wrote));
            node.lag.stored(step.to_string(), Instant::now());
        }
        node.lag.listed(|_| late == 0);
        node.known = others.iter().sum();
        if node.lag.puts_off_renewal(&node.budget).is_none() {
            node.budget.exchanged(Exchange {
                nodes: 1 + others.len(),
                free: CAP.saturating_sub(node.wrote + node.known),
                is_early: step < node.start + 600,
                is_by_totals: false,
                listings_lag: node.lag.is_seen(),
                holds_until: None,
            });
            node.lag.renewed();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_new_from_when_it_announces_itself() {
        let budget = NodeBudget::default();
        let mut lag = ListingLag::new(Duration::from_secs(30));
        lag.stored("a/1".into(), Instant::now());
        lag.listed(|_| false);
        advance(LAG).await;
        assert_eq!(lag.puts_off_renewal(&budget), None);
        lag.announced();
        assert_eq!(lag.puts_off_renewal(&budget), Some(Instant::now() + LAG));
    }
}
