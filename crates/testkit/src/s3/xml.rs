//! Just enough XML for a server of this kind.

use super::wire::decode;

/// The text of every `<name>` in `body`, unescaped.
pub fn texts(body: &[u8], name: &str) -> Vec<String> {
    let body = String::from_utf8_lossy(body);
    let open = format!("<{name}>");
    let close = format!("</{name}>");
    let pieces = body.split(&open).skip(1);
    pieces.filter_map(|piece| piece.split(&close).next().map(unescape)).collect()
}

fn unescape(text: &str) -> String {
    let mut out = text.to_owned();
    for (escape, char) in [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#13;", "\r"),
        ("&#10;", "\n"),
        ("&#9;", "\t"),
        // Last, or `&amp;lt;` would become `<`.
        ("&amp;", "&"),
    ] {
        out = out.replace(escape, char);
    }
    out
}

/// Text for an element.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A key for a listing with `encoding-type=url`.
pub fn url(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/*".contains(&byte);
    let out: String = text
        .bytes()
        .map(|byte| match byte {
            // Stores encode a blank as `+` in listings with `encoding-type=url`.
            b' ' => "+".to_owned(),
            byte if plain(byte) => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect();
    debug_assert_eq!(decode(&out.replace('+', "%20")), text);
    out
}
