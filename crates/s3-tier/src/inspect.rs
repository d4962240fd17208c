//! Inspects the objects of a bucket without a tier: which of them are chunks, and whether their
//! bytes are verified.

mod encoded;
mod last_uses;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kvtier_codec::TierEncoding;
pub use kvtier_codec::{Undecoded, UndecodedCause};
use kvtier_core::{Error, ErrorKind};
pub use kvtier_index::{LastUse, LastUses, TenantId};
use kvtier_key::names::{NameForm, Parsed};
use kvtier_key::{BlockSums, Digest, Facts, KeyId};
use kvtier_s3::{Object, Provider, Put};

pub use self::encoded::{NewObject, StoredObject, Verified, decode, encode, reencode};
pub use self::last_uses::{BucketUses, RawAndStored, last_uses};
use crate::Layout;
use crate::ops::metadata;
use crate::ops::metadata::facts_text;
use crate::state::object_names::{OWN, model, own_name};

/// What is wrong with an object, or unknown of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Damage {
    /// It has no facts. In layout `kvtier` that is damage; in LMCache's layouts another program
    /// wrote it.
    Unverified,
    /// Its facts are unreadable, or of another chunk.
    Facts,
    /// Its length differs from its facts.
    Length,
    /// Its bytes differ from its facts.
    Bytes,
    /// Its bytes match their checksums, and do not decode to the raw bytes that its facts promise.
    Encoding,
}

/// The layout of an object's name behind a tier's prefix; `None` for objects that are no chunks.
pub fn layout_of(rest: &str) -> Option<Layout> {
    if rest.starts_with(OWN) {
        return None;
    }
    let digest = rest.get(3..).and_then(Digest::from_hex);
    if digest.is_some_and(|digest| {
        rest.strip_prefix(&digest.to_hex()[..2]).is_some_and(|rest| rest.starts_with('/'))
    }) {
        return Some(Layout::Kvtier);
    }
    let is = |form: NameForm| matches!(form.parse(rest), Ok(Parsed::Lossless(_)));
    if is(NameForm::MpNative) || is(NameForm::Mp3Field) {
        return Some(Layout::LmcacheMp);
    }
    (!rest.contains('/') && is(NameForm::Text)).then_some(Layout::Lmcache)
}

/// The possible keys of an object in LMCache's layouts, by its name behind the prefix: in layout
/// `lmcache` a `_` of the model may stand for a `/`, at one place at most. Empty for layout
/// `kvtier`, whose names are digests.
pub fn ids_of(rest: &str) -> Vec<KeyId> {
    let read = |form: NameForm| match form.parse(rest) {
        Ok(Parsed::Lossless(id)) => Some(id),
        _ => None,
    };
    match layout_of(rest) {
        Some(Layout::LmcacheMp) => {
            read(NameForm::MpNative).or_else(|| read(NameForm::Mp3Field)).into_iter().collect()
        }
        Some(Layout::Lmcache) => read(NameForm::Text).map(possible_ids).unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn possible_ids(mut id: KeyId) -> Vec<KeyId> {
    let Some(flat) = model(&mut id).map(|model| model.to_string()) else { return vec![id] };
    let spelled = |at: usize| {
        let mut other = id.clone();
        model(&mut other)
            .into_iter()
            .for_each(|model| *model = format!("{}/{}", &flat[..at], &flat[at + 1..]).into());
        other
    };
    let slashed: Vec<KeyId> = flat.match_indices('_').map(|(at, _)| spelled(at)).collect();
    std::iter::once(id).chain(slashed).collect()
}

/// The facts in an object's metadata, of which only their own checksum is verified; `None` if it
/// has none.
pub fn facts_of(object: &Object) -> Option<Result<Facts, Damage>> {
    let text = facts_text(|name| object.header(name))?;
    Some(
        STANDARD
            .decode(&*text)
            .ok()
            .and_then(|bytes| Facts::decode(&bytes).ok())
            .ok_or(Damage::Facts),
    )
}

/// The name, behind the prefix, of a chunk's object.
///
/// # Errors
/// `Unsupported` if the layout needs a key and `id` is `None`, or has no name for it.
pub fn name_of(layout: Layout, digest: &Digest, id: Option<&KeyId>) -> Result<String, Error> {
    let unsupported = |what: &'static str| Error::new(ErrorKind::Unsupported, what);
    if layout == Layout::Kvtier {
        return Ok(own_name(digest));
    }
    let id = id.ok_or_else(|| {
        unsupported("only the key's digest is known, and names of this layout contain the key")
    })?;
    let spelled = match (layout, id) {
        (Layout::LmcacheMp, KeyId::Object(_)) => NameForm::MpNative.format(id),
        (Layout::Lmcache, KeyId::Engine(_) | KeyId::Layer(_)) => {
            NameForm::Text.format(id).map(|name| name.replace('/', "_"))
        }
        _ => return Err(unsupported("the layout has no names for keys of LMCache's other mode")),
    };
    spelled.map_err(|e| unsupported("the key has no name in S3").with_source(e))
}

/// The canonical form of an object's key, if its metadata has it: in layout `kvtier`, unless an
/// earlier build wrote the object or it did not fit.
pub fn canonical_of(object: &Object) -> Option<Vec<u8>> {
    metadata::canonical_of(|name| object.header(name))
}

/// The metadata of an object with these facts, and with the key of this canonical form if it fits.
pub fn put_of(facts: &Facts, canonical: Option<&[u8]>, provider: Provider) -> Put {
    metadata::to_metadata(facts, canonical, provider)
}

/// Verifies an object's bytes with the facts in its metadata; `rest` is its name behind the prefix.
/// The stored bytes are compared with their checksums, and decoded as far as `encoding` can.
///
/// # Errors
/// What is wrong with the object. A key or stage that is missing here is none, but
/// [`Verified::Stored`].
pub fn check(
    rest: &str,
    object: &Object,
    bytes: &[u8],
    encoding: &TierEncoding,
) -> Result<Verified, Damage> {
    let facts = proven(rest, facts_text(|name| object.header(name)).as_deref(), bytes)?;
    if facts.is_plain() {
        return Ok(Verified::Raw);
    }
    match encoding.decode_whole(&facts, bytes) {
        Ok(Ok(_)) => Ok(Verified::Raw),
        Ok(Err(undecoded)) => Ok(Verified::Stored(undecoded)),
        Err(_) => Err(Damage::Encoding),
    }
}

fn proven(rest: &str, facts: Option<&str>, bytes: &[u8]) -> Result<Facts, Damage> {
    let facts = facts.ok_or(Damage::Unverified)?;
    let facts = STANDARD
        .decode(facts)
        .ok()
        .and_then(|bytes| Facts::decode(&bytes).ok())
        .ok_or(Damage::Facts)?;
    if layout_of(rest) == Some(Layout::Kvtier) && rest.get(3..) != Some(facts.key.to_hex().as_str())
    {
        return Err(Damage::Facts);
    }
    if facts.sums.len() != bytes.len() as u64 {
        return Err(Damage::Length);
    }
    // The objects of LMCache's layouts are the raw bytes.
    if !facts.is_plain() && layout_of(rest) != Some(Layout::Kvtier) {
        return Err(Damage::Facts);
    }
    if BlockSums::from_bytes(bytes) == facts.sums { Ok(facts) } else { Err(Damage::Bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_identify_their_layout() {
        let hex = Digest::derive("chunk", b"1").to_hex();
        assert_eq!(layout_of(&format!("{}/{hex}", &hex[..2])), Some(Layout::Kvtier));
        assert_eq!(layout_of(&format!("zz/{hex}")), None);
        assert_eq!(layout_of("m/x@00000000@0@0a0b"), Some(Layout::LmcacheMp));
        assert_eq!(layout_of("m@1@0@12ab@bfloat16"), Some(Layout::Lmcache));
        for no in [".kvtier/lease/1", "readme.txt", "", "é/1"] {
            assert_eq!(layout_of(no), None, "{no}");
        }
    }

    #[test]
    fn names_give_keys_and_keys_give_names() {
        let digest = Digest::derive("chunk", b"1");
        assert_eq!(
            name_of(Layout::Kvtier, &digest, None).unwrap(),
            format!("{}/{digest}", &digest.to_hex()[..2])
        );
        assert!(ids_of(&own_name(&digest)).is_empty());
        let [mp] = &ids_of("org/m@000000ff@0@0a0b")[..] else { panic!("one") };
        assert_eq!(name_of(Layout::LmcacheMp, &digest, Some(mp)).unwrap(), "org/m@000000ff@0@0a0b");
        let flat = "a_b_c@1@0@12ab@bfloat16";
        let ids = ids_of(flat);
        let models: Vec<_> = ids.iter().map(|id| NameForm::Text.format(id).unwrap()).collect();
        let tail = "@1@0@12ab@bfloat16";
        assert_eq!(models, ["a_b_c", "a/b_c", "a_b/c"].map(|model| format!("{model}{tail}")));
        ids.iter()
            .for_each(|id| assert_eq!(name_of(Layout::Lmcache, &digest, Some(id)).unwrap(), flat));
        for (layout, id) in [
            (Layout::Lmcache, Some(mp)),
            (Layout::LmcacheMp, None),
            (Layout::LmcacheMp, Some(&ids[0])),
        ] {
            assert_eq!(name_of(layout, &digest, id).unwrap_err().kind(), ErrorKind::Unsupported);
        }
    }

    #[test]
    fn bytes_are_proven_or_the_damage_is_named() {
        let key = Digest::derive("chunk", b"1");
        let bytes = vec![7; 5000];
        let name = format!("{}/{}", &key.to_hex()[..2], key.to_hex());
        let text = |key| {
            STANDARD.encode(
                Facts::plain(key, Digest::derive("ns", b""), BlockSums::from_bytes(&bytes))
                    .encode(),
            )
        };
        let facts = text(key);
        assert!(proven(&name, Some(&facts), &bytes).is_ok());
        assert_eq!(proven(&name, None, &bytes), Err(Damage::Unverified));
        assert_eq!(proven(&name, Some("nonsense"), &bytes), Err(Damage::Facts));
        assert_eq!(
            proven(&name, Some(&text(Digest::derive("chunk", b"2"))), &bytes),
            Err(Damage::Facts)
        );
        assert_eq!(proven(&name, Some(&facts), &bytes[1..]), Err(Damage::Length));
        assert_eq!(
            proven(&name, Some(&facts), &[vec![8], bytes[1..].to_vec()].concat()),
            Err(Damage::Bytes)
        );
    }
}
