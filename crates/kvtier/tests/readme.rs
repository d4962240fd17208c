//! What README.md shows runs, and its numbers are those of docs/BENCHMARKS.md.
#![cfg(all(feature = "config", feature = "file"))]
#![allow(clippy::unwrap_used)]

// The snippet itself, as a reader would put it into a `main.rs`.
include!("readme/snippet.rs");

const RUST_LINES_MAX: usize = 15;
const PYTHON_LINES_MAX: usize = 8;

fn document(path: &str) -> String {
    std::fs::read_to_string(format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// The blocks of a language in a document.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let parts = text.split("```").skip(1).step_by(2);
    parts
        .filter_map(|block| block.strip_prefix(&format!("{language}\n")).map(String::from))
        .collect()
}

fn lines(block: &str) -> usize {
    block.lines().filter(|line| !line.trim().is_empty()).count()
}

#[test]
fn the_rust_snippet_is_the_program_that_runs_here() {
    let program = include_str!("readme/snippet.rs");
    for page in ["README.md", "crates/kvtier/README.md"] {
        assert_eq!(blocks(&document(page), "rust"), [program], "{page}");
    }
    assert!(lines(program) <= RUST_LINES_MAX, "{} lines", lines(program));
    let dir = tempfile::tempdir().unwrap();
    std::env::set_current_dir(dir.path()).unwrap();
    main().unwrap();
    assert!(dir.path().join("kv-cache/.kvtier/manifest").exists());
}

#[test]
fn the_python_snippet_is_short() {
    let found = blocks(&document("README.md"), "python");
    assert_eq!(found.len(), 1);
    assert!(lines(&found[0]) <= PYTHON_LINES_MAX, "{} lines", lines(&found[0]));
}

#[test]
fn every_number_of_the_comparison_is_in_the_benchmarks() {
    let readme = document("README.md");
    let benchmarks = document("docs/BENCHMARKS.md");
    let cells: Vec<&str> = benchmarks.split(['|', ' ', '*', '\n']).collect();
    let (_, table) = readme.split_once("\n| | kvtier | others |\n|---|---|---|\n").unwrap();
    let mut numbers = 0;
    for row in table.lines().take_while(|line| line.starts_with('|')) {
        let results = row.split('|').skip(2).flat_map(|cell| cell.split([' ', ',']));
        let results = results.filter(|word| word.contains('.') || word.len() > 2);
        for number in results.filter(|word| word.chars().all(|c| c.is_ascii_digit() || c == '.')) {
            let found = cells.iter().any(|cell| cell.replace(',', "") == number);
            assert!(found, "{number} of `{row}` is not in docs/BENCHMARKS.md");
            numbers += 1;
        }
    }
    assert!(numbers >= 20, "{numbers} numbers");
}
