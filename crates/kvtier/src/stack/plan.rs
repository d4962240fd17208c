//! What a stack does with a chunk: decisions without I/O, made for one chunk at a time.

use std::time::Duration;

/// The most tiers of a stack.
pub const LEVELS_MAX: usize = 16;

/// How saves reach a tier of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Write {
    /// A save is answered when the tier has answered.
    #[default]
    Through,
    /// A save is answered when a tier above has the chunk; this one gets it soon after, from there.
    /// What waits is bounded.
    Back,
    /// The tier gets what the tier above it gives up, and what no tier above keeps.
    Spill,
}

/// Which of the chunks that were found below a tier come up to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Admit {
    /// All are offered; the tier's own policy says which are worth the room.
    #[default]
    Policy,
    /// Those that were found below so many times.
    AfterHits(u8),
    /// None.
    Never,
}

/// What is asked of one tier of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Rule {
    /// How saves reach it.
    pub write: Write,
    /// Which chunks that were found below come up to it.
    pub admit: Admit,
    /// How long a lookup or load may take in it; `None` for as long as the caller waits.
    pub deadline: Option<Duration>,
}

impl Rule {
    /// Write-through, every chunk offered, no deadline of its own.
    pub fn new() -> Self {
        Rule::default()
    }

    /// The same with another way for saves.
    pub fn with_write(mut self, write: Write) -> Self {
        self.write = write;
        self
    }

    /// The same with another admission.
    pub fn with_admit(mut self, admit: Admit) -> Self {
        self.admit = admit;
        self
    }

    /// The same with a deadline of its own.
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }
}

/// Some tiers of a stack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Tiers(u16);

impl Tiers {
    /// Those for which `is_one` holds.
    pub fn of(rules: &[Rule], is_one: impl Fn(usize, &Rule) -> bool) -> Self {
        let bits = rules
            .iter()
            .enumerate()
            .filter(|(at, rule)| is_one(*at, rule))
            .map(|(at, _)| 1u16 << at);
        Tiers(bits.fold(0, |all, bit| all | bit))
    }

    pub fn only(at: usize) -> Self {
        Tiers(1 << at)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn first(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as usize)
    }

    pub fn and(self, other: Tiers) -> Self {
        Tiers(self.0 | other.0)
    }

    pub fn without(self, other: Tiers) -> Self {
        Tiers(self.0 & !other.0)
    }

    /// The fastest first.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..LEVELS_MAX).filter(move |at| self.0 & (1 << at) != 0)
    }
}

/// The tiers that a chunk found in tier `at` is offered to; it was found below them `hits` times,
/// this one included.
pub fn promote_to(rules: &[Rule], at: usize, hits: u8) -> Tiers {
    Tiers::of(&rules[..at], |_, rule| match rule.admit {
        Admit::Policy => true,
        Admit::AfterHits(needed) => hits >= needed,
        Admit::Never => false,
    })
}

/// Whether it matters how often a chunk that tier `at` has was found.
pub fn counts_hits(rules: &[Rule], at: usize) -> bool {
    rules[..at].iter().any(|rule| matches!(rule.admit, Admit::AfterHits(_)))
}

/// Where what tier `from` gives up goes.
pub fn spill_below(rules: &[Rule], from: usize) -> Option<usize> {
    let below = from + 1;
    rules.get(below).filter(|rule| rule.write == Write::Spill).map(|_| below)
}

/// The first of the tiers that together hold all that is there: the last one, and those whose
/// victims go down to it.
pub fn floor(rules: &[Rule]) -> usize {
    rules.iter().rposition(|rule| rule.write != Write::Spill).unwrap_or(0)
}

/// What is to be done for a save.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SaveStep {
    /// Save to these, all at once, and [tell](SavePlan::heard) who kept it.
    Wait(Tiers),
    /// The caller may be answered; these get it in the background, from this tier. Where that
    /// cannot be, [they are waited for](SavePlan::no_room).
    Later { tiers: Tiers, from: usize },
    /// The caller may be answered.
    Done,
}

/// One save on its way through the tiers.
#[derive(Clone, Copy, Debug)]
pub struct SavePlan {
    /// Asked already.
    asked: Tiers,
    kept: Tiers,
    left: Tiers,
    begun: bool,
    room: bool,
}

impl SavePlan {
    pub fn new() -> Self {
        SavePlan {
            asked: Tiers::default(),
            kept: Tiers::default(),
            left: Tiers::default(),
            begun: false,
            room: true,
        }
    }

    /// What is next. A [`SaveStep::Later`] is given once; after it all is done.
    pub fn next(&mut self, rules: &[Rule]) -> SaveStep {
        if !self.begun {
            self.begun = true;
            self.left = Tiers::of(rules, |_, rule| rule.write != Write::Through);
            return self.wait(Tiers::of(rules, |_, rule| rule.write == Write::Through));
        }
        let Some(from) = self.kept.first() else {
            // Nobody above keeps it: whoever is below and does is better than nobody.
            return self.left.first().map_or(SaveStep::Done, |at| self.wait(Tiers::only(at)));
        };
        let back =
            Tiers::of(rules, |at, rule| rule.write == Write::Back && at > from).without(self.asked);
        self.left = Tiers::default();
        match (back.is_empty(), self.room) {
            (true, _) => SaveStep::Done,
            (false, false) => self.wait(back),
            (false, true) => {
                self.asked = self.asked.and(back);
                SaveStep::Later { tiers: back, from }
            }
        }
    }

    /// These of the tiers that were asked have it.
    pub fn heard(&mut self, kept: Tiers) {
        self.kept = self.kept.and(kept);
    }

    /// What was to be done later cannot wait: nothing above can show it, or too much waits already.
    pub fn no_room(&mut self, tiers: Tiers) {
        self.asked = self.asked.without(tiers);
        self.room = false;
    }

    fn wait(&mut self, tiers: Tiers) -> SaveStep {
        self.asked = self.asked.and(tiers);
        self.left = self.left.without(tiers);
        SaveStep::Wait(tiers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITES: [Write; 3] = [Write::Through, Write::Back, Write::Spill];

    /// Every stack of up to four tiers whose first is written through.
    fn all_rules() -> Vec<Vec<Rule>> {
        let mut all = vec![vec![Rule::new()]];
        for at in 0.. {
            let Some(rules) = all.get(at).filter(|rules: &&Vec<Rule>| rules.len() < 4).cloned()
            else {
                break;
            };
            for write in WRITES {
                let mut longer = rules.clone();
                longer.push(Rule::new().with_write(write));
                all.push(longer);
            }
        }
        all
    }

    /// What a save does, said in sentences: all that are written through get it; when any of them
    /// keeps it, those of write-back below the first that did get it later (or now, without
    /// room); when none does, the others are asked in turn until one does, and those of
    /// write-back below that one follow.
    fn model(rules: &[Rule], takers: Tiers, room: bool) -> (Tiers, Tiers) {
        let takes = |at: usize| takers.iter().any(|taker| taker == at);
        let mut waited = Tiers::of(rules, |_, rule| rule.write == Write::Through);
        let mut from = waited.iter().find(|at| takes(*at));
        for (at, rule) in rules.iter().enumerate() {
            if from.is_none() && rule.write != Write::Through {
                waited = waited.and(Tiers::only(at));
                from = takes(at).then_some(at);
            }
        }
        let Some(from) = from else { return (waited, Tiers::default()) };
        let back =
            Tiers::of(rules, |at, rule| rule.write == Write::Back && at > from).without(waited);
        if room { (waited, back) } else { (waited.and(back), Tiers::default()) }
    }

    #[test]
    fn every_plan_of_a_save_is_that_of_the_model_whoever_takes_it() {
        let mut cases = 0;
        for rules in all_rules() {
            for (takers, room) in (0..1u16 << rules.len())
                .flat_map(|bits| [(Tiers(bits), true), (Tiers(bits), false)])
            {
                let (mut plan, mut waited, mut later) =
                    (SavePlan::new(), Tiers::default(), Tiers::default());
                for step in 0.. {
                    assert!(step < 20, "it does not end");
                    match plan.next(&rules) {
                        SaveStep::Wait(tiers) => {
                            assert!(
                                tiers.iter().all(|at| !waited.iter().any(|before| before == at)),
                                "asked twice"
                            );
                            waited = waited.and(tiers);
                            plan.heard(Tiers(tiers.0 & takers.0));
                        }
                        SaveStep::Later { tiers, from } => {
                            assert!(
                                takers.iter().any(|taker| taker == from)
                                    && tiers.iter().all(|at| at > from)
                            );
                            if room { later = later.and(tiers) } else { plan.no_room(tiers) }
                        }
                        SaveStep::Done => break,
                    }
                }
                assert_eq!(
                    (waited, later),
                    model(&rules, takers, room),
                    "{rules:?}, taken by {takers:?}, room: {room}"
                );
                cases += 1;
            }
        }
        assert!(cases > 900, "{cases}");
    }

    #[test]
    fn who_is_promoted_to_whom() {
        let rules = [Admit::Policy, Admit::AfterHits(2), Admit::Never, Admit::Policy]
            .map(|a| Rule::new().with_admit(a));
        let to = |at, hits| promote_to(&rules, at, hits).iter().collect::<Vec<_>>();
        assert_eq!(
            (to(3, 1), to(3, 2), to(1, 1), to(0, 9)),
            (vec![0], vec![0, 1], vec![0], vec![])
        );
        assert_eq!([0, 1, 2].map(|at| counts_hits(&rules, at)), [false, false, true]);
    }

    #[test]
    fn victims_go_to_the_next_tier_if_that_takes_them() {
        let rules = WRITES.map(|write| Rule::new().with_write(write));
        assert_eq!([0, 1, 2].map(|at| spill_below(&rules, at)), [None, Some(2), None]);
        assert_eq!(
            [1, 2, 3].map(|n| floor(&rules[..n])),
            [0, 1, 1],
            "spilled from the second to the third"
        );
    }
}
