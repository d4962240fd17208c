//! Percent-encoding as S3 signs it: once, per UTF-8 byte, upper-case hex, nothing normalised.

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Appends `text` with everything but unreserved bytes and `/` encoded: a key in a request line.
pub fn path(out: &mut String, text: &str) {
    encode(out, text, true);
}

/// Appends `text` with everything but unreserved bytes encoded, `/` too: a name or value of a
/// query.
pub fn query(out: &mut String, text: &str) {
    encode(out, text, false);
}

fn encode(out: &mut String, text: &str, keep_slash: bool) {
    let mut clean = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte.is_ascii_alphanumeric()
            || matches!(byte, b'-' | b'.' | b'_' | b'~')
            || (keep_slash && byte == b'/')
        {
            continue;
        }
        // A byte of a longer UTF-8 character ends `clean` at the character's start, which is a
        // boundary.
        if clean < at {
            out.push_str(&text[clean..at]);
        }
        out.push('%');
        out.push(char::from(HEX[usize::from(byte >> 4)]));
        out.push(char::from(HEX[usize::from(byte & 15)]));
        clean = at + 1;
    }
    if clean < text.len() {
        out.push_str(&text[clean..]);
    }
}

/// The text that was encoded with [`query`] or by a server for `encoding-type=url` (where `+` is a
/// blank); `None` when it is not valid UTF-8 or an escape is broken.
pub fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let high = char::from(bytes.next()?).to_digit(16)?;
                let low = char::from(bytes.next()?).to_digit(16)?;
                u8::try_from(high * 16 + low).ok()?
            }
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(text: &str) -> (String, String) {
        let mut a = String::new();
        let mut b = String::new();
        path(&mut a, text);
        query(&mut b, text);
        (a, b)
    }

    #[test]
    fn keys_are_encoded_once_and_never_normalised() {
        assert_eq!(both("n/./dot//x/../up").0, "n/./dot//x/../up");
        assert_eq!(both("a b+c%25~!*'()").0, "a%20b%2Bc%2525~%21%2A%27%28%29");
        assert_eq!(both("é世").0, "%C3%A9%E4%B8%96");
        assert_eq!(both("aé/b?x=1&y").1, "a%C3%A9%2Fb%3Fx%3D1%26y");
    }

    #[test]
    fn decoding_undoes_encoding_and_refuses_nonsense() {
        for text in ["", "plain", "é世 +%/?&=", "\u{1}\u{7f}"] {
            assert_eq!(decode(&both(text).1).as_deref(), Some(text));
        }
        assert_eq!(decode("a+b").as_deref(), Some("a b"));
        assert_eq!(decode("%"), None);
        assert_eq!(decode("%4"), None);
        assert_eq!(decode("%zz"), None);
        assert_eq!(decode("%ff"), None);
    }
}
