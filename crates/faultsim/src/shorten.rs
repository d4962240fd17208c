//! The shortest schedule that still breaks a promise: delta debugging.

/// Leaves out what `breaks` does not need, in at most `runs_max` calls of it: halves first, then smaller
/// parts, then one by one. The whole must break it.
pub fn shorten<T: Clone>(
    whole: Vec<T>,
    mut runs_max: usize,
    mut breaks: impl FnMut(&[T]) -> bool,
) -> Vec<T> {
    let mut kept = whole;
    let mut part = kept.len().div_ceil(2);
    while part > 0 {
        let before = kept.len();
        let mut from = 0;
        while from < kept.len() {
            if runs_max == 0 {
                return kept;
            }
            runs_max -= 1;
            let to = (from + part).min(kept.len());
            let rest = [&kept[..from], &kept[to..]].concat();
            // What follows the part is at its place now.
            if breaks(&rest) { kept = rest } else { from = to }
        }
        // One by one until nothing more can go: a fault may need another only while a third is there.
        part = match part {
            1 if kept.len() < before => 1,
            1 => 0,
            _ => part.div_ceil(2),
        };
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_needed_stays() {
        let mut runs = 0;
        let kept = shorten((0..40).collect(), 200, |part| {
            runs += 1;
            part.contains(&3) && part.contains(&17) && part.contains(&18)
        });
        assert_eq!(kept, [3, 17, 18]);
        assert!(runs < 60, "{runs}");
    }

    #[test]
    fn what_needs_no_fault_has_none_and_what_needs_all_keeps_all() {
        assert_eq!(shorten(vec![1, 2, 3], 200, |_| true), [0; 0]);
        assert_eq!(shorten(vec![1, 2, 3], 200, |part| part.len() == 3), [1, 2, 3]);
        assert_eq!(shorten(Vec::<u8>::new(), 200, |_| true), [0; 0]);
    }

    #[test]
    fn the_runs_are_bounded() {
        let mut runs = 0;
        let kept = shorten((0..1000).collect(), 20, |part| {
            runs += 1;
            part.contains(&999)
        });
        assert_eq!(runs, 20);
        assert!(kept.contains(&999) && kept.len() < 1000);
    }
}
