//! A second look at tests that failed among thousands. Tests here run on real clocks, sockets and disks; on a machine that stands still for
//! seconds one of them can fail by its own patience. It is run again by itself: what is broken fails again. That it passed only then is
//! shown with the failure, and counted; in `cargo xtask nightly` there is no second look.

use super::Count;

/// The most tests of one command that get a second look: more are no accident.
const TESTS_MAX: usize = 3;

/// How tests say the one thing that gets no second look, however rarely it happens.
const NEVER_AGAIN: &str = "wrong byte";

/// The tests of a program that failed, if a second look at them is allowed. `text` is all that the program printed.
pub fn failures(text: &str) -> Option<Vec<String>> {
    let (_, list) = text.rsplit_once("\nfailures:\n")?;
    let names: Vec<_> = list.lines().map_while(|line| line.strip_prefix("    ")).map(String::from).collect();
    let failed = text.lines().rev().find_map(Count::from_line)?.failed;
    let may = names.len() as u64 == failed && names.len() <= TESTS_MAX && !text.contains(NEVER_AGAIN);
    may.then_some(names)
}

/// Whether so many tests of all programs may be looked at again.
pub fn allowed(tests: usize) -> bool {
    tests <= TESTS_MAX
}

/// Whether one test, run by itself, passed: that it was not found is no success.
pub fn passed(success: bool, text: &str) -> bool {
    let ran = text.lines().filter_map(Count::from_line).map(|count| count.passed).sum::<u64>();
    success && ran == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(names: &[&str], failed: usize, more: &str) -> String {
        let list: String = names.iter().map(|name| format!("    {name}\n")).collect();
        format!(
            "failures:\n\n---- a stdout ----\n{more}\n\nfailures:\n{list}\ntest result: FAILED. 1 passed; {failed} failed; 0 ignored\n"
        )
    }

    #[test]
    fn only_few_failures_that_are_named_and_no_wrong_bytes_get_a_second_look() {
        assert_eq!(failures(&said(&["a", "m::b"], 2, "")), Some(vec!["a".into(), "m::b".into()]));
        assert_eq!(failures(&said(&["a"], 2, "")), None, "one has no name");
        assert_eq!(failures(&said(&["a", "b", "c", "d"], 4, "")), None, "too many");
        assert_eq!(failures(&said(&["a"], 1, "panicked: 3 wrong bytes at 7")), None);
        assert_eq!(failures("running 3 tests\nabort"), None, "it died");
    }

    #[test]
    fn a_test_that_was_not_found_did_not_pass() {
        assert!(passed(true, "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured"));
        assert!(!passed(true, "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured"));
        assert!(!passed(false, "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured"));
    }
}
