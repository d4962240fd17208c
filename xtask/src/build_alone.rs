//! Each crate's tests alone, with the features that this crate asks for, as one who works on that
//! crate builds them. In the workspace the features that other crates ask for hide what a crate does
//! not ask for itself.

use anyhow::{Result, bail};

use crate::sh::Cmd;
use crate::workspace::{HOST_FEATURES, Package};

/// Builds and links the tests of these crates, one crate at a time. All of them are tried; those that
/// fail are named.
pub fn build<'a>(packages: impl IntoIterator<Item = &'a Package>) -> Result<usize> {
    each(packages, |name| Cmd::new("cargo test --locked --no-run -p").arg(name))
}

/// Lints the tests, examples and benchmarks of these crates in the same way, and generates no code:
/// what a crate does not ask for is missing for the compiler too. It shares what
/// [features](crate::features) lints, and so has its flags.
pub fn lint<'a>(packages: impl IntoIterator<Item = &'a Package>) -> Result<usize> {
    each(packages, |name| {
        let cmd = Cmd::new("cargo clippy --locked -p").args([HOST_FEATURES, "-p", name]);
        cmd.args(["--all-targets", "--", "-D", "warnings"])
    })
}

fn each<'a>(
    packages: impl IntoIterator<Item = &'a Package>,
    cmd: impl Fn(&str) -> Cmd,
) -> Result<usize> {
    let mut count = 0;
    let mut failed = Vec::new();
    for package in packages {
        if let Err(e) = cmd(&package.name).run() {
            println!("{e:#}");
            failed.push(package.name.as_str());
        }
        count += 1;
    }
    match failed.as_slice() {
        [] => Ok(count),
        failed => bail!("tests that do not build alone: {}", failed.join(", ")),
    }
}

/// The crates that a change touches, or why that cannot be known.
///
/// A change is what differs from the merge base with `origin/main`, or else with `main`; on `main`
/// itself, from the commit before. What is not committed counts too. A change of the workspace's
/// own manifest, lock file or lints touches no crate more than others: it is left to
/// the other steps and the nightly run.
pub fn touched(packages: &[Package]) -> Result<std::result::Result<Vec<&Package>, String>> {
    let Some(base) = base()? else {
        return Ok(Err(
            "no earlier commit to compare with; all crates are an item of the nightly run".into(),
        ));
    };
    let names = |line: &str| -> Result<Vec<String>> {
        Ok(Cmd::new(line).read()?.split('\0').map(String::from).collect())
    };
    let mut files: Vec<String> = names(&format!("git diff --name-only -z {base}"))?;
    files.extend(names("git ls-files --others --exclude-standard -z")?);
    Ok(Ok(touched_by(packages, &files)))
}

fn touched_by<'a>(packages: &'a [Package], files: &[String]) -> Vec<&'a Package> {
    let has = |package: &Package| {
        files
            .iter()
            .any(|file| file.strip_prefix(&package.dir).is_some_and(|rest| rest.starts_with('/')))
    };
    packages.iter().filter(|package| has(package)).collect()
}

/// The commit that the change is compared with. `None` without git, or in a clone that has only the
/// last commit.
fn base() -> Result<Option<String>> {
    let read = |line: &str| -> Result<Option<String>> {
        let (ok, text) = Cmd::new(line).try_read()?;
        Ok(ok.then(|| text.trim().to_owned()))
    };
    let Ok(Some(head)) = read("git rev-parse HEAD") else { return Ok(None) };
    for main in ["origin/main", "main"] {
        if let Some(base) = read(&format!("git merge-base HEAD {main}"))?
            && base != head
        {
            return Ok(Some(base));
        }
    }
    read("git rev-parse --verify --quiet HEAD~1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_crates_are_tried_and_those_that_fail_are_named() {
        let packages =
            ["a", "b", "c"].map(|name| Package { name: name.into(), ..Package::default() });
        let unless = |bad: &'static str| move |name: &str| Cmd::new("test").args([name, "!=", bad]);
        assert_eq!(each(&packages, unless("d")).unwrap(), 3);
        let error = each(&packages, unless("a")).unwrap_err().to_string();
        assert_eq!(error, "tests that do not build alone: a");
    }

    #[test]
    fn a_change_touches_the_crates_whose_files_it_changes() {
        let package = |name: &str, dir: &str| Package {
            name: name.into(),
            dir: dir.into(),
            ..Package::default()
        };
        let packages =
            [package("kvtier-s3", "crates/s3"), package("kvtier-s3-tier", "crates/s3-tier")];
        let touched = |files: &[&str]| -> Vec<String> {
            let files: Vec<String> = files.iter().map(ToString::to_string).collect();
            touched_by(&packages, &files).iter().map(|package| package.name.clone()).collect()
        };
        assert_eq!(touched(&["crates/s3-tier/src/lib.rs", "docs/S3.md"]), ["kvtier-s3-tier"]);
        assert_eq!(touched(&["crates/s3/Cargo.toml", "crates/s3/src/lib.rs"]), ["kvtier-s3"]);
        assert!(touched(&["Cargo.lock", "README.md", ""]).is_empty());
    }
}
