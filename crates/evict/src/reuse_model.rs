//! What is learnt of chunks: how likely those of a class return, given for how long they did not.

use alloc::boxed::Box;
use alloc::vec;
use core::ops::Range;

/// Classes of chunks.
pub(crate) const CLASSES: usize = 160;
/// The first of them are of hits and the last request; of the others the caller hinted when they
/// return.
pub(crate) const SEEN: usize = 128;
/// So many of those that follow each other were hit as often, and their last requests added as many
/// chunks. They differ in the pause before.
const SIZES: usize = 8;
/// So many of those that follow each other were hit as often.
const HITS: usize = 32;
/// Ages in half octaves.
const AGES: usize = 60;

/// How much must be known of some classes before their own chances count as much as those of the
/// classes that they are part of: in chunks of so many requests. The chunks of one request return
/// together, so what looks like many returns was few requests.
#[derive(Clone, Copy, Debug)]
struct PriorWeight {
    /// For each age.
    curve: f32,
    /// For how much more or less likely than the others they return, at whatever age.
    level: f32,
}

impl PriorWeight {
    const HITS: PriorWeight = PriorWeight { curve: 1300.0, level: 10.0 };
    const SIZES: PriorWeight = PriorWeight { curve: 300.0, level: 10.0 };
    const CLASS: PriorWeight = PriorWeight { curve: 300.0, level: 10.0 };
    /// The caller says what a hint means, so a hinted class is soon taken for what it is.
    const HINT: PriorWeight = PriorWeight { curve: 4.0, level: f32::INFINITY };

    /// The same in chunks, where a request uses so many.
    fn in_chunks(self, request_chunks: f32) -> PriorWeight {
        PriorWeight { curve: self.curve * request_chunks, level: self.level * request_chunks }
    }
}

/// No return is certain.
const CHANCE_MAX: f32 = 0.999;

/// What some classes are taken for as long as little is known of them.
#[derive(Clone, Copy, Debug)]
struct Prior<'a> {
    curve: &'a Curve,
    trust: PriorWeight,
}

/// What [`Returns::learn`] weighs its evidence by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    /// When more has happened than this, half of it is forgotten.
    pub events_max: f32,
    /// How many chunks a request uses.
    pub request_chunks: f32,
    /// What the differences between classes count: at 0 all classes are like the average.
    pub class_weight: f32,
}

type Curve = [f32; AGES];

/// Returns and losses by class and age, and what they say of every class at every age.
#[derive(Clone, Debug)]
pub(crate) struct ReuseModel {
    returned: Box<[Curve]>,
    lost: Box<[Curve]>,
    worth: Box<[Curve]>,
    events: f32,
}

impl ReuseModel {
    pub fn new() -> Self {
        let zero = || vec![[0.0; AGES]; CLASSES].into_boxed_slice();
        // Before anything is learnt, whatever is older is worth less.
        let by_age: Curve = core::array::from_fn(|age| 1.0 / (1.0 + start(age + 1)));
        ReuseModel {
            returned: zero(),
            lost: zero(),
            worth: vec![by_age; CLASSES].into_boxed_slice(),
            events: 0.0,
        }
    }

    /// A chunk of this class came back at this age; it stands for `weight`.
    pub fn returned(&mut self, class: u8, age: u32, weight: f32) {
        self.returned[usize::from(class)][bucket(age)] += weight;
        self.events += weight;
    }

    /// A chunk of this class was watched up to this age and no longer.
    pub fn lost(&mut self, class: u8, age: u32, weight: f32) {
        self.lost[usize::from(class)][bucket(age)] += weight;
        self.events += weight;
    }

    /// How much a chunk of this class and age is worth keeping: returns to be expected for each
    /// step of time that it takes up room, at the best moment to give it up.
    pub fn hit_density(&self, class: u8, age: u32) -> f32 {
        let (worth, at) = (&self.worth[usize::from(class)], bucket(age));
        let (begin, end) = (start(at), start(at + 1));
        // A half octave is long: of two classes that are worth about the same, the older chunk goes
        // within one too.
        let into = ((age as f32 - begin) / (end - begin)).clamp(0.0, 1.0);
        worth[at] + into * (worth[(at + 1).min(AGES - 1)] - worth[at])
    }

    /// Learns anew from what happened and from the ages of those that are still `watched`.
    pub fn learn(&mut self, watched: &Watched, evidence: &Evidence) {
        let trust = |trust: PriorWeight| trust.in_chunks(evidence.request_chunks.max(1.0));
        let nothing =
            Prior { curve: &[0.0; AGES], trust: PriorWeight { curve: 1.0, level: f32::INFINITY } };
        let average = self.chances(watched, 0..CLASSES, nothing);
        let by_hits: [Curve; SEEN / HITS] = core::array::from_fn(|at| {
            let prior = Prior { curve: &average, trust: trust(PriorWeight::HITS) };
            self.chances(watched, at * HITS..(at + 1) * HITS, prior)
        });
        let by_size: [Curve; SEEN / SIZES] = core::array::from_fn(|at| {
            let prior =
                Prior { curve: &by_hits[at * SIZES / HITS], trust: trust(PriorWeight::SIZES) };
            self.chances(watched, at * SIZES..(at + 1) * SIZES, prior)
        });
        for class in 0..CLASSES {
            let prior = match by_size.get(class / SIZES) {
                Some(curve) => Prior { curve, trust: trust(PriorWeight::CLASS) },
                None => Prior { curve: &average, trust: trust(PriorWeight::HINT) },
            };
            let mut chances = self.chances(watched, class..class + 1, prior);
            for (chance, average) in chances.iter_mut().zip(&average) {
                *chance = average + evidence.class_weight * (*chance - average);
            }
            self.worth[class] = worth(&chances);
            // The oldest of a class stands for all of it: what is worth less before than at its age
            // goes with the class. And what seems to rise was one request's return,
            // mostly.
            if class < SEEN {
                (1..AGES).for_each(|age| {
                    self.worth[class][age] = self.worth[class][age].min(self.worth[class][age - 1])
                });
            }
        }
        if self.events > evidence.events_max {
            self.events /= 2.0;
            self.returned.iter_mut().chain(&mut self.lost).flatten().for_each(|n| *n /= 2.0);
        }
    }

    /// The chances of some classes together.
    fn chances(&self, watched: &Watched, classes: Range<usize>, prior: Prior<'_>) -> Curve {
        let sum = |of: &[Curve]| -> Curve {
            core::array::from_fn(|age| of[classes.clone()].iter().map(|curve| curve[age]).sum())
        };
        let seen =
            Seen { returned: sum(&self.returned), lost: sum(&self.lost), watched: sum(&watched.0) };
        seen.chances(prior)
    }

    pub fn memory_bytes(&self) -> usize {
        3 * size_of_val(&*self.worth)
    }
}

/// How many chunks of each class are how old and did not return yet.
#[derive(Debug)]
pub(crate) struct Watched(Box<[Curve]>);

impl Watched {
    pub fn new() -> Self {
        Watched(vec![[0.0; AGES]; CLASSES].into_boxed_slice())
    }

    pub fn add(&mut self, class: u8, age: u32, weight: f32) {
        self.0[usize::from(class)][bucket(age)] += weight;
    }
}

/// What was seen of some classes, by age.
#[derive(Debug)]
struct Seen {
    returned: Curve,
    lost: Curve,
    watched: Curve,
}

impl Seen {
    /// The chance to return within each half octave for those that reach it. The prior's is first
    /// made as much higher or lower as these return more or less often than it says, and then
    /// trusted for the ages of which little was seen.
    fn chances(&self, prior: Prior<'_>) -> Curve {
        let at_risk = self.at_risk();
        let observed: f32 = self.returned.iter().sum();
        let expected: f32 = prior.curve.iter().zip(&at_risk).map(|(chance, n)| chance * n).sum();
        let PriorWeight { curve: trust, level } = prior.trust;
        let scale = if level.is_finite() { (observed + level) / (expected + level) } else { 1.0 };
        core::array::from_fn(|age| {
            let known = (scale * prior.curve[age]).min(CHANCE_MAX);
            ((self.returned[age] + trust * known) / (at_risk[age] + trust).max(1e-6))
                .min(CHANCE_MAX)
        })
    }

    /// How many reached each half octave. Those that were watched for a part of it count half.
    fn at_risk(&self) -> Curve {
        let (mut at_risk, mut reached) = ([0.0; AGES], 0.0);
        for age in (0..AGES).rev() {
            let unsettled = self.lost[age] + self.watched[age];
            reached += self.returned[age] + unsettled;
            at_risk[age] = reached - unsettled / 2.0;
        }
        at_risk
    }
}

/// From every age on, the best ratio of expected returns to expected time that any moment of giving
/// up yields.
fn worth(chances: &Curve) -> Curve {
    core::array::from_fn(|from| {
        let (mut stays, mut returns, mut time, mut best) = (1.0f32, 0.0, 0.0, 0.0f32);
        for (age, chance) in chances.iter().copied().enumerate().skip(from) {
            returns += stays * chance;
            time += stays * (start(age + 1) - start(age)) * (1.0 - chance / 2.0);
            stays *= 1.0 - chance;
            best = best.max(returns / time);
        }
        best
    })
}

/// The half octave of an age.
fn bucket(age: u32) -> usize {
    let age = u64::from(age) + 1;
    let octave = age.ilog2();
    // The bit below the highest, without a branch: nobody could foretell it.
    let upper = (age << 1 >> octave & 1) as u32;
    ((octave * 2 + upper) as usize).min(AGES - 1)
}

/// Where a half octave begins.
fn start(bucket: usize) -> f32 {
    let octave = (1u64 << (bucket / 2)) as f32;
    octave + if bucket % 2 == 1 { octave / 2.0 } else { 0.0 } - 1.0
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn buckets_begin_where_they_begin() {
        for age in [0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 1000, 123_456] {
            let bucket = bucket(age);
            assert!(
                start(bucket) <= age as f32 && age as f32 <= start(bucket + 1),
                "{age} in {bucket}"
            );
        }
        assert_eq!(bucket(u32::MAX), AGES - 1);
    }

    #[test]
    fn what_is_older_is_worth_less_within_a_half_octave_too() {
        let returns = ReuseModel::new();
        let worth: Vec<f32> = (0..4096).map(|age| returns.hit_density(1, age)).collect();
        assert!(
            worth.is_sorted_by(|younger, older| older < younger),
            "as long as nothing else is known"
        );
        assert!(returns.hit_density(63, u32::MAX) > 0.0);
    }

    /// A class of these hits and this size of the last request.
    fn class(hits: usize, size: usize) -> u8 {
        (hits * HITS + size * SIZES) as u8
    }

    const EVIDENCE: Evidence = Evidence { events_max: 1e9, request_chunks: 1.0, class_weight: 1.0 };

    #[test]
    fn a_class_that_was_seen_little_counts_as_those_of_the_same_hits_and_size() {
        let mut returns = ReuseModel::new();
        for (size, age) in [(0, 10), (1, 10_000)] {
            (0..2000).for_each(|_| returns.returned(class(1, size), age, 1.0));
        }
        // A few chunks of another pause, which came back as those of the other size do.
        (0..20).for_each(|_| returns.returned(class(1, 0) + 1, 10_000, 1.0));
        (0..20).for_each(|_| returns.returned(class(1, 1) + 1, 10, 1.0));
        returns.learn(&Watched::new(), &EVIDENCE);
        assert!(
            returns.hit_density(class(1, 0) + 1, 5) > 2.0 * returns.hit_density(class(1, 1) + 1, 5)
        );
    }

    #[test]
    fn a_size_that_returns_more_often_is_worth_more_after_few_requests() {
        let mut returns = ReuseModel::new();
        let mut see = |size, back: usize| {
            (0..200).for_each(|n| {
                if n < back {
                    returns.returned(class(0, size), 900, 1.0)
                } else {
                    returns.lost(class(0, size), 5000, 1.0)
                }
            });
        };
        see(0, 160);
        see(3, 40);
        let mut by_chunk = returns.clone();
        by_chunk.learn(&Watched::new(), &EVIDENCE);
        let ratio = |returns: &ReuseModel| {
            returns.hit_density(class(0, 0), 5) / returns.hit_density(class(0, 3), 5)
        };
        assert!(ratio(&by_chunk) > 2.0, "{}", ratio(&by_chunk));
        // Had the same chunks been two requests, it would be next to nothing.
        returns.learn(&Watched::new(), &Evidence { request_chunks: 200.0, ..EVIDENCE });
        assert!((1.0..1.2).contains(&ratio(&returns)), "{}", ratio(&returns));
    }

    #[test]
    fn a_class_that_returns_is_worth_more_than_one_that_does_not() {
        let mut returns = ReuseModel::new();
        let before = (returns.hit_density(1, 10), returns.hit_density(1, 1000));
        assert!(before.0 > before.1, "older is worth less until more is known");
        let hinted = SEEN as u8;
        for class in [1, hinted] {
            (0..10_000).for_each(|_| returns.returned(class, 900, 1.0));
        }
        (0..10_000).for_each(|_| returns.lost(2, 5000, 1.0));
        returns.learn(&Watched::new(), &EVIDENCE);
        for class in [1, hinted] {
            assert!(returns.hit_density(class, 10) > 3.0 * returns.hit_density(2, 10));
            assert!(
                returns.hit_density(class, 5000) < returns.hit_density(class, 10),
                "what did not return then will not"
            );
        }
        assert!(
            returns.hit_density(hinted, 800) > 5.0 * returns.hit_density(hinted, 10),
            "worth the more the closer its return"
        );
        assert!(
            returns.hit_density(1, 800) <= returns.hit_density(1, 10),
            "which of those that nobody hinted is left to their age"
        );
    }
}
