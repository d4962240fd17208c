//! A bucket's objects looked at from outside, without a tier: which of them are chunks, and whether their bytes are proven.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kvtier_key::names::{Form, Parsed};
use kvtier_key::{BlockSums, Digest, Facts};

use super::Layout;
use super::layout::OWN;
use super::told::text_of;
use crate::Object;

/// What is wrong with an object, or not known of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Damage {
    /// Nothing proves it; in our own layout that is damage, in LMCache's another program wrote it.
    Unverified,
    /// Its facts cannot be read, or are another chunk's.
    Facts,
    /// Its length is not the one that its facts say.
    Length,
    /// Its bytes are not those that were saved.
    Bytes,
}

/// Which layout an object's name has behind a tier's prefix; `None` for what is no chunk, and for what tiers keep for themselves.
pub fn layout_of(rest: &str) -> Option<Layout> {
    if rest.starts_with(OWN) {
        return None;
    }
    let digest = rest.get(3..).and_then(Digest::from_hex);
    if digest.is_some_and(|digest| rest.strip_prefix(&digest.to_hex()[..2]).is_some_and(|rest| rest.starts_with('/'))) {
        return Some(Layout::Kvtier);
    }
    let is = |form: Form| matches!(form.parse(rest), Ok(Parsed::Lossless(_)));
    if is(Form::MpNative) || is(Form::Mp3Field) {
        return Some(Layout::LmcacheMp);
    }
    (!rest.contains('/') && is(Form::Text)).then_some(Layout::Lmcache)
}

/// Checks an object's bytes against the facts in its metadata; `rest` is its name behind the prefix.
pub fn check(rest: &str, object: &Object, bytes: &[u8]) -> Result<(), Damage> {
    proven(rest, text_of(|name| object.header(name)).as_deref(), bytes)
}

fn proven(rest: &str, facts: Option<&str>, bytes: &[u8]) -> Result<(), Damage> {
    let facts = facts.ok_or(Damage::Unverified)?;
    let facts = STANDARD.decode(facts).ok().and_then(|bytes| Facts::decode(&bytes).ok()).ok_or(Damage::Facts)?;
    if layout_of(rest) == Some(Layout::Kvtier) && rest.get(3..) != Some(facts.key.to_hex().as_str()) {
        return Err(Damage::Facts);
    }
    if facts.sums.len() != bytes.len() as u64 {
        return Err(Damage::Length);
    }
    if BlockSums::of(bytes) == facts.sums { Ok(()) } else { Err(Damage::Bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_whose_they_are() {
        let hex = Digest::of("chunk", b"1").to_hex();
        assert_eq!(layout_of(&format!("{}/{hex}", &hex[..2])), Some(Layout::Kvtier));
        assert_eq!(layout_of(&format!("zz/{hex}")), None);
        assert_eq!(layout_of("m/x@00000000@0@0a0b"), Some(Layout::LmcacheMp));
        assert_eq!(layout_of("m@1@0@12ab@bfloat16"), Some(Layout::Lmcache));
        for no in [".kvtier/lease/1", "readme.txt", "", "é/1"] {
            assert_eq!(layout_of(no), None, "{no}");
        }
    }

    #[test]
    fn bytes_are_proven_or_the_damage_is_named() {
        let (key, bytes) = (Digest::of("chunk", b"1"), vec![7; 5000]);
        let name = format!("{}/{}", &key.to_hex()[..2], key.to_hex());
        let text = |key| STANDARD.encode(Facts::plain(key, Digest::of("ns", b""), BlockSums::of(&bytes)).encode());
        let facts = text(key);
        assert_eq!(proven(&name, Some(&facts), &bytes), Ok(()));
        assert_eq!(proven(&name, None, &bytes), Err(Damage::Unverified));
        assert_eq!(proven(&name, Some("nonsense"), &bytes), Err(Damage::Facts));
        assert_eq!(proven(&name, Some(&text(Digest::of("chunk", b"2"))), &bytes), Err(Damage::Facts));
        assert_eq!(proven(&name, Some(&facts), &bytes[1..]), Err(Damage::Length));
        assert_eq!(proven(&name, Some(&facts), &[vec![8], bytes[1..].to_vec()].concat()), Err(Damage::Bytes));
    }
}
