//! Crates that the fault simulator runs take time, threads, changes of files and locks from one place
//! each, which a simulation replaces. A call past it would differ from run to run, or would survive a
//! simulated crash.

use proc_macro2::TokenTree;

use super::plan::{OUTSIDE_THE_SIMULATION, SIMULATED};
use crate::tidy::Problem;
use crate::tidy::source::{Role, Source, each_token, is_ident, is_path_separator, is_punct};

/// Calls by their module or type, and what to use.
const CALLS: &[(&str, &[&str], &str)] = &[
    ("Instant", &["now"], "take it from the tier's `Clock`, or from `kvtier_os::now`"),
    ("SystemTime", &["now"], "take it from the tier's `Clock`, or from `kvtier_os::wall`"),
    (
        "thread",
        &["spawn", "sleep", "Builder"],
        "use the tier's pool of threads, `Timekeeper` or `kvtier_os`",
    ),
    (
        "fs",
        &[
            "copy",
            "create_dir",
            "create_dir_all",
            "hard_link",
            "remove_dir",
            "remove_dir_all",
            "remove_file",
            "rename",
            "set_permissions",
            "write",
            "DirBuilder",
        ],
        "call the function of `kvtier_os`",
    ),
    ("File", &["create", "create_new"], "open it by `kvtier_os::open`"),
];

/// Methods of files that change what is durable or long.
const METHODS: &[&str] = &["set_len", "sync_all", "sync_data"];

/// Functions of `nix` that change names, lengths, locks or what is durable.
const OF_NIX: &[&str] = &[
    "fallocate",
    "fdatasync",
    "flock",
    "fsync",
    "ftruncate",
    "linkat",
    "mkdirat",
    "renameat",
    "renameat2",
    "syncfs",
    "unlinkat",
    "Flock",
];

/// Calls outside of tests that a simulation does not see.
pub fn check(source: &Source) -> Vec<Problem> {
    let mut problems = Vec::new();
    if !is_simulated(source) {
        return problems;
    }
    let virtual_instant = has_virtual_instant(source);
    each_token(&source.tokens, &mut |tokens| {
        let line = tokens[0].span().start().line;
        if source.is_test(line) {
            return;
        }
        let call = forbidden_call(tokens)
            .filter(|(module, _)| *module != "Instant" || !virtual_instant)
            .map(|(module, fix)| (format!("calls `{module}::` directly"), fix));
        let method = || METHODS.iter().find(|name| is_method(tokens, name));
        let method =
            || method().map(|name| (format!("calls `{name}` of a file directly"), CALLS[3].2));
        let of_nix =
            || uses_of_nix(tokens).then(|| ("uses a call of `nix`".to_owned(), CALLS[3].2));
        if let Some((what, fix)) = call.or_else(method).or_else(of_nix) {
            let what = format!("{what}, which the fault simulator does not see");
            problems.push(Problem::new(&source.path, line, what, fix));
        }
    });
    problems
}

fn is_simulated(source: &Source) -> bool {
    source.role == Role::Production
        && SIMULATED.iter().any(|folder| source.path.starts_with(folder))
        && !OUTSIDE_THE_SIMULATION.iter().any(|(path, _)| source.path.starts_with(path))
}

/// Whether `Instant` is that of tokio here, whose clock a simulation pauses and moves.
fn has_virtual_instant(source: &Source) -> bool {
    let imports = |from: &str| {
        source.lines.iter().any(|line| {
            line.trim_start().starts_with(&format!("use {from}")) && line.contains("Instant")
        })
    };
    imports("tokio::time::") && !imports("std::time::")
}

/// `Module::name`: the module, and what to use.
fn forbidden_call(tokens: &[TokenTree]) -> Option<(&'static str, &'static str)> {
    let [first, colon, colon_too, name, ..] = tokens else { return None };
    let called = |names: &[&str]| names.iter().any(|each| is_ident(name, each));
    let (module, _, fix) = CALLS
        .iter()
        .find(|(module, names, _)| is_ident(first, module) && called(names))
        .filter(|_| is_path_separator(colon, colon_too))?;
    Some((module, fix))
}

fn is_method(tokens: &[TokenTree], name: &str) -> bool {
    let [dot, method, TokenTree::Group(_), ..] = tokens else { return false };
    is_punct(dot, '.') && is_ident(method, name)
}

/// A path or an import that begins with `nix` and has one of the names.
fn uses_of_nix(tokens: &[TokenTree]) -> bool {
    let [nix, first, second, rest @ ..] = tokens else { return false };
    if !is_ident(nix, "nix") || !is_path_separator(first, second) {
        return false;
    }
    // The path ends where something else than a name, a separator or a list of imports follows.
    let mut after_separator = true;
    for token in rest {
        match token {
            TokenTree::Ident(_) if after_separator => {
                if OF_NIX.iter().any(|name| is_ident(token, name)) {
                    return true;
                }
                after_separator = false;
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' => after_separator = true,
            TokenTree::Group(list) if after_separator => {
                let mut found = false;
                each_token(&list.stream(), &mut |tokens| {
                    found |= OF_NIX.iter().any(|name| is_ident(&tokens[0], name));
                });
                return found;
            }
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> usize {
        check(&Source::parse(path, text).unwrap()).len()
    }

    #[test]
    fn calls_that_a_simulation_does_not_see_are_found() {
        for bad in [
            "fn a() { std::time::Instant::now(); }",
            "fn a() { SystemTime::now(); }",
            "fn a() { std::thread::sleep(b); }",
            "fn a() { thread::Builder::new(); }",
            "fn a() { fs::rename(b, c); }",
            "fn a() { std::fs::write(b, c); }",
            "fn a() { File::create(b); }",
            "fn a(f: File) { f.sync_all(); }",
            "fn a(f: File) { f.set_len(3); }",
            "use nix::fcntl::{AtFlags, renameat2};",
            "use nix::{fcntl::OFlag, unistd::{fsync, Pid}};",
            "fn a() { nix::unistd::unlinkat(b, c, d); }",
        ] {
            assert_eq!(problems("crates/disk/src/a.rs", bad), 1, "{bad}");
        }
    }

    #[test]
    fn calls_of_the_seam_and_types_are_not() {
        for good in [
            "fn a() { kvtier_os::now(); clock.now(); }",
            "use std::fs::{self, File}; fn a() { fs::metadata(b); File::open(c); }",
            "use kvtier_os::{renameat2, sync_all}; fn a() { renameat2(b); sync_all(c); }",
            "use nix::fcntl::{AtFlags, RenameFlags}; fn a(e: nix::Error) { flock(e) }",
            "use tokio::time::{Instant, sleep}; fn a() { Instant::now(); }",
            "#[cfg(test)]\nmod tests { fn a() { std::fs::write(b, c); Instant::now(); } }",
        ] {
            assert_eq!(problems("crates/disk/src/a.rs", good), 0, "{good}");
        }
    }

    #[test]
    fn other_crates_and_places_of_the_plan_may_make_them() {
        let call = "fn a() { Instant::now(); }";
        assert_eq!(problems("crates/s3-tier/src/a.rs", call), 1);
        assert_eq!(problems("crates/kvtier/src/stack/a.rs", call), 1);
        for path in ["crates/cli/src/a.rs", "crates/disk/tests/a.rs", "crates/core/src/clock.rs"] {
            assert_eq!(problems(path, call), 0, "{path}");
        }
    }
}
