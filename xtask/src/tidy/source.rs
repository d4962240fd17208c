//! One Rust file, read so that rules can distinguish production code from tests, and code from comments
//! and strings.

use std::ops::RangeInclusive;

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, LineColumn, Spacing, TokenStream, TokenTree};

use super::exceptions;

/// What a whole file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Production,
    Example,
    Test,
}

/// A parsed file.
pub struct Source {
    pub path: String,
    pub role: Role,
    pub lines: Vec<String>,
    pub ast: syn::File,
    pub tokens: TokenStream,
    /// The lines (from 1) of the items that exist only in tests.
    tests: Vec<RangeInclusive<usize>>,
    /// Files that this one declares as `#[cfg(test)] mod name;`, without `.rs`.
    test_modules: Vec<String>,
}

impl Source {
    pub fn parse(path: &str, text: &str) -> Result<Source> {
        let ast = syn::parse_file(text).with_context(|| format!("{path} does not parse"))?;
        let tokens: TokenStream =
            text.parse().map_err(|error| anyhow::anyhow!("{path} does not lex: {error}"))?;
        let mut source = Source {
            path: path.to_owned(),
            role: role_of_path(path),
            lines: text.lines().map(String::from).collect(),
            ast,
            tokens,
            tests: Vec::new(),
            test_modules: Vec::new(),
        };
        source.find_tests();
        Ok(source)
    }

    /// Whether the line (from 1) exists only in tests.
    pub fn is_test(&self, line: usize) -> bool {
        self.role == Role::Test || self.tests.iter().any(|range| range.contains(&line))
    }

    /// Whether `file` is one of the modules that this file declares for tests only.
    pub fn declares_as_test(&self, file: &str) -> bool {
        self.test_modules.iter().any(|module| {
            let rest = file.strip_prefix(module.as_str());
            rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    }

    /// Lines that are neither blank nor part of a test.
    pub fn production_lines(&self) -> usize {
        let lines = self.lines.iter().zip(1..);
        lines.filter(|(text, line)| !text.trim().is_empty() && !self.is_test(*line)).count()
    }

    /// Whether a comment at `line`, or right above it, allows what `rule` forbids.
    pub fn allows(&self, rule: &str, line: usize) -> bool {
        let above =
            self.lines[..line - 1].iter().rev().take_while(|text| is_comment_or_attribute(text));
        above.chain([&self.lines[line - 1]]).any(|text| exceptions::is_for(text, rule))
    }

    /// The lines with all string literals blanked out.
    pub fn lines_without_strings(&self) -> Vec<String> {
        let mut lines: Vec<Vec<char>> =
            self.lines.iter().map(|line| line.chars().collect()).collect();
        each_token(&self.tokens, &mut |tokens| {
            if let TokenTree::Literal(literal) = &tokens[0] {
                blank(&mut lines, literal.span().start(), literal.span().end());
            }
        });
        lines.into_iter().map(|line| line.into_iter().collect()).collect()
    }

    fn find_tests(&mut self) {
        let tokens = self.tokens.clone();
        each_token(&tokens, &mut |tokens| match tokens {
            [hash, TokenTree::Group(attribute), item @ ..]
                if is_punct(hash, '#') && is_test_only(&attribute.stream()) =>
            {
                let end = item.iter().position(ends_item).unwrap_or(item.len().saturating_sub(1));
                let last = item.get(end).map_or(attribute.span_close(), |token| token.span());
                self.tests.push(hash.span().start().line..=last.end().line);
                self.test_modules.extend(
                    module_name(&item[..item.len().min(end + 1)])
                        .map(|name| module_file(&self.path, &name)),
                );
            }
            [hash, bang, TokenTree::Group(attribute), ..]
                if is_punct(hash, '#')
                    && is_punct(bang, '!')
                    && is_test_only(&attribute.stream()) =>
            {
                self.role = Role::Test;
            }
            _ => {}
        });
    }
}

fn role_of_path(path: &str) -> Role {
    let within = |folder: &str| {
        path.starts_with(&format!("{folder}/")) || path.contains(&format!("/{folder}/"))
    };
    if within("tests") || within("benches") || path.starts_with("fuzz/") {
        Role::Test
    } else if within("examples") {
        Role::Example
    } else {
        Role::Production
    }
}

/// Shows `see` the rest of the sequence at every token, inside groups and macro calls too.
pub fn each_token(stream: &TokenStream, see: &mut impl FnMut(&[TokenTree])) {
    let tokens: Vec<TokenTree> = stream.clone().into_iter().collect();
    for at in 0..tokens.len() {
        see(&tokens[at..]);
        if let TokenTree::Group(group) = &tokens[at] {
            each_token(&group.stream(), see);
        }
    }
}

pub fn is_punct(token: &TokenTree, char: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == char)
}

pub fn is_ident(token: &TokenTree, name: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == name)
}

/// `a::b` as tokens: the two colons between them.
pub fn is_path_separator(first: &TokenTree, second: &TokenTree) -> bool {
    matches!(first, TokenTree::Punct(punct) if punct.as_char() == ':' && punct.spacing() == Spacing::Joint)
        && is_punct(second, ':')
}

/// Whether an attribute's content is `test` or `cfg(test)`, also as one part of `cfg(all(...))`.
fn is_test_only(attribute: &TokenStream) -> bool {
    let tokens: Vec<TokenTree> = attribute.clone().into_iter().collect();
    match tokens.as_slice() {
        [test] => is_ident(test, "test"),
        [cfg, TokenTree::Group(condition)] if is_ident(cfg, "cfg") => {
            wants_test(condition.stream())
        }
        _ => false,
    }
}

fn wants_test(condition: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = condition.into_iter().collect();
    tokens.split(|token| is_punct(token, ',')).any(|part| match part {
        [test] => is_ident(test, "test"),
        [all, TokenTree::Group(parts)] => is_ident(all, "all") && wants_test(parts.stream()),
        _ => false,
    })
}

fn ends_item(token: &TokenTree) -> bool {
    is_punct(token, ';')
        || matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

/// The name in `mod name;`.
fn module_name(item: &[TokenTree]) -> Option<String> {
    match item {
        [.., keyword, TokenTree::Ident(name), end]
            if is_ident(keyword, "mod") && is_punct(end, ';') =>
        {
            Some(name.to_string())
        }
        _ => None,
    }
}

/// Where `mod name;` in `path` is, without `.rs`.
fn module_file(path: &str, name: &str) -> String {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    match file {
        "lib.rs" | "main.rs" | "mod.rs" => format!("{folder}/{name}"),
        other => format!("{folder}/{}/{name}", other.trim_end_matches(".rs")),
    }
}

fn is_comment_or_attribute(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("//") || line.starts_with("#[") || line.starts_with("#![")
}

/// Blanks a string literal out; doc comments, whose text is a literal too, stay.
fn blank(lines: &mut [Vec<char>], start: LineColumn, end: LineColumn) {
    if lines.get(start.line - 1).is_none_or(|line| line.get(start.column) == Some(&'/')) {
        return;
    }
    for (line, number) in lines.iter_mut().zip(1..).take(end.line).skip(start.line - 1) {
        let from = if number == start.line { start.column } else { 0 };
        let to = if number == end.line { end.column } else { line.len() };
        let to = to.min(line.len());
        line[from.min(to)..to].fill(' ');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str, text: &str) -> Source {
        Source::parse(path, text).unwrap()
    }

    #[test]
    fn test_items_are_found_whatever_form_they_have() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() {}\n}\n\nfn c() {}\n\
                    #[cfg(all(test, shuttle))]\nuse x::y;\n#[cfg(any(test, unix))]\nfn d() {}\n#[cfg(not(test))]\nfn e() {}\n";
        let source = parse("crates/a/src/a.rs", text);
        let tests: Vec<usize> = (1..=13).filter(|line| source.is_test(*line)).collect();
        assert_eq!(tests, [2, 3, 4, 5, 8, 9]);
        assert_eq!(source.production_lines(), 6);
    }

    #[test]
    fn files_are_tests_by_folder_by_attribute_or_by_declaration() {
        assert_eq!(parse("crates/a/tests/t.rs", "").role, Role::Test);
        assert_eq!(parse("crates/a/examples/e.rs", "").role, Role::Example);
        assert_eq!(parse("crates/a/src/t.rs", "#![cfg(test)]").role, Role::Test);
        let parent = parse("crates/a/src/queue.rs", "#[cfg(test)]\nmod model;\nmod real;");
        assert!(parent.declares_as_test("crates/a/src/queue/model.rs"));
        assert!(parent.declares_as_test("crates/a/src/queue/model/deep.rs"));
        assert!(!parent.declares_as_test("crates/a/src/queue/real.rs"));
        assert!(
            parse("crates/a/src/lib.rs", "#[cfg(test)]\nmod model;")
                .declares_as_test("crates/a/src/model.rs")
        );
    }

    #[test]
    fn strings_are_blanked_and_comments_are_not() {
        let source =
            parse("crates/a/src/a.rs", "/// doc\nconst A: &str = \"in a\nstring\"; // after\n");
        assert_eq!(source.lines_without_strings()[0], "/// doc");
        assert_eq!(source.lines_without_strings()[1].trim_end(), "const A: &str =");
        assert_eq!(source.lines_without_strings()[2].trim_start(), "; // after");
    }
}
