//! Python's conversions, as far as LMCache's settings go through them.

use crate::config::value::Value;

/// What `int()`, `float()` and the like could not take. LMCache catches the one kind and dies of
/// the other.
#[derive(Debug)]
pub(super) enum Misfit {
    /// A `ValueError`.
    Value(String),
    /// A `TypeError` or `AttributeError`.
    Type(String),
}

type Converted<T> = Result<T, Misfit>;

fn not_a(what: &str, value: &Value) -> Misfit {
    Misfit::Type(format!("a {} is no {what}", value.type_name()))
}

/// `int(value)`.
pub(super) fn int(value: &Value) -> Converted<i64> {
    match value {
        Value::Int(n) => Ok(*n),
        Value::Bool(on) => Ok(i64::from(*on)),
        Value::Float(n) if n.is_finite() && n.abs() < 9.2e18 => Ok(n.trunc() as i64),
        Value::Float(n) => Err(Misfit::Type(format!("{n} is no whole number"))),
        Value::Text(text) => {
            let parsed = unscored(text).and_then(|digits| digits.parse().ok());
            parsed.ok_or_else(|| Misfit::Value("it is no whole number".into()))
        }
        other => Err(not_a("whole number", other)),
    }
}

/// `float(value)`.
pub(super) fn float(value: &Value) -> Converted<f64> {
    match value {
        Value::Int(n) => Ok(*n as f64),
        Value::Bool(on) => Ok(f64::from(u8::from(*on))),
        Value::Float(n) => Ok(*n),
        Value::Text(text) => {
            let parsed = unscored(text).and_then(|digits| digits.parse().ok());
            parsed.ok_or_else(|| Misfit::Value("it is no number".into()))
        }
        other => Err(not_a("number", other)),
    }
}

/// A number's text without space around it and without `_` between its digits; `None` where a `_`
/// stands elsewhere.
fn unscored(text: &str) -> Option<String> {
    let text = text.trim();
    let bytes = text.as_bytes();
    let digit = |at: Option<&u8>| at.is_some_and(u8::is_ascii_digit);
    let well = |at: usize| {
        bytes[at] != b'_' || (at > 0 && digit(bytes.get(at - 1)) && digit(bytes.get(at + 1)))
    };
    // Python allows an underscore between two digits and nowhere else.
    (0..bytes.len()).all(well).then(|| text.replace('_', ""))
}

/// LMCache's own reading of switches: `true` and `1` in any case are on, everything else is off.
pub(super) fn switch(value: &Value) -> bool {
    match value {
        Value::Bool(on) => *on,
        other => matches!(text(other).trim().to_lowercase().as_str(), "true" | "1"),
    }
}

/// `str(value)`.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        other => repr(other),
    }
}

/// `repr(value)`.
fn repr(value: &Value) -> String {
    let join = |items: Vec<String>| items.join(", ");
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Int(n) => n.to_string(),
        Value::Float(n) if n.is_nan() => "nan".into(),
        // Rust's `{:?}` prints the shortest text that reads back, with a point, as Python's `repr`
        // does for usual sizes.
        Value::Float(n) => format!("{n:?}"),
        Value::Text(text) => format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'")),
        Value::List(list) => format!("[{}]", join(list.iter().map(repr).collect())),
        Value::Map(map) => {
            format!(
                "{{{}}}",
                join(map.iter().map(|(key, value)| format!("'{key}': {}", repr(value))).collect())
            )
        }
    }
}

/// What stands between commas, without space around it and without what is empty.
pub(super) fn split(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

/// A variable's text: space and one pair of quotes around it go, and what is escaped between the
/// quotes is read as Python reads it.
pub(super) fn unquoted(text: &str) -> String {
    let text = text.trim();
    // A variable in quotes is a literal of Python's, with its escapes.
    let quote = text
        .chars()
        .next()
        .filter(|c| matches!(c, '\'' | '"') && text.len() >= 2 && text.ends_with(*c));
    let Some(quote) = quote else { return text.to_owned() };
    let inner = &text[1..text.len() - 1];
    // What is no literal of Python stays as it is, without its quotes.
    unescaped(inner, quote).unwrap_or_else(|| inner.to_owned())
}

/// The text of a Python literal, or `None` where Python sees none.
fn unescaped(inner: &str, quote: char) -> Option<String> {
    let mut out = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        // The literal would end here, and what follows it would be an error in Python.
        if c == quote || c == '\n' {
            return None;
        }
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next()? {
            'n' => out.push('\n'),
            't' => out.push('\t'),
            'r' => out.push('\r'),
            'a' => out.push('\u{7}'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'v' => out.push('\u{b}'),
            '\n' => {}
            same @ ('\\' | '\'' | '"') => out.push(same),
            'x' => out.push(hex(&mut chars, 2)?),
            'u' => out.push(hex(&mut chars, 4)?),
            'U' => out.push(hex(&mut chars, 8)?),
            first @ '0'..='7' => out.push(octal(first, &mut chars)?),
            // An escape that Python does not know keeps its backslash.
            other => out.extend(['\\', other]),
        }
    }
    Some(out)
}

fn hex(chars: &mut std::str::Chars<'_>, digits: usize) -> Option<char> {
    let text: String = chars.by_ref().take(digits).collect();
    (text.chars().count() == digits)
        .then(|| u32::from_str_radix(&text, 16).ok().and_then(char::from_u32))?
}

/// Up to three digits to the base of eight.
fn octal(first: char, chars: &mut std::str::Chars<'_>) -> Option<char> {
    let mut n = first.to_digit(8)?;
    // At most three octal digits in all, as in Python.
    for _ in 0..2 {
        let Some(digit) = chars.clone().next().and_then(|c| c.to_digit(8)) else { break };
        chars.next();
        n = n * 8 + digit;
    }
    char::from_u32(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_pythons() {
        let int_of = |text: &str| int(&Value::Text(text.into())).ok();
        assert_eq!(
            [" 12 ", "1_000", "+5", "-3"].map(int_of),
            [Some(12), Some(1000), Some(5), Some(-3)]
        );
        assert_eq!(["", "1__0", "_1", "1.0", "0x10", "1e3"].map(int_of), [None; 6]);
        assert_eq!(int(&Value::Float(2.9)).ok(), Some(2));
        let float_of = |text: &str| float(&Value::Text(text.into())).ok();
        assert_eq!(
            ["1e-1", "inf", ".5", "1_0.5"].map(float_of),
            [Some(0.1), Some(f64::INFINITY), Some(0.5), Some(10.5)]
        );
        assert!(matches!(int(&Value::List(Vec::new())), Err(Misfit::Type(_))));
    }

    #[test]
    fn quotes_around_a_variable_go() {
        assert_eq!(unquoted(" '64' "), "64");
        assert_eq!(unquoted("\"s3://b\\u0041\""), "s3://bA");
        assert_eq!(unquoted("'it's'"), "it's", "no literal, so only the quotes go");
        assert_eq!(unquoted("'a\\x41\\101\\q'"), "aAA\\q");
        assert_eq!(unquoted("'"), "'");
        assert_eq!(unquoted("'\\ud800'"), "\\ud800");
    }

    #[test]
    fn texts_are_pythons() {
        assert_eq!(text(&Value::Bool(true)), "True");
        assert_eq!(text(&Value::Float(5.0)), "5.0");
        assert_eq!(text(&Value::List(vec![Value::Text("a".into()), Value::Null])), "['a', None]");
    }
}
