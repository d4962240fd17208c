//! `cargo xtask features`: features only add, so each must build alone, none and all of them too.

use anyhow::{Result, bail};

use crate::args::Args;
use crate::sh::Cmd;
use crate::workspace::{self, HOST_FEATURES, Package};

/// `--depth 2` adds all pairs.
pub fn run(args: &mut Args) -> Result<()> {
    let depth = args.number("--depth")?.unwrap_or(1);
    args.end()?;
    if !(1..=2).contains(&depth) {
        bail!("--depth is 1 (each feature alone) or 2 (pairs as well)");
    }
    let count = check(&workspace::read()?, depth)?;
    println!("{count} combinations pass");
    Ok(())
}

/// Lints every crate that has features under the combinations that matter; gives back how many
/// there were. First the library by itself, as others build it; then tests, examples and benchmarks
/// too, whose libraries may bring features along: at depth 1 with no feature, at depth 2 with each
/// combination. With most features at once the lint of the whole workspace has them.
pub fn check(packages: &[Package], depth: u64) -> Result<usize> {
    let mut count = 0;
    for package in packages.iter().filter(|package| !package.features.is_empty()) {
        for combination in combinations(&package.features, depth) {
            let cmd = Cmd::new("cargo clippy --locked --no-default-features -p").args([
                HOST_FEATURES,
                "-p",
                &package.name,
            ]);
            let cmd =
                if combination.is_empty() { cmd } else { cmd.args(["--features", &combination]) };
            cmd.clone().args(["--", "-D", "warnings"]).run()?;
            if depth > 1 || combination.is_empty() {
                cmd.args(["--all-targets", "--", "-D", "warnings"]).run()?;
            }
            count += 1;
        }
    }
    Ok(count)
}

/// None, each alone, for depth 2 each pair, and all.
fn combinations(features: &[String], depth: u64) -> Vec<String> {
    let mut list = vec![String::new()];
    list.extend(features.iter().cloned());
    if depth > 1 {
        for (at, first) in features.iter().enumerate() {
            list.extend(features[at + 1..].iter().map(|second| format!("{first},{second}")));
        }
    }
    let all = features.join(",");
    if !list.contains(&all) {
        list.push(all);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(features: &[&str], depth: u64) -> Vec<String> {
        combinations(&features.iter().map(ToString::to_string).collect::<Vec<_>>(), depth)
    }

    #[test]
    fn no_combination_is_left_out_or_repeated() {
        assert_eq!(list(&["a"], 1), ["", "a"]);
        assert_eq!(list(&["a", "b", "c"], 1), ["", "a", "b", "c", "a,b,c"]);
        assert_eq!(list(&["a", "b", "c"], 2), ["", "a", "b", "c", "a,b", "a,c", "b,c", "a,b,c"]);
        assert_eq!(list(&["a", "b"], 2), ["", "a", "b", "a,b"]);
    }
}
