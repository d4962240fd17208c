//! The little XML that S3 speaks, read without a schema.

use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::Event;
use zeroize::Zeroizing;

use crate::error::{Error, Result};

/// Elements nest no deeper in anything that S3 says.
const DEPTH_MAX: usize = 16;

/// Calls `leaf` at the end of every element with its path of local names and the text directly in
/// it. Errors with `Io` when it is not XML.
pub fn each(body: &[u8], mut leaf: impl FnMut(&[String], &str)) -> Result<()> {
    each_below(body, None, &mut leaf)
}

/// As [`each`], and errors where the root element has another name, which is then seen before the
/// rest is read.
pub fn each_in(body: &[u8], root: &str, mut leaf: impl FnMut(&[String], &str)) -> Result<()> {
    each_below(body, Some(root), &mut leaf)
}

fn each_below(
    body: &[u8],
    root: Option<&str>,
    leaf: &mut dyn FnMut(&[String], &str),
) -> Result<()> {
    let text = std::str::from_utf8(body).map_err(|e| nonsense().with_source(e))?;
    let mut reader = Reader::from_str(text.trim_start());
    // Among other things the keys of a session.
    let mut path = Vec::<String>::new();
    let mut inside = Zeroizing::new(String::new());
    let mut begun = false;
    loop {
        let event = reader.read_event().map_err(|e| nonsense().with_source(e))?;
        // Outside the root: only white space, comments and declarations may be there.
        if path.is_empty() {
            match &event {
                Event::Start(first) | Event::Empty(first) => {
                    let is_other = root.is_some_and(|root| first.local_name().as_ref() != root);
                    // Of roots there is one.
                    if std::mem::replace(&mut begun, true) || is_other {
                        return Err(nonsense());
                    }
                }
                Event::Text(around) if around.trim().is_empty() => {}
                Event::Text(_) | Event::CData(_) | Event::GeneralRef(_) => return Err(nonsense()),
                _ => {}
            }
        }
        match event {
            Event::Start(start) => {
                // A document of the server must not decide how much memory its path takes.
                if path.len() == DEPTH_MAX {
                    return Err(nonsense());
                }
                path.push(start.local_name().as_ref().to_owned());
                inside.clear();
            }
            Event::Empty(start) => {
                path.push(start.local_name().as_ref().to_owned());
                leaf(&path, "");
                path.pop();
            }
            Event::Text(piece) => inside.push_str(&piece.xml10_content()),
            Event::CData(piece) => inside.push_str(&piece.xml10_content()),
            // Only the five entities of XML and numbers: others would need a DTD, which is never
            // read.
            Event::GeneralRef(name) => {
                match name.resolve_char_ref().map_err(|e| nonsense().with_source(e))? {
                    Some(char) => inside.push(char),
                    None => inside.push_str(resolve_predefined_entity(&name).ok_or_else(nonsense)?),
                }
            }
            Event::End(_) => {
                // Text directly in an element with children was cleared when the first of them
                // began.
                leaf(&path, &inside);
                path.pop();
                inside.clear();
            }
            Event::Eof => return if path.is_empty() && begun { Ok(()) } else { Err(nonsense()) },
            _ => {}
        }
    }
}

/// What an error body says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ErrorDocument {
    /// `Code`.
    pub code: Option<String>,
    /// `Region`.
    pub region: Option<String>,
    /// `RequestId`.
    pub request_id: Option<String>,
    /// `Endpoint`: where a redirect leads.
    pub endpoint: Option<String>,
}

impl ErrorDocument {
    /// Of an error body; empty for a proxy's HTML, for nothing, and for anything else that is not
    /// S3's.
    pub fn of(body: &[u8]) -> Self {
        let mut found = ErrorDocument::default();
        let read = each(body, |path, text| {
            let [error, field] = path else { return };
            let slot = match field.as_str() {
                "Code" => &mut found.code,
                "Region" => &mut found.region,
                "RequestId" => &mut found.request_id,
                "Endpoint" => &mut found.endpoint,
                _ => return,
            };
            let short = text.len() <= 128 && text.chars().all(|char| char.is_ascii_graphic());
            if error == "Error" && short && !text.is_empty() {
                *slot = Some(text.to_owned());
            }
        });
        if read.is_ok() { found } else { ErrorDocument::default() }
    }
}

/// Appends `text` escaped for an element's content. Control characters have no form in XML 1.0.
pub fn escape(out: &mut String, text: &str) {
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\r' => out.push_str("&#13;"),
            '\n' => out.push_str("&#10;"),
            '\t' => out.push_str("&#9;"),
            other => out.push(other),
        }
    }
}

/// Whether XML 1.0 has a form for all of it.
pub fn is_expressible(text: &str) -> bool {
    text.chars()
        .all(|char| !matches!(char, '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\u{fffe}' | '\u{ffff}'))
}

/// An answer that is no S3 store's: a web server's page, or one that was cut.
pub fn nonsense() -> Error {
    Error::foreign(
        "the answer is not that of an S3 store: check the endpoint, and what stands between",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_with_entities_and_prefixes() {
        let mut seen = Vec::new();
        let text =
            b"<?xml version='1.0'?>\n<a xmlns='u'><x:b>1 &amp; &#x32;<![CDATA[<3>]]></x:b><c/></a>";
        each(text, |path, text| seen.push((path.join("/"), text.to_owned()))).unwrap();
        let of = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        assert_eq!(seen, [of("a/b", "1 & 2<3>"), of("a/c", ""), of("a", "")]);
    }

    #[test]
    fn complaints_of_stores_and_of_proxies() {
        let body = b"<Error><Code>NoSuchKey</Code><Message>x</Message><Region>eu</Region></Error>";
        let found = ErrorDocument::of(body);
        assert_eq!(
            (found.code.as_deref(), found.region.as_deref()),
            (Some("NoSuchKey"), Some("eu"))
        );
        for body in [
            &b""[..],
            b"<html><body>Bad gateway<br></body></html>",
            b"plain",
            b"<Error><Code>cut",
            b"\xff<Error/>",
        ] {
            assert_eq!(ErrorDocument::of(body), ErrorDocument::default());
        }
    }

    #[test]
    fn deep_and_unknown_things_are_errors() {
        assert!(each("<a>".repeat(100).as_bytes(), |_, _| {}).is_err());
        assert!(each(b"<a>&nope;</a>", |_, _| {}).is_err());
        assert!(each(b"<a>", |_, _| {}).is_err());
    }

    #[test]
    fn escaping_goes_there_and_back() {
        let odd = "a&b<c>]]>\r\n\t'\"\u{e9}";
        let mut xml = String::from("<k>");
        escape(&mut xml, odd);
        xml.push_str("</k>");
        let mut back = String::new();
        each(xml.as_bytes(), |_, text| back = text.to_owned()).unwrap();
        assert_eq!(back, odd);
        assert!(is_expressible(odd) && !is_expressible("\u{1}"));
    }
}
