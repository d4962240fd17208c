//! The weight of a chunk: what its priority, or its cost for a byte, multiplies its worth by.

/// How many weights there are.
pub(crate) const WEIGHTS: usize = 4;

/// How much the return of a chunk saves per byte that it occupies, relative to the average.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weight {
    /// The average cost for a byte, learnt.
    average: f64,
}

impl Weight {
    /// The weight of a chunk of this cost and these bytes.
    pub fn of(&mut self, cost: u32, bytes: u64) -> usize {
        if cost == 0 || bytes == 0 {
            return AVERAGE;
        }
        let ratio = f64::from(cost) / bytes as f64;
        // The first chunk with a cost is the average.
        if self.average == 0.0 {
            self.average = ratio;
        }
        self.average += (ratio - self.average) / 1024.0;
        // Small differences do not count: every weight has lists of its own.
        match ratio / self.average {
            more if more > 1.5 => AVERAGE + 1,
            less if less < 0.67 => AVERAGE - 1,
            _ => AVERAGE,
        }
    }
}

/// The weight of a chunk of this priority.
pub(crate) fn of_priority(priority: i8) -> usize {
    match priority {
        ..0 => AVERAGE - 1,
        0 => AVERAGE,
        1 => AVERAGE + 1,
        _ => AVERAGE + 2,
    }
}

/// The weight of a chunk like most.
pub(crate) const AVERAGE: usize = 1;

/// What a weight multiplies.
pub(crate) fn factor(weight: usize) -> f32 {
    [0.5, 1.0, 2.0, 4.0][weight]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_cost_far_from_the_average_changes_the_weight() {
        let mut weight = Weight::default();
        let weights = [100, 80, 120, 50, 200, 100, 0].map(|cost| weight.of(cost, 100));
        let (less, more) = (AVERAGE - 1, AVERAGE + 1);
        assert_eq!(weights, [AVERAGE, AVERAGE, AVERAGE, less, more, AVERAGE, AVERAGE]);
    }

    #[test]
    fn the_average_follows_the_costs() {
        let mut weight = Weight::default();
        weight.of(100, 100);
        let twice = [(); 2000].map(|()| weight.of(200, 100));
        assert_eq!((twice[0], twice[1999]), (AVERAGE + 1, AVERAGE));
        assert_eq!(weight.of(100, 100), AVERAGE - 1);
    }

    #[test]
    fn each_priority_has_a_weight() {
        let factors = [-128, -1, 0, 1, 2, 127].map(|priority| factor(of_priority(priority)));
        assert_eq!(factors, [0.5, 0.5, 1.0, 2.0, 4.0, 4.0]);
    }

    #[test]
    fn a_cost_is_compared_for_each_byte() {
        let mut weight = Weight::default();
        let weights = [100, 200, 50].map(|bytes| weight.of(100, bytes));
        assert_eq!(weights, [AVERAGE, AVERAGE - 1, AVERAGE + 1]);
    }

    #[test]
    fn the_average_moves_by_a_part_of_the_difference() {
        let mut weight = Weight::default();
        let averages = [100, 200].map(|cost| {
            weight.of(cost, 100);
            weight.average * 1024.0
        });
        assert_eq!(averages, [1024.0, 1025.0]);
    }

    #[test]
    fn a_cost_at_the_limit_is_average() {
        // Averages that move to 1023 and 3100.
        for (average, cost, bytes) in [(1022.5, 3069, 2), (3101.0, 2077, 1)] {
            assert_eq!(Weight { average }.of(cost, bytes), AVERAGE);
        }
        assert_eq!(Weight { average: 1022.5 }.of(3070, 2), AVERAGE + 1);
        assert_eq!(Weight { average: 3101.0 }.of(2076, 1), AVERAGE - 1);
    }
}
