//! A copy of the workspace with all changes in it, each behind a switch.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::change::Change;
use super::edits::{Alternative, Edit, apply, is_on};
use super::objections::Objections;
use super::sites::{Kind, Lines, Site, Sites};
use crate::mutants::copy_tree;
use crate::mutants::mutant::Mutant;
use crate::sh::Cmd;

/// What is added to each crate that is changed.
const SWITCH: &str = include_str!("mutant_switch.rs.txt");
/// How often the compiler may object to changes.
const CHECKS_MAX: usize = 60;
/// How far behind an objection the arms of a match are looked for, in bytes.
const MATCH_BYTES_MAX: usize = 1800;

/// The copy.
pub fn tree() -> PathBuf {
    copy_tree::base().join("switched")
}

/// The changes that are in the copy, and those that cannot be.
#[derive(Debug, Default)]
pub struct Switched {
    /// Those that compile. The switch of a change is its place in the list of changes, from 1 on.
    pub inside: BTreeSet<usize>,
    /// Those that do not compile.
    pub unviable: BTreeSet<usize>,
    /// Those that no switch can make, such as the values of constants.
    pub without_switch: BTreeSet<usize>,
}

impl Switched {
    /// Puts the changes into the copy and takes those out again to which the compiler objects.
    pub fn make(changes: &[Change], check: &Cmd) -> Result<Switched> {
        let crates = crates(changes);
        let changed = changes.iter().map(|change| change.mutant.file.as_str());
        let of_crates = crates.iter().flat_map(|of| [of.lib.as_str(), of.switches.as_str()]);
        copy_tree::update_at(&tree(), &changed.chain(of_crates).collect())?;
        crates.iter().try_for_each(Crate::add_switches)?;
        let mut switched = Switched::default();
        let objections = Objections::read();
        for (change, switch) in changes.iter().zip(1..) {
            let Mutant { file, name, .. } = &change.mutant;
            let text = original(file)?;
            match objections.has(file, &text, name) {
                true => switched.unviable.insert(switch),
                false => switched.inside.insert(switch),
            };
        }
        for _ in 0..CHECKS_MAX {
            switched.write(changes)?;
            let (is_ok, text) = check.try_read()?;
            if is_ok {
                switched.remember(changes)?;
                return Ok(switched);
            }
            let objected = objected_to(&text, &switched.inside)?;
            println!("{} changes do not compile", objected.len());
            if objected.is_empty() {
                bail!("the changed code does not compile, and no change is to blame");
            }
            switched.inside.retain(|switch| !objected.contains(switch));
            switched.unviable.extend(objected);
        }
        bail!("the changed code does not compile after {CHECKS_MAX} attempts")
    }

    /// For the next run.
    fn remember(&self, changes: &[Change]) -> Result<()> {
        let mut objections = Objections::default();
        for switch in &self.unviable {
            let Mutant { file, name, .. } = &changes[switch - 1].mutant;
            objections.add(file, &original(file)?, name);
        }
        objections.write()
    }

    fn write(&mut self, changes: &[Change]) -> Result<()> {
        let mut by_file: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for switch in 1..=changes.len() {
            by_file.entry(&changes[switch - 1].mutant.file).or_default().push(switch);
        }
        for (file, switches) in by_file {
            let text = original(file)?;
            let sites = Sites::of(&text).context(file.to_owned())?;
            let mut edits = Edits::default();
            let lines = Lines::of(&text);
            for switch in switches {
                let change = &changes[switch - 1];
                let at = lines.byte(change.line, change.column);
                match sites.get(at, change.genre).filter(|site| !site.is_const) {
                    Some(site) if self.inside.contains(&switch) => {
                        edits.add(&text, site, switch, &change.replacement)
                    }
                    Some(_) => {}
                    None => {
                        self.inside.remove(&switch);
                        self.unviable.remove(&switch);
                        self.without_switch.insert(switch);
                    }
                }
            }
            write_changed(&tree().join(file), &apply(&text, &mut edits.into_list()))?;
        }
        Ok(())
    }
}

/// The edits of a file, while they are collected.
#[derive(Default)]
struct Edits {
    others: Vec<Edit>,
    alternatives: BTreeMap<(usize, usize), Vec<Alternative>>,
}

impl Edits {
    fn add(&mut self, text: &str, site: &Site, switch: usize, replacement: &str) {
        let insert = |at: usize, new: String| Edit::Insert(at, new);
        match &site.kind {
            Kind::Body(open) => {
                let new = format!(" if {} {{ return {replacement}; }} ", is_on(switch));
                self.others.push(insert(*open, new));
            }
            Kind::Arm { pattern_end, guard: None } => {
                self.others.push(insert(*pattern_end, format!(" if !{}", is_on(switch))));
            }
            Kind::Arm { guard: Some(guard), .. } => {
                self.others.push(Edit::GuardNot(guard.clone(), switch));
            }
            Kind::Binary { left, right } => {
                let other =
                    format!("{} {replacement} {}", &text[left.clone()], &text[right.clone()]);
                self.alternative(left.start..right.end, switch, other);
            }
            Kind::Unary { all, operand } => {
                self.alternative(all.clone(), switch, text[operand.clone()].to_owned());
            }
            Kind::Guard(guard) => self.alternative(guard.clone(), switch, replacement.to_owned()),
            Kind::Field { value, without } => {
                self.alternative(value.clone(), switch, without.clone());
            }
        }
    }

    fn alternative(&mut self, range: std::ops::Range<usize>, switch: usize, text: String) {
        let of_range = self.alternatives.entry((range.start, range.end)).or_default();
        of_range.push(Alternative { switch, text });
    }

    fn into_list(self) -> Vec<Edit> {
        let alternatives = self.alternatives.into_iter();
        let alternatives =
            alternatives.map(|((start, end), of)| Edit::Alternatives(start..end, of));
        self.others.into_iter().chain(alternatives).collect()
    }
}

/// The text of a file without changes.
fn original(file: &str) -> Result<String> {
    fs::read_to_string(copy_tree::tree().join(file)).with_context(|| file.to_owned())
}

/// The files of a changed crate that get the module of switches.
struct Crate {
    /// Its root module, in which no other change can be.
    lib: String,
    /// The module.
    switches: String,
}

fn crates(changes: &[Change]) -> Vec<Crate> {
    let sources = changes.iter().filter_map(|change| change.mutant.file.split_once("/src/"));
    let sources: BTreeSet<&str> = sources.map(|(package, _)| package).collect();
    let files = |package| Crate {
        lib: format!("{package}/src/lib.rs"),
        switches: format!("{package}/src/mutant_switch.rs"),
    };
    sources.into_iter().map(files).collect()
}

impl Crate {
    fn add_switches(&self) -> Result<()> {
        write_changed(&tree().join(&self.switches), SWITCH)?;
        let mut lib = original(&self.lib)?;
        if lib.contains("#![no_std]") {
            lib.push_str("\n#[allow(unused_extern_crates)]\nextern crate std;\n");
        }
        lib.push_str("\n#[doc(hidden)]\npub mod mutant_switch;\n");
        write_changed(&tree().join(&self.lib), &lib)
    }
}

fn write_changed(path: &Path, text: &str) -> Result<()> {
    if !fs::read_to_string(path).is_ok_and(|old| old == text) {
        fs::write(path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// The changes to which the compiler objects, by the places that its messages name.
fn objected_to(messages: &str, inside: &BTreeSet<usize>) -> Result<BTreeSet<usize>> {
    let mut found = BTreeSet::new();
    for line in messages.lines() {
        let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
        let message = &line["message"];
        if message["level"] != "error" {
            continue;
        }
        let is_incomplete_match = message["code"]["code"] == "E0004";
        for span in message["spans"].as_array().into_iter().flatten() {
            let (Some(file), Some(at)) = (span["file_name"].as_str(), span["byte_start"].as_u64())
            else {
                continue;
            };
            let Ok(text) = fs::read_to_string(tree().join(file)) else { continue };
            let at = at as usize;
            let blamed = match is_incomplete_match {
                true => arms_after(&text, at),
                false => switch_at(&text, at).into_iter().collect(),
            };
            let blamed: Vec<usize> =
                blamed.into_iter().filter(|switch| inside.contains(switch)).collect();
            if !blamed.is_empty() {
                found.extend(blamed);
                break;
            }
        }
    }
    Ok(found)
}

/// The switch whose alternative is at this byte: the last one before it, or the first of the choice
/// that begins there.
fn switch_at(text: &str, at: usize) -> Option<usize> {
    let call = is_on(0).replace("0)", "");
    let begins = ["if ", "(if ", "!", ""].map(|before| format!("{before}{call}"));
    let after = text.get(at..)?;
    let found = match begins.iter().any(|begin| after.starts_with(begin.as_str())) {
        true => at + after.find(&call)?,
        false => text.get(..at)?.rfind(&call)?,
    };
    number_after(text, found + call.len())
}

/// The switches of the arms of a match that begins at this byte.
fn arms_after(text: &str, at: usize) -> Vec<usize> {
    let call = format!("!{}", is_on(0).replace("0)", ""));
    let arms = text.get(at..).unwrap_or_default();
    let near = arms.match_indices(&call).take_while(|(at, _)| *at < MATCH_BYTES_MAX);
    near.filter_map(|(at, _)| number_after(arms, at + call.len())).collect()
}

fn number_after(text: &str, at: usize) -> Option<usize> {
    text.get(at..)?.split(')').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_objection_is_to_the_change_around_it() {
        let text = format!("(if {} {{ a }} else if {} {{ b }} else {{ c }})", is_on(1), is_on(2));
        assert_eq!(switch_at(&text, 0), Some(1));
        assert_eq!(switch_at(&text, text.find("{ a").unwrap() + 2), Some(1));
        assert_eq!(switch_at(&text, text.find("{ b").unwrap() + 2), Some(2));
        assert_eq!(switch_at("a + b", 3), None);
    }

    #[test]
    fn of_a_match_that_lacks_arms_all_are_to_blame() {
        let text = format!("match a {{ 1 if !{} => 2, _ if !{} => 3 }}", is_on(7), is_on(8));
        assert_eq!(arms_after(&text, 0), [7, 8]);
    }
}
