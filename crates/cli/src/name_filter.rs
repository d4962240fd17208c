//! Which chunks a command is for: patterns over their names.

use crate::BadInput;

/// Which chunks, by the names that `kvtier ls` prints.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterArgs {
    /// Only chunks whose whole name, as `kvtier ls` prints it, matches: * is any text (also with
    /// slashes), ? one character, [a-f] one of these, [!a-f] none of these. May be given
    /// several times: any of them.
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,
    /// Not the chunks whose name matches; decides where --include matches too.
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
}

/// The same, checked.
#[derive(Debug, Default)]
pub struct Filter {
    include: Vec<Glob>,
    exclude: Vec<Glob>,
}

impl FilterArgs {
    /// Whether chunks were chosen; leaving some out chooses none.
    pub fn includes(&self) -> bool {
        !self.include.is_empty()
    }

    /// Checks the patterns.
    pub fn filter(&self) -> Result<Filter, BadInput> {
        let globs = |flag: &str, texts: &[String]| -> Result<Vec<Glob>, BadInput> {
            let wrong = |text: &String| {
                BadInput(format!(
                    "{flag} {text:?}: a [ has no ] after it; write [[] for the character itself"
                ))
            };
            texts.iter().map(|text| Glob::parse(text).ok_or_else(|| wrong(text))).collect()
        };
        Ok(Filter {
            include: globs("--include", &self.include)?,
            exclude: globs("--exclude", &self.exclude)?,
        })
    }
}

impl Filter {
    /// Whether a chunk of this name is meant.
    pub fn takes(&self, name: &str) -> bool {
        let included =
            self.include.is_empty() || self.include.iter().any(|glob| glob.matches(name));
        // An exclusion wins over an inclusion, in whatever order they were given.
        included && !self.exclude.iter().any(|glob| glob.matches(name))
    }
}

/// A pattern for whole names.
#[derive(Debug, PartialEq, Eq)]
struct Glob(Vec<GlobPart>);

#[derive(Debug, PartialEq, Eq)]
enum GlobPart {
    /// Any text.
    Any,
    /// One character of these ranges, or of none of them.
    One { ranges: Vec<(char, char)>, negated: bool },
}

impl GlobPart {
    fn takes(&self, char: char) -> bool {
        match self {
            GlobPart::Any => true,
            GlobPart::One { ranges, negated } => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&char)) != *negated
            }
        }
    }
}

impl Glob {
    /// Reads a pattern; `None` for a `[` without its `]`.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = Vec::new();
        let mut rest = text.chars();
        while let Some(char) = rest.next() {
            parts.push(match char {
                '*' => GlobPart::Any,
                // None of no ranges: any character.
                '?' => GlobPart::One { ranges: Vec::new(), negated: true },
                '[' => {
                    let (part, after) = class(rest.as_str())?;
                    rest = after.chars();
                    part
                }
                char => GlobPart::One { ranges: vec![(char, char)], negated: false },
            });
        }
        Some(Glob(parts))
    }

    fn matches(&self, name: &str) -> bool {
        let parts: &[GlobPart] = &self.0;
        let name: Vec<char> = name.chars().collect();
        let mut part = 0;
        let mut at = 0;
        // The last star, and the end of the text that it matches.
        let mut star: Option<(usize, usize)> = None;
        while at < name.len() {
            match parts.get(part) {
                Some(GlobPart::Any) => {
                    star = Some((part, at));
                    part += 1;
                }
                Some(one) if one.takes(name[at]) => {
                    part += 1;
                    at += 1;
                }
                _ => {
                    let Some((place, end)) = star else { return false };
                    // The last star takes one character more, and the rest is tried again. Going
                    // back to earlier stars is never needed, so this takes at most the product of
                    // both lengths.
                    star = Some((place, end + 1));
                    (part, at) = (place + 1, end + 1);
                }
            }
        }
        parts[part..].iter().all(|part| *part == GlobPart::Any)
    }
}

/// Reads what follows a `[`, and what follows its `]`. A `]` that comes first is one of the
/// characters.
fn class(text: &str) -> Option<(GlobPart, &str)> {
    let (negated, body) = text.strip_prefix(['!', '^']).map_or((false, text), |body| (true, body));
    // A `]` in the first place is itself a member, as in shells.
    let end = body.char_indices().skip(1).find(|(_, char)| *char == ']')?.0;
    let chars: Vec<char> = body[..end].chars().collect();
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Some(first) = chars.get(at) {
        match (chars.get(at + 1), chars.get(at + 2)) {
            (Some('-'), Some(last)) => {
                ranges.push((*first, *last));
                at += 3;
            }
            _ => {
                ranges.push((*first, *first));
                at += 1;
            }
        }
    }
    Some((GlobPart::One { ranges, negated }, &body[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, matches) in [
            ("*", "", true),
            ("", "a", false),
            ("org/*@*@0@*", "org/m@ff@0@12", true),
            ("org*", "org/a/b", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("?b", "éb", true),
            ("?b", "b", false),
            ("a", "A", false),
            ("[0-3]*", "2ff", true),
            ("[0-3]*", "4ff", false),
            ("[!0-3]*", "4ff", true),
            ("[^a]", "a", false),
            ("[]a]", "]", true),
            ("[[]x", "[x", true),
            ("[a-]", "-", true),
        ] {
            assert_eq!(Glob::parse(pattern).unwrap().matches(name), matches, "{pattern} {name}");
        }
        assert_eq!(["[", "a[b", "[]", "[!"].map(Glob::parse), [None, None, None, None]);
    }

    #[test]
    fn what_is_excluded_is_not_taken_although_it_is_included() {
        let args =
            FilterArgs { include: vec!["a*".into(), "b*".into()], exclude: vec!["*x".into()] };
        let filter = args.filter().unwrap();
        assert_eq!(
            ["a", "b1", "c", "ax"].map(|name| filter.takes(name)),
            [true, true, false, false]
        );
        assert!(Filter::default().takes("anything"));
        let open = FilterArgs { include: vec!["[a".into()], exclude: Vec::new() };
        assert!(open.filter().unwrap_err().0.contains("--include"));
    }
}
