//! One small change to the code, as `cargo mutants` names it.

use super::config::Judged;

/// A mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// `FILE:LINE:COLUMN: CHANGE`.
    pub name: String,
    pub file: String,
    pub change: String,
    /// Counted from 1.
    pub line_number: usize,
    /// The line of code, without the blanks around it.
    pub line: String,
}

impl Mutant {
    /// Takes a name apart. `line` reads a line of a file.
    pub fn parse(name: &str, line: impl Fn(&str, usize) -> Option<String>) -> Option<Mutant> {
        let (place, change) = name.split_once(": ")?;
        let mut place = place.rsplitn(3, ':');
        let _column: usize = place.next()?.parse().ok()?;
        let line_number = place.next()?.parse().ok()?;
        let file = place.next()?.to_owned();
        let line = line(&file, line_number)?.trim().to_owned();
        Some(Mutant { name: name.to_owned(), file, change: change.to_owned(), line_number, line })
    }

    /// The reason why no test can catch it, if one is known.
    pub fn judgement<'a>(&self, judged: &'a [Judged]) -> Option<&'a str> {
        let is_it = |judged: &&Judged| {
            judged.file == self.file && judged.change == self.change && judged.line == self.line
        };
        judged.iter().find(is_it).map(|judged| judged.why.as_str())
    }

    /// A number that depends on the change and its line, not on the lines above. So a sample stays
    /// the same while other code changes.
    pub fn draw(&self, seed: u64) -> u64 {
        let texts = [self.file.as_bytes(), self.change.as_bytes(), self.line.as_bytes()];
        let seed = seed.to_le_bytes();
        let bytes = seed.iter().chain(texts.into_iter().flatten());
        // FNV-1a, whose value is the same in every version, and a last step that mixes its high bits.
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(name: &str) -> Option<Mutant> {
        Mutant::parse(name, |_, _| Some("  if a < b {".into()))
    }

    #[test]
    fn a_name_is_taken_apart() {
        let found = mutant("crates/a/src/b.rs:12:5: replace < with <= in A::b").unwrap();
        assert_eq!(found.file, "crates/a/src/b.rs");
        assert_eq!((found.line_number, found.line.as_str()), (12, "if a < b {"));
        assert_eq!(found.change, "replace < with <= in A::b");
        assert_eq!(mutant("Found 12 mutants"), None);
    }

    #[test]
    fn a_judgement_is_for_one_change_of_one_line() {
        let judged = [Judged {
            file: "a.rs".into(),
            change: "replace < with <=".into(),
            line: "if a < b {".into(),
            why: "equal".into(),
        }];
        let of = |name| mutant(name).unwrap().judgement(&judged).map(str::to_owned);
        assert_eq!(of("a.rs:1:2: replace < with <=").as_deref(), Some("equal"));
        assert_eq!(of("a.rs:1:2: replace < with >"), None);
        assert_eq!(of("b.rs:1:2: replace < with <="), None);
    }

    #[test]
    fn a_draw_depends_on_the_seed_and_not_on_the_place() {
        let (a, b) = (mutant("a.rs:1:2: x").unwrap(), mutant("a.rs:9:2: x").unwrap());
        assert_eq!(a.draw(1), b.draw(1));
        assert_ne!(a.draw(1), a.draw(2));
    }
}
