//! A change as cargo-mutants lists it, with what is needed to make it.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::mutants::mutant::Mutant;

/// What kind of code is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Genre {
    /// The body of a function is replaced with a value.
    Function,
    Binary,
    Unary,
    Arm,
    Guard,
    Field,
}

/// One change.
#[derive(Clone, Debug)]
pub struct Change {
    pub mutant: Mutant,
    pub genre: Genre,
    /// Where it begins: the line from 1 on, the column in letters from 0 on.
    pub line: usize,
    pub column: usize,
    pub replacement: String,
}

impl Change {
    /// Reads what `cargo mutants --list --json` prints. `line` reads a line of a file.
    pub fn read_all(
        json: &str,
        line: impl Fn(&str, usize) -> Option<String>,
    ) -> Result<Vec<Change>> {
        let all: Vec<Value> = serde_json::from_str(json).context("the list of mutants")?;
        let read = |value: &Value| {
            Change::read(value, &line).with_context(|| format!("a mutant: {value}"))
        };
        all.iter().map(read).collect()
    }

    fn read(value: &Value, line: impl Fn(&str, usize) -> Option<String>) -> Option<Change> {
        let genre = match value["genre"].as_str()? {
            "FnValue" => Genre::Function,
            "BinaryOperator" => Genre::Binary,
            "UnaryOperator" => Genre::Unary,
            "MatchArm" => Genre::Arm,
            "MatchArmGuard" => Genre::Guard,
            "StructField" => Genre::Field,
            _ => return None,
        };
        let start = &value["span"]["start"];
        let number = |name: &str| usize::try_from(start[name].as_u64()?).ok();
        Some(Change {
            mutant: Mutant::parse(value["name"].as_str()?, line)?,
            genre,
            line: number("line")?,
            column: number("column")?.checked_sub(1)?,
            replacement: value["replacement"].as_str().unwrap_or_default().to_owned(),
        })
    }
}
