//! `cargo xtask faultsim`: seeds of the fault simulator, and known defects that are put back to show that
//! it finds them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::machine::cores;
use crate::sh::{Cmd, root};
use crate::workspace::target_dir;

/// Patches that put a defect back, one a file.
const DEFECTS: &str = "crates/faultsim/defects";
/// A copy of the workspace, and what is built from it.
const COPY: &str = "target/faultsim/copy";
const BUILD: &str = "target/faultsim/build";
/// What can be simulated; the first is that of a patch without a scope in its name.
pub const SCOPES: [&str; 4] = ["fleet", "directory", "layouts", "stack"];
/// How many seeds one process runs: few enough that no core waits long for the last.
const SEEDS_AT_ONCE: u64 = 10;

pub fn run(args: &mut Args) -> Result<()> {
    let with_defects = args.flag("--defects");
    let twice = args.flag("--repeat");
    let seeds = args.number("--seeds")?.unwrap_or(if with_defects { 1000 } else { 100 });
    let scope = args.value("--scope")?;
    args.end()?;
    if seeds == 0 {
        bail!("--seeds 0 shows nothing; give at least 1");
    }
    if with_defects {
        if twice || scope.is_some() {
            bail!("each defect has its scope; --defects goes with neither --repeat nor --scope");
        }
        let copy = copy_of_commit()?;
        let without_defect = build_without_defect(&copy)?;
        let patch = |defect: &Path, command: &str| {
            Cmd::new(command).arg(defect.to_string_lossy()).dir(&copy).run()
        };
        return find_all(&defects()?, patch, |defect| find(defect, &copy, &without_defect, seeds));
    }
    let scopes = match &scope {
        None => SCOPES.to_vec(),
        Some(scope) if SCOPES.contains(&scope.as_str()) => vec![scope.as_str()],
        Some(scope) => bail!("no scope '{scope}'; there are: {}", SCOPES.join(", ")),
    };
    if twice {
        repeat_optimised(&scopes, seeds)?;
        println!("{seeds} seeds of {} run the same in two processes", scopes.join(", "));
        return Ok(());
    }
    run_optimised(&scopes, seeds)?;
    println!("{seeds} seeds of {} break no promise", scopes.join(", "));
    Ok(())
}

/// Runs this number of seeds of each of these scopes in an optimised build. Returns how many runs there were.
pub fn run_optimised(scopes: &[&str], seeds: u64) -> Result<u64> {
    Cmd::new("cargo build --release --locked -p kvtier-faultsim --example seeds").run()?;
    let scopes: Vec<_> = scopes.iter().map(|scope| (*scope, seeds)).collect();
    run_seeds(&target_dir().join("release/examples/seeds"), &scopes)
}

/// The same in two processes each, which must print the same.
fn repeat_optimised(scopes: &[&str], seeds: u64) -> Result<()> {
    Cmd::new("cargo build --release --locked -p kvtier-faultsim --example seeds").run()?;
    let scopes: Vec<_> = scopes.iter().map(|scope| (*scope, seeds)).collect();
    let parts = parts(&target_dir().join("release/examples/seeds"), &scopes, "run");
    let failed = run_on_all_cores(&parts, &|cmd| {
        let (one, two) = (cmd.try_read()?.1, cmd.try_read()?.1);
        let differs = one.lines().zip(two.lines()).find(|(one, two)| one != two);
        Ok(match differs {
            None => (one == two && !one.is_empty(), "another number of seeds".to_owned()),
            Some((one, two)) => (false, format!("{one}\n{two}")),
        })
    });
    none_failed(&failed, parts.len())
}

/// Runs the given number of seeds of each scope, from 0 on, on all cores. Prints what breaks a promise, which is
/// an error. Returns how many runs there were.
pub fn run_seeds(program: &Path, scopes: &[(&str, u64)]) -> Result<u64> {
    let parts = parts(program, scopes, "findings");
    let begin = Instant::now();
    let failed = run_on_all_cores(&parts, &Cmd::try_read);
    none_failed(&failed, parts.len())?;
    let runs = scopes.iter().map(|(_, seeds)| seeds).sum();
    println!("{runs} runs took {:.0} s", begin.elapsed().as_secs_f64());
    Ok(runs)
}

/// The commands that run the given number of seeds of each scope, from 0 on.
fn parts(program: &Path, scopes: &[(&str, u64)], mode: &str) -> Vec<Cmd> {
    let mut parts = Vec::new();
    for (scope, seeds) in scopes.iter().copied() {
        for from in (0..seeds).step_by(SEEDS_AT_ONCE as usize) {
            let to = seeds.min(from + SEEDS_AT_ONCE);
            let cmd = Cmd::new("").arg(program.display().to_string());
            let cmd = cmd.args([from.to_string(), to.to_string()]);
            parts.push(cmd.args([mode, scope]));
        }
    }
    println!("$ {} FROM TO {mode} SCOPE, {} times", program.display(), parts.len());
    parts
}

fn none_failed(failed: &[String], parts: usize) -> Result<()> {
    match failed.first() {
        None => Ok(()),
        Some(first) => bail!("{} of {parts} parts failed, as `{first}`", failed.len()),
    }
}

/// Runs each and shows what those that fail print. Returns which did.
fn run_on_all_cores(
    cmds: &[Cmd],
    read: &(dyn Fn(&Cmd) -> Result<(bool, String)> + Sync),
) -> Vec<String> {
    let queue = Mutex::new(cmds.iter());
    let failed = Mutex::new(Vec::new());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = || {
        while let Some(cmd) = next() {
            let said = match read(cmd) {
                Ok((true, _)) => continue,
                Ok((false, said)) => said,
                Err(error) => format!("{error:#}"),
            };
            println!("$ {cmd}\n{said}");
            failed.lock().unwrap_or_else(PoisonError::into_inner).push(cmd.to_string());
        }
    };
    thread::scope(|scope| (0..cores()).for_each(|_| drop(scope.spawn(run))));
    failed.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The simulator of a workspace.
fn simulator(workspace: &Path) -> Cmd {
    let line = "cargo run --quiet --locked -p kvtier-faultsim --example seeds --";
    Cmd::new(line).dir(workspace)
}

/// The patches, in order.
fn defects() -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(root().join(DEFECTS)).context("the defects")?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "patch"));
    paths.sort();
    Ok(paths)
}

/// A copy of the last commit.
fn copy_of_commit() -> Result<PathBuf> {
    let copy = root().join(COPY);
    if copy.exists() {
        fs::remove_dir_all(&copy)?;
    }
    fs::create_dir_all(&copy)?;
    let archive = copy.with_extension("tar").to_string_lossy().into_owned();
    Cmd::new("git archive --format=tar -o").arg(&archive).arg("HEAD").run()?;
    // With times of now: what an earlier copy was built from may be newer than the commit.
    Cmd::new("tar -xmf").arg(&archive).dir(&copy).run()?;
    Ok(copy)
}

/// The simulator of the copy as it is.
fn build_without_defect(copy: &Path) -> Result<PathBuf> {
    let build = root().join(BUILD);
    Cmd::new("cargo build --quiet --locked -p kvtier-faultsim --example seeds")
        .dir(copy)
        .env("CARGO_TARGET_DIR", build.to_string_lossy())
        .run()?;
    let kept = build.join("without-defect");
    fs::copy(build.join("debug/examples/seeds"), &kept)?;
    Ok(kept)
}

/// Puts each defect into the copy, tries to find it, and takes it out again: only what depends on it is
/// built again. All that are not found are named at the end. A patch that fails ends it, for what it left
/// would be in the copy with all that follow.
fn find_all(
    defects: &[PathBuf],
    patch: impl Fn(&Path, &str) -> Result<()>,
    find: impl Fn(&Path) -> Result<()>,
) -> Result<()> {
    let mut failed = Vec::new();
    for defect in defects {
        patch(defect, "patch -p1 -i")?;
        let found = find(defect);
        patch(defect, "patch -R -p1 -i")?;
        if let Err(error) = found {
            println!("{error:#}");
            failed.push(format!("{error:#}"));
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => bail!("{} of {} defects: {}", failed.len(), defects.len(), failed.join("; ")),
    }
}

/// Runs seeds of the copy, which has the defect, until one finds it; without the defect that seed must find nothing.
fn find(defect: &Path, copy: &Path, without_defect: &Path, seeds: u64) -> Result<()> {
    let name = defect.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    // A patch for another scope than the first begins with its name.
    let scope = SCOPES.iter().find(|scope| name.starts_with(&format!("{scope}-")));
    let scope = scope.unwrap_or(&SCOPES[0]).to_string();
    println!("{name}:");
    let (is_found, text) = simulator(copy)
        .args(["0".to_owned(), seeds.to_string(), "until-found".to_owned(), scope.clone()])
        .env("CARGO_TARGET_DIR", root().join(BUILD).to_string_lossy())
        .try_read()?;
    println!("{text}");
    let Some(seed) = text.lines().find_map(found_by).filter(|_| is_found) else {
        bail!("{seeds} seeds do not find the defect {name}");
    };
    let again = [seed.to_string(), (seed + 1).to_string(), "findings".to_owned(), scope];
    Cmd::new("")
        .arg(without_defect.to_string_lossy())
        .args(again)
        .run()
        .with_context(|| format!("seed {seed} finds something without the defect {name}, too"))
}

/// The seed in the simulator's last line.
fn found_by(line: &str) -> Option<u64> {
    line.strip_prefix("found by seed ")?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_seeds_run_and_those_that_fail_are_named() {
        let sh = |test: &str| Cmd::new("sh -c").arg(test);
        let ends = ["exit 0", "exit 1", "exit 0", "kill -9 $$", "exit 0"].map(sh);
        let scopes = [("one", 2 * SEEDS_AT_ONCE + 1), ("two", 1)];
        let mut failed = run_on_all_cores(&ends, &Cmd::try_read);
        failed.sort();
        assert_eq!(failed, [ends[1].to_string(), ends[3].to_string()]);
        assert_eq!(run_seeds(Path::new("true"), &scopes).unwrap(), 2 * SEEDS_AT_ONCE + 2);
        let error = run_seeds(Path::new("false"), &scopes).unwrap_err().to_string();
        assert!(error.starts_with("4 of 4 parts failed"), "{error}");
    }

    #[test]
    fn the_seed_that_found_a_defect_is_read() {
        assert_eq!(found_by("found by seed 278 of directory, with 4 faults"), Some(278));
        assert_eq!(found_by("seed 278 of directory: 5 events"), None);
    }

    #[test]
    fn a_defect_that_is_not_found_stops_no_other() {
        let defects = ["a", "b", "c"].map(PathBuf::from);
        let done = Mutex::new(Vec::new());
        let note = |what: &str, defect: &Path| {
            done.lock().unwrap().push(format!("{what} {}", defect.display()));
        };
        let patch = |defect: &Path, command: &str| {
            note(if command.contains("-R") { "out" } else { "in" }, defect);
            Ok(())
        };
        let find = |defect: &Path| {
            note("find", defect);
            if defect == Path::new("b") { bail!("b hides") } else { Ok(()) }
        };
        let error = find_all(&defects, patch, find).unwrap_err().to_string();
        assert_eq!(error, "1 of 3 defects: b hides");
        let all = ["in a", "find a", "out a", "in b", "find b", "out b", "in c", "find c", "out c"];
        assert_eq!(*done.lock().unwrap(), all);
        let (fails, never) = (|_: &Path, _: &str| bail!("a reject"), |_: &Path| unreachable!());
        assert_eq!(find_all(&defects, fails, never).unwrap_err().to_string(), "a reject");
        assert!(find_all(&defects[..1], |_, _| Ok(()), |_| Ok(())).is_ok());
    }

    #[test]
    fn every_defect_can_be_put_back() {
        let defects = defects().unwrap();
        assert!(!defects.is_empty());
        for defect in defects {
            // Elsewhere than at the root it passes over files without a word.
            let check = Cmd::new("git apply --check").arg(defect.to_string_lossy());
            check.dir(root()).run().unwrap();
        }
    }
}
