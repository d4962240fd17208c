//! Words that this project avoids, counted per directory against a budget that may only shrink.
//!
//! `xtask/words.toml` holds the words, each with what to write instead, the names that must stay,
//! the files that may use all words, and the budgets. A word counts wherever people read it: in comments, documents, messages
//! and names. `RetryState` and `retry_state` are two words each.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use toml::{Table, Value};

use super::Problem;
use crate::tree::Tree;

/// The list of words and budgets.
pub const FILE: &str = "xtask/words.toml";

/// The files whose words count.
const ENDINGS: &[&str] = &[".rs", ".md", ".toml", ".sh", ".py", ".yml", ".yaml", ".ci/run"];

/// The heading of the last table of the file, which a command rewrites.
const BUDGET: &str = "[budget]\n";

/// What the file says.
struct Vocabulary {
    /// A word, or several in sequence, and what to write instead.
    words: Vec<(Vec<String>, String)>,
    /// Names that users and other programs rely on; they do not count.
    frozen: Vec<String>,
    /// Files that may use all words.
    allowed: Vec<String>,
    budget: BTreeMap<String, usize>,
}

/// One use of a word.
struct Use {
    file: String,
    line: usize,
    word: String,
    instead: String,
}

/// Directories with more uses than their budget, and with fewer.
pub fn check(tree: &Tree) -> Vec<Problem> {
    let vocabulary = match Vocabulary::read(tree) {
        Ok(vocabulary) => vocabulary,
        Err(error) => {
            return vec![Problem::new(FILE, 1, format!("{error:#}"), "correct the file")];
        }
    };
    let uses = vocabulary.uses(tree);
    let none = Vec::new();
    let mut dirs: Vec<&String> = uses.keys().chain(vocabulary.budget.keys()).collect();
    dirs.sort();
    dirs.dedup();
    dirs.into_iter()
        .flat_map(|dir| {
            let budget = vocabulary.budget.get(dir).copied();
            compare(dir, uses.get(dir).unwrap_or(&none), budget)
        })
        .collect()
}

fn compare(dir: &str, uses: &[Use], budget: Option<usize>) -> Vec<Problem> {
    let count = uses.len();
    match budget {
        None | Some(0) => uses.iter().map(Use::problem).collect(),
        Some(budget) if count > budget => {
            let what = format!("{dir} uses words to avoid {count} times, its budget is {budget}");
            let fix = format!("see docs/STYLE.md; `cargo xtask tidy --words {dir}` lists them");
            vec![Problem::new(FILE, 1, what, fix)]
        }
        Some(budget) if count < budget => {
            let what = format!("the budget of {dir} is {budget}, more than its {count} uses");
            let fix = format!("write `\"{dir}\" = {count}` (`cargo xtask tidy --write-words`)");
            vec![Problem::new(FILE, 1, what, fix)]
        }
        Some(_) => Vec::new(),
    }
}

/// Prints every use in a directory.
pub fn list(tree: &Tree, dir: &str) -> Result<()> {
    let uses = Vocabulary::read(tree)?.uses(tree);
    let uses = uses.get(dir).map_or(&[][..], Vec::as_slice);
    uses.iter().for_each(|found| println!("{}", found.problem()));
    println!("{} in {dir}", uses.len());
    Ok(())
}

/// The file with budgets that match the tree. Their sum may not grow: uses may move between
/// directories, as when a crate is split.
pub fn rewritten(tree: &Tree) -> Result<String> {
    let vocabulary = Vocabulary::read(tree)?;
    let uses = vocabulary.uses(tree);
    let now: usize = uses.values().map(Vec::len).sum();
    let before: usize = vocabulary.budget.values().sum();
    if now > before {
        bail!("{now} uses of words to avoid, more than the budgets' sum of {before}");
    }
    let text = tree.text(FILE).context("the file was read above")?;
    let head = text.split(BUDGET).next().unwrap_or_default();
    let lines = uses.iter().map(|(dir, uses)| format!("\"{dir}\" = {}\n", uses.len()));
    Ok(format!("{head}{BUDGET}{}", lines.collect::<String>()))
}

impl Vocabulary {
    fn read(tree: &Tree) -> Result<Vocabulary> {
        let text = tree.text(FILE).with_context(|| format!("{FILE} is missing"))?;
        let file: Table = text.parse().with_context(|| format!("{FILE} does not parse"))?;
        let table = |name: &str| {
            file.get(name).and_then(Value::as_table).with_context(|| format!("no table [{name}]"))
        };
        let mut words = Vec::new();
        for (word, instead) in table("words")? {
            let instead = instead.as_str().with_context(|| format!("{word} wants a text"))?;
            words.push((word.split(' ').map(String::from).collect(), instead.to_owned()));
        }
        let mut frozen = Vec::new();
        for (name, reason) in table("frozen")? {
            if reason.as_str().is_none_or(|reason| reason.len() < 10) {
                bail!("{name} is frozen without a reason");
            }
            frozen.push(name.clone());
        }
        let mut allowed = Vec::new();
        for (path, reason) in table("allow")? {
            if reason.as_str().is_none_or(|reason| reason.len() < 10) {
                bail!("{path} is allowed all words without a reason");
            }
            allowed.push(path.clone());
        }
        let mut budget = BTreeMap::new();
        for (dir, count) in table("budget")? {
            let count = count.as_integer().and_then(|count| usize::try_from(count).ok());
            budget.insert(dir.clone(), count.with_context(|| format!("{dir} wants a number"))?);
        }
        Ok(Vocabulary { words, frozen, allowed, budget })
    }

    /// All uses by directory.
    fn uses(&self, tree: &Tree) -> BTreeMap<String, Vec<Use>> {
        let mut uses: BTreeMap<String, Vec<Use>> = BTreeMap::new();
        for (path, text) in tree.texts(ENDINGS) {
            if self.allowed.iter().any(|allowed| allowed == path) {
                continue;
            }
            let found = self.find(path, text);
            if !found.is_empty() {
                uses.entry(directory(path)).or_default().extend(found);
            }
        }
        uses
    }

    fn find(&self, path: &str, text: &str) -> Vec<Use> {
        let mut text = text.to_owned();
        for name in &self.frozen {
            text = text.replace(name, " ");
        }
        let found = split(&text);
        let matches = |at: usize, words: &[String]| {
            words
                .iter()
                .enumerate()
                .all(|(offset, word)| found.get(at + offset).is_some_and(|(own, _)| own == word))
        };
        let uses = found.iter().enumerate().filter_map(|(at, (_, line))| {
            let (words, instead) = self.words.iter().find(|(words, _)| matches(at, words))?;
            Some(Use {
                file: path.to_owned(),
                line: *line,
                word: words.join(" "),
                instead: instead.clone(),
            })
        });
        uses.collect()
    }
}

impl Use {
    fn problem(&self) -> Problem {
        let what = format!("'{}' is a word to avoid", self.word);
        Problem::new(&self.file, self.line, what, format!("write: {}", self.instead))
    }
}

/// The directory whose budget a file falls under: a crate, or a folder of the root.
fn directory(path: &str) -> String {
    let mut parts = path.split('/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("crates"), Some(name), Some(_)) => format!("crates/{name}"),
        (Some(folder), Some(_), _) => folder.to_owned(),
        _ => ".".to_owned(),
    }
}

/// The words of a text in lower case, with their lines from 1. Identifiers fall into their parts.
fn split(text: &str) -> Vec<(String, usize)> {
    let mut words = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let mut word = String::new();
        let mut lower = false;
        for char in line.chars().chain([' ']) {
            if !word.is_empty() && (!char.is_alphabetic() || lower && char.is_uppercase()) {
                words.push((std::mem::take(&mut word), number));
            }
            if char.is_alphabetic() {
                word.extend(char.to_lowercase());
            }
            lower = char.is_lowercase();
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &str = "[words]\ngnome = \"dwarf\"\n\"so few\" = \"three\"\n\
                         [frozen]\n\"--gnome-len\" = \"an option of the command\"\n\
                         [allow]\n\"docs/ALLOWED.md\" = \"it lists the words\"\n\
                         \"xtask/words.toml\" = \"is the list\"\n[budget]\n";

    fn tree(budget: &str, code: &str) -> Tree {
        let words = format!("{WORDS}{budget}");
        Tree::of(&[
            (FILE, &words),
            ("crates/a/src/a.rs", code),
            ("docs/ALLOWED.md", "gnome"),
            ("data.json", "gnome"),
        ])
    }

    fn problems(budget: &str, code: &str) -> Vec<String> {
        check(&tree(budget, code)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_word_counts_in_comments_strings_and_parts_of_names() {
        for code in [
            "// A gnome.",
            "const A: &str = \"the Gnome\";",
            "fn gnome_len() {}",
            "struct BigGnome;",
            "// so\n// few",
        ] {
            assert_eq!(problems("", code).len(), 1, "{code}");
        }
        for code in ["// gnomes", "fn genome() {}", "// so very few"] {
            assert_eq!(problems("", code), Vec::<String>::new(), "{code}");
        }
    }

    #[test]
    fn a_frozen_name_does_not_count_and_the_word_in_another_name_does() {
        assert_eq!(problems("", "// pass --gnome-len"), Vec::<String>::new());
        assert_eq!(problems("", "// pass --gnome-height").len(), 1);
    }

    #[test]
    fn a_frozen_name_wants_a_reason() {
        let text = WORDS.replace("an option of the command", "yes");
        let found = check(&Tree::of(&[(FILE, &text)]));
        assert!(found[0].to_string().contains("without a reason"), "{}", found[0]);
    }

    #[test]
    fn a_new_directory_starts_at_nothing_and_each_use_is_named() {
        let found = problems("", "//\n// gnome");
        assert_eq!(found, ["crates/a/src/a.rs:2: 'gnome' is a word to avoid; write: dwarf"]);
    }

    #[test]
    fn a_budget_is_kept_exactly() {
        let budget = "\"crates/a\" = 2";
        assert!(problems(budget, "// gnome gnome").is_empty());
        assert!(problems(budget, "// gnome gnome gnome")[0].contains("3 times, its budget is 2"));
        assert!(problems(budget, "// gnome")[0].contains("write `\"crates/a\" = 1`"));
        assert!(problems(budget, "//")[0].contains("write `\"crates/a\" = 0`"));
    }

    #[test]
    fn budgets_are_rewritten_only_where_their_sum_does_not_grow() {
        let moved = tree("\"crates/gone\" = 1\n", "// gnome");
        assert_eq!(rewritten(&moved).unwrap(), format!("{WORDS}\"crates/a\" = 1\n"));
        let grown = tree("", "// gnome");
        assert!(rewritten(&grown).unwrap_err().to_string().contains("more than the budgets' sum"));
    }

    #[test]
    fn an_allowed_file_wants_a_reason() {
        let text = WORDS.replace("it lists the words", "yes");
        let found = check(&Tree::of(&[(FILE, &text)]));
        assert!(found[0].to_string().contains("without a reason"), "{}", found[0]);
    }
}
