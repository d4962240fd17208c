//! The tests of the changed crates, one by one: how long each takes, and which changes it runs into.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::machine::cores;
use crate::sh::Cmd;

/// The longest that a test may take without a change. Others are left out.
const TEST_TIME_MAX: Duration = Duration::from_secs(45);

/// A program of tests.
#[derive(Clone, Debug)]
pub struct Program {
    /// The name of its crate's folder.
    pub folder: String,
    pub path: PathBuf,
    /// Where its tests expect to run.
    pub dir: PathBuf,
}

/// One test.
#[derive(Clone, Debug)]
pub struct Test {
    pub program: Program,
    pub name: String,
    pub takes: Duration,
    /// The switches that it asks for.
    pub asks_for: BTreeSet<usize>,
}

/// How some tests ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Passed,
    Failed,
    TimedOut,
}

/// The programs that a build made, by what cargo prints as JSON.
pub fn programs(messages: &str) -> Vec<Program> {
    let lines = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let tests = lines.filter(|line| line["profile"]["test"] == true);
    let program = |line: Value| {
        let dir = Path::new(line["manifest_path"].as_str()?).parent()?.to_owned();
        let folder = dir.file_name()?.to_str()?.to_owned();
        Some(Program { folder, path: line["executable"].as_str()?.into(), dir })
    };
    tests.filter_map(program).collect()
}

impl Program {
    /// Runs tests by their names, one after the other, with `env`.
    pub fn run(&self, names: &[&str], env: &[(&str, String)], limit: Duration) -> Result<Ended> {
        let mut command = Command::new(&self.path);
        command.arg("--exact").arg("--test-threads=1").args(names);
        command.env("CARGO_MANIFEST_DIR", &self.dir).current_dir(&self.dir);
        command.env("PROPTEST_MAX_SHRINK_ITERS", "0");
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
        command.envs(env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.process_group(0).spawn().context("a program of tests")?;
        let end = Instant::now() + limit;
        let ended = loop {
            match child.try_wait()? {
                Some(status) if status.success() => break Ended::Passed,
                Some(_) => break Ended::Failed,
                None if Instant::now() > end => break Ended::TimedOut,
                None => thread::sleep(Duration::from_millis(2)),
            }
        };
        // With what it started.
        Cmd::new("kill -9 --").arg(format!("-{}", child.id())).works();
        child.wait()?;
        Ok(ended)
    }

    /// The names of its tests but those that are ignored.
    fn names(&self) -> Result<Vec<String>> {
        let list = |more: &str| {
            let cmd = Cmd::new("").arg(self.path.to_string_lossy()).dir(&self.dir);
            cmd.args(["--list", "--format=terse"]).args(more.split_whitespace()).read()
        };
        let (all, ignored) = (list("")?, list("--ignored")?);
        let ignored: BTreeSet<&str> = ignored.lines().collect();
        let names = all.lines().filter(|line| !ignored.contains(line));
        Ok(names.filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }
}

/// Runs each test of the programs without a change. Those that fail or take long are left out.
pub fn try_each(programs: &[Program], changes: usize) -> Result<Vec<Test>> {
    let mut todo = Vec::new();
    for program in programs {
        todo.extend(program.names()?.into_iter().map(|name| (program, name)));
    }
    println!("{} tests run one by one", todo.len());
    let tests = on_all_cores(todo.len(), |worker, at| {
        let (program, name) = &todo[at];
        try_one(program, name, worker, changes)
    })?;
    Ok(tests.into_iter().flatten().collect())
}

fn try_one(program: &Program, name: &str, worker: usize, changes: usize) -> Result<Option<Test>> {
    let seen = std::env::temp_dir().join(format!("kvtier-mutants-{}-{worker}", std::process::id()));
    File::create(&seen)?.set_len(changes as u64 + 1)?;
    let began = Instant::now();
    let env = [("KVTIER_MUTANTS_SEEN", seen.to_string_lossy().into_owned())];
    let ended = program.run(&[name], &env, TEST_TIME_MAX)?;
    let takes = began.elapsed();
    let bytes = fs::read(&seen)?;
    fs::remove_file(&seen)?;
    if ended != Ended::Passed {
        println!("left out: {name} of {} {ended:?}", program.folder);
        return Ok(None);
    }
    let asked = |(switch, byte): (usize, &u8)| (*byte != 0).then_some(switch);
    let asks_for = bytes.iter().enumerate().filter_map(asked).collect();
    Ok(Some(Test { program: program.clone(), name: name.to_owned(), takes, asks_for }))
}

/// Does `work(WORKER, AT)` for each number below `count`, on all cores. The first error ends it.
pub fn on_all_cores<T: Send>(
    count: usize,
    work: impl Fn(usize, usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let run = |worker: usize| -> Result<()> {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return Ok(());
            }
            let one = work(worker, at).inspect_err(|_| next.store(count, Ordering::Relaxed))?;
            done.lock().unwrap_or_else(PoisonError::into_inner).push((at, one));
        }
    };
    let run = &run;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..cores()).map(|worker| scope.spawn(move || run(worker))).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, one)| one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_tests_are_read() {
        let line = r#"{"profile":{"test":true},"executable":"/t/a","manifest_path":"/w/crates/a/Cargo.toml"}"#;
        let others =
            r#"{"profile":{"test":false},"executable":"/t/b","manifest_path":"/w/b/Cargo.toml"}"#;
        let found = programs(&format!("{line}\n{others}\nno JSON"));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].folder.as_str(), found[0].path.as_path()), ("a", Path::new("/t/a")));
    }

    #[test]
    fn all_is_done_in_order_unless_something_fails() {
        assert_eq!(on_all_cores(100, |_, at| Ok(at)).unwrap(), (0..100).collect::<Vec<_>>());
        let failing = |_, at| if at == 50 { anyhow::bail!("fifty") } else { Ok(()) };
        assert_eq!(on_all_cores(100, failing).unwrap_err().to_string(), "fifty");
    }

    const ENDS: &str = "KVTIER_XTASK_TEST_ENDS";

    /// What the next test runs, in a process of its own.
    #[test]
    fn ends_as_it_is_asked_to() {
        match std::env::var(ENDS).as_deref() {
            Ok("failed") => panic!("as asked"),
            Ok("never") => thread::sleep(Duration::from_secs(1000)),
            _ => {}
        }
    }

    #[test]
    fn a_program_passes_or_fails_or_is_stopped() {
        let path = std::env::current_exe().unwrap();
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).to_owned();
        let program = Program { folder: "xtask".into(), path, dir };
        let run = |ends: &str, limit| {
            let test = "mutants::switched::test_programs::tests::ends_as_it_is_asked_to";
            program.run(&[test], &[(ENDS, ends.to_owned())], limit).unwrap()
        };
        assert_eq!(run("passed", TEST_TIME_MAX), Ended::Passed);
        assert_eq!(run("failed", TEST_TIME_MAX), Ended::Failed);
        assert_eq!(run("never", Duration::from_millis(50)), Ended::TimedOut);
    }
}
