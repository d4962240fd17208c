//! Files hold one idea each: most are short, none is long.

use super::source::{Role, Source};
use super::{Problem, Rule};

const MEDIAN_MAX: usize = 200;
const P90_MAX: usize = 450;
const LINES_MAX: usize = 700;

/// What is wrong with the lengths of production files.
pub fn check(sources: &[Source]) -> Vec<Problem> {
    let sizes = sorted(sources);
    let mut problems: Vec<Problem> = sizes
        .iter()
        .filter(|(lines, _)| *lines > LINES_MAX)
        .filter_map(|(lines, source)| too_long(*lines, source))
        .collect();
    for (name, share, max) in [("median", 50, MEDIAN_MAX), ("90th percentile", 90, P90_MAX)] {
        let lines = percentile(&sizes, share);
        if lines > max {
            let what =
                format!("the {name} of production lines per file is {lines}, more than {max}");
            let longest: Vec<String> = sizes
                .iter()
                .rev()
                .take(5)
                .map(|(lines, source)| format!("{} ({lines})", source.path))
                .collect();
            problems.push(Problem::new(
                "crates",
                1,
                what,
                format!("split the longest: {}", longest.join(", ")),
            ));
        }
    }
    problems
}

/// One line about the sizes, for people.
pub fn summary(sources: &[Source]) -> String {
    let sizes = sorted(sources);
    let median = percentile(&sizes, 50);
    let p90 = percentile(&sizes, 90);
    let (longest, path) =
        sizes.last().map_or((0, "-"), |(lines, source)| (*lines, source.path.as_str()));
    format!(
        "{} production files; lines: median {median}, p90 {p90}, longest {longest} ({path})",
        sizes.len()
    )
}

/// The production files with their lengths, shortest first.
fn sorted(sources: &[Source]) -> Vec<(usize, &Source)> {
    let production = sources.iter().filter(|source| source.role == Role::Production);
    let mut sizes: Vec<(usize, &Source)> =
        production.map(|source| (source.production_lines(), source)).collect();
    sizes.sort_by_key(|(lines, _)| *lines);
    sizes
}

fn too_long(lines: usize, source: &Source) -> Option<Problem> {
    let allowed = (1..=source.lines.len()).any(|line| source.allows(Rule::FileLines.name(), line));
    let what = format!("{lines} production lines, more than {LINES_MAX}");
    (!allowed).then(|| {
        Problem::new(
            &source.path,
            1,
            what,
            "one idea a file: move the parts into modules of their own",
        )
    })
}

/// The size that `share` percent of the sorted files do not exceed.
fn percentile(sizes: &[(usize, &Source)], share: usize) -> usize {
    let rank = (sizes.len() * share).div_ceil(100);
    sizes.get(rank.saturating_sub(1)).map_or(0, |(lines, _)| *lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, lines: usize) -> Source {
        Source::parse(&format!("crates/a/src/{name}.rs"), &"fn a() {}\n".repeat(lines)).unwrap()
    }

    #[test]
    fn short_files_pass_and_one_too_long_does_not() {
        let mut sources: Vec<Source> = (0..9).map(|n| file(&format!("s{n}"), 100)).collect();
        sources.push(file("long", 700));
        assert!(check(&sources).is_empty());
        sources.push(file("longer", 701));
        assert!(
            check(&sources)[0]
                .to_string()
                .starts_with("crates/a/src/longer.rs:1: 701 production lines")
        );
    }

    #[test]
    fn the_crowd_is_judged_too() {
        let fat = |count: usize, lines| {
            (0..count).map(|n| file(&format!("f{n}"), lines)).collect::<Vec<_>>()
        };
        assert!(check(&fat(10, 201))[0].to_string().contains("median"));
        let mut sources = fat(8, 10);
        sources.extend(fat(2, 451));
        assert!(check(&sources)[0].to_string().contains("90th percentile"));
    }

    #[test]
    fn tests_and_blanks_do_not_count() {
        let text = format!(
            "fn a() {{}}\n\n\n#[cfg(test)]\nmod tests {{\n{}}}\n",
            "fn b() {}\n".repeat(2000)
        );
        let source = Source::parse("crates/a/src/a.rs", &text).unwrap();
        assert_eq!(source.production_lines(), 1);
    }
}
