//! Crates that the fault simulator runs take time, threads, changes of files and locks from one place
//! each, which a simulation replaces. A call past it would differ from run to run, or would survive a
//! simulated crash. `tokio::time` needs no other place: a simulation pauses and moves its clock.

use proc_macro2::{Delimiter, TokenTree};

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
    ("File", &["create", "create_new"], "open it by `kvtier_os::open`"),
];

/// Methods of files that change what is durable, long or written.
const METHODS: &[&str] = &["set_len", "sync_all", "sync_data", "write_all_at"];

/// Modules of files, and their functions that only look: files are real ones in a simulation, so what a look
/// finds is the same in each run. Each other function is refused.
const ONLY_LOOKS: &[(&str, &[&str])] = &[
    ("fs", &["exists", "metadata", "read", "read_link", "read_to_string", "symlink_metadata"]),
    ("nix", &["fstat", "gethostname", "kill", "statfs", "statvfs", "sysconf"]),
];

/// What to use instead of a call that is seen by no simulation.
const BY_THE_SEAM: &str = "call the function of `kvtier_os`";

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
        let method = METHODS.iter().find(|name| is_method(tokens, name));
        let method = method.map(|name| (format!("calls `{name}` of a file directly"), BY_THE_SEAM));
        let of_files = || {
            let (module, name) = change_of_files(tokens)?;
            Some((format!("uses `{name}` of `{module}`"), BY_THE_SEAM))
        };
        if let Some((what, fix)) = call.or(method).or_else(of_files) {
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

/// Whether `Instant` is that of tokio here, whose clock a simulation pauses and moves, or that of the S3 client,
/// which is tokio's in a simulation.
fn has_virtual_instant(source: &Source) -> bool {
    let imports = |from: &str| {
        source.lines.iter().any(|line| {
            line.trim_start().starts_with(&format!("use {from}")) && line.contains("Instant")
        })
    };
    (imports("tokio::time::") || imports("crate::local_clock::")) && !imports("std::time::")
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

/// A path or an import of a module of files: the module, and the first function that does more than look.
fn change_of_files(tokens: &[TokenTree]) -> Option<(&'static str, String)> {
    let [first, colon, colon_too, path @ ..] = tokens else { return None };
    let (module, looks) = ONLY_LOOKS.iter().find(|(module, _)| is_ident(first, module))?;
    if !is_path_separator(colon, colon_too) {
        return None;
    }
    let mut functions = Vec::new();
    functions_of(path, &mut functions);
    let is_change = |name: &String| !looks.contains(&name.as_str());
    Some((module, functions.into_iter().find(is_change)?))
}

/// The functions that a path names, or each path in a list of imports. What follows a type is its own.
fn functions_of(path: &[TokenTree], functions: &mut Vec<String>) {
    match path {
        [TokenTree::Ident(name), rest @ ..] => {
            let name = name.to_string();
            let is_type = name.starts_with(char::is_uppercase);
            match rest {
                _ if is_type || name == "self" => {}
                [colon, colon_too, rest @ ..] if is_path_separator(colon, colon_too) => {
                    functions_of(rest, functions);
                }
                _ => functions.push(name),
            }
        }
        [TokenTree::Group(list), ..] if list.delimiter() == Delimiter::Brace => {
            let paths: Vec<_> = list.stream().into_iter().collect();
            paths
                .split(|token| is_punct(token, ','))
                .for_each(|path| functions_of(path, functions));
        }
        _ => {}
    }
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
            "fn a(f: File) { f.write_all_at(b, 3); }",
            "use std::fs::{File, read, rename};",
            "fn a() { rustix::fs::fsetxattr(b); }",
            "fn a() { nix::libc::open(b); }",
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
            "use nix::sys::statvfs::{FsFlags, statvfs}; fn a() { nix::sys::stat::Mode::empty(); }",
            "use std::os::unix::fs::MetadataExt; fn a() { std::fs::read_link(b); fs::File::open(c); }",
            "use tokio::time::{Instant, sleep}; fn a() { Instant::now(); }",
            "use crate::local_clock::Instant; fn a() { Instant::now(); }",
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
