//! Running `cargo test` and knowing how many tests ran.

mod run_test_binaries;

use std::ops::AddAssign;

use anyhow::Result;

pub use self::run_test_binaries::{run_at_once, run_of};
use crate::sh::Cmd;

/// How many tests passed, failed and were left out, over all test programs of one command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
}

impl Count {
    /// Reads libtest's closing line: `test result: ok. 5 passed; 0 failed; 1 ignored; ...`.
    fn from_line(line: &str) -> Option<Count> {
        let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let number = |what: &str| {
            let part = counts.split("; ").find(|part| part.ends_with(what))?;
            part.split(' ').next()?.parse().ok()
        };
        let passed = number(" passed")?;
        let failed = number(" failed")?;
        let ignored = number(" ignored")?;
        Some(Count { passed, failed, ignored })
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

/// What builds tests, always in the same way, so that they and all that they need are built once:
/// libraries have the features that the whole workspace asks for.
pub fn workspace() -> Cmd {
    Cmd::new(
        "cargo test --locked --workspace --features kvtier-key/serde,kvtier-s3/tls-direct,kvtier/metrics,kvtier-cli/aws-config",
    )
}

/// Runs a `cargo test` command, showing its output.
pub fn run(cmd: &Cmd) -> Result<Count> {
    let mut count = Count::default();
    cmd.run_seeing(|line| {
        if let Some(more) = Count::from_line(line) {
            count += more;
        }
    })?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_read() {
        let line = "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.00s";
        assert_eq!(
            Count::from_line(line),
            Some(Count { passed: 5, ignored: 1, ..Count::default() })
        );
        let line = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(
            Count::from_line(line),
            Some(Count { passed: 1, failed: 2, ..Count::default() })
        );
        assert_eq!(Count::from_line("test tests::closing ... ok"), None);
    }
}
