//! Only the outermost crates read the environment: what decides behaviour is an argument everywhere
//! else.

use proc_macro2::TokenTree;

use super::plan::ENVIRONMENT;
use crate::tidy::Problem;
use crate::tidy::source::{Role, Source, each_token, is_ident, is_path_separator};

/// Reads of environment variables outside tests, outside the crates that may.
pub fn check(source: &Source) -> Vec<Problem> {
    let mut problems = Vec::new();
    if may_read(source) {
        return problems;
    }
    each_token(&source.tokens, &mut |tokens| {
        let line = tokens[0].span().start().line;
        if reads_variable(tokens) && !source.is_test(line) {
            let fix = "take it as an argument; the facade's configuration reads the environment";
            problems.push(Problem::new(&source.path, line, "reads an environment variable", fix));
        }
    });
    problems
}

fn may_read(source: &Source) -> bool {
    let member = source.path.trim_start_matches("crates/").split('/').next().unwrap_or_default();
    source.role != Role::Production
        || source.path.ends_with("/build.rs")
        || ENVIRONMENT.contains(&member)
}

/// `env::var`, `env::var_os`, `env::vars` or `env::vars_os`, called or imported.
fn reads_variable(tokens: &[TokenTree]) -> bool {
    let [module, first, second, name, ..] = tokens else { return false };
    let names = ["var", "var_os", "vars", "vars_os"];
    is_ident(module, "env") && is_path_separator(first, second) && reads(name, &names)
}

fn reads(token: &TokenTree, names: &[&str]) -> bool {
    match token {
        TokenTree::Group(group) => group.stream().into_iter().any(|token| reads(&token, names)),
        token => names.iter().any(|name| is_ident(token, name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> usize {
        check(&Source::parse(path, text).unwrap()).len()
    }

    #[test]
    fn inner_crates_do_not_read_the_environment() {
        let read = "fn a() { std::env::var(\"A\"); }";
        assert_eq!(problems("crates/file/src/a.rs", read), 1);
        assert_eq!(problems("crates/file/src/a.rs", "use std::env::{self, var_os};"), 1);
        assert_eq!(
            problems("crates/file/src/a.rs", "fn a() { std::env::temp_dir(); env!(\"X\"); }"),
            0
        );
    }

    #[test]
    fn the_outermost_and_tests_do() {
        let read = "fn a() { std::env::var(\"A\"); }";
        for path in [
            "crates/kvtier/src/a.rs",
            "crates/cli/src/a.rs",
            "crates/file/tests/a.rs",
            "crates/file/build.rs",
        ] {
            assert_eq!(problems(path, read), 0, "{path}");
        }
        assert_eq!(
            problems("crates/file/src/a.rs", &format!("#[cfg(test)]\nmod tests {{ {read} }}")),
            0
        );
    }
}
