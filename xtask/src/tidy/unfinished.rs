//! Words that must not stay: unfinished code, unowned notes, panics by habit, paths of one machine.

use proc_macro2::{Delimiter, TokenTree};

use super::source::{Source, each_token, is_ident, is_path_separator, is_punct};
use super::{Problem, Rule};
use crate::tree::Tree;

/// Folders that exist only on one developer's machine.
const MACHINE_PATHS: &[&str] = &[concat!("/", "work/"), concat!("/", "root/")];

/// Notes that need an owner.
const NOTES: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Files whose text is checked besides Rust sources.
const TEXT_ENDINGS: &[&str] = &[".md", ".toml", ".sh", ".py", ".yml", ".yaml", ".ci/run"];

/// Unfinished, ignored and unwrapping code.
pub fn check(source: &Source) -> Vec<Problem> {
    let mut problems = Vec::new();
    each_token(&source.tokens, &mut |tokens| {
        let line = tokens[0].span().start().line;
        if let Some((what, fix)) =
            unfinished(tokens).or_else(|| ignored(tokens)).or_else(|| unlinted(tokens))
        {
            problems.push(Problem::new(&source.path, line, what, fix));
        }
        if unwraps(tokens) && !source.is_test(line) && !source.allows(Rule::Unwrap.name(), line) {
            let fix = "return the error, or `.expect(\"the invariant that holds\")`";
            problems.push(Problem::new(&source.path, line, ".unwrap() outside tests", fix));
        }
    });
    problems.extend(unwrapping_json(source));
    for (text, line) in source.lines_without_strings().iter().zip(1..) {
        problems.extend(unowned_note(text).map(|what| note_problem(&source.path, line, what)));
    }
    for (text, line) in source.lines.iter().zip(1..) {
        problems.extend(machine_path(text).map(|path| path_problem(&source.path, line, path)));
    }
    problems
}

/// Notes and machine paths in everything else that people write.
pub fn check_texts(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in tree.texts(TEXT_ENDINGS) {
        for (text, line) in text.lines().zip(1..) {
            problems.extend(unowned_note(text).map(|what| note_problem(path, line, what)));
            problems.extend(machine_path(text).map(|what| path_problem(path, line, what)));
        }
    }
    problems
}

fn note_problem(path: &str, line: usize, note: &str) -> Problem {
    Problem::new(
        path,
        line,
        format!("{note} without an owner"),
        format!("do it now, or name who will: {note}(name)"),
    )
}

fn path_problem(path: &str, line: usize, machine: &str) -> Problem {
    Problem::new(
        path,
        line,
        format!("a path of one machine: {machine}"),
        "use a path relative to the repository",
    )
}

fn unfinished(tokens: &[TokenTree]) -> Option<(String, &'static str)> {
    let [name, bang, TokenTree::Group(_), ..] = tokens else { return None };
    let name = ["todo", "unimplemented"].into_iter().find(|word| is_ident(name, word))?;
    is_punct(bang, '!')
        .then(|| (format!("{name}! is unfinished code"), "finish it, or leave the path out"))
}

fn ignored(tokens: &[TokenTree]) -> Option<(String, &'static str)> {
    let [hash, TokenTree::Group(attribute), ..] = tokens else { return None };
    let inner: Vec<TokenTree> = attribute.stream().into_iter().collect();
    let is_ignore = match inner.as_slice() {
        [cfg_attr, TokenTree::Group(parts)] if is_ident(cfg_attr, "cfg_attr") => {
            parts.stream().into_iter().any(|token| is_ident(&token, "ignore"))
        }
        [first, ..] => is_ident(first, "ignore"),
        [] => false,
    };
    let fix = "let the test run; a long one reads KVTIER_NIGHTLY to lengthen itself";
    (is_punct(hash, '#') && attribute.delimiter() == Delimiter::Bracket && is_ignore)
        .then(|| ("an ignored test proves nothing".to_owned(), fix))
}

/// Code for the fuzzers alone, which no step but theirs, the last, would compile.
fn unlinted(tokens: &[TokenTree]) -> Option<(String, &'static str)> {
    let [hash, TokenTree::Group(attribute), ..] = tokens else { return None };
    let inner: Vec<TokenTree> = attribute.stream().into_iter().collect();
    let [cfg, TokenTree::Group(conditions)] = inner.as_slice() else { return None };
    let conditions = conditions.stream().to_string();
    let names =
        |wanted: &str| conditions.split(|c: char| !c.is_alphanumeric()).any(|word| word == wanted);
    (is_punct(hash, '#') && is_ident(cfg, "cfg") && names("fuzzing") && !names("clippy")).then(
        || ("code that the lint step does not compile".to_owned(), "write any(fuzzing, clippy)"),
    )
}

fn unwraps(tokens: &[TokenTree]) -> bool {
    let [dot, name, TokenTree::Group(args), ..] = tokens else { return false };
    is_punct(dot, '.') && is_ident(name, "unwrap") && args.stream().is_empty()
}

/// Uses of `serde_json::json!` in what is shipped: the macro unwraps what `Serialize` returns,
/// which for a path may be an error.
fn unwrapping_json(source: &Source) -> Vec<Problem> {
    let mut problems = Vec::new();
    if source.path.starts_with("xtask/") {
        return problems;
    }
    each_token(&source.tokens, &mut |tokens| {
        let [module, first, second, rest, ..] = tokens else { return };
        let named = match rest {
            TokenTree::Group(names) => {
                names.stream().into_iter().any(|name| is_ident(&name, "json"))
            }
            name => is_ident(name, "json"),
        };
        let line = module.span().start().line;
        let exempt = source.is_test(line) || source.allows(Rule::Unwrap.name(), line);
        if is_ident(module, "serde_json") && is_path_separator(first, second) && named && !exempt {
            let fix =
                "build a `serde_json::Value` by `From`, as `json!` of crates/cli/src/json.rs does";
            problems.push(Problem::new(
                &source.path,
                line,
                "serde_json::json! hides an unwrap",
                fix,
            ));
        }
    });
    problems
}

/// A note as a word of its own that no `(name)` follows.
fn unowned_note(text: &str) -> Option<&'static str> {
    NOTES.iter().copied().find(|note| {
        text.match_indices(note).any(|(at, _)| {
            let before = text[..at].chars().next_back();
            let mut after = text[at + note.len()..].chars();
            let next = after.next();
            let in_word = |char: char| char.is_alphanumeric() || char == '_';
            let whole = !before.is_some_and(in_word) && !next.is_some_and(in_word);
            let owned = next == Some('(') && after.next().is_some_and(char::is_alphabetic);
            whole && !owned
        })
    })
}

/// A machine's path where a path begins, not in the middle of one.
fn machine_path(text: &str) -> Option<&'static str> {
    MACHINE_PATHS.iter().copied().find(|path| {
        text.match_indices(path).any(|(at, _)| {
            let before = text[..at].chars().next_back();
            !before.is_some_and(|char| char.is_alphanumeric() || "_-./}".contains(char))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let source = Source::parse("crates/a/src/a.rs", text).unwrap();
        check(&source).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn unfinished_code_is_found_even_inside_macros() {
        assert!(problems(concat!("fn a() { to", "do!() }"))[0].contains("unfinished"));
        assert!(
            problems(concat!("fn a() { select!(x => unimpl", "emented!()) }"))[0]
                .contains("unfinished")
        );
        assert!(problems(concat!("const A: &str = \"to", "do!()\";")).is_empty());
    }

    #[test]
    fn ignored_tests_are_found() {
        assert!(
            problems(concat!("#[test]\n#[ign", "ore]\nfn a() {}"))[0]
                .starts_with("crates/a/src/a.rs:2:")
        );
        assert_eq!(problems(concat!("#[ign", "ore = \"slow\"]\nfn a() {}")).len(), 1);
        assert_eq!(problems(concat!("#[cfg_attr(miri, ign", "ore)]\nfn a() {}")).len(), 1);
        assert!(problems("#[rustfmt::skip]\nfn a() {}").is_empty());
    }

    #[test]
    fn code_for_the_fuzzers_is_linted_too() {
        for text in
            ["#[cfg(fuzzing)]\nfn a() {}", "#[cfg(all(fuzzing, feature = \"x\"))]\nfn a() {}"]
        {
            assert!(problems(text)[0].contains("any(fuzzing, clippy)"), "{text}");
        }
        assert!(problems("#[cfg(any(fuzzing, clippy))]\npub mod fuzzing {}").is_empty());
    }

    #[test]
    fn unwrap_is_for_tests() {
        assert!(problems("fn a() { b().unwrap(); }")[0].contains("unwrap"));
        assert!(problems("fn a() { c!(b().unwrap()); }")[0].contains("unwrap"));
        assert!(problems("#[cfg(test)]\nmod tests { fn a() { b().unwrap(); } }").is_empty());
        assert!(problems("fn a() { b().unwrap_or(1); } // .unwrap()").is_empty());
    }

    #[test]
    fn the_macro_that_unwraps_what_it_serialises_is_for_tests() {
        for text in [
            "use serde_json::json;",
            "use serde_json::{Value, json};",
            "use serde_json::{Value, json as object};",
            "fn a(p: &Path) -> Value { serde_json::json!({ \"path\": p }) }",
        ] {
            assert!(problems(text).iter().any(|what| what.contains("hides an unwrap")), "{text}");
        }
        assert!(problems("use serde_json::{Map, Value};\nfn a() { json!(1); }").is_empty());
        assert!(problems("#[cfg(test)]\nmod tests { use serde_json::json; }").is_empty());
        let tool = Source::parse("xtask/src/a.rs", "use serde_json::json;").unwrap();
        assert!(check(&tool).is_empty());
    }

    #[test]
    fn notes_need_an_owner() {
        assert!(problems(concat!("// TO", "DO: later\n"))[0].contains("without an owner"));
        assert!(problems(concat!("/// FIX", "ME\nfn a() {}"))[0].contains("without an owner"));
        assert!(problems(concat!("// TO", "DO(ada): later\n")).is_empty());
        assert!(
            problems(concat!("const A_TO", "DO: u32 = 1; const B: &str = \"XX", "X\";")).is_empty()
        );
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        assert_eq!(problems(concat!("const A: &str = \"/wo", "rk/x\";")).len(), 1);
        assert!(problems(concat!("// see crates/wo", "rk/x and my/ro", "ot/y\n")).is_empty());
        let tree = Tree::of(&[
            ("README.md", concat!("run `/ro", "ot/x`")),
            ("a.bin", concat!("/ro", "ot/")),
        ]);
        assert_eq!(check_texts(&tree).len(), 1);
    }
}
