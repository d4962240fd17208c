//! Test programs, several at once.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::sync_channel;
use std::thread;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Count, workspace};
use crate::machine::cores;
use crate::sh::Cmd;

/// A test program and the folder of its crate, where it runs.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    path: PathBuf,
    dir: PathBuf,
}

/// Builds what a `cargo test` command (without `--` and what follows) builds, and runs its programs
/// with `args`, as many at once as there are cores, each with twice as many tests at once: many
/// wait most of their time. Shows the output of each when it is done. All of them run, whatever
/// fails; what failed is named at the end and not run again.
pub fn run_at_once(cmd: &Cmd, args: &[&str], env: &[(&str, &str)]) -> Result<Count> {
    run_programs(&build(cmd)?, args, env)
}

/// Runs the tests of these names of one crate, built as all are, by its folder.
pub fn run_of(dir: &str, names: &[&str], env: &[(&str, &str)]) -> Result<Count> {
    let cmd = names.iter().fold(workspace(), |cmd, name| cmd.args(["--test", name]));
    let mut programs = build(&cmd)?;
    programs.retain(|program| program.dir.ends_with(dir));
    run_programs(&programs, &[], env)
}

fn build(cmd: &Cmd) -> Result<Vec<Program>> {
    let built = cmd.clone().args(["--no-run", "--message-format=json-render-diagnostics"]);
    println!("$ {built}");
    programs(&built.read()?)
}

fn run_programs(programs: &[Program], args: &[&str], env: &[(&str, &str)]) -> Result<Count> {
    let queue = Mutex::new(programs.iter());
    let (done, results) = sync_channel(programs.len());
    let mut count = Count::default();
    let mut failed = Vec::new();
    thread::scope(|scope| -> Result<()> {
        for _ in 0..cores() {
            let queue = &queue;
            let done = done.clone();
            scope.spawn(move || {
                while let Some(program) =
                    { queue.lock().expect("no thread panics while it holds the lock").next() }
                {
                    _ = done.send((program, program.run(args, env)));
                }
            });
        }
        drop(done);
        for (program, result) in results {
            let (passed, text) = result?;
            println!("     Running {}\n{text}", program.path.display());
            text.lines().filter_map(Count::from_line).for_each(|more| count += more);
            if !passed {
                failed.push(program.path.display().to_string());
            }
        }
        Ok(())
    })?;
    match failed.as_slice() {
        [] => Ok(count),
        failed => bail!("{} test programs failed: {}", failed.len(), failed.join(", ")),
    }
}

impl Program {
    fn run(&self, args: &[&str], env: &[(&str, &str)]) -> Result<(bool, String)> {
        let cmd = Cmd::new("")
            .arg(self.path.display().to_string())
            .args(args.iter().copied())
            .dir(&self.dir);
        let cmd = cmd.env("CARGO_MANIFEST_DIR", self.dir.display().to_string());
        let cmd = cmd.env("RUST_TEST_THREADS", (2 * cores()).to_string());
        env.iter().fold(cmd, |cmd, (name, value)| cmd.env(name, *value)).try_read()
    }
}

/// The test programs among the messages of a build.
fn programs(messages: &str) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("cargo's messages are JSON")?;
        let (Some(path), true) =
            (message["executable"].as_str(), message["profile"]["test"] == true)
        else {
            continue;
        };
        let manifest = message["manifest_path"].as_str().map(Path::new).and_then(Path::parent);
        let dir = manifest.context("a program without a manifest")?.into();
        programs.push(Program { path: path.into(), dir });
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_recognised() {
        let message = |executable: Value, test: bool| {
            let profile = serde_json::json!({"test": test});
            serde_json::json!({"executable": executable, "profile": profile, "manifest_path": "/w/crates/x/Cargo.toml"})
        };
        let messages = [
            message("/w/target/x-1".into(), true),
            message(Value::Null, true),
            message("/w/x".into(), false),
        ];
        let text = messages.map(|message| message.to_string()).join("\n");
        let program = Program { path: "/w/target/x-1".into(), dir: "/w/crates/x".into() };
        assert_eq!(programs(&text).unwrap(), [program]);
    }

    #[test]
    fn all_programs_run_and_are_counted_and_who_failed_is_named() {
        let dir = std::env::temp_dir().join(format!("kvtier-xtask-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let script = |name: &str, text: &str| {
            let path = dir.join(name);
            // Another process writes it: had we its file open when a test beside this one forks,
            // its child would for a moment too, and a file that is open for writing is not
            // run.
            let writes =
                ["-c", "printf '#!/bin/sh\\n%s\\n' \"$2\" >\"$1\" && chmod 755 \"$1\"", "sh"];
            let mut sh = std::process::Command::new("sh");
            assert!(sh.args(writes).arg(&path).arg(text).status().unwrap().success());
            serde_json::json!({"executable": path, "profile": {"test": true}, "manifest_path": dir.join("Cargo.toml")})
        };
        let ok =
            "echo 'test result: ok. 2 passed; 0 failed; 0 ignored'; test \"$1 $SEEDS\" = 'only 7'";
        let all = |more: &[Value]| {
            let messages: Vec<String> = [script("a", ok), script("b", ok)]
                .iter()
                .chain(more)
                .map(Value::to_string)
                .collect();
            std::fs::write(dir.join("messages"), messages.join("\n")).unwrap();
            // `cat` takes the place of cargo, and `--` that of its options.
            let cmd = Cmd::new("sh -c").arg(format!("cat {}/messages", dir.display()));
            run_at_once(&cmd, &["only"], &[("SEEDS", "7")])
        };
        assert_eq!(all(&[]).unwrap(), Count { passed: 4, ..Count::default() });
        let error = all(&[script("c", "exit 3")]).unwrap_err().to_string();
        assert!(error.starts_with("1 test programs failed") && error.contains("/c"), "{error}");
        // A test that fails has failed, though it would pass by itself.
        let failed = "echo 'test result: FAILED. 1 passed; 1 failed; 0 ignored'; exit 101";
        let fails_once = format!(
            "if test \"$*\" = only; then {failed}; fi; echo 'test result: ok. 1 passed; 0 failed; 0 ignored'"
        );
        assert!(all(&[script("d", &fails_once)]).unwrap_err().to_string().contains("/d"));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
