//! `cargo xtask tidy`: the project's rules that neither rustfmt nor clippy checks.

mod avoided_words;
mod crate_docs;
mod exceptions;
mod functions;
mod links;
mod names_in_documents;
mod sentences;
mod sizes;
pub mod source;
mod test_times;
mod unfinished;
mod unsafety;

use std::fmt;

use anyhow::{Result, bail};

use self::source::{Role, Source};
use crate::args::Args;
use crate::tree::Tree;
use crate::workspace::{self, Package};

/// One broken rule: where, what, and how to mend it.
#[derive(Debug, PartialEq, Eq)]
pub struct Problem {
    file: String,
    line: usize,
    what: String,
    fix: String,
}

impl Problem {
    pub fn new(
        file: &str,
        line: usize,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Problem {
        Problem { file: file.to_owned(), line, what: what.into(), fix: fix.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}; {}", self.file, self.line, self.what, self.fix)
    }
}

/// The rules from which a comment may ask for an exception.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    FileLines,
    FnLines,
    FnParams,
    TestTime,
    Unwrap,
}

impl Rule {
    const ALL: [Rule; 5] =
        [Rule::FileLines, Rule::FnLines, Rule::FnParams, Rule::TestTime, Rule::Unwrap];

    fn name(self) -> &'static str {
        match self {
            Rule::FileLines => "file-lines",
            Rule::FnLines => "fn-lines",
            Rule::FnParams => "fn-params",
            Rule::TestTime => "test-time",
            Rule::Unwrap => "unwrap",
        }
    }
}

/// `cargo xtask tidy` with its options.
pub fn command(args: &mut Args) -> Result<()> {
    let list = args.value("--words")?;
    let write = args.flag("--write-words");
    args.end()?;
    if let Some(dir) = list {
        return avoided_words::list(&Tree::read()?, dir.trim_end_matches('/'));
    }
    if write {
        let text = avoided_words::rewritten(&Tree::read()?)?;
        std::fs::write(avoided_words::FILE, text)?;
    }
    run()
}

/// Checks the working tree.
pub fn run() -> Result<()> {
    let packages = workspace::read()?;
    let tree = Tree::read()?;
    let sources = sources(&tree)?;
    println!("{}", sizes::summary(&sources));
    report("tidy", &check(&packages, &tree, &sources))
}

/// Prints the problems; any is an error.
pub fn report(step: &str, problems: &[Problem]) -> Result<()> {
    for problem in problems {
        println!("{problem}");
    }
    match problems.len() {
        0 => Ok(()),
        1 => bail!("{step} found a problem"),
        many => bail!("{step} found {many} problems"),
    }
}

/// Parses all Rust files and finds out which are modules of tests.
pub fn sources(tree: &Tree) -> Result<Vec<Source>> {
    let mut sources = tree
        .texts(&[".rs"])
        .map(|(path, text)| Source::parse(path, text))
        .collect::<Result<Vec<_>>>()?;
    let tests: Vec<usize> = (0..sources.len())
        .filter(|at| sources.iter().any(|parent| parent.declares_as_test(&sources[*at].path)))
        .collect();
    for at in tests {
        sources[at].role = Role::Test;
    }
    Ok(sources)
}

fn check(packages: &[Package], tree: &Tree, sources: &[Source]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for source in sources {
        problems.extend(exceptions::check(&source.path, &source.lines_without_strings()));
        problems.extend(functions::check(source));
        problems.extend(unsafety::check(source));
        problems.extend(unfinished::check(source));
        problems.extend(test_times::check(source));
    }
    problems.extend(sizes::check(sources));
    problems.extend(unsafety::check_roots(packages, sources));
    problems.extend(unfinished::check_texts(tree));
    problems.extend(avoided_words::check(tree));
    problems.extend(links::check(tree));
    problems.extend(names_in_documents::check(tree));
    problems.extend(sentences::check(tree));
    problems.extend(crate_docs::check(packages, tree));
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_come_together() {
        let words = (
            avoided_words::FILE,
            "[words]\ngnome = \"dwarf\"\n[frozen]\n[allow]\n[budget]\nxtask = 1\n",
        );
        let good = Tree::of(&[
            ("crates/key/src/lib.rs", "#![forbid(unsafe_code)]\nfn a() {}\n"),
            ("docs/EMBEDDING.md", "`kvtier-key`"),
            words,
        ]);
        let bad = Tree::of(&[
            (
                "crates/key/src/lib.rs",
                "#[cfg(test)]\nmod model;\nfn a() { b().unwrap(); unsafe {} }\n",
            ),
            ("crates/key/src/model.rs", "fn a() { b().unwrap(); }\n"),
            ("docs/EMBEDDING.md", "[x](gone.md) gnome"),
            words,
        ]);
        let package =
            Package { name: "kvtier-key".into(), dir: "crates/key".into(), ..Package::default() };
        let count = |tree: &Tree| {
            check(std::slice::from_ref(&package), tree, &sources(tree).unwrap()).len()
        };
        assert_eq!(count(&good), 0);
        assert_eq!(count(&bad), 5);
    }

    #[test]
    fn a_problem_says_where_what_and_how() {
        let problem = Problem::new("a.rs", 3, "too long", "split it");
        assert_eq!(problem.to_string(), "a.rs:3: too long; split it");
        assert!(report("tidy", &[problem]).is_err() && report("tidy", &[]).is_ok());
    }
}
