//! How Python reads and writes what LMCache puts into names: whole numbers, white space,
//! hexadecimal bytes, URL quoting.
//!
//! Only what names need, but exactly: `int()` takes white space around, `_` between digits, a
//! sign, `0x` in base 16 and the decimal digits of every script, so all of these occur in names
//! that LMCache accepts.

/// The first code point of every run of ten decimal digits in Unicode 14, the version of CPython
/// 3.11.
// Sorted, because `decimal` searches it by bisection.
const DECIMAL_ZEROS: [u32; 66] = [
    0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66,
    0xde6, 0xe50, 0xed0, 0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90,
    0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10,
    0x104a0, 0x10d30, 0x11066, 0x110f0, 0x11136, 0x111d0, 0x112f0, 0x11450, 0x114d0, 0x11650,
    0x116c0, 0x11730, 0x118e0, 0x11950, 0x11c50, 0x11d50, 0x11da0, 0x16a60, 0x16ac0, 0x16b50,
    0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0,
];

/// The value of a decimal digit of any script.
fn decimal(c: char) -> Option<u8> {
    let code = c as u32;
    let run = DECIMAL_ZEROS.partition_point(|zero| *zero <= code).checked_sub(1)?;
    let value = code - DECIMAL_ZEROS[run];
    (value < 10).then_some(value as u8)
}

/// Whether `text` is one or more decimal digits. (`str.isdigit` also takes digits that `int`
/// refuses; no name is then read differently, since `int` refuses it later.)
pub(crate) fn is_decimal(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| decimal(c).is_some())
}

/// `str.strip()`.
pub(crate) fn strip(text: &str) -> &str {
    // Python counts these four control characters as white space; Rust does not.
    text.trim_matches(|c: char| c.is_whitespace() || ('\x1c'..='\x1f').contains(&c))
}

/// Reads `text` as `int(text, radix)` does, handing each digit's value to `digit`, most significant
/// first. Answers whether there is a minus sign; `None` when Python would raise or `digit` refused.
pub(crate) fn int_digits(
    text: &str,
    radix: u8,
    mut digit: impl FnMut(u8) -> Option<()>,
) -> Option<bool> {
    // White space beyond ASCII counts; of the separators U+001C to U+001F, which `str.strip` takes,
    // none does.
    let text = text.trim_matches(|c: char| c.is_whitespace());
    // Sign, prefix and underscores in the order in which CPython's `PyLong_FromString` reads them:
    // `-0x_1f` is a number, `0x-1f` is none.
    let (negative, text) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let unprefixed = if radix == 16 {
        text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))
    } else {
        None
    };
    // One underscore may follow the prefix; elsewhere one is allowed only between digits.
    let text = unprefixed.map_or(text, |rest| rest.strip_prefix('_').unwrap_or(rest));
    let mut after_digit = false;
    for c in text.chars() {
        match c {
            // A second underscore, or one at the end, leaves no digit before what follows, and is
            // refused.
            '_' if after_digit => after_digit = false,
            _ => {
                let value =
                    // Other scripts have no hexadecimal letters, and their digits count in base 16
                    // too.
                    if c.is_ascii() { c.to_digit(radix.into())? as u8 } else { decimal(c)? };
                digit(value)?;
                after_digit = true;
            }
        }
    }
    after_digit.then_some(negative)
}

/// `int(text, radix)` where it fits 64 bits.
pub(crate) fn int_i64(text: &str, radix: u8) -> Option<i64> {
    // What LMCache itself writes: a few plain digits.
    let plain = text.bytes().map(|byte| (byte as char).to_digit(radix.into()));
    if (1..=15).contains(&text.len()) && plain.clone().all(|digit| digit.is_some()) {
        return Some(
            plain.flatten().fold(0, |value, digit| value * i64::from(radix) + i64::from(digit)),
        );
    }
    let mut magnitude: i128 = 0;
    let negative = int_digits(text, radix, |value| {
        magnitude = magnitude * i128::from(radix) + i128::from(value);
        // Stops at the first digit beyond 64 bits, so a long text cannot overflow. 2^63 itself is
        // needed for the least negative number.
        (magnitude <= 1 << 63).then_some(())
    })?;
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

/// `bytes.fromhex(text)` into the front of `out`: pairs of digits, ASCII white space allowed
/// between pairs. The part that was written; `None` where Python would raise, or `out` is too
/// short.
pub(crate) fn bytes_from_hex<'a>(text: &str, out: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut len = 0;
    let mut rest = text.as_bytes().iter();
    while let Some(high) = rest.next() {
        // Allowed before a pair, never inside of one.
        if matches!(high, b' ' | b'\t'..=b'\r') {
            continue;
        }
        let low = rest.next()?;
        // The caller's buffer is the limit: a longer hash is refused at the byte that does
        // not fit.
        *out.get_mut(len)? = nibble(*high)? << 4 | nibble(*low)?;
        len += 1;
    }
    Some(&out[..len])
}

/// Appends `bytes` in lower-case hexadecimal.
pub(crate) fn push_hex(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        out.push(HEX_LOWER[(byte >> 4) as usize] as char);
        out.push(HEX_LOWER[(byte & 15) as usize] as char);
    }
}

const HEX_LOWER: &[u8; 16] = b"0123456789abcdef";
const HEX_UPPER: &[u8; 16] = b"0123456789ABCDEF";

fn nibble(byte: u8) -> Option<u8> {
    (byte as char).to_digit(16).map(|value| value as u8)
}

/// Appends `format(value, "0{width}x")`, with `prefix` after the sign; the width counts the sign
/// and the prefix not.
pub(crate) fn push_int_hex(out: &mut String, value: i64, prefix: &str, width: usize) {
    let mut digits = [0; 16];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
    // From the last digit to the first; a zero gets one digit.
    while rest != 0 || at == digits.len() {
        at -= 1;
        digits[at] = HEX_LOWER[(rest & 15) as usize];
        rest >>= 4;
    }
    let sign = usize::from(value < 0);
    out.push_str(if value < 0 { "-" } else { "" });
    out.push_str(prefix);
    // An empty range if the number is as long as the width already.
    (digits.len() - at + sign..width).for_each(|_| out.push('0'));
    digits[at..].iter().for_each(|digit| out.push(*digit as char));
}

/// Appends `text` with `with` for every `/`.
pub(crate) fn push_slashes_as(out: &mut String, text: &str, with: &str) {
    for (i, part) in text.split('/').enumerate() {
        out.push_str(if i == 0 { "" } else { with });
        out.push_str(part);
    }
}

/// Appends `urllib.parse.quote(text, safe)`, where `safe` is `/` or nothing.
pub(crate) fn push_quoted(out: &mut String, text: &str, slash_safe: bool) {
    // Python quotes the UTF-8 bytes, each one outside of this set, with upper-case digits.
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                out.push(byte as char)
            }
            b'/' if slash_safe => out.push('/'),
            _ => out.extend([
                '%',
                HEX_UPPER[(byte >> 4) as usize] as char,
                HEX_UPPER[(byte & 15) as usize] as char,
            ]),
        }
    }
}

/// Undoes [`push_quoted`]; `None` for a broken escape or bytes that are no UTF-8.
pub(crate) fn unquoted(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            // Stricter than `urllib.parse.unquote`, which keeps a broken escape as it stands: such
            // a name is none that LMCache wrote.
            b'%' => bytes.push(nibble(rest.next()?)? << 4 | nibble(rest.next()?)?),
            _ => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of CPython 3.11 for spellings that other languages read otherwise.
    #[test]
    fn whole_numbers_read_as_python_reads_them() {
        let cases: [(&str, Option<i64>, Option<i64>); 24] = [
            ("5", Some(5), Some(5)),
            ("+5", Some(5), Some(5)),
            (" 5\t", Some(5), Some(5)),
            ("\u{a0}5", Some(5), Some(5)),
            ("\u{85}5", Some(5), Some(5)),
            ("\u{3000}5", Some(5), Some(5)),
            ("\u{663}", Some(3), Some(3)),
            ("\u{1fbf9}", Some(9), Some(9)),
            ("-0", Some(0), Some(0)),
            ("007", Some(7), Some(7)),
            ("1_0", Some(10), Some(16)),
            ("\u{663}f", None, Some(0x3f)),
            ("0X1F", None, Some(31)),
            ("0x_f", None, Some(15)),
            ("-0xff", None, Some(-255)),
            ("0b1", None, Some(0xb1)),
            ("0x", None, None),
            ("0x-f", None, None),
            ("_1", None, None),
            ("1_", None, None),
            ("1__0", None, None),
            ("\x1c5", None, None),
            ("+ 5", None, None),
            ("\u{b2}", None, None),
        ];
        for (text, ten, sixteen) in cases {
            assert_eq!((int_i64(text, 10), int_i64(text, 16)), (ten, sixteen), "{text:?}");
        }
        assert_eq!(int_i64("-9223372036854775808", 10), Some(i64::MIN));
        assert_eq!(int_i64("9223372036854775808", 10), None);
    }

    #[test]
    fn bytes_read_as_python_reads_them() {
        let cases = [
            ("0011", true),
            ("00 11", true),
            (" 00\x0b", true),
            ("0 0", false),
            ("0", false),
            ("00\x1c11", false),
        ];
        cases.iter().for_each(|(text, ok)| {
            assert_eq!(bytes_from_hex(text, &mut [0; 2]).is_some(), *ok, "{text:?}")
        });
    }
}
