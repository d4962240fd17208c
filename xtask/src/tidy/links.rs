//! Links between our own documents lead somewhere.

use super::Problem;
use crate::tree::Tree;

/// Relative links in Markdown files whose file or heading does not exist.
pub fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in tree.texts(&[".md"]) {
        for (line, text) in prose(text) {
            for target in targets(&text) {
                if let Some(what) = broken(tree, path, &target) {
                    let fix = "correct the link, or what it points to";
                    problems.push(Problem::new(path, line, what, fix));
                }
            }
        }
    }
    problems
}

/// The lines outside fenced code, with their numbers from 1.
pub fn outside_fences(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().zip(1..).filter_map(move |(text, line)| {
        let fence = text.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((line, text))
    })
}

/// The same with inline code blanked out.
fn prose(text: &str) -> impl Iterator<Item = (usize, String)> {
    outside_fences(text).map(|(line, text)| (line, without_code(text)))
}

fn without_code(text: &str) -> String {
    let parts = text.split('`').zip([true, false].into_iter().cycle());
    parts.map(|(part, prose)| if prose { part } else { "" }).collect()
}

/// The targets of `[text](target)` and `[label]: target`.
fn targets(text: &str) -> Vec<String> {
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let definition = text
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]: "))
        .map(|(_, target)| target.trim());
    inline.chain(definition).map(|target| target.trim_matches(['<', '>']).to_owned()).collect()
}

/// What is wrong with a link from `path` to `target`, if it stays inside the repository.
fn broken(tree: &Tree, path: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, heading) =
        target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
    let file = if file.is_empty() { Some(path.to_owned()) } else { resolve(path, file) };
    let Some(file) = file.filter(|file| tree.has(file)) else {
        return Some(format!("a dead link: {target}"));
    };
    let text = tree.text(&file).filter(|_| file.ends_with(".md"))?;
    let heading = heading?;
    (!headings(text).any(|own| own == heading))
        .then(|| format!("a link to a heading that is not there: {target}"))
}

/// The path of `target` as seen from the folder of `path`; None when it leaves the repository.
fn resolve(path: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The anchors that a Markdown viewer gives to the headings of a text.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let titles = outside_fences(text).filter_map(|(_, line)| line.strip_prefix('#'));
    titles.map(|title| anchor(title.trim_start_matches('#')))
}

fn anchor(title: &str) -> String {
    let kept = title.trim().chars().filter(|char| char.is_alphanumeric() || " -_".contains(*char));
    kept.flat_map(char::to_lowercase).map(|char| if char == ' ' { '-' } else { char }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let tree = Tree::of(&[
            ("docs/A.md", text),
            ("docs/B.md", "# Part one: `x`\n"),
            ("README.md", ""),
            ("crates/key/a.rs", ""),
        ]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn living_links_pass() {
        let text = "# Top\n[b](B.md) [up](../README.md) [dir](../crates/key/) [web](https://a.b/c) [h](B.md#part-one-x)\n\
                    [self](#top)\n\n[label]: B.md\n";
        assert_eq!(problems(text), Vec::<String>::new());
    }

    #[test]
    fn dead_links_are_found() {
        assert!(problems("a\n[c](C.md)")[0].starts_with("docs/A.md:2: a dead link: C.md"));
        assert!(problems("[out](../../x.md)")[0].contains("dead"));
        assert!(problems("[h](B.md#part-two)")[0].contains("heading"));
        assert!(problems("[label]: C.md")[0].contains("dead"));
    }

    #[test]
    fn code_is_no_link() {
        assert_eq!(problems("`a[0](C.md)`\n```\n[c](C.md)\n```\n"), Vec::<String>::new());
    }
}
