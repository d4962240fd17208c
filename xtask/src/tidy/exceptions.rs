//! Exceptions, asked for in the code with a reason: `// tidy: allow(fn-lines): one arm a wire
//! code`.

use super::{Problem, Rule};

const MARK: &str = "// tidy: allow(";

/// Whether a line of text holds an exception from `rule`.
pub fn is_for(text: &str, rule: &str) -> bool {
    exception(text).is_some_and(|(name, _)| name == rule)
}

/// Every exception in the lines of a file names a rule that has exceptions, and gives a reason.
pub fn check(path: &str, lines: &[String]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (text, line) in lines.iter().zip(1..) {
        let Some((name, reason)) = exception(text) else { continue };
        if !Rule::ALL.iter().any(|rule| rule.name() == name) {
            let names: Vec<&str> = Rule::ALL.iter().map(|rule| rule.name()).collect();
            let what = format!("no rule called '{name}' has exceptions");
            problems.push(Problem::new(path, line, what, format!("one of: {}", names.join(", "))));
        }
        if reason.len() < 10 {
            let what = format!("an exception from {name} without a reason");
            problems.push(Problem::new(
                path,
                line,
                what,
                "say after the colon why the rule does not fit here",
            ));
        }
    }
    problems
}

/// The rule and the reason of an exception.
fn exception(text: &str) -> Option<(&str, &str)> {
    let (_, rest) = text.split_once(MARK)?;
    let (name, reason) = rest.split_once(')')?;
    Some((name, reason.trim_start_matches(':').trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(comment: &str) -> usize {
        check("crates/a/src/a.rs", &[comment.to_owned(), "fn a() {}".to_owned()]).len()
    }

    #[test]
    fn an_exception_names_a_rule_and_gives_a_reason() {
        assert_eq!(problems("// tidy: allow(fn-lines): one arm a wire code"), 0);
        assert_eq!(problems("// tidy: allow(fn-lines)"), 1);
        assert_eq!(problems("// tidy: allow(everything): because it is easier"), 1);
    }
}
