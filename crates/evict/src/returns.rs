//! What is learnt of chunks: how likely those of a class return, given for how long they did not.

use alloc::boxed::Box;
use alloc::vec;
use core::ops::Range;

/// Classes of chunks.
pub(crate) const CLASSES: usize = 64;
/// The first of them are of hits and pauses; of the others the caller hinted when they return.
pub(crate) const SEEN: usize = 32;
/// So many of those that follow each other are a kin: hit as often, and only their conversations paused for other times.
pub(crate) const KIN: usize = 8;
/// Ages in half octaves.
const AGES: usize = 60;
/// A kin, or a hinted class, that was seen less often than this many times is taken for the average in part.
const PRIOR: f32 = 64.0;
/// A class that was seen less often than this many times is taken for its kin in part. Chunks of one request return together, so that
/// what looks like many returns of one class was few requests.
const KIN_PRIOR: f32 = 1024.0;

type Curve = [f32; AGES];

/// Returns and losses by class and age, and what they say of every class at every age.
#[derive(Clone, Debug)]
pub(crate) struct Returns {
    returned: Box<[Curve]>,
    lost: Box<[Curve]>,
    worth: Box<[Curve]>,
    events: f32,
}

impl Returns {
    pub fn new() -> Self {
        let zero = || vec![[0.0; AGES]; CLASSES].into_boxed_slice();
        // Before anything is learnt, whatever is older is worth less.
        let by_age: Curve = core::array::from_fn(|age| 1.0 / (1.0 + start(age + 1)));
        Returns { returned: zero(), lost: zero(), worth: vec![by_age; CLASSES].into_boxed_slice(), events: 0.0 }
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

    /// How much a chunk of this class and age is worth keeping: returns to be expected for each step of time that it
    /// takes up room, at the best moment to give it up.
    pub fn worth(&self, class: u8, age: u32) -> f32 {
        let (worth, at) = (&self.worth[usize::from(class)], bucket(age));
        let (begin, end) = (start(at), start(at + 1));
        // A half octave is long: of two classes that are worth about the same, the older chunk goes within one too.
        let into = ((age as f32 - begin) / (end - begin)).clamp(0.0, 1.0);
        worth[at] + into * (worth[(at + 1).min(AGES - 1)] - worth[at])
    }

    /// Learns anew from what happened and from the ages of those that are still `watched`; forgets half of what
    /// happened once that is more than `events_max`.
    pub fn learn(&mut self, watched: &Watched, events_max: f32) {
        let average = self.chances(watched, 0..CLASSES, (&[0.0; AGES], 1.0));
        let kins: [Curve; SEEN / KIN] =
            core::array::from_fn(|kin| self.chances(watched, kin * KIN..(kin + 1) * KIN, (&average, PRIOR)));
        for class in 0..CLASSES {
            let prior = kins.get(class / KIN).map_or((&average, PRIOR), |kin| (kin, KIN_PRIOR));
            self.worth[class] = worth(&self.chances(watched, class..class + 1, prior));
            // The oldest of a class stands for all of it: what is worth less before than at its age goes with the class. And what seems to
            // rise was one request's return, mostly.
            if class < SEEN {
                (1..AGES)
                    .for_each(|age| self.worth[class][age] = self.worth[class][age].min(self.worth[class][age - 1]));
            }
        }
        if self.events > events_max {
            self.events /= 2.0;
            self.returned.iter_mut().chain(&mut self.lost).flatten().for_each(|n| *n /= 2.0);
        }
    }

    /// The chances of some classes together.
    fn chances(&self, watched: &Watched, classes: Range<usize>, prior: (&Curve, f32)) -> Curve {
        let sum = |of: &[Curve]| -> Curve {
            core::array::from_fn(|age| of[classes.clone()].iter().map(|curve| curve[age]).sum())
        };
        chances(&sum(&self.returned), &sum(&self.lost), &sum(&watched.0), prior)
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

/// The chance to return within each half octave for those that reach it, drawn towards the prior's.
fn chances(returned: &Curve, lost: &Curve, watched: &Curve, (prior, trust): (&Curve, f32)) -> Curve {
    let mut chances = [0.0; AGES];
    let mut reached = 0.0;
    for age in (0..AGES).rev() {
        let unsettled = lost[age] + watched[age];
        reached += returned[age] + unsettled;
        let at_risk = reached - unsettled / 2.0;
        chances[age] = ((returned[age] + trust * prior[age]) / (at_risk + trust).max(1e-6)).min(0.999);
    }
    chances
}

/// From every age on, the best ratio of expected returns to expected time that any moment of giving up yields.
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
            assert!(start(bucket) <= age as f32 && age as f32 <= start(bucket + 1), "{age} in {bucket}");
        }
        assert_eq!(bucket(u32::MAX), AGES - 1);
    }

    #[test]
    fn what_is_older_is_worth_less_within_a_half_octave_too() {
        let returns = Returns::new();
        let worth: Vec<f32> = (0..4096).map(|age| returns.worth(1, age)).collect();
        assert!(worth.is_sorted_by(|younger, older| older < younger), "as long as nothing else is known");
        assert!(returns.worth(63, u32::MAX) > 0.0);
    }

    #[test]
    fn a_class_that_was_seen_little_is_taken_for_those_that_were_hit_as_often() {
        let mut returns = Returns::new();
        for kin in 0..2 {
            (0..2000).for_each(|_| returns.returned(kin * KIN as u8, if kin == 0 { 10 } else { 10_000 }, 1.0));
        }
        // One request's chunks.
        (0..100).for_each(|_| returns.returned(1, 10_000, 1.0));
        (0..100).for_each(|_| returns.returned(KIN as u8 + 1, 10, 1.0));
        returns.learn(&Watched::new(), 1e9);
        assert!(returns.worth(1, 5) > 2.0 * returns.worth(KIN as u8 + 1, 5));
    }

    #[test]
    fn a_class_that_returns_is_worth_more_than_one_that_does_not() {
        let mut returns = Returns::new();
        let before = (returns.worth(1, 10), returns.worth(1, 1000));
        assert!(before.0 > before.1, "older is worth less until more is known");
        let hinted = SEEN as u8;
        for class in [1, hinted] {
            (0..10_000).for_each(|_| returns.returned(class, 900, 1.0));
        }
        (0..10_000).for_each(|_| returns.lost(2, 5000, 1.0));
        returns.learn(&Watched::new(), 1e9);
        for class in [1, hinted] {
            assert!(returns.worth(class, 10) > 3.0 * returns.worth(2, 10));
            assert!(returns.worth(class, 5000) < returns.worth(class, 10), "what did not return then will not");
        }
        assert!(returns.worth(hinted, 800) > 5.0 * returns.worth(hinted, 10), "worth the more the closer its return");
        assert!(
            returns.worth(1, 800) <= returns.worth(1, 10),
            "which of those that nobody hinted is left to their age"
        );
    }
}
