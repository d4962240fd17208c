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
mod tests;
