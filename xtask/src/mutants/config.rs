//! `xtask/mutants.toml`: modules, tests, and mutants that no test can catch.

use std::fs;

use anyhow::{Context, Result, bail};
use toml::{Table, Value};

use crate::sh::root;

const FILE: &str = "xtask/mutants.toml";

/// The file's content.
#[derive(Debug)]
pub struct Config {
    pub packages: Vec<PackageTests>,
    pub modules: Vec<Module>,
    pub judged: Vec<Judged>,
}

/// The tests for the mutants of a package.
#[derive(Debug)]
pub struct PackageTests {
    pub name: String,
    pub first: Tests,
    pub then: Tests,
}

/// Packages, and the options of `cargo test` for them.
#[derive(Debug)]
pub struct Tests {
    pub packages: Vec<String>,
    pub options: Vec<String>,
    /// Slow tests that do not run: their names contain one of these.
    pub skip: Vec<String>,
}

/// Files that decide about one thing.
#[derive(Debug)]
pub struct Module {
    pub name: String,
    pub package: String,
    pub files: Vec<String>,
}

/// A mutant that behaves as the code does, or changes only texts for people.
#[derive(Clone, Debug)]
pub struct Judged {
    pub file: String,
    pub change: String,
    /// The line of code that it changes, without the blanks around it.
    pub line: String,
    pub why: String,
}

impl Config {
    pub fn read() -> Result<Config> {
        let text = fs::read_to_string(root().join(FILE)).context(FILE)?;
        Config::parse(&text).context(FILE)
    }

    fn parse(text: &str) -> Result<Config> {
        let table: Table = text.parse()?;
        let packages = each(&table, "package", |entry| {
            let tests = |name| entry.get(name).and_then(Value::as_table).context(name);
            Ok(PackageTests {
                name: string(entry, "name")?,
                first: Tests::parse(tests("first")?)?,
                then: Tests::parse(tests("then")?)?,
            })
        })?;
        let modules = each(&table, "module", |entry| {
            Ok(Module {
                name: string(entry, "name")?,
                package: string(entry, "package")?,
                files: strings(entry, "files")?,
            })
        })?;
        let judged = each(&table, "judged", |entry| {
            Ok(Judged {
                file: string(entry, "file")?,
                change: string(entry, "change")?,
                line: string(entry, "line")?,
                why: string(entry, "why")?,
            })
        })?;
        for module in &modules {
            if !packages.iter().any(|package| package.name == module.package) {
                bail!("'{}' is of {}, which has no tests", module.name, module.package);
            }
        }
        Ok(Config { packages, modules, judged })
    }

    /// The number of the first module that has a file.
    pub fn module_of(&self, file: &str) -> Option<usize> {
        self.modules.iter().position(|module| module.has(file))
    }
}

impl Tests {
    fn parse(table: &Table) -> Result<Tests> {
        let skip = match table.get("skip") {
            None => Vec::new(),
            Some(_) => strings(table, "skip")?,
        };
        let (packages, options) = (strings(table, "packages")?, strings(table, "options")?);
        Ok(Tests { packages, options, skip })
    }

    /// What follows the options of `cargo test`, for the programs of tests.
    pub fn skip_args(&self) -> impl Iterator<Item = String> {
        let separator = (!self.skip.is_empty()).then(|| "--".to_owned());
        separator.into_iter().chain(self.skip.iter().map(|name| format!("--skip={name}")))
    }
}

impl Module {
    fn has(&self, file: &str) -> bool {
        let is_in = |name: &String| match name.ends_with('/') {
            true => file.starts_with(name.as_str()),
            false => file == name,
        };
        self.files.iter().any(is_in)
    }
}

/// The entries `[[name]]`.
fn each<T>(table: &Table, name: &str, parse: impl Fn(&Table) -> Result<T>) -> Result<Vec<T>> {
    let entries = match table.get(name) {
        None => return Ok(Vec::new()),
        Some(entries) => entries.as_array().with_context(|| format!("[[{name}]]"))?,
    };
    let parse = |entry: &Value| parse(entry.as_table().context("a table")?);
    entries.iter().map(parse).collect::<Result<_>>().with_context(|| format!("[[{name}]]"))
}

fn string(table: &Table, name: &str) -> Result<String> {
    let text = table.get(name).and_then(Value::as_str);
    Ok(text.with_context(|| format!("'{name}' must be a text"))?.to_owned())
}

fn strings(table: &Table, name: &str) -> Result<Vec<String>> {
    let list = table.get(name).and_then(Value::as_array);
    let texts = list.and_then(|list| {
        list.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
    });
    texts.with_context(|| format!("'{name}' must be a list of texts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_names_files_that_exist() {
        let config = Config::read().unwrap();
        for file in config.modules.iter().flat_map(|module| &module.files) {
            assert!(root().join(file).exists(), "{file}");
        }
        for judged in &config.judged {
            let text = fs::read_to_string(root().join(&judged.file)).unwrap();
            let has = text.lines().any(|line| line.trim() == judged.line);
            assert!(has, "{} has no line '{}'", judged.file, judged.line);
        }
    }

    #[test]
    fn a_file_belongs_to_the_first_module_that_names_it() {
        let config = Config::parse(
            r#"
            [[package]]
            name = "a"
            first = { packages = ["a"], options = ["--lib"], skip = ["slow"] }
            then = { packages = ["a", "b"], options = [] }
            [[module]]
            name = "one file"
            package = "a"
            files = ["src/x/y.rs"]
            [[module]]
            name = "a directory"
            package = "a"
            files = ["src/x/"]
            "#,
        );
        let config = config.unwrap();
        assert_eq!(config.module_of("src/x/y.rs"), Some(0));
        assert_eq!(config.module_of("src/x/z.rs"), Some(1));
        assert_eq!(config.module_of("src/x.rs"), None);
        let tests = &config.packages[0];
        assert_eq!(tests.then.packages, ["a", "b"]);
        assert_eq!(tests.first.skip_args().collect::<Vec<_>>(), ["--", "--skip=slow"]);
        assert_eq!(tests.then.skip_args().count(), 0);
    }

    #[test]
    fn a_module_without_tests_is_an_error() {
        let text = "[[module]]\nname = \"m\"\npackage = \"a\"\nfiles = []";
        let error = Config::parse(text).unwrap_err();
        assert!(error.to_string().contains("has no tests"), "{error}");
    }
}
