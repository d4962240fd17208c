//! Decides, without I/O, which tiers get a chunk that is saved or found.

use super::config::LEVELS_MAX;
use super::write_and_promote_rules::{Admit, TierRule, Write};

/// A set of tiers of a stack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct TierSet(u16);

impl TierSet {
    /// Those for which `is_one` holds.
    pub fn of(rules: &[TierRule], is_one: impl Fn(usize, &TierRule) -> bool) -> Self {
        let bits = rules
            .iter()
            .enumerate()
            .filter(|(at, rule)| is_one(*at, rule))
            .map(|(at, _)| 1u16 << at);
        TierSet(bits.fold(0, |all, bit| all | bit))
    }

    pub fn only(at: usize) -> Self {
        TierSet(1 << at)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn first(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as usize)
    }

    pub fn and(self, other: TierSet) -> Self {
        TierSet(self.0 | other.0)
    }

    pub fn without(self, other: TierSet) -> Self {
        TierSet(self.0 & !other.0)
    }

    /// The fastest first.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..LEVELS_MAX).filter(move |at| self.0 & (1 << at) != 0)
    }
}

/// The tiers to which a chunk found in tier `at` is promoted, if it was found below them `hits`
/// times, this one included.
pub fn promote_to(rules: &[TierRule], at: usize, hits: u8) -> TierSet {
    TierSet::of(&rules[..at], |_, rule| match rule.admit {
        Admit::Policy => true,
        Admit::AfterHits(needed) => hits >= needed,
        Admit::Never => false,
    })
}

/// Whether the number of hits of a chunk in tier `at` affects its promotion.
pub fn counts_hits(rules: &[TierRule], at: usize) -> bool {
    rules[..at].iter().any(|rule| matches!(rule.admit, Admit::AfterHits(_)))
}

/// The tier that gets the chunks which tier `from` evicts.
pub fn spill_below(rules: &[TierRule], from: usize) -> Option<usize> {
    let below = from + 1;
    rules.get(below).filter(|rule| rule.write == Write::Spill).map(|_| below)
}

/// The first of the tiers that together hold every chunk: the last tier, and those above it whose
/// evicted chunks reach it.
pub fn floor(rules: &[TierRule]) -> usize {
    // A tier with `spill` only gets what the tier above evicts. From its content alone a chunk in
    // the tier above would be missing.
    rules.iter().rposition(|rule| rule.write != Write::Spill).unwrap_or(0)
}

/// The next step of a save.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SaveStep {
    /// Save to these tiers at once, and report [which accepted it](SavePlan::kept_by).
    Wait(TierSet),
    /// Answer the caller, and write to these tiers in the background, from tier `from`. If that is
    /// impossible, [wait for them](SavePlan::cannot_defer).
    Later { tiers: TierSet, from: usize },
    /// Answer the caller.
    Done,
}

/// The plan of one save.
#[derive(Clone, Copy, Debug)]
pub struct SavePlan {
    /// The tiers to which it was offered.
    offered: TierSet,
    kept: TierSet,
    left: TierSet,
    begun: bool,
    may_defer: bool,
}

impl SavePlan {
    pub fn new() -> Self {
        SavePlan {
            offered: TierSet::default(),
            kept: TierSet::default(),
            left: TierSet::default(),
            begun: false,
            may_defer: true,
        }
    }

    /// The next step. [`SaveStep::Later`] is returned once; after it the plan is done.
    pub fn next(&mut self, rules: &[TierRule]) -> SaveStep {
        if !self.begun {
            // First step: the tiers with `write: through`. They are at once the tiers from which
            // the others are written later.
            self.begun = true;
            self.left = TierSet::of(rules, |_, rule| rule.write != Write::Through);
            return self.wait(TierSet::of(rules, |_, rule| rule.write == Write::Through));
        }
        let Some(from) = self.kept.first() else {
            // No tier above accepted it: any tier below that does is better than none.
            // One after the other, from the fastest: the chunk needs one place, not all.
            return self.left.first().map_or(SaveStep::Done, |at| self.wait(TierSet::only(at)));
        };
        // Only below the tier that has it: a write-back reads the bytes from there and moves them
        // down.
        let back = TierSet::of(rules, |at, rule| rule.write == Write::Back && at > from)
            .without(self.offered);
        // Some tier has the chunk now. The remaining tiers are no fallback any more.
        self.left = TierSet::default();
        match (back.is_empty(), self.may_defer) {
            (true, _) => SaveStep::Done,
            // The write-back cannot be postponed, so the caller waits for it: a chunk is written
            // late or now, but not dropped.
            (false, false) => self.wait(back),
            (false, true) => {
                self.offered = self.offered.and(back);
                SaveStep::Later { tiers: back, from }
            }
        }
    }

    /// Records which of the tiers accepted it.
    pub fn kept_by(&mut self, kept: TierSet) {
        self.kept = self.kept.and(kept);
    }

    /// Records that write-back is impossible: no tier above can return the chunk, or the write-back
    /// queue is full.
    pub fn cannot_defer(&mut self, tiers: TierSet) {
        // They were not written after all. The next step offers the chunk to them again.
        self.offered = self.offered.without(tiers);
        self.may_defer = false;
    }

    fn wait(&mut self, tiers: TierSet) -> SaveStep {
        self.offered = self.offered.and(tiers);
        self.left = self.left.without(tiers);
        SaveStep::Wait(tiers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITES: [Write; 3] = [Write::Through, Write::Back, Write::Spill];

    /// Every stack of up to four tiers whose first is written through.
    fn all_rules() -> Vec<Vec<TierRule>> {
        let mut all = vec![vec![TierRule::new()]];
        for at in 0.. {
            let Some(rules) = all.get(at).filter(|rules: &&Vec<TierRule>| rules.len() < 4).cloned()
            else {
                break;
            };
            for write in WRITES {
                let mut longer = rules.clone();
                longer.push(TierRule::new().with_write(write));
                all.push(longer);
            }
        }
        all
    }

    /// The specification of a save. All write-through tiers get it. If one of them accepts it, the
    /// write-back tiers below the first such tier get it later, or at once if nothing may be
    /// deferred. If none does, the other tiers are offered it in turn until one accepts it, and the
    /// write-back tiers below that one follow.
    fn model(rules: &[TierRule], takers: TierSet, may_defer: bool) -> (TierSet, TierSet) {
        let takes = |at: usize| takers.iter().any(|taker| taker == at);
        let mut waited = TierSet::of(rules, |_, rule| rule.write == Write::Through);
        let mut from = waited.iter().find(|at| takes(*at));
        for (at, rule) in rules.iter().enumerate() {
            if from.is_none() && rule.write != Write::Through {
                waited = waited.and(TierSet::only(at));
                from = takes(at).then_some(at);
            }
        }
        let Some(from) = from else { return (waited, TierSet::default()) };
        let back =
            TierSet::of(rules, |at, rule| rule.write == Write::Back && at > from).without(waited);
        if may_defer { (waited, back) } else { (waited.and(back), TierSet::default()) }
    }

    #[test]
    fn every_plan_of_a_save_matches_the_model() {
        let mut cases = 0;
        for rules in all_rules() {
            for (takers, may_defer) in (0..1u16 << rules.len())
                .flat_map(|bits| [(TierSet(bits), true), (TierSet(bits), false)])
            {
                let mut plan = SavePlan::new();
                let mut waited = TierSet::default();
                let mut later = TierSet::default();
                for step in 0.. {
                    assert!(step < 20, "the plan does not end");
                    match plan.next(&rules) {
                        SaveStep::Wait(tiers) => {
                            assert!(
                                tiers.iter().all(|at| !waited.iter().any(|before| before == at)),
                                "offered twice"
                            );
                            waited = waited.and(tiers);
                            plan.kept_by(TierSet(tiers.0 & takers.0));
                        }
                        SaveStep::Later { tiers, from } => {
                            assert!(
                                takers.iter().any(|taker| taker == from)
                                    && tiers.iter().all(|at| at > from)
                            );
                            if may_defer {
                                later = later.and(tiers)
                            } else {
                                plan.cannot_defer(tiers)
                            }
                        }
                        SaveStep::Done => break,
                    }
                }
                assert_eq!(
                    (waited, later),
                    model(&rules, takers, may_defer),
                    "{rules:?}, taken by {takers:?}, may_defer: {may_defer}"
                );
                cases += 1;
            }
        }
        assert!(cases > 900, "{cases}");
    }

    #[test]
    fn chunks_are_promoted_as_the_rules_say() {
        let rules = [Admit::Policy, Admit::AfterHits(2), Admit::Never, Admit::Policy]
            .map(|a| TierRule::new().with_admit(a));
        let to = |at, hits| promote_to(&rules, at, hits).iter().collect::<Vec<_>>();
        assert_eq!(
            (to(3, 1), to(3, 2), to(1, 1), to(0, 9)),
            (vec![0], vec![0, 1], vec![0], vec![])
        );
        assert_eq!([0, 1, 2].map(|at| counts_hits(&rules, at)), [false, false, true]);
    }

    #[test]
    fn victims_go_to_the_next_tier_if_its_rule_is_spill() {
        let rules = WRITES.map(|write| TierRule::new().with_write(write));
        assert_eq!([0, 1, 2].map(|at| spill_below(&rules, at)), [None, Some(2), None]);
        assert_eq!(
            [1, 2, 3].map(|n| floor(&rules[..n])),
            [0, 1, 1],
            "spilled from the second to the third"
        );
    }
}
