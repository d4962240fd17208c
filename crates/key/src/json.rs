//! As much of JSON as headers and configurations of Python programs need: all of it is read, and
//! numbers that none of them has are one kind of value.

use std::collections::BTreeMap;

/// The deepest nesting of values; a header's is three, a configuration's four.
// Each level is a call: without a bound a hostile text of brackets would overflow the stack.
const DEPTH_MAX: usize = 16;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// A whole number of 64 bits with its sign.
    Number(i64),
    /// A text.
    Text(String),
    /// Values in order.
    List(Vec<Json>),
    /// Values by name, in order.
    Map(Vec<(String, Json)>),
    /// A truth value.
    Bool(bool),
    /// Nothing.
    Null,
    /// Any other number.
    Other,
}

impl Json {
    /// The value of a member; of several with one name, the last.
    pub fn member(&self, name: &str) -> Option<&Json> {
        let Json::Map(members) = self else { return None };
        // As Python's `dict`: a later member with the same name replaces the earlier one.
        members.iter().rev().find(|(own, _)| own == name).map(|(_, value)| value)
    }

    /// The numbers of a list that has nothing else.
    pub fn numbers(&self) -> Option<Vec<i64>> {
        let Json::List(values) = self else { return None };
        values
            .iter()
            .map(|value| if let Json::Number(n) = value { Some(*n) } else { None })
            .collect()
    }
}

/// Reads a text that is one value, with blanks around it at most.
pub fn parse(text: &str) -> Option<Json> {
    let mut reader = JsonReader { left: text };
    let value = reader.value(0)?;
    reader.blanks();
    // Python's `json.loads` refuses text behind the value ("Extra data"), so do we.
    reader.left.is_empty().then_some(value)
}

struct JsonReader<'a> {
    left: &'a str,
}

impl JsonReader<'_> {
    fn blanks(&mut self) {
        // JSON's four blanks and no others: Unicode white space is an error in Python too.
        self.left = self.left.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    /// Takes what comes next, if it is this.
    fn takes(&mut self, wanted: &str) -> bool {
        let rest = self.left.strip_prefix(wanted);
        self.left = rest.unwrap_or(self.left);
        rest.is_some()
    }

    fn value(&mut self, depth: usize) -> Option<Json> {
        if depth > DEPTH_MAX {
            return None;
        }
        self.blanks();
        match self.left.as_bytes().first()? {
            b'{' => self.map(depth),
            b'[' => self.list(depth),
            b'"' => self.text().map(Json::Text),
            // Python writes and reads infinities and NaN, which JSON does not have.
            b'-' if self.left.starts_with("-I") => self.takes("-Infinity").then_some(Json::Other),
            b'-' | b'0'..=b'9' => self.number(),
            _ => self.word(),
        }
    }

    fn word(&mut self) -> Option<Json> {
        let words = [
            ("true", Json::Bool(true)),
            ("false", Json::Bool(false)),
            ("null", Json::Null),
            // Python's.
            ("NaN", Json::Other),
            ("Infinity", Json::Other),
        ];
        words.into_iter().find(|(word, _)| self.takes(word)).map(|(_, value)| value)
    }

    fn map(&mut self, depth: usize) -> Option<Json> {
        let mut members = Vec::new();
        self.several("{", "}", |reader| {
            reader.blanks();
            let name = reader.text()?;
            reader.blanks();
            // Two ways to fail: no colon, or no value behind it.
            let value = reader.takes(":").then(|| reader.value(depth + 1))??;
            members.push((name, value));
            Some(())
        })?;
        Some(Json::Map(members))
    }

    fn list(&mut self, depth: usize) -> Option<Json> {
        let mut values = Vec::new();
        self.several("[", "]", |reader| {
            values.push(reader.value(depth + 1)?);
            Some(())
        })?;
        Some(Json::List(values))
    }

    /// What stands between two brackets, separated by commas.
    fn several(
        &mut self,
        open: &str,
        close: &str,
        mut one: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        if !self.takes(open) {
            return None;
        }
        self.blanks();
        // An empty list ends here. A comma before the end finds no value below, and is refused.
        if self.takes(close) {
            return Some(());
        }
        loop {
            one(self)?;
            self.blanks();
            if self.takes(close) {
                return Some(());
            }
            if !self.takes(",") {
                return None;
            }
        }
    }

    fn number(&mut self) -> Option<Json> {
        // First cut out everything that may belong to a number, then judge it as a whole: `1-2` is
        // then one wrong number and not two.
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
        let end = self.left.find(|c| !is_part(c)).unwrap_or(self.left.len());
        let (number, rest) = self.left.split_at(end);
        self.left = rest;
        let digits = number.strip_prefix('-').unwrap_or(number);
        let plain = digits.bytes().all(|b| b.is_ascii_digit());
        // JSON has no leading zeros; Rust's parser would accept them.
        if plain && digits.len() > 1 && digits.starts_with('0') {
            return None;
        }
        // Numbers beyond 64 bits and fractions are valid JSON, but no field that is read has one:
        // they become `Other`.
        match number.parse() {
            Ok(n) if plain => Some(Json::Number(n)),
            _ => number.parse::<f64>().ok().map(|_| Json::Other),
        }
    }

    fn text(&mut self) -> Option<String> {
        if !self.takes("\"") {
            return None;
        }
        let mut text = String::new();
        loop {
            let mut rest = self.left.chars();
            let c = rest.next()?;
            self.left = rest.as_str();
            match c {
                '"' => return Some(text),
                '\\' => text.push(self.escaped()?),
                // Control characters must be escaped.
                c if c < ' ' => return None,
                c => text.push(c),
            }
        }
    }

    fn escaped(&mut self) -> Option<char> {
        let mut rest = self.left.chars();
        let c = rest.next()?;
        self.left = rest.as_str();
        Some(match c {
            '"' | '\\' | '/' => c,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let unit = self.unit()?;
                // The second half of a pair follows; what stands alone means nothing that text
                // could hold.
                let low = if (0xd800..0xdc00).contains(&unit) && self.takes("\\u") {
                    Some(self.unit()?)
                } else {
                    None
                };
                let units = std::iter::once(unit).chain(low);
                // Python accepts lone surrogates; a Rust text cannot hold them, so they are
                // refused.
                let mut chars = char::decode_utf16(units);
                chars.next()?.ok().filter(|_| chars.next().is_none())?
            }
            _ => return None,
        })
    }

    fn unit(&mut self) -> Option<u16> {
        let (digits, rest) = self.left.split_at_checked(4)?;
        self.left = rest;
        // `from_str_radix` alone would take a sign.
        let hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
        if hex { u16::from_str_radix(digits, 16).ok() } else { None }
    }
}

/// Writes a value as Python's `json.dumps` does with `sort_keys`: with `indent`, else with the
/// separators `,` and `:`. `None` for a value that has an [`Other`](Json::Other) number.
pub fn to_python(value: &Json, indent: Option<usize>) -> Option<String> {
    let mut out = String::new();
    push_value(&mut out, value, indent.map(|width| Indent { width, depth: 0 }))?;
    Some(out)
}

/// How far a value is indented.
#[derive(Clone, Copy)]
struct Indent {
    width: usize,
    depth: usize,
}

impl Indent {
    fn deeper(self) -> Self {
        Indent { depth: self.depth + 1, ..self }
    }

    fn push_line(self, out: &mut String) {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', self.width * self.depth));
    }
}

fn push_value(out: &mut String, value: &Json, indent: Option<Indent>) -> Option<()> {
    match value {
        Json::Number(n) => out.push_str(&n.to_string()),
        Json::Text(text) => push_text(out, text),
        Json::Bool(truth) => out.push_str(if *truth { "true" } else { "false" }),
        Json::Null => out.push_str("null"),
        Json::Other => return None,
        Json::List(values) => {
            push_several(out, ("[", "]"), values, indent, |out, value, indent| {
                push_value(out, value, indent)
            })?
        }
        Json::Map(members) => {
            // Of several members with one name Python keeps the last.
            // Sorted by UTF-8 bytes, which is the order of code points: the order of Python's
            // `sort_keys`.
            let sorted: BTreeMap<&String, &Json> =
                members.iter().map(|(name, value)| (name, value)).collect();
            let sorted: Vec<_> = sorted.into_iter().collect();
            push_several(out, ("{", "}"), &sorted, indent, |out, (name, value), indent| {
                push_text(out, name);
                out.push_str(if indent.is_some() { ": " } else { ":" });
                push_value(out, value, indent)
            })?;
        }
    }
    Some(())
}

/// Writes what stands between two brackets.
fn push_several<T>(
    out: &mut String,
    (open, close): (&str, &str),
    all: &[T],
    indent: Option<Indent>,
    one: impl Fn(&mut String, &T, Option<Indent>) -> Option<()>,
) -> Option<()> {
    out.push_str(open);
    let inner = indent.map(Indent::deeper);
    for (n, item) in all.iter().enumerate() {
        if n > 0 {
            out.push(',');
        }
        // Compact output stays in one line.
        inner.iter().for_each(|indent| indent.push_line(out));
        one(out, item, inner)?;
    }
    // Python writes an empty list or map as `[]` or `{}`, without a line break, even when it
    // indents.
    if !all.is_empty() {
        indent.iter().for_each(|indent| indent.push_line(out));
    }
    out.push_str(close);
    Some(())
}

/// Writes a text as Python's `json.dumps` does, with nothing but ASCII.
pub fn push_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(c),
            c => c
                // `ensure_ascii`: characters beyond the first plane become a pair of surrogates.
                .encode_utf16(&mut [0; 2])
                .iter()
                .for_each(|unit| out.push_str(&format!("\\u{unit:04x}"))),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_read_back_and_numbers_are_numbers() {
        let odd = "a\"\\/\u{8}\n\r\t\u{c}\u{1}é\u{1f600}\u{7f}";
        let mut out = String::new();
        push_text(&mut out, odd);
        assert!(out.is_ascii());
        assert_eq!(parse(&out), Some(Json::Text(odd.into())));
        assert_eq!(
            parse(" [0, 9223372036854775807]\n").unwrap().numbers(),
            Some(vec![0, i64::MAX])
        );
        assert_eq!(parse("[1, -1]").unwrap().numbers(), Some(vec![1, -1]));
        assert_eq!(parse("[1, 1.5]").unwrap().numbers(), None);
        for other in ["9223372036854775808", "NaN", "Infinity", "-Infinity"] {
            assert_eq!(parse(other), Some(Json::Other));
        }
        assert_eq!(
            parse(r#"{"a": 1, "a": 2.5e3, "b": [true, null, {}]}"#).unwrap().member("a"),
            Some(&Json::Other)
        );
    }

    #[test]
    fn what_is_no_value_is_refused() {
        let deep = "[".repeat(40) + &"]".repeat(40);
        for wrong in [
            "",
            "{",
            "[1,]",
            "[1 2]",
            "{\"a\" 1}",
            "{a: 1}",
            "01",
            "-01",
            "1x",
            "-",
            "-Inf",
            "\"a",
            "\"\\x\"",
            "\"\n\"",
            "nul",
            "{} {}",
            "\"\\ud800\"",
            "\"\\u12g4\"",
            "\"\\ud800\\u0041\"",
            deep.as_str(),
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
