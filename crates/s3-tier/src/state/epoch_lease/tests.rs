use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use fastrand::Rng;

use super::*;

const TERM_MS: u64 = 30_000;

/// An epoch's object: whose claim made it, and when it was written last by the store's clock.
#[derive(Clone, Copy)]
struct Object {
    owner: (usize, u64),
    modified_ms: u64,
    free: bool,
}

struct Node {
    lease: EpochLease,
    /// How far its clock is from the true time.
    offset_ms: u64,
    alive: bool,
    claims: u64,
    /// The request whose answer it waits for; later answers to others are ignored.
    waits: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Ask {
    List,
    Claim(u64, u64),
    Read(u64, u64),
    Renew(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    Turn(usize),
    /// A request reaches the store; its answer, if one comes, takes this long.
    Arrive {
        node: usize,
        request: u64,
        sent_ms: u64,
        ask: Ask,
        back_ms: Option<u64>,
    },
    Answer {
        node: usize,
        request: u64,
        sent_ms: u64,
        ask: Ask,
        said: (Option<u64>, u64, bool),
    },
    GiveUp {
        node: usize,
        request: u64,
        sent_ms: u64,
        ask: Ask,
    },
}

/// Nodes, a store, and a network that delays, loses and repeats nothing.
struct World {
    rng: Rng,
    now_ms: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    nodes: Vec<Node>,
    store: BTreeMap<u64, Object>,
    store_offset_ms: u64,
    /// Requests of a hundred that are lost or take very long.
    bad: u8,
    slow_ms: u64,
}

impl World {
    fn new(seed: u64, nodes: usize, bad: u8) -> Self {
        let mut rng = Rng::with_seed(seed);
        let node = |rng: &mut Rng| Node {
            lease: EpochLease::new(TERM_MS),
            offset_ms: rng.u64(0..1 << 40),
            alive: true,
            claims: 0,
            waits: 0,
        };
        let nodes = (0..nodes).map(|_| node(&mut rng)).collect::<Vec<_>>();
        let store_offset_ms = rng.u64(0..1 << 40);
        let events = BinaryHeap::new();
        let store = BTreeMap::new();
        let mut world = World {
            rng,
            now_ms: 1,
            events,
            scheduled: 0,
            nodes,
            store,
            store_offset_ms,
            bad,
            slow_ms: 500,
        };
        for node in 0..world.nodes.len() {
            let begins = world.rng.u64(0..TERM_MS);
            world.at(begins, Event::Turn(node));
        }
        world
    }

    fn at(&mut self, after_ms: u64, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((self.now_ms + after_ms, self.scheduled, event)));
    }

    fn delay(&mut self) -> u64 {
        match self.rng.u8(0..100) < self.bad {
            true => self.rng.u64(0..3 * TERM_MS),
            false => self.rng.u64(0..self.slow_ms),
        }
    }

    fn lost(&mut self) -> bool {
        self.rng.u8(0..100) < self.bad
    }

    /// One event; returns the nodes that may act then.
    fn step(&mut self) -> Vec<usize> {
        let Some(Reverse((now_ms, _, event))) = self.events.pop() else { return Vec::new() };
        self.now_ms = now_ms;
        match event {
            Event::Turn(node) => self.turn(node),
            Event::Arrive { node, request, sent_ms, ask, back_ms } => {
                let said = self.serve(node, ask);
                if let Some(back_ms) = back_ms {
                    self.at(back_ms, Event::Answer { node, request, sent_ms, ask, said });
                }
            }
            Event::Answer { node, request, sent_ms, ask, said } => {
                self.receive(node, request, sent_ms, ask, Some(said))
            }
            Event::GiveUp { node, request, sent_ms, ask } => {
                self.receive(node, request, sent_ms, ask, None)
            }
        }
        let acts = |node: &Node| node.alive && node.lease.may_act(self.now_ms + node.offset_ms);
        (0..self.nodes.len()).filter(|at| acts(&self.nodes[*at])).collect()
    }

    fn turn(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if !node.alive {
            return;
        }
        let clock = self.now_ms + node.offset_ms;
        let ask = match node.lease.next(clock) {
            LeaseStep::Wait { until_ms } => return self.at(until_ms - clock, Event::Turn(at)),
            LeaseStep::List => Ask::List,
            LeaseStep::Claim { epoch } => {
                node.claims += 1;
                Ask::Claim(epoch, node.claims)
            }
            LeaseStep::Read { epoch } => Ask::Read(epoch, node.claims),
            LeaseStep::Renew { epoch } => Ask::Renew(epoch),
        };
        node.waits += 1;
        let request = node.waits;
        let back_ms = if self.lost() { None } else { Some(self.delay()) };
        if !self.lost() {
            let there_ms = self.delay();
            self.at(there_ms, Event::Arrive { node: at, request, sent_ms: clock, ask, back_ms });
        }
        self.at(TERM_MS / 4, Event::GiveUp { node: at, request, sent_ms: clock, ask });
    }

    fn serve(&mut self, node: usize, ask: Ask) -> (Option<u64>, u64, bool) {
        let clock = self.now_ms + self.store_offset_ms;
        match ask {
            Ask::List => {
                let top = self.store.last_key_value();
                let age = top.map_or(0, |(_, object)| {
                    (clock / 1000).saturating_sub(object.modified_ms / 1000)
                });
                (top.map(|(epoch, _)| *epoch), age, top.is_some_and(|(_, object)| object.free))
            }
            Ask::Claim(epoch, claim) => {
                let free = !self.store.contains_key(&epoch);
                let object = Object { owner: (node, claim), modified_ms: clock, free: false };
                self.store.entry(epoch).or_insert(object);
                (None, 0, free)
            }
            Ask::Read(epoch, claim) => (
                None,
                0,
                self.store.get(&epoch).is_some_and(|object| object.owner == (node, claim)),
            ),
            Ask::Renew(epoch) => {
                if let Some(object) = self.store.get_mut(&epoch) {
                    object.modified_ms = clock;
                }
                (None, 0, true)
            }
        }
    }

    fn receive(
        &mut self,
        at: usize,
        request: u64,
        sent_ms: u64,
        ask: Ask,
        said: Option<(Option<u64>, u64, bool)>,
    ) {
        let node = &mut self.nodes[at];
        if !node.alive || node.waits != request {
            return;
        }
        node.waits += 1;
        let clock = self.now_ms + node.offset_ms;
        match (ask, said) {
            (Ask::List, Some((epoch, age, free))) => {
                let top = epoch.map(|epoch| TopEpoch {
                    epoch,
                    age_s: Some(age.cast_signed()),
                    unchanged_ms: 0,
                    free,
                });
                node.lease.listed(clock, top);
            }
            (Ask::Claim(..), Some((_, _, true))) => node.lease.claimed(sent_ms, ClaimOutcome::Ours),
            (Ask::Claim(..), _) => node.lease.claimed(sent_ms, ClaimOutcome::Unclear),
            (Ask::Read(..), Some((_, _, ours))) => node.lease.read(clock, ours),
            (Ask::Renew(_), Some(_)) => node.lease.renewed(sent_ms, clock),
            (_, None) => node.lease.failed(clock),
        }
        let pause = if said.is_none() { TERM_MS / 16 } else { 0 };
        self.at(pause, Event::Turn(at));
    }
}

fn seeds(some: u64) -> u64 {
    std::env::var("KVTIER_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(some)
}

#[test]
fn fault_seeds_two_never_act_at_once_whatever_their_clocks_and_the_network_do() {
    let mut acted = 0u64;
    let mut changed = 0u64;
    for seed in 0..seeds(300) {
        let mut world = World::new(seed, 2 + seed as usize % 4, [0, 2, 10, 30][seed as usize % 4]);
        let mut last = None;
        while world.now_ms < 40 * TERM_MS {
            let acting = world.step();
            assert!(acting.len() < 2, "seed {seed}, at {} ms: {acting:?}", world.now_ms);
            acted += acting.len() as u64;
            changed +=
                u64::from(acting.first().is_some_and(|who| last.replace(*who) != Some(*who)));
            // Nodes die and come back with another clock, as new ones.
            if world.rng.u16(0..500) == 0 {
                let node = world.rng.usize(0..world.nodes.len());
                let claims = world.nodes[node].claims + 1000;
                let offset_ms = world.rng.u64(0..1 << 40);
                let lease = EpochLease::new(TERM_MS);
                let waits = world.nodes[node].waits + 1000;
                world.nodes[node] = Node { lease, offset_ms, alive: true, claims, waits };
                world.at(0, Event::Turn(node));
            }
        }
    }
    assert!(acted > 10_000 && changed > 500, "the model is idle: {acted}, {changed}");
}

#[test]
fn fault_seeds_a_dead_holder_is_followed_within_two_terms() {
    for seed in 0..seeds(300) {
        let mut world = World::new(seed, 3, 0);
        let killed_at = TERM_MS * 3 + world.rng.u64(0..TERM_MS);
        let mut acting = Vec::new();
        while world.now_ms < killed_at {
            acting = world.step();
        }
        let dead = acting[0];
        world.nodes[dead].alive = false;
        let died_ms = world.now_ms;
        while world.step().is_empty() {}
        let after = world.now_ms - died_ms;
        assert!(after <= 2 * TERM_MS, "seed {seed}: after {after} ms");
    }
}

fn lease_that_looks(now_ms: u64) -> EpochLease {
    let mut lease = EpochLease::new(TERM_MS);
    assert_eq!(lease.next(now_ms), LeaseStep::List);
    lease
}

#[test]
fn one_that_was_given_up_is_taken_at_once_and_a_young_one_never() {
    let top = |age: i64, free| Some(TopEpoch { epoch: 7, age_s: Some(age), unchanged_ms: 0, free });
    let mut lease = EpochLease::new(TERM_MS);
    assert_eq!(lease.next(0), LeaseStep::List);
    lease.listed(0, top(30, false));
    assert_eq!(lease.next(0), LeaseStep::Wait { until_ms: TERM_MS / 4 });
    lease.listed(8_000, Some(TopEpoch { epoch: 7, age_s: None, unchanged_ms: 0, free: false }));
    assert!(matches!(lease.next(8_000), LeaseStep::Wait { .. }), "without a time there is no age");
    lease.listed(8_000, top(-500, false));
    assert!(matches!(lease.next(8_000), LeaseStep::Wait { .. }));
    let mut future = lease_that_looks(8_000);
    let same =
        |unchanged_ms| Some(TopEpoch { epoch: 7, age_s: Some(-500), unchanged_ms, free: false });
    future.listed(8_000, same(2 * TERM_MS - 1));
    assert!(matches!(future.next(8_000), LeaseStep::Wait { .. }));
    future.listed(8_000, same(2 * TERM_MS));
    assert_eq!(
        future.next(8_000),
        LeaseStep::Claim { epoch: 8 },
        "it is not renewed, whatever its time is"
    );
    lease.listed(8_000, top(0, true));
    assert_eq!(lease.next(8_000), LeaseStep::Claim { epoch: 8 });
}

#[test]
fn a_holder_without_answers_stops_after_half_a_term_and_does_not_renew_any_more() {
    let mut lease = EpochLease::new(TERM_MS);
    lease.listed(0, None);
    assert_eq!(lease.next(0), LeaseStep::Claim { epoch: 1 });
    lease.claimed(0, ClaimOutcome::Ours);
    assert!(!lease.may_act(1), "a higher epoch may exist");
    lease.listed(10, Some(TopEpoch { epoch: 1, age_s: Some(0), unchanged_ms: 0, free: false }));
    assert!(lease.may_act(10) && lease.held(10) == Some(1));
    lease.failed(9_000);
    assert!(lease.may_act(TERM_MS / 2 - 1) && !lease.may_act(TERM_MS / 2));
    assert!(!matches!(lease.next(TERM_MS / 2), LeaseStep::Renew { .. }));
    lease.renewed(TERM_MS / 2 - 1, TERM_MS / 2 + 1);
    assert!(
        !lease.may_act(TERM_MS / 2 + 1),
        "an answer that comes after the end brings nothing back"
    );
}

#[test]
fn after_a_failure_it_tries_again_soon_and_not_at_once() {
    let soon = TERM_MS / 16;
    let ours = Some(TopEpoch { epoch: 1, age_s: Some(0), unchanged_ms: 0, free: false });
    let mut lease = lease_that_looks(0);
    lease.failed(0);
    assert_eq!(lease.next(0), LeaseStep::Wait { until_ms: soon });
    assert_eq!(lease.next(soon), LeaseStep::List);
    lease.listed(soon, None);
    assert_eq!(lease.next(soon), LeaseStep::Claim { epoch: 1 });
    lease.failed(soon);
    let later = soon + TERM_MS / 4;
    assert_eq!(
        lease.next(soon),
        LeaseStep::Wait { until_ms: later },
        "another may have claimed it"
    );
    let mut holder = lease_that_looks(0);
    holder.listed(0, None);
    holder.claimed(0, ClaimOutcome::Ours);
    (0..2).for_each(|_| holder.listed(10, ours));
    let due = TERM_MS / 4;
    assert_eq!(holder.next(due), LeaseStep::Renew { epoch: 1 });
    holder.failed(due);
    assert_eq!(holder.next(due), LeaseStep::Wait { until_ms: due + soon });
    assert_eq!(holder.next(due + soon), LeaseStep::Renew { epoch: 1 });
}

#[test]
fn a_higher_epoch_ends_it() {
    let mut lease = EpochLease::new(TERM_MS);
    lease.listed(0, None);
    lease.claimed(0, ClaimOutcome::Unclear);
    assert_eq!(lease.next(1), LeaseStep::Read { epoch: 1 });
    lease.read(1, true);
    lease.listed(2, Some(TopEpoch { epoch: 1, age_s: Some(0), unchanged_ms: 0, free: false }));
    assert!(lease.may_act(2));
    lease.renewed(3, 4);
    lease.listed(5, Some(TopEpoch { epoch: 2, age_s: Some(0), unchanged_ms: 0, free: false }));
    assert!(!lease.may_act(5));
}

#[test]
fn a_claim_is_to_be_released_before_it_is_confirmed() {
    let mut lease = EpochLease::new(TERM_MS);
    assert_eq!(lease.unreleased(), None);
    lease.listed(0, None);
    assert_eq!(lease.unreleased(), None, "nothing was sent yet");
    lease.claimed(0, ClaimOutcome::Unclear);
    assert_eq!(lease.unreleased(), Some(Unreleased { epoch: 1, is_ours: false }));
    lease.read(1, true);
    assert_eq!(lease.unreleased(), Some(Unreleased { epoch: 1, is_ours: true }));
    lease.listed(2, Some(TopEpoch { epoch: 1, age_s: Some(0), unchanged_ms: 0, free: false }));
    assert_eq!(lease.unreleased(), Some(Unreleased { epoch: 1, is_ours: true }));
    lease.give_up(3);
    assert_eq!(lease.unreleased(), None);
}

/// Its maker dies between the claim and its confirmation: the object stays, and its age decides for
/// the next node.
#[test]
fn a_claim_whose_maker_died_is_followed_within_two_terms() {
    for opened_ms in (0..=TERM_MS).step_by(250) {
        let mut next = EpochLease::new(TERM_MS);
        let mut now_ms = opened_ms;
        let taken_ms = loop {
            match next.next(now_ms) {
                LeaseStep::Wait { until_ms } => now_ms = until_ms,
                LeaseStep::List => {
                    let age_s = Some((now_ms / 1000).cast_signed());
                    next.listed(
                        now_ms,
                        Some(TopEpoch { epoch: 1, age_s, unchanged_ms: 0, free: false }),
                    );
                }
                LeaseStep::Claim { epoch } => {
                    assert_eq!(epoch, 2);
                    break now_ms;
                }
                step => panic!("{step:?} without a claim"),
            }
        };
        assert!(
            (TERM_MS..=2 * TERM_MS).contains(&taken_ms),
            "opened at {opened_ms}, taken at {taken_ms} ms"
        );
    }
}

#[test]
fn a_claim_that_listings_do_not_show_yet_is_looked_for_until_it_is_too_old() {
    let top = |epoch| Some(TopEpoch { epoch, age_s: Some(30), unchanged_ms: 0, free: epoch == 6 });
    let claimed = || {
        let mut lease = lease_that_looks(0);
        lease.listed(0, top(6));
        assert_eq!(lease.next(0), LeaseStep::Claim { epoch: 7 });
        lease.claimed(0, ClaimOutcome::Ours);
        assert_eq!(lease.next(1), LeaseStep::List, "at once");
        lease.listed(10, top(6));
        assert!(!lease.may_act(10), "others cannot see it either");
        let until_ms = 10 + TERM_MS / 16;
        assert_eq!(lease.next(10), LeaseStep::Wait { until_ms });
        assert_eq!(lease.next(until_ms), LeaseStep::List);
        lease
    };
    let mut lease = claimed();
    lease.listed(TERM_MS / 4, top(7));
    assert!(lease.may_act(TERM_MS / 4));
    let mut lease = claimed();
    lease.listed(TERM_MS / 4, top(8));
    assert!(!lease.may_act(TERM_MS / 4) && lease.unreleased().is_none(), "a higher one ends it");
    let mut lease = claimed();
    lease.listed(TERM_MS / 2, top(7));
    assert!(!lease.may_act(TERM_MS / 2), "it may not act any more, and follows");
    assert!(matches!(lease.next(TERM_MS / 2), LeaseStep::Wait { .. } | LeaseStep::Claim { .. }));
}

/// A node that holds the first epoch since `now_ms`.
fn holder(now_ms: u64) -> EpochLease {
    let top = TopEpoch { epoch: 1, age_s: Some(0), unchanged_ms: 0, free: false };
    let mut lease = lease_that_looks(now_ms);
    lease.listed(now_ms, None);
    lease.claimed(now_ms, ClaimOutcome::Ours);
    (0..2).for_each(|_| lease.listed(now_ms, Some(top)));
    lease
}

#[test]
fn an_epoch_is_held_only_while_its_holder_may_act() {
    assert_eq!(EpochLease::new(TERM_MS).held(0), None);
    let ends_ms = 1000 + TERM_MS / 2;
    assert_eq!([ends_ms - 1, ends_ms].map(|now_ms| holder(1000).held(now_ms)), [Some(1), None]);
}

#[test]
fn a_holder_renews_a_quarter_of_a_term_after_its_last_renewal() {
    let due_ms = 1000 + TERM_MS / 4;
    assert_eq!(holder(1000).next(1000), LeaseStep::Wait { until_ms: due_ms });
    assert_eq!(holder(1000).next(due_ms), LeaseStep::Renew { epoch: 1 });
}

#[test]
fn a_holder_whose_object_another_program_removed_follows_and_claims_nothing_at_once() {
    let mut lease = holder(1000);
    lease.listed(1001, None);
    assert!(lease.held(1001).is_none());
    assert_eq!(lease.next(1001), LeaseStep::Wait { until_ms: 1001 + TERM_MS / 4 });
}
