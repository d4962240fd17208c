//! Sentences of documents are short.
//!
//! A sentence ends at a full stop, a question or exclamation mark, or at the end of its paragraph,
//! item of a list or cell of a table. Code is not counted. The median is that of paragraphs and
//! lists; no cell may be longer than a sentence may.

use super::Problem;
use crate::tree::Tree;

/// Documents that keep the limits. The others follow one by one.
const DOCUMENTS: &[&str] = &[
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "docs/ARCHITECTURE.md",
    "docs/BENCHMARKS.md",
    "docs/CLI.md",
    "docs/CONFIG.md",
    "docs/EMBEDDING.md",
    "docs/ENCODINGS.md",
    "docs/EVICTION.md",
    "docs/FORMAT.md",
    "docs/GDS.md",
    "docs/METRICS.md",
    "docs/OPERATIONS.md",
    "docs/RELEASING.md",
    "docs/S3.md",
    "docs/SECURITY.md",
    "docs/SEMANTICS.md",
    "docs/STYLE.md",
    "docs/TESTING.md",
    "docs/lmcache.md",
];

const MEDIAN_MAX: usize = 20;
const WORDS_MAX: usize = 45;

/// A sentence, or a cell of a table.
struct Sentence {
    line: usize,
    words: usize,
    is_cell: bool,
    beginning: String,
}

/// Sentences of the listed documents that are too long, one by one and at the median.
pub fn check(tree: &Tree) -> Vec<Problem> {
    let documents = DOCUMENTS.iter().filter_map(|path| Some((*path, tree.text(path)?)));
    documents.flat_map(|(path, text)| judge(path, text)).collect()
}

fn judge(path: &str, text: &str) -> Vec<Problem> {
    let found = sentences(text);
    let fix = "one idea a sentence: split it";
    let mut problems: Vec<Problem> = found
        .iter()
        .filter(|sentence| sentence.words > WORDS_MAX)
        .map(|sentence| {
            let Sentence { line, words, beginning, .. } = sentence;
            let what = format!("{words} words, more than {WORDS_MAX}: \"{beginning} ...\"");
            Problem::new(path, *line, what, fix)
        })
        .collect();
    let mut prose: Vec<usize> =
        found.iter().filter(|sentence| !sentence.is_cell).map(|sentence| sentence.words).collect();
    prose.sort_unstable();
    let median = prose.get(prose.len() / 2).copied().unwrap_or(0);
    if median > MEDIAN_MAX {
        let what = format!("the median sentence has {median} words, more than {MEDIAN_MAX}");
        problems.push(Problem::new(path, 1, what, fix));
    }
    problems
}

fn sentences(text: &str) -> Vec<Sentence> {
    let mut found = Vec::new();
    let mut block = String::new();
    let mut start = 1;
    let mut fenced = false;
    for (line, number) in text.lines().zip(1..) {
        let trimmed = line.trim();
        let fence = trimmed.starts_with("```");
        let begins = fenced || fence || is_item(trimmed) || trimmed.starts_with(['#', '|', '<']);
        if begins || trimmed.is_empty() {
            split(&block, start, false, &mut found);
            block.clear();
            start = number;
        }
        if trimmed.starts_with('|') && !fenced {
            let cells = trimmed.replace("\\|", " ");
            cells.split('|').for_each(|cell| split(cell, number, true, &mut found));
        } else if !fenced && !fence && !trimmed.is_empty() && !trimmed.starts_with(['#', '<']) {
            if block.is_empty() {
                start = number;
            }
            block.push_str(trimmed);
            block.push(' ');
        }
        fenced ^= fence;
    }
    split(&block, start, false, &mut found);
    found
}

fn is_item(line: &str) -> bool {
    let number = line.trim_start_matches(|char: char| char.is_ascii_digit());
    line.starts_with("- ")
        || line.starts_with("* ")
        || number.len() < line.len() && number.starts_with(". ")
}

/// Cuts a block into sentences and counts their words.
fn split(block: &str, line: usize, is_cell: bool, found: &mut Vec<Sentence>) {
    let mut words: Vec<&str> = Vec::new();
    let text = without_code(block);
    let text = without_targets(&text);
    let mut end = |words: &mut Vec<&str>| {
        if !words.is_empty() {
            let beginning = words.iter().take(6).copied().collect::<Vec<_>>().join(" ");
            found.push(Sentence { line, words: words.len(), is_cell, beginning });
        }
        words.clear();
    };
    for word in text.split_whitespace() {
        if word.contains(char::is_alphanumeric) {
            words.push(word);
        }
        if word.trim_end_matches(['"', '\'', ')', '*', '_']).ends_with(['.', '!', '?']) {
            end(&mut words);
        }
    }
    end(&mut words);
}

fn without_code(text: &str) -> String {
    let parts = text.split('`').zip([true, false].into_iter().cycle());
    parts.map(|(part, prose)| if prose { part } else { "" }).collect()
}

/// The text without the targets of links.
fn without_targets(text: &str) -> String {
    let mut parts = text.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + "]" + part.split_once(')').map_or("", |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        judge("a.md", text).iter().map(ToString::to_string).collect()
    }

    fn words(count: usize) -> String {
        "word ".repeat(count).trim_end().to_owned()
    }

    #[test]
    fn a_long_sentence_is_found_in_a_paragraph_an_item_and_a_cell() {
        for (before, after) in [("", "."), ("- ", "."), ("| a | ", " | b |")] {
            let text = |count| format!("Short.\n\nShort.\n\n{before}{}{after}\n", words(count));
            assert_eq!(problems(&text(45)), Vec::<String>::new(), "{before}");
            let found = problems(&text(46));
            assert!(found[0].starts_with("a.md:5: 46 words, more than 45"), "{found:?}");
        }
    }

    #[test]
    fn a_sentence_goes_on_over_lines_and_ends_with_its_item() {
        assert_eq!(problems(&format!("A. B.\n{}\n{}", words(23), words(23))).len(), 1);
        assert!(problems(&format!("A.\n- {}\n- {}", words(20), words(20))).is_empty());
    }

    #[test]
    fn code_and_targets_of_links_do_not_count() {
        let code = format!("`{}` is code\n```text\n{}\n```\n", words(50), words(50));
        assert!(problems(&code).is_empty());
        assert!(problems(&format!("[link](a.md) {}", words(19))).is_empty());
    }

    #[test]
    fn the_median_is_that_of_prose_alone() {
        let prose = format!("{}.\n", words(21));
        let found = problems(&format!("{prose}| short | cell |\n| short | cell |\n"));
        assert!(found[0].contains("the median sentence has 21 words"), "{found:?}");
        assert!(problems(&format!("{prose}Short. Short.\n")).is_empty());
    }
}
