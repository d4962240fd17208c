//! As much of JSON as a header needs: all of it is read, and what no header means is one kind of
//! value.

/// The deepest nesting of values; a header's is three.
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
    /// Anything else.
    Other,
}

impl Json {
    /// The value of a member; of several with one name, the last.
    pub fn member(&self, name: &str) -> Option<&Json> {
        let Json::Map(members) = self else { return None };
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
    let mut reader = Reader { left: text };
    let value = reader.value(0)?;
    reader.blanks();
    reader.left.is_empty().then_some(value)
}

struct Reader<'a> {
    left: &'a str,
}

impl Reader<'_> {
    fn blanks(&mut self) {
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
            b'-' if self.left.starts_with("-I") => self.takes("-Infinity").then_some(Json::Other),
            b'-' | b'0'..=b'9' => self.number(),
            // The last two are Python's.
            _ => ["true", "false", "null", "NaN", "Infinity"]
                .iter()
                .any(|word| self.takes(word))
                .then_some(Json::Other),
        }
    }

    fn map(&mut self, depth: usize) -> Option<Json> {
        let mut members = Vec::new();
        self.several("{", "}", |reader| {
            reader.blanks();
            let name = reader.text()?;
            reader.blanks();
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
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
        let end = self.left.find(|c| !is_part(c)).unwrap_or(self.left.len());
        let (number, rest) = self.left.split_at(end);
        self.left = rest;
        let digits = number.strip_prefix('-').unwrap_or(number);
        let plain = digits.bytes().all(|b| b.is_ascii_digit());
        if plain && digits.len() > 1 && digits.starts_with('0') {
            return None;
        }
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
                let mut chars = char::decode_utf16(units);
                chars.next()?.ok().filter(|_| chars.next().is_none())?
            }
            _ => return None,
        })
    }

    fn unit(&mut self) -> Option<u16> {
        let (digits, rest) = self.left.split_at_checked(4)?;
        self.left = rest;
        let hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
        if hex { u16::from_str_radix(digits, 16).ok() } else { None }
    }
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
