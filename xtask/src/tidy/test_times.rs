//! Tests measure no speed: on a machine that does something else meanwhile everything takes longer.
//! An assertion that time since an `Instant` is below less than a minute is found, where its bound
//! can be read in the same file.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proc_macro2::TokenTree;

use super::source::{Source, each_token, is_ident, is_path_separator, is_punct};
use super::{Problem, Rule};

/// The least upper bound.
const BOUND_MIN: Duration = Duration::from_secs(60);

/// Assertions of tests that fail on a machine that is slow for a while.
pub fn check(source: &Source) -> Vec<Problem> {
    let mut problems = Vec::new();
    if has_virtual_clock(source) {
        return problems;
    }
    let names = Names::of(source);
    each_token(&source.tokens, &mut |tokens| {
        let [assert, bang, TokenTree::Group(args), ..] = tokens else { return };
        let line = assert.span().start().line;
        if !is_ident(assert, "assert")
            || !is_punct(bang, '!')
            || !source.is_test(line)
            || source.allows(Rule::TestTime.name(), line)
        {
            return;
        }
        let args: Vec<TokenTree> = args.stream().into_iter().collect();
        if let Some(bound) = names.upper_bounds(&args).min().filter(|bound| *bound < BOUND_MIN) {
            let what = format!("a test that fails where something takes {bound:?}");
            let fix = "wait for it for minutes, move a `ManualClock`, or count what is done";
            problems.push(Problem::new(&source.path, line, what, fix));
        }
    });
    problems
}

/// Whether `Instant` is one that a test moves: tokio's clock, or what stands for it.
fn has_virtual_clock(source: &Source) -> bool {
    let is_virtual = |line: &String| {
        let line = line.trim_start();
        let from = line.starts_with("use tokio::time::") || line.contains("local_clock::");
        from && line.contains("Instant")
    };
    source.lines.iter().any(is_virtual)
}

/// What the names of a file stand for.
#[derive(Default)]
struct Names {
    /// `let took = began.elapsed();`
    measured: BTreeSet<String>,
    /// `const SOON: Duration = Duration::from_secs(5);`
    durations: BTreeMap<String, Duration>,
}

impl Names {
    fn of(source: &Source) -> Self {
        let mut names = Names::default();
        each_token(&source.tokens, &mut |tokens| {
            let [keyword, TokenTree::Ident(name), rest @ ..] = tokens else { return };
            if !is_ident(keyword, "let") && !is_ident(keyword, "const") {
                return;
            }
            let end = rest.iter().position(|token| is_punct(token, ';')).unwrap_or(0);
            let Some(equals) = rest[..end].iter().position(|token| is_punct(token, '=')) else {
                return;
            };
            let value = &rest[equals + 1..end];
            if is_elapsed(value) {
                names.measured.insert(name.to_string());
            } else if let Some(duration) = names.duration(value) {
                names.durations.insert(name.to_string(), duration);
            }
        });
        names
    }

    /// The bounds below which these tokens of an assertion want a measured time.
    fn upper_bounds<'a>(
        &'a self,
        tokens: &'a [TokenTree],
    ) -> impl Iterator<Item = Duration> + use<'a> {
        let less = tokens.iter().enumerate().filter(|(_, token)| is_punct(token, '<'));
        less.filter_map(|(at, _)| {
            let before = &tokens[..at];
            let is_name = |token: &TokenTree| {
                matches!(token, TokenTree::Ident(name) if self.measured.contains(&name.to_string()))
            };
            if !is_elapsed(before) && !before.last().is_some_and(is_name) {
                return None;
            }
            let after = match &tokens[at + 1..] {
                [equals, after @ ..] if is_punct(equals, '=') => after,
                after => after,
            };
            let ends = |token: &TokenTree| [',', '&', '|'].iter().any(|end| is_punct(token, *end));
            let end = after.iter().position(ends).unwrap_or(after.len());
            self.duration(&after[..end])
        })
    }

    /// What an expression of durations is; `None` where it has parts that are not known here.
    fn duration(&self, tokens: &[TokenTree]) -> Option<Duration> {
        let terms = tokens.split(|token| is_punct(token, '+'));
        terms.map(|term| self.product(term)).sum()
    }

    fn product(&self, tokens: &[TokenTree]) -> Option<Duration> {
        let mut factor = 1;
        let mut duration = None;
        for part in tokens.split(|token| is_punct(token, '*')) {
            match part {
                [TokenTree::Literal(number)] => factor *= whole(&number.to_string())?,
                [TokenTree::Ident(name)] => {
                    duration = Some(*self.durations.get(&name.to_string())?);
                }
                _ => duration = Some(constructed(part)?),
            }
        }
        duration?.checked_mul(u32::try_from(factor).ok()?)
    }
}

/// Whether an expression ends with `.elapsed()`.
fn is_elapsed(tokens: &[TokenTree]) -> bool {
    let [.., dot, name, TokenTree::Group(_)] = tokens else { return false };
    is_punct(dot, '.') && is_ident(name, "elapsed")
}

/// `Duration::from_secs(5)`, with its path or without.
fn constructed(tokens: &[TokenTree]) -> Option<Duration> {
    let [.., kind, colon, colon_too, TokenTree::Ident(unit), TokenTree::Group(args)] = tokens
    else {
        return None;
    };
    if !is_ident(kind, "Duration") || !is_path_separator(colon, colon_too) {
        return None;
    }
    let number = whole(&args.stream().to_string())?;
    match unit.to_string().as_str() {
        "from_secs" => Some(Duration::from_secs(number)),
        "from_millis" => Some(Duration::from_millis(number)),
        "from_micros" => Some(Duration::from_micros(number)),
        _ => None,
    }
}

fn whole(text: &str) -> Option<u64> {
    text.replace('_', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(code: &str) -> usize {
        check(&Source::parse("crates/a/tests/a.rs", code).unwrap()).len()
    }

    #[test]
    fn bounds_below_a_minute_are_found() {
        for bad in [
            "fn a() { assert!(began.elapsed() < Duration::from_secs(5)); }",
            "fn a() { assert!(began.elapsed() <= std::time::Duration::from_millis(59_999), \"x\"); }",
            "fn a() { assert!(is_so && began.elapsed() < 2 * Duration::from_secs(5), \"x\"); }",
            "const SOON: Duration = Duration::from_secs(9); fn a() { assert!(b.elapsed() < SOON * 3); }",
            "fn a() { let took = began.elapsed(); assert!(took < Duration::from_secs(1)); }",
            "fn a() { scope(|| { assert!(b.elapsed() < Duration::from_secs(1) + Duration::from_secs(2)) }) }",
        ] {
            assert_eq!(problems(bad), 1, "{bad}");
        }
    }

    #[test]
    fn bounds_of_minutes_lower_bounds_and_loops_are_not() {
        for good in [
            "fn a() { assert!(began.elapsed() < Duration::from_secs(60)); }",
            "fn a() { assert!(began.elapsed() >= Duration::from_secs(5)); }",
            "const SOON: Duration = Duration::from_secs(20); fn a() { assert!(b.elapsed() < 3 * SOON); }",
            "fn a() { while began.elapsed() < Duration::from_secs(5) {} }",
            "fn a() { assert!(began.elapsed() < time, \"{time:?}\"); }",
            "fn a() { assert!(count < Duration::from_secs(5)); }",
            "use tokio::time::Instant; fn a() { assert!(b.elapsed() < Duration::from_secs(5)); }",
            "fn a() {\n// tidy: allow(test-time): the best of many tries\nassert!(b.elapsed() < Duration::from_secs(5)); }",
        ] {
            assert_eq!(problems(good), 0, "{good}");
        }
    }

    #[test]
    fn code_that_is_no_test_may_assert_what_it_wants() {
        let code = "fn a() { assert!(began.elapsed() < Duration::from_secs(5)); }";
        let production = Source::parse("crates/a/src/a.rs", code).unwrap();
        assert!(check(&production).is_empty());
        let tests = format!("#[cfg(test)]\nmod tests {{ {code} }}");
        assert_eq!(check(&Source::parse("crates/a/src/a.rs", &tests).unwrap()).len(), 1);
    }
}
