//! `unsafe` is allowed in few crates, and each use carries its proof.

use proc_macro2::{Delimiter, TokenTree};

use super::Problem;
use super::source::{Source, each_token, is_ident};
use crate::workspace::Package;

/// The crates that may hold `unsafe`. All others forbid it.
const CRATES_WITH_UNSAFE: &[&str] = &["mem", "uring", "gds", "py", "fakegpu"];

/// How many lines of one statement may lie between the comment and its `unsafe`.
const REACH_LINES: usize = 6;

/// Uses of `unsafe` without a proof, or in the wrong crate.
pub fn check(source: &Source) -> Vec<Problem> {
    let mut problems = Vec::new();
    let member = source.path.strip_prefix("crates/").and_then(|rest| rest.split('/').next());
    let may = member.is_some_and(|member| CRATES_WITH_UNSAFE.contains(&member));
    each_token(&source.tokens, &mut |tokens| {
        let [keyword, next, ..] = tokens else { return };
        if !is_ident(keyword, "unsafe") {
            return;
        }
        let line = keyword.span().start().line;
        if !may {
            let what = "unsafe outside its crates".to_owned();
            problems.push(Problem::new(
                &source.path,
                line,
                what,
                format!("it is allowed only in {}", CRATES_WITH_UNSAFE.join(", ")),
            ));
        } else if needs_proof(next) && !has_proof(source, line) {
            let what = "unsafe without a proof".to_owned();
            problems.push(Problem::new(
                &source.path,
                line,
                what,
                "say why it is sound in a `// SAFETY:` comment right above",
            ));
        }
    });
    problems
}

/// Roots of libraries and programs that do not forbid `unsafe` although they hold none.
pub fn check_roots(packages: &[Package], sources: &[Source]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for package in
        packages.iter().filter(|package| !CRATES_WITH_UNSAFE.contains(&package.short_name()))
    {
        let kinds = ["lib", "bin", "proc-macro", "cdylib", "rlib"];
        let targets = package
            .targets
            .iter()
            .filter(|target| target.kinds.iter().any(|kind| kinds.contains(&kind.as_str())));
        for target in targets {
            let root = sources.iter().find(|source| source.path == target.src);
            if root.is_some_and(|root| !forbids_unsafe(root)) {
                let what = format!("{} does not forbid unsafe code", package.name);
                problems.push(Problem::new(
                    &target.src,
                    1,
                    what,
                    "add `#![forbid(unsafe_code)]` below the crate's docs",
                ));
            }
        }
    }
    problems
}

/// Blocks and impls need a proof where they stand; a function's demands are in its docs, which
/// clippy checks.
fn needs_proof(next: &TokenTree) -> bool {
    let block = matches!(next, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
    block || is_ident(next, "impl")
}

/// Looks for `SAFETY:` on the line itself, then above it: over the beginning of the same statement,
/// into its comment.
fn has_proof(source: &Source, line: usize) -> bool {
    let mark = "SAFETY:";
    if source.lines[line - 1].contains(mark) {
        return true;
    }
    let above: Vec<&str> = source.lines[..line - 1].iter().rev().map(|text| text.trim()).collect();
    let is_note = |text: &&str| text.starts_with("//") || text.starts_with("#[");
    let statement =
        above.iter().take_while(|text| !is_note(text) && !text.ends_with([';', '}', '{'])).count();
    // An opening brace may begin the statement that holds the block: `let x = loop {` or a call's
    // closure.
    let comment = above.iter().skip(statement).take_while(|text| is_note(text));
    statement <= REACH_LINES && comment.into_iter().any(|text| text.contains(mark))
}

fn forbids_unsafe(source: &Source) -> bool {
    source.lines.iter().any(|line| line.trim() == "#![forbid(unsafe_code)]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Target;

    fn problems(path: &str, text: &str) -> usize {
        check(&Source::parse(path, text).unwrap()).len()
    }

    #[test]
    fn a_block_or_impl_needs_its_proof() {
        let path = "crates/mem/src/a.rs";
        assert_eq!(problems(path, "fn a() {\n    unsafe { b() }\n}"), 1);
        assert_eq!(
            problems(path, "fn a() {\n    // SAFETY: b has no demands\n    unsafe { b() }\n}"),
            0
        );
        assert_eq!(
            problems(
                path,
                "fn a() {\n    // SAFETY: two\n    // lines\n    let x =\n        unsafe { b() };\n}"
            ),
            0
        );
        assert_eq!(
            problems(path, "// SAFETY: of another\nfn z() {}\nunsafe impl Send for A {}"),
            1
        );
        assert_eq!(problems(path, "// SAFETY: A owns its memory\nunsafe impl Send for A {}"), 0);
        assert_eq!(problems(path, "call!(unsafe { b() });"), 1);
        assert_eq!(problems(path, "/// # Safety\n/// demands\nunsafe fn a() {}"), 0);
    }

    #[test]
    fn other_crates_hold_none() {
        assert_eq!(
            problems(
                "crates/key/src/a.rs",
                "fn a() {\n    // SAFETY: sound\n    unsafe { b() }\n}"
            ),
            1
        );
        assert_eq!(problems("xtask/src/a.rs", "unsafe impl Send for A {}"), 1);
        assert_eq!(
            problems("crates/key/src/a.rs", "const A: &str = \"unsafe {}\"; // unsafe {}"),
            0
        );
    }

    #[test]
    fn other_crates_say_so_in_their_roots() {
        let target = Target {
            name: "kvtier_key".into(),
            kinds: vec!["lib".into()],
            src: "crates/key/src/lib.rs".into(),
            required_features: Vec::new(),
        };
        let package =
            Package { name: "kvtier-key".into(), targets: vec![target], ..Package::default() };
        let root = |text| [Source::parse("crates/key/src/lib.rs", text).unwrap()];
        let packages = [package];
        assert_eq!(check_roots(&packages, &root("//! Keys.\npub mod a;")).len(), 1);
        assert_eq!(check_roots(&packages, &root("//! Keys.\n#![forbid(unsafe_code)]\n")).len(), 0);
        let mem = [Package { name: "kvtier-mem".into(), ..packages[0].clone() }];
        assert_eq!(check_roots(&mem, &root("//! Memory.")).len(), 0);
    }
}
