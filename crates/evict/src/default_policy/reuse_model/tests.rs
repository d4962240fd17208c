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
fn new_conversations_need_as_much_evidence_as_a_pool() {
    let mut returns = ReuseModel::new();
    let (new, paused) = (class(0, 0) + NEW, class(0, 1) + 2);
    for class in [new, paused] {
        (0..30).for_each(|_| returns.returned(class, 900, 1.0));
    }
    // Most of those with these hits are lost, of both kinds.
    for class in [class(0, 3) + NEW, class(0, 3) + 2] {
        (0..3000).for_each(|_| returns.lost(class, 5000, 1.0));
    }
    returns.learn(&Watched::new(), &EVIDENCE);
    let density = |class| returns.hit_density(class, 5);
    assert!(density(paused) > 2.0 * density(new), "{} and {}", density(paused), density(new));
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
    // The second half octave is the better moment, for those that are left then.
    let densities = hit_densities(&curve(&[(0, 0.25), (1, 0.8)]));
    let expected = [(0.25 + 0.75 * 0.8) / (0.4375 + 0.75 * 0.3), 0.8 / 0.3, 0.0];
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
