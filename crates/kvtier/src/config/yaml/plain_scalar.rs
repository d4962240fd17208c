//! What an unquoted word means in YAML 1.1.

use crate::config::value::Value;

/// The value of a plain scalar.
pub(super) fn resolve(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Value::Bool(true);
        }
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Value::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Value::Float(f64::NAN),
        _ => {}
    }
    // The empty text has returned above.
    let (negative, digits) = match text.as_bytes()[0] {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if let Some(n) = int(digits) {
        return Value::Int(if negative { -n } else { n });
    }
    if let Some(n) = float(digits, digits.len() < text.len()) {
        return Value::Float(if negative { -n } else { n });
    }
    Value::Text(text.to_owned())
}

fn only(text: &str, allowed: impl Fn(u8) -> bool) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte == b'_' || allowed(byte))
}

fn plain(text: &str) -> String {
    text.replace('_', "")
}

/// `0b`, `0`, `0x` and decimal numbers, and those to the base of sixty. What does not fit in 64
/// bits stays a text.
fn int(digits: &str) -> Option<i64> {
    let radix = |digits: &str, radix: u32| {
        only(digits, |byte| char::from(byte).is_digit(radix))
            .then(|| i64::from_str_radix(&plain(digits), radix).ok())?
    };
    if let Some(binary) = digits.strip_prefix("0b") {
        return radix(binary, 2);
    }
    if let Some(hex) = digits.strip_prefix("0x") {
        return radix(hex, 16);
    }
    if digits == "0" {
        return Some(0);
    }
    // YAML 1.1: a leading zero makes a number octal, without an `o`.
    if let Some(octal) = digits.strip_prefix('0') {
        return radix(octal, 8);
    }
    let (first, rest) = digits.split_once(':').unwrap_or((digits, ""));
    if !first.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let mut n = radix(first, 10)?;
    // Base 60, as YAML 1.1 has it: `1:30` is 90.
    for part in rest.split(':').filter(|_| digits.contains(':')) {
        n = n.checked_mul(60)?.checked_add(sixtieth(part)?)?;
    }
    Some(n)
}

fn sixtieth(part: &str) -> Option<i64> {
    let n = (part.len() <= 2 && part.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| part.parse().ok())?;
    n.filter(|n| *n < 60)
}

/// Numbers with a point, and infinity. An exponent needs the point before it and its own sign.
fn float(digits: &str, signed: bool) -> Option<f64> {
    if matches!(digits, ".inf" | ".Inf" | ".INF") {
        return Some(f64::INFINITY);
    }
    let (whole, rest) = digits.split_once('.')?;
    let (fraction, exponent) = match rest.find(['e', 'E']) {
        Some(at) => (&rest[..at], Some(&rest[at + 1..])),
        None => (rest, None),
    };
    let is_digit = |byte: u8| byte.is_ascii_digit();
    let leading = whole.starts_with(|c: char| c.is_ascii_digit()) && only(whole, is_digit);
    // PyYAML's pattern: `.5` is a number and `-.5` a text.
    let bare = whole.is_empty() && !signed && fraction.starts_with(|c: char| c.is_ascii_digit());
    if !(leading || bare) || !(fraction.is_empty() || only(fraction, is_digit)) {
        return None;
    }
    if let Some(exponent) = exponent {
        // PyYAML wants a sign in the exponent: `1.0e3` is a text there.
        let unsigned = exponent.strip_prefix(['+', '-'])?;
        if unsigned.is_empty() || !unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
    }
    let exponent = exponent.map_or(String::new(), |exponent| format!("e{exponent}"));
    format!(
        "{}.{}{exponent}",
        if whole.is_empty() { "0".into() } else { plain(whole) },
        plain(fraction) + "0"
    )
    .parse()
    .ok()
}
