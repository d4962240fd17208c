//! The reuse model of the default policy: the probability that a chunk of a class returns, by age.
//!
//! A class's *hit density* at an age is the expected number of hits per unit of time that the chunk
//! occupies space, at the best moment to evict it. It is the concept of LHD (Beckmann, Chen and
//! Cidon, NSDI 2018), computed as a Gittins index over half octaves of age. The policy evicts the
//! chunk with the lowest hit density.
//!
//! Few observations make bad estimates, so a class starts from a prior and moves away from it as
//! evidence grows: a class leans on those with the same hits and size, these on those with the same
//! hits, these on those with fewer hits or the average of all classes. New conversations and those
//! that went on are never pooled below the hits. Evidence is counted in requests, since the chunks
//! of one request return together.

use alloc::boxed::Box;
use alloc::vec;
use core::ops::Range;

/// The number of classes.
pub(crate) const CLASSES: usize = 192;
/// Classes below this are of hits and the last request. The others are of hinted returns.
pub(crate) const SEEN: usize = 160;
/// One of the others: new chunks that were the last of their request.
pub(crate) const TAIL: usize = SEEN + 29;
/// This many consecutive classes share the hits and the size of the last request. They differ in
/// the pause before it.
const SIZES: usize = 8;
/// The last of them is of conversations that are new and had no pause.
pub(crate) const NEW: u8 = SIZES as u8 - 1;
/// This many consecutive classes share the hits.
const HITS: usize = 32;
/// Ages in half octaves.
const AGES: usize = 60;

/// What is expected of chunks by their hits while there is little evidence: how many times as
/// likely they return as the average, for no hit and one, or as those with fewer hits. Few first
/// requests of a conversation get a second one, and the more often a conversation went on, the more
/// often it goes on again.
const EXPECTED: [f32; SEEN / HITS] = [0.5, 2.0, 1.5, 1.5, 1.5];

/// How much evidence some classes need before their own estimates count as much as the prior: in
/// chunks of this many requests. The chunks of one request return together, so a lot of returns may be
/// few requests.
#[derive(Clone, Copy, Debug)]
struct PriorWeight {
    /// For each age.
    curve: f32,
    /// For the overall rate of returns, at whatever age.
    level: f32,
}

impl PriorWeight {
    /// Classes together, by hits and by size. At the start one long request must not decide.
    const POOL: PriorWeight = PriorWeight { curve: 300.0, level: 100.0 };
    /// One class. Its pause says when it returns.
    const CLASS: PriorWeight = PriorWeight { curve: 30.0, level: 50.0 };
    /// The caller defines a hint, so a hinted class is soon judged by its own returns.
    const HINT: PriorWeight = PriorWeight { curve: 4.0, level: f32::INFINITY };

    /// The same in chunks, for requests of this many chunks.
    fn in_chunks(self, request_chunks: f32) -> PriorWeight {
        PriorWeight { curve: self.curve * request_chunks, level: self.level * request_chunks }
    }
}

/// With more events than this for each chunk in the cache, half of them are dropped: the model
/// follows a load that changes.
const EVENTS_PER_CHUNK: f32 = 64.0;
/// For this many chunks at least, so that a small cache keeps the evidence of enough requests.
const CHUNKS_MIN: usize = 1 << 16;

/// No return is certain.
const CHANCE_MAX: f32 = 0.999;

/// The estimate for some classes while there is little evidence.
#[derive(Clone, Copy, Debug)]
struct Prior<'a> {
    curve: &'a Curve,
    trust: PriorWeight,
}

/// The weights of [`ReuseModel::learn`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    /// With more events than this, half of them are dropped; see [`events_max`].
    pub events_max: f32,
    /// The chunks of a request.
    pub request_chunks: f32,
    /// The weight of the differences between classes: at 0 all classes but [`TAIL`] are like the
    /// average.
    pub class_weight: f32,
}

/// The most events that the model of a cache of this many chunks keeps.
pub(crate) fn events_max(chunks: usize) -> f32 {
    EVENTS_PER_CHUNK * chunks.max(CHUNKS_MIN) as f32
}

type Curve = [f32; AGES];

/// The return probabilities of the classes of these hits and this size.
#[derive(Clone, Copy, Debug)]
struct BySize {
    /// Of conversations that began with the last request.
    new: Curve,
    /// Of those that went on, after whatever pause.
    going_on: Curve,
}

/// Returns and losses by class and age, and the hit density of every class at every age.
#[derive(Clone, Debug)]
pub(crate) struct ReuseModel {
    returned: Box<[Curve]>,
    lost: Box<[Curve]>,
    density: Box<[Curve]>,
    events: f32,
}

impl ReuseModel {
    pub fn new() -> Self {
        let zero = || vec![[0.0; AGES]; CLASSES].into_boxed_slice();
        // Before any evidence, older chunks are worth less.
        let by_age: Curve = core::array::from_fn(|age| 1.0 / (1.0 + start(age + 1)));
        ReuseModel {
            returned: zero(),
            lost: zero(),
            density: vec![by_age; CLASSES].into_boxed_slice(),
            events: 0.0,
        }
    }

    /// A chunk of this class returned at this age; it stands for `weight`.
    pub fn returned(&mut self, class: u8, age: u32, weight: f32) {
        self.returned[usize::from(class)][bucket(age)] += weight;
        self.events += weight;
    }

    /// A chunk of this class was observed up to this age and no longer.
    pub fn lost(&mut self, class: u8, age: u32, weight: f32) {
        self.lost[usize::from(class)][bucket(age)] += weight;
        self.events += weight;
    }

    /// The hit density of a chunk of this class and age.
    pub fn hit_density(&self, class: u8, age: u32) -> f32 {
        let density = &self.density[usize::from(class)];
        let at = bucket(age);
        let begin = start(at);
        let end = start(at + 1);
        // A half octave is long. Interpolate, so that of two similar classes the older chunk is
        // evicted first within one too.
        let into = ((age as f32 - begin) / (end - begin)).clamp(0.0, 1.0);
        density[at] + into * (density[(at + 1).min(AGES - 1)] - density[at])
    }

    /// Recomputes the hit densities from the events and from the ages of the chunks in `watched`.
    pub fn learn(&mut self, watched: &Watched, evidence: &Evidence) {
        let trust = |trust: PriorWeight| trust.in_chunks(evidence.request_chunks.max(1.0));
        // First the average of all classes. One chunk that never returns is added to it, so that it
        // is defined before any event; the infinite level turns off the scaling of the prior.
        let nothing =
            Prior { curve: &[0.0; AGES], trust: PriorWeight { curve: 1.0, level: f32::INFINITY } };
        let average = self.chances(watched, 0..CLASSES, nothing);
        // Then pools of classes by hits and size, and last each class by its own returns.
        let by_size = self.chances_by_size(watched, &average, trust(PriorWeight::POOL));
        for class in 0..CLASSES {
            let mut chances = match by_size.get(class / SIZES) {
                // New conversations had no pause, so their pool of this size is this one class.
                Some(sizes) if is_new(class) => sizes.new,
                Some(sizes) => {
                    let prior = Prior { curve: &sizes.going_on, trust: trust(PriorWeight::CLASS) };
                    self.chances(watched, class..class + 1, prior)
                }
                None => {
                    let prior = Prior { curve: &average, trust: trust(PriorWeight::HINT) };
                    self.chances(watched, class..class + 1, prior)
                }
            };
            // When LRU is ahead, the guard draws all classes to the average, which is the order of
            // last use. Last chunks that engines never ask for again are no chance pattern, so they
            // keep their estimate.
            let class_weight = if class == TAIL { 1.0 } else { evidence.class_weight };
            for (chance, average) in chances.iter_mut().zip(&average) {
                *chance = average + class_weight * (*chance - average);
            }
            self.density[class] = hit_densities(&chances);
            // The oldest chunk of a class stands for all of it: a younger chunk of lower density
            // goes with the class. A density that seems to rise with age is mostly the return of
            // one request.
            if class < SEEN || class == TAIL {
                (1..AGES).for_each(|age| {
                    self.density[class][age] =
                        self.density[class][age].min(self.density[class][age - 1])
                });
            }
        }
        if self.events > evidence.events_max {
            // Both kinds of events fade alike, so the probabilities stay and new events count more.
            self.events /= 2.0;
            self.returned.iter_mut().chain(&mut self.lost).flatten().for_each(|n| *n /= 2.0);
        }
    }

    /// The return probabilities by hits and size, without the pause: first by hits, then apart for
    /// new conversations and those that went on, then these by size.
    fn chances_by_size(
        &self,
        watched: &Watched,
        average: &Curve,
        trust: PriorWeight,
    ) -> [BySize; SEEN / SIZES] {
        let mut by_size = [BySize { new: *average, going_on: *average }; SEEN / SIZES];
        let mut fewer_hits = *average;
        for (hits, factor) in EXPECTED.into_iter().enumerate() {
            // The factors of the first two are relative to the average, the others to fewer hits.
            let before = if hits <= 1 { average } else { &fewer_hits };
            let expected = before.map(|chance| (chance * factor).min(CHANCE_MAX));
            let all = hits * HITS..(hits + 1) * HITS;
            let prior = Prior { curve: &expected, trust };
            let by_hits = self.chances(watched, all.clone(), prior);
            fewer_hits = by_hits;
            // New conversations and those that went on are pools of their own before they are
            // divided by size: in the chat trace a third of the first ones return, and of new
            // chunks in the others a tenth.
            let part = |classes: Range<usize>, new: bool, curve: &Curve| {
                let classes = classes.filter(|class| is_new(*class) == new);
                self.chances(watched, classes, Prior { curve, trust })
            };
            let new = part(all.clone(), true, &by_hits);
            let going_on = part(all.clone(), false, &by_hits);
            for at in all.step_by(SIZES) {
                by_size[at / SIZES] = BySize {
                    new: part(at..at + SIZES, true, &new),
                    going_on: part(at..at + SIZES, false, &going_on),
                };
            }
        }
        by_size
    }

    /// The return probabilities of some classes together.
    fn chances(
        &self,
        watched: &Watched,
        classes: impl Iterator<Item = usize> + Clone,
        prior: Prior<'_>,
    ) -> Curve {
        let sum = |of: &[Curve]| -> Curve {
            core::array::from_fn(|age| classes.clone().map(|class| of[class][age]).sum())
        };
        let seen =
            Seen { returned: sum(&self.returned), lost: sum(&self.lost), watched: sum(&watched.0) };
        seen.chances(prior)
    }

    pub fn memory_bytes(&self) -> usize {
        3 * size_of_val(&*self.density)
    }
}

/// The chunks that have not returned yet, by class and age.
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

/// The observations of some classes, by age.
#[derive(Debug)]
struct Seen {
    returned: Curve,
    lost: Curve,
    watched: Curve,
}

impl Seen {
    /// The probability to return within each half octave, for chunks that reach it. The prior is
    /// first scaled to the rate of returns observed here, and then fills in for ages with little
    /// evidence.
    fn chances(&self, prior: Prior<'_>) -> Curve {
        let at_risk = self.at_risk();
        let observed: f32 = self.returned.iter().sum();
        let expected: f32 = prior.curve.iter().zip(&at_risk).map(|(chance, n)| chance * n).sum();
        let PriorWeight { curve: trust, level } = prior.trust;
        // Without evidence the scale is 1; with much of it, the ratio of observed to expected
        // returns. This corrects how often, and keeps from the prior only when.
        let scale = if level.is_finite() { (observed + level) / (expected + level) } else { 1.0 };
        core::array::from_fn(|age| {
            let known = (scale * prior.curve[age]).min(CHANCE_MAX);
            ((self.returned[age] + trust * known) / (at_risk[age] + trust).max(1e-6))
                .min(CHANCE_MAX)
        })
    }

    /// How many reached each half octave. Those observed for a part of it count half.
    fn at_risk(&self) -> Curve {
        let mut at_risk = [0.0; AGES];
        let mut reached = 0.0;
        // From the oldest: what was observed up to an age was there at all younger ages too.
        for age in (0..AGES).rev() {
            let unsettled = self.lost[age] + self.watched[age];
            reached += self.returned[age] + unsettled;
            at_risk[age] = reached - unsettled / 2.0;
        }
        at_risk
    }
}

/// For every age, the best ratio of expected returns to expected time over all moments of eviction.
fn hit_densities(chances: &Curve) -> Curve {
    core::array::from_fn(|from| {
        let mut stays = 1.0f32;
        let mut returns = 0.0;
        let mut time = 0.0;
        let mut best = 0.0f32;
        for (age, chance) in chances.iter().copied().enumerate().skip(from) {
            returns += stays * chance;
            // A chunk that returns within a half octave occupies space for half of it, on average.
            time += stays * (start(age + 1) - start(age)) * (1.0 - chance / 2.0);
            stays *= 1.0 - chance;
            // The ratio of an eviction at the end of this half octave. `time` is above 0, since no
            // half octave is empty.
            best = best.max(returns / time);
        }
        best
    })
}

/// Whether a class, one of [`SEEN`], is of chunks whose last request began a conversation.
fn is_new(class: usize) -> bool {
    class % SIZES == usize::from(NEW)
}

/// The half octave of an age.
fn bucket(age: u32) -> usize {
    // Age 0 has no octave. In 64 bits, since the largest age plus one is not a `u32`.
    let age = u64::from(age) + 1;
    let octave = age.ilog2();
    // The bit below the highest, without a branch, since none could be predicted.
    let upper = (age << 1 >> octave & 1) as u32;
    ((octave * 2 + upper) as usize).min(AGES - 1)
}

/// Where a half octave begins.
fn start(bucket: usize) -> f32 {
    let octave = (1u64 << (bucket / 2)) as f32;
    // Less the one that `bucket` adds.
    octave + if bucket % 2 == 1 { octave / 2.0 } else { 0.0 } - 1.0
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn each_age_is_within_its_bucket() {
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
    fn hit_density_falls_with_age_within_a_half_octave_too() {
        let returns = ReuseModel::new();
        let density: Vec<f32> = (0..4096).map(|age| returns.hit_density(1, age)).collect();
        assert!(density.is_sorted_by(|younger, older| older < younger), "without evidence");
        assert!(returns.hit_density(63, u32::MAX) > 0.0);
    }

    /// A class of these hits and this size of the last request.
    fn class(hits: usize, size: usize) -> u8 {
        (hits * HITS + size * SIZES) as u8
    }

    const EVIDENCE: Evidence = Evidence { events_max: 1e9, request_chunks: 1.0, class_weight: 1.0 };

    #[test]
    fn a_class_with_little_evidence_follows_those_of_the_same_hits_and_size() {
        let mut returns = ReuseModel::new();
        for (size, age) in [(0, 10), (1, 10_000)] {
            (0..2000).for_each(|_| returns.returned(class(1, size), age, 1.0));
        }
        // A few chunks of another pause, which came back as those of the other size do.
        (0..5).for_each(|_| returns.returned(class(1, 0) + 1, 10_000, 1.0));
        (0..5).for_each(|_| returns.returned(class(1, 1) + 1, 10, 1.0));
        returns.learn(&Watched::new(), &EVIDENCE);
        assert!(
            returns.hit_density(class(1, 0) + 1, 5) > 2.0 * returns.hit_density(class(1, 1) + 1, 5)
        );
    }

    #[test]
    fn conversations_that_went_on_are_judged_apart_from_new_ones() {
        let mut returns = ReuseModel::new();
        let new = class(0, 3) + NEW;
        (0..9000).for_each(|_| returns.returned(new, 900, 1.0));
        (0..1000).for_each(|_| returns.lost(class(0, 3), 5000, 1.0));
        returns.learn(&Watched::new(), &EVIDENCE);
        // Nothing was seen of this pause: it follows the other pause, not the new conversations.
        let unseen = class(0, 3) + 4;
        let density = |class| returns.hit_density(class, 5);
        assert!(density(new) > 3.0 * density(unseen), "{} {}", density(new), density(unseen));
    }

    #[test]
    fn chunks_with_more_hits_are_expected_to_return_more_often() {
        let mut returns = ReuseModel::new();
        (0..50).for_each(|_| returns.returned(class(0, 3), 900, 1.0));
        (0..950).for_each(|_| returns.lost(class(0, 3), 5000, 1.0));
        returns.learn(&Watched::new(), &EVIDENCE);
        let by_hits: Vec<f32> =
            (0..SEEN / HITS).map(|hits| returns.hit_density(class(hits, 3), 5)).collect();
        assert!(by_hits.is_sorted_by(|fewer, more| fewer < more), "{by_hits:?}");
        // What is seen of chunks with fewer hits counts for those with more.
        let before = by_hits[3];
        (0..3000).for_each(|_| returns.lost(class(2, 3), 5000, 1.0));
        returns.learn(&Watched::new(), &EVIDENCE);
        assert!(returns.hit_density(class(3, 3), 5) < before / 3.0);
    }

    #[test]
    fn hit_density_follows_the_returns_of_a_size_only_after_enough_requests() {
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
    fn only_the_class_of_tails_keeps_its_own_density_at_weight_0() {
        let mut returns = ReuseModel::new();
        let tail = TAIL as u8;
        (0..10_000).for_each(|_| returns.returned(1, 900, 1.0));
        for class in [2, tail] {
            (0..10_000).for_each(|_| returns.lost(class, 5000, 1.0));
        }
        returns.learn(&Watched::new(), &Evidence { class_weight: 0.0, ..EVIDENCE });
        let density = |class| returns.hit_density(class, 10);
        assert_eq!(density(1), density(2));
        assert!(density(1) > 10.0 * density(tail), "{} and {}", density(1), density(tail));
        let by_age: Vec<f32> = (0..4096).map(|age| returns.hit_density(tail, age)).collect();
        assert!(by_age.is_sorted_by(|younger, older| older <= younger));
    }

    #[test]
    fn a_class_that_returns_has_the_higher_hit_density() {
        let mut returns = ReuseModel::new();
        let before = (returns.hit_density(1, 10), returns.hit_density(1, 1000));
        assert!(before.0 > before.1, "older is worth less without evidence");
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
            "rises as the hinted return comes closer"
        );
        assert!(
            returns.hit_density(1, 800) <= returns.hit_density(1, 10),
            "without hints only age decides"
        );
    }

    /// A curve that is 0 but at these ages.
    fn curve(at: &[(usize, f32)]) -> Curve {
        let mut curve = [0.0; AGES];
        at.iter().for_each(|(age, value)| curve[*age] = *value);
        curve
    }

    fn near(found: f32, expected: f32) -> bool {
        (found - expected).abs() <= 1e-4 * expected.abs()
    }

    #[test]
    fn those_observed_for_a_part_of_a_half_octave_count_half() {
        let seen = Seen {
            returned: curve(&[(2, 3.0), (4, 1.0)]),
            lost: curve(&[(4, 2.0)]),
            watched: curve(&[(4, 4.0)]),
        };
        assert_eq!(seen.at_risk()[..6], [10.0, 10.0, 10.0, 7.0, 4.0, 0.0]);
        let prior = |level| Prior { curve: &[0.5; AGES], trust: PriorWeight { curve: 2.0, level } };
        let chances = seen.chances(prior(f32::INFINITY));
        assert_eq!(chances[..6], [1.0 / 12.0, 1.0 / 12.0, 4.0 / 12.0, 1.0 / 9.0, 2.0 / 6.0, 0.5]);
        // Of 20.5 expected returns there were 4.
        let scaled = 0.5 * 14.0 / 30.5;
        let chances = seen.chances(prior(10.0));
        assert!(near(chances[2], (3.0 + 2.0 * scaled) / 12.0), "{}", chances[2]);
        assert!(near(chances[5], scaled), "{}", chances[5]);
    }

    #[test]
    fn a_hit_density_is_that_of_the_best_moment_to_evict() {
        let densities = hit_densities(&curve(&[(0, 0.5), (1, 0.25), (3, 0.5)]));
        let expected = [0.5 / 0.375, 0.25 / 0.4375, 0.5 / 1.75, 0.5 / 0.75, 0.0];
        for (found, expected) in densities.into_iter().zip(expected) {
            assert!(near(found, expected), "{densities:?}");
        }
    }

    #[test]
    fn a_hit_density_is_interpolated_within_a_half_octave() {
        // The half octave from 7 to 11.
        let densities = [7, 8, 10, 11].map(|age| ReuseModel::new().hit_density(1, age) * 192.0);
        for (found, expected) in densities.into_iter().zip([16.0, 15.0, 13.0, 12.0]) {
            assert!(near(found, expected), "{densities:?}");
        }
    }

    #[test]
    fn half_of_the_events_are_dropped_when_there_are_more_than_the_most() {
        let mut returns = ReuseModel::new();
        (0..60).for_each(|_| returns.returned(1, 0, 1.0));
        (0..20).for_each(|_| returns.lost(2, 0, 2.0));
        let events =
            |returns: &ReuseModel| (returns.events, returns.returned[1][0], returns.lost[2][0]);
        returns.learn(&Watched::new(), &Evidence { events_max: 100.0, ..EVIDENCE });
        assert_eq!(events(&returns), (100.0, 60.0, 40.0));
        returns.learn(&Watched::new(), &Evidence { events_max: 99.0, ..EVIDENCE });
        assert_eq!(events(&returns), (50.0, 30.0, 20.0));
    }

    #[test]
    fn the_most_events_are_64_for_each_chunk_of_a_large_cache() {
        assert_eq!([0, 65_536, 100_000].map(events_max), [4_194_304.0, 4_194_304.0, 6_400_000.0]);
        assert_eq!(ReuseModel::new().memory_bytes(), 3 * 192 * 60 * 4);
    }
}
