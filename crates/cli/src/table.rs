//! Tables and sentences that fit a terminal of 80 columns.

/// The widest line.
pub const COLUMNS: usize = 80;
/// What stands between two columns.
const GAP: &str = "  ";

/// Lines of a table: the first column to the left, all others to the right. Columns that do not fit
/// follow below, each part with the first column before it.
pub fn lines(head: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| {
        // Characters, not bytes: units such as `µs` have more bytes than columns.
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut lines = Vec::new();
    let mut from = 1;
    // A table that is too wide is cut into several, one below the other. Each repeats the first
    // column.
    while from < head.len() || lines.is_empty() {
        let mut to = from;
        let mut used = widths[0];
        // At least one column in each part, however wide.
        while to < head.len() && (to == from || used + GAP.len() + widths[to] <= COLUMNS) {
            used += GAP.len() + widths[to];
            to += 1;
        }
        if from > 1 {
            lines.push(String::new());
        }
        let line = |cells: &[&str]| {
            let mut line = format!("{:<width$}", cells[0], width = widths[0]);
            for column in from..to {
                line += &format!("{GAP}{:>width$}", cells[column], width = widths[column]);
            }
            line.trim_end().to_owned()
        };
        lines.push(line(head));
        lines.extend(
            rows.iter().map(|row| line(&row.iter().map(String::as_str).collect::<Vec<_>>())),
        );
        from = to;
    }
    lines
}

/// A text in lines, broken between words; those after the first are indented. A word that is longer
/// than a line stays whole.
pub fn wrapped(text: &str, indent: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= COLUMNS => {
                *line += &format!(" {word}")
            }
            Some(_) => lines.push(format!("{:indent$}{word}", "")),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A label of `width` columns and a text in lines beside it, broken between words.
pub fn labelled(label: &str, width: usize, text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= COLUMNS => {
                *line += &format!(" {word}")
            }
            Some(_) => lines.push(format!("{:width$}{word}", "")),
            None => lines.push(format!("{label:<width$}{word}")),
        }
    }
    if lines.is_empty() { vec![label.to_owned()] } else { lines }
}

/// A label and parts with commas between them, in lines broken between parts; those after the first
/// are indented.
pub fn joined(label: &str, indent: usize, parts: &[String]) -> Vec<String> {
    let mut lines = vec![label.to_owned()];
    for (at, part) in parts.iter().enumerate() {
        // A part is never cut: it may be a path that is copied from the screen.
        let part = if at + 1 < parts.len() { format!("{part},") } else { part.clone() };
        match lines.last_mut() {
            Some(line) if at == 0 || line.chars().count() + 1 + part.chars().count() <= COLUMNS => {
                *line += &format!(" {part}");
            }
            _ => lines.push(format!("{:indent$}{part}", "")),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_stands_below_with_the_names_again() {
        let head = ["tier", "a number", "another"];
        let rows =
            [["host", "1", "2"], ["file", "30", "4"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(
            lines(&head, &rows),
            ["tier  a number  another", "host         1        2", "file        30        4"]
        );
        let long = "x".repeat(50);
        let many = lines(&["tier", &long, &long], &rows);
        assert_eq!(many.len(), 7);
        assert!(many.iter().all(|line| line.len() <= COLUMNS));
        assert!(many[4].starts_with("tier") && many[5].starts_with("host"));
        assert_eq!(lines(&["tier"], &[]), ["tier"]);
    }

    #[test]
    fn parts_are_not_broken() {
        let parts: Vec<String> = (0..12).map(|n| format!("name {n}")).collect();
        let lines = joined("  1. file:", 5, &parts);
        assert!(lines.len() == 2 && lines.iter().all(|line| line.len() <= COLUMNS), "{lines:?}");
        assert!(
            lines[0].starts_with("  1. file: name 0, name 1,")
                && lines[1].starts_with("     name "),
            "{lines:?}"
        );
        assert!(lines[1].ends_with("name 11"));
        assert_eq!(joined("host:", 2, &[]), ["host:"]);
    }

    #[test]
    fn a_text_stands_beside_its_label() {
        assert_eq!(labelled("name", 7, "one two"), ["name   one two"]);
        assert_eq!(labelled("name", 7, ""), ["name"]);
        let text = labelled("name", 7, &"word ".repeat(40));
        assert!(text.len() > 1 && text.iter().all(|line| line.len() <= COLUMNS), "{text:?}");
        assert!(text[1..].iter().all(|line| line.starts_with("       word")), "{text:?}");
    }

    #[test]
    fn texts_are_broken_between_words() {
        let text = wrapped(&"word ".repeat(40), 4);
        assert!(text.iter().all(|line| line.len() <= COLUMNS) && text[1].starts_with("    word"));
        assert_eq!(text.join(" ").split_whitespace().count(), 40);
    }
}
