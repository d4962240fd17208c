//! How much of the room below the cap one of several nodes may fill before they have told each other what they wrote. Each node knows of the
//! others' saves by their journals alone: if each took all that it believes to be free, the bucket would hold as many times the cap as there
//! are nodes.
//!
//! An exchange is a round in which a node wrote its journal and read those of the others. Between two of them a node may write half of its part of
//! what was free at the last one; a save beyond that asks for an exchange and waits for it. Before the first exchange nobody knows how many
//! nodes there are. Where little is free, shares end: the evictor makes room then, and the others keep to a little above the cap.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The part of the cap that a node may fill before its first exchange.
const FIRST_PART: u64 = 8;
/// Less than one part in so many of the cap is little.
const LITTLE_PART: u64 = 20;

/// This node's share.
#[derive(Debug, Default)]
pub struct Shares(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// What the last exchange showed.
    last: Option<Exchange>,
    /// Bytes of saves that were let in since then.
    granted: u64,
}

/// What an exchange showed.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// How many nodes there are, this one included.
    pub nodes: usize,
    /// Bytes below the cap that nobody is known to have taken.
    pub free: u64,
}

impl Shares {
    /// An exchange is over.
    pub fn exchanged(&self, exchange: Exchange) {
        *self.state() = State { last: Some(exchange), granted: 0 };
    }

    /// Whether a save of so many bytes is within this node's share of a cap. One save at a time always is.
    pub fn allows(&self, bytes: u64, cap: u64) -> bool {
        let state = self.state();
        let share = match state.last {
            None => cap / FIRST_PART,
            Some(Exchange { nodes: 0 | 1, .. }) => return true,
            Some(Exchange { free, .. }) if free < cap / LITTLE_PART => return true,
            Some(Exchange { nodes, free }) => free / (2 * nodes as u64),
        };
        state.granted == 0 || state.granted.saturating_add(bytes) <= share
    }

    /// A save of so many bytes was let in.
    pub fn grant(&self, bytes: u64) {
        let mut state = self.state();
        state.granted = state.granted.saturating_add(bytes);
    }

    /// Whether there are other nodes, as of the last exchange.
    pub fn has_others(&self) -> bool {
        self.state().last.is_some_and(|last| last.nodes > 1)
    }

    /// Whether other nodes fill room of which much is left: then what each of them writes matters.
    pub fn is_filling(&self, cap: u64) -> bool {
        self.state().last.is_some_and(|last| last.nodes > 1 && last.free >= cap / LITTLE_PART)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_takes_all_and_of_several_each_its_part() {
        let shares = Shares::default();
        assert!(shares.allows(100, 800), "one save");
        shares.grant(60);
        assert!(shares.allows(40, 800) && !shares.allows(41, 800), "an eighth before it is known who is there");
        shares.exchanged(Exchange { nodes: 1, free: 740 });
        shares.grant(740);
        assert!(shares.allows(740, 800) && !shares.has_others());
        shares.exchanged(Exchange { nodes: 2, free: 400 });
        shares.grant(60);
        assert!(shares.allows(40, 800) && !shares.allows(41, 800) && shares.is_filling(800));
        shares.exchanged(Exchange { nodes: 2, free: 39 });
        shares.grant(60);
        assert!(shares.allows(60, 800) && shares.has_others() && !shares.is_filling(800), "who evicts makes room");
    }

    /// Nodes that start within a second on an empty bucket and write as fast as they can; steps of 50 ms. Each round takes a step, in which a node
    /// writes its journal and reads those of the others.
    #[test]
    fn several_nodes_that_start_on_an_empty_bucket_do_not_fill_it_several_times() {
        const CAP: u64 = 1_000_000;
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let count = rng.usize(2..9);
            let starts: Vec<usize> = (0..count).map(|_| rng.usize(0..20)).collect();
            let speed = rng.u64(1..CAP / 200);
            let shares: Vec<Shares> = (0..count).map(|_| Shares::default()).collect();
            let (mut wrote, mut told, mut there) = (vec![0; count], vec![0; count], vec![false; count]);
            let mut known = vec![vec![0; count]; count];
            let (mut last_round, mut pause) = (vec![None; count], vec![20; count]);
            for step in 0..2000 {
                for node in 0..count {
                    if step < starts[node] {
                        continue;
                    }
                    let sum: u64 =
                        (0..count).map(|other| if other == node { wrote[other] } else { known[node][other] }).sum();
                    let chunk = speed.min(CAP / 1000);
                    let mut wants_round = last_round[node].is_none_or(|last| step - last >= pause[node]);
                    for _ in 0..(speed / chunk) {
                        if sum + chunk > CAP {
                            break;
                        }
                        match shares[node].allows(chunk, CAP) {
                            true => {
                                shares[node].grant(chunk);
                                wrote[node] += chunk;
                            }
                            false => wants_round = true,
                        }
                    }
                    // Not more often than once a second, but for the first.
                    if wants_round && last_round[node].is_none_or(|last| step - last >= 20) {
                        (last_round[node], there[node], told[node]) = (Some(step), true, wrote[node]);
                        // The first rounds come soon after each other, and then one every 30 s.
                        pause[node] = (2 * pause[node]).min(600);
                        known[node].clone_from(&told);
                        let nodes = there.iter().filter(|there| **there).count();
                        let used: u64 = told.iter().sum();
                        shares[node].exchanged(Exchange { nodes, free: CAP.saturating_sub(used) });
                    }
                }
            }
            let all: u64 = wrote.iter().sum();
            assert!(all <= CAP * 3 / 2, "seed {seed}: {count} nodes wrote {all}");
        }
    }
}
