//! Changes a text so that each change has effect only while its switch is on.

/// Bytes of a text.
pub type Range = std::ops::Range<usize>;

/// One alternative of an expression.
#[derive(Clone, Debug)]
pub struct Alternative {
    pub switch: usize,
    pub text: String,
}

/// A change of a text.
#[derive(Clone, Debug)]
pub enum Edit {
    /// A text goes in here.
    Insert(usize, String),
    /// One of these takes the expression's place.
    Alternatives(Range, Vec<Alternative>),
    /// The guard of an arm does not hold while the switch is on.
    GuardNot(Range, usize),
}

impl Edit {
    fn range(&self) -> Range {
        match self {
            Edit::Insert(at, _) => *at..*at,
            Edit::Alternatives(range, _) | Edit::GuardNot(range, _) => range.clone(),
        }
    }

    /// Outer ranges come before those in them, a guard before what is in it.
    fn order(&self) -> (usize, std::cmp::Reverse<usize>, bool) {
        let range = self.range();
        (range.start, std::cmp::Reverse(range.end), !matches!(self, Edit::GuardNot(..)))
    }
}

/// What is true while a switch is on.
pub fn is_on(switch: usize) -> String {
    format!("crate::mutant_switch::is_on({switch})")
}

/// The text with all edits.
pub fn apply(text: &str, edits: &mut [Edit]) -> String {
    edits.sort_by_key(Edit::order);
    render(text, 0..text.len(), edits)
}

fn render(text: &str, range: Range, edits: &[Edit]) -> String {
    let (mut out, mut at, mut next) = (String::new(), range.start, 0);
    while let Some(edit) = edits.get(next) {
        let outer = edit.range();
        out.push_str(&text[at..outer.start]);
        let inside = |edit: &&Edit| edit.range().start < outer.end;
        let inner = edits[next + 1..].iter().take_while(inside).count();
        let inner = &edits[next + 1..next + 1 + inner];
        match edit {
            Edit::Insert(_, new) => out.push_str(new),
            Edit::GuardNot(guard, switch) => {
                let guard = render(text, guard.clone(), inner);
                out.push_str(&format!("!{} && ({guard})", is_on(*switch)));
            }
            Edit::Alternatives(expr, alternatives) => {
                out.push('(');
                for Alternative { switch, text } in alternatives {
                    out.push_str(&format!("if {} {{ {text} }} else ", is_on(*switch)));
                }
                out.push_str(&format!("{{ {} }})", render(text, expr.clone(), inner)));
            }
        }
        at = outer.end;
        next += 1 + inner.len();
    }
    out.push_str(&text[at..range.end]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str, part: &str) -> Range {
        let at = text.find(part).unwrap();
        at..at + part.len()
    }

    fn alternative(switch: usize, text: &str) -> Alternative {
        Alternative { switch, text: text.into() }
    }

    /// With the call of a switch as `S1`, which is easier to read.
    fn short(text: &str) -> String {
        text.replace("crate::mutant_switch::is_on(", "S")
            .replace(") {", " {")
            .replace(") &&", " &&")
    }

    #[test]
    fn what_is_inside_changes_where_the_outer_does_not() {
        let text = "{ a < b + c }";
        let mut edits = [
            Edit::Alternatives(range(text, "b + c"), vec![alternative(1, "b - c")]),
            Edit::Alternatives(
                range(text, "a < b + c"),
                vec![alternative(2, "a > b + c"), alternative(3, "a == b + c")],
            ),
            Edit::Insert(1, " if S9 { return }".into()),
        ];
        let changed = "{ if S9 { return } (if S2 { a > b + c } else if S3 { a == b + c } else \
                       { a < (if S1 { b - c } else { b + c }) })";
        assert_eq!(short(&apply(text, &mut edits)), format!("{changed} }}"));
    }

    #[test]
    fn an_arm_can_have_its_guard_and_itself_changed() {
        let text = "Some(x) if x > 1 => y,";
        let guard = range(text, "x > 1");
        let mut edits = [
            Edit::Alternatives(guard.clone(), vec![alternative(1, "true")]),
            Edit::GuardNot(guard, 2),
        ];
        let changed = "Some(x) if !S2 && ((if S1 { true } else { x > 1 })) => y,";
        assert_eq!(short(&apply(text, &mut edits)), changed);
    }
}
