//! The names of objects, and how to parse them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use kvtier_core::{Error, ErrorKind, Key, Namespace};
use kvtier_key::names::{NameForm, Parsed};
use kvtier_key::{Digest, KeyId};

use crate::Layout;

/// The longest name in S3.
const NAME_BYTES_MAX: usize = 1024;
/// The most models whose spelling is remembered.
const MODELS_MAX: usize = 1024;
/// Names that begin with this, behind the prefix, are the tier's own objects.
pub const OWN: &str = ".kvtier/";

/// The names of one tier's objects.
#[derive(Debug)]
pub struct ObjectNames {
    layout: Layout,
    root: String,
    /// The namespace of chunks whose names do not contain it: configured, or that of the first key.
    namespace: OnceLock<Arc<Namespace>>,
    /// The spelling of models whose names have `_` for `/`.
    models: RwLock<HashMap<String, Arc<str>>>,
    /// Whether names of three fields are looked up.
    old: AtomicBool,
}

impl ObjectNames {
    pub fn new(layout: Layout, prefix: &str, namespace: Option<Arc<Namespace>>, old: bool) -> Self {
        let prefix = prefix.trim_matches('/');
        let root = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        let namespace = namespace.map_or_else(OnceLock::new, OnceLock::from);
        ObjectNames {
            layout,
            root,
            namespace,
            models: RwLock::default(),
            old: AtomicBool::new(old),
        }
    }

    /// The prefix to list: empty or ending in a slash, which S3 Express requires.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// Whether names contain the key's digest alone.
    pub fn is_own(&self) -> bool {
        self.layout == Layout::Kvtier
    }

    /// Whether chunks are entered that are known by digest alone, before a listing shows their names. In layout
    /// `lmcache` only once the spelling of a model is known: a listing reads another digest from its names
    /// before that, and the chunk would count twice.
    pub fn admits_unnamed(&self) -> bool {
        let has_spelling =
            || !self.models.read().unwrap_or_else(PoisonError::into_inner).is_empty();
        self.layout != Layout::Lmcache || has_spelling()
    }

    /// Whether names can be parsed: in LMCache's layouts only once the namespace is known.
    pub fn can_parse(&self) -> bool {
        self.is_own() || self.namespace.get().is_some()
    }

    /// Whether names contain tenants, or may do so.
    pub fn has_tenants(&self) -> bool {
        let is_of_one = |ns: &Arc<Namespace>| ns.has_salts_as_tenants() || !ns.tenant().is_empty();
        !self.is_own() && self.namespace.get().is_some_and(is_of_one)
    }

    /// The name of the key's object.
    ///
    /// # Errors
    /// The layout has no name for the key, or the key is of another namespace than the others.
    pub fn format(&self, key: &Key) -> Result<String, Error> {
        let spelled = match (self.layout, key.id()) {
            (Layout::Kvtier, _) => return self.checked(key, self.format_digest(key.digest())),
            (Layout::LmcacheMp, KeyId::Object(_)) => NameForm::MpNative.format(key.id()),
            (Layout::Lmcache, KeyId::Engine(_) | KeyId::Layer(_)) => {
                NameForm::Text.format(key.id())
            }
            _ => {
                let what =
                    format!("layout {} has no names for keys of LMCache's other mode", self.layout);
                return Err(Error::new(ErrorKind::Unsupported, what).with_key(*key.digest()));
            }
        };
        self.check_namespace(key)?;
        let invalid =
            |e| Error::new(ErrorKind::Invalid, "the key has no name in S3").with_source(e);
        let name = spelled.map_err(invalid)?;
        let name = if self.layout == Layout::Lmcache { self.flatten(key, &name)? } else { name };
        self.checked(key, format!("{}{name}", self.root))
    }

    /// The name that older versions gave the key's object; `None` if there is none, or none was
    /// ever seen.
    pub fn old_name(&self, key: &Key) -> Option<String> {
        if self.layout != Layout::LmcacheMp || !self.old.load(Ordering::Relaxed) {
            return None;
        }
        NameForm::Mp3Field.format(key.id()).ok().map(|name| format!("{}{name}", self.root))
    }

    /// The alternative name of this object's chunk; `None` unless both forms of names occur.
    pub fn other_name(&self, name: &str) -> Option<String> {
        if self.layout != Layout::LmcacheMp || !self.old.load(Ordering::Relaxed) {
            return None;
        }
        let rest = name.strip_prefix(&self.root)?;
        let other = |form: NameForm, other: NameForm| match form.parse(rest) {
            Ok(Parsed::Lossless(id)) => other.format(&id).ok(),
            _ => None,
        };
        let other = other(NameForm::MpNative, NameForm::Mp3Field)
            .or_else(|| other(NameForm::Mp3Field, NameForm::MpNative))?;
        Some(format!("{}{other}", self.root))
    }

    /// The name in layout `kvtier`. The hash comes first, so that keys spread over the store's
    /// ranges.
    pub fn format_digest(&self, digest: &Digest) -> String {
        format!("{}{}", self.root, own_name(digest))
    }

    /// The chunk with this name; `None` for other objects, and while the namespace is unknown.
    pub fn parse_digest(&self, name: &str) -> Option<Digest> {
        let rest = name.strip_prefix(&self.root).filter(|rest| !rest.starts_with(OWN))?;
        if self.is_own() {
            let digest = Digest::from_hex(rest.get(3..)?)?;
            return (self.format_digest(&digest) == name).then_some(digest);
        }
        self.parse_key(name).map(|key| *key.digest())
    }

    /// The key of this name in LMCache's layouts; `None` as for [`ObjectNames::parse_digest`].
    pub fn parse_key(&self, name: &str) -> Option<Key> {
        let namespace = self.namespace.get()?;
        let id = self.parse_id(name)?;
        Some(Key::new(namespace.for_key(&id), id))
    }

    /// The key in this name of LMCache's layouts; `None` for other objects, and in layout `kvtier`.
    pub fn parse_id(&self, name: &str) -> Option<KeyId> {
        let rest = name.strip_prefix(&self.root).filter(|rest| !rest.starts_with(OWN))?;
        if self.is_own() { None } else { self.read_id(rest) }
    }

    fn read_id(&self, name: &str) -> Option<KeyId> {
        if self.layout == Layout::LmcacheMp {
            if let Ok(Parsed::Lossless(id)) = NameForm::MpNative.parse(name) {
                return Some(id);
            }
            let Ok(Parsed::Lossless(id)) = NameForm::Mp3Field.parse(name) else { return None };
            self.old.store(true, Ordering::Relaxed);
            return Some(id);
        }
        // Names of this layout have no slash: objects in folders are foreign.
        if name.contains('/') {
            return None;
        }
        let Ok(Parsed::Lossless(mut id)) = NameForm::Text.parse(name) else { return None };
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        let model = model(&mut id)?;
        if let Some(spelled) = models.get(&**model) {
            *model = Arc::clone(spelled);
        }
        Some(id)
    }

    /// Replaces `/` by `_`. The second of two models with the same name is refused, because the
    /// name would not identify the chunk.
    fn flatten(&self, key: &Key, text: &str) -> Result<String, Error> {
        let mut id = key.id().clone();
        let Some(model) = model(&mut id) else { return Ok(text.to_owned()) };
        let plain = model.replace('/', "_");
        let rest = &text[model.len()..];
        if rest.contains('/') {
            let what = "layout lmcache has no names for keys whose tags contain a slash";
            return Err(Error::new(ErrorKind::Unsupported, what).with_key(*key.digest()));
        }
        let known = self.models.read().unwrap_or_else(PoisonError::into_inner).get(&plain).cloned();
        let spelled = match known {
            Some(spelled) => spelled,
            None => {
                let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
                if models.len() >= MODELS_MAX {
                    let what = format!(
                        "a tier of layout lmcache has chunks of at most {MODELS_MAX} models"
                    );
                    return Err(Error::new(ErrorKind::Invalid, what));
                }
                Arc::clone(models.entry(plain.clone()).or_insert_with(|| Arc::clone(model)))
            }
        };
        if spelled != *model {
            let what = format!(
                "the models {spelled} and {model} have the same object names in layout lmcache; use another prefix for one of them"
            );
            return Err(Error::new(ErrorKind::Invalid, what).with_key(*key.digest()));
        }
        Ok(plain + rest)
    }

    /// The digest under which a name was entered before the spelling of its model was known.
    pub fn misread(&self, key: &Key) -> Option<Digest> {
        let mut id = (self.layout == Layout::Lmcache).then(|| key.id().clone())?;
        let spelled = model(&mut id).filter(|model| model.contains('/'))?;
        *spelled = spelled.replace('/', "_").into();
        Some(*Key::new(Arc::clone(key.namespace()), id).digest())
    }

    fn check_namespace(&self, key: &Key) -> Result<(), Error> {
        let ours = self.namespace.get_or_init(|| Arc::clone(key.namespace()));
        if ours.for_key(key.id()).digest() == key.namespace().digest() {
            return Ok(());
        }
        let what = format!(
            "names of layout {} do not contain the namespace, so a tier has chunks of one namespace: this one has those of \
             layout {}, the key is of layout {}{}; use another prefix",
            self.layout,
            ours.layout(),
            key.namespace().layout(),
            if ours.tenant() == key.namespace().tenant() { "" } else { " and of another tenant" }
        );
        Err(Error::new(ErrorKind::Invalid, what).with_key(*key.digest()))
    }

    fn checked(&self, key: &Key, name: String) -> Result<String, Error> {
        if name.len() <= NAME_BYTES_MAX {
            return Ok(name);
        }
        let what = format!(
            "the object's name has {} bytes, S3 takes {NAME_BYTES_MAX}; shorten the prefix",
            name.len()
        );
        Err(Error::new(ErrorKind::Invalid, what).with_key(*key.digest()))
    }
}

/// The name in layout `kvtier`, behind the prefix.
pub fn own_name(digest: &Digest) -> String {
    let hex = digest.to_hex();
    format!("{}/{hex}", &hex[..2])
}

pub fn model(id: &mut KeyId) -> Option<&mut Arc<str>> {
    match id {
        KeyId::Object(id) => Some(&mut id.model),
        KeyId::Engine(id) => Some(&mut id.model),
        KeyId::Layer(id) => Some(&mut id.key.model),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(
            Namespace::new("t", Digest::default()).into(),
            KeyId::from_engine_text(text).unwrap(),
        )
    }

    #[test]
    fn own_names_begin_with_the_hash_and_read_back() {
        let names = ObjectNames::new(Layout::Kvtier, "/a/b/", None, false);
        let digest = Digest::derive("test", b"x");
        let name = names.format_digest(&digest);
        assert_eq!(
            name,
            format!("a/b/{}/{digest}", &digest.to_hex()[..2], digest = digest.to_hex())
        );
        assert_eq!(names.parse_digest(&name), Some(digest));
        for other in [
            name.replacen("a/b", "c", 1),
            name.to_uppercase(),
            format!("{name}0"),
            "a/b/.kvtier/x".into(),
        ] {
            assert_eq!(names.parse_digest(&other), None, "{other}");
        }
    }

    #[test]
    fn flat_names_parse_as_the_known_model_and_never_as_two() {
        let names = ObjectNames::new(Layout::Lmcache, "p", None, false);
        let slashed = key("org/m@1@0@ab@half");
        let name = names.format(&slashed).unwrap();
        assert_eq!(name, "p/org_m@1@0@ab@half");
        assert_eq!(names.parse_digest(&name), Some(*slashed.digest()));
        assert_eq!(names.misread(&slashed), Some(*key("org_m@1@0@ab@half").digest()));
        let other = names.format(&key("org_m@1@0@ab@half")).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::Invalid);
        assert!(other.to_string().contains("org/m and org_m"), "{other}");
    }

    #[test]
    fn a_chunk_has_another_name_only_where_both_forms_occur() {
        let [mine, older] = ["p/m@000000ff@0@0505", "p/m@000000ff@0505"];
        let other = |layout, old, name| ObjectNames::new(layout, "p", None, old).other_name(name);
        assert_eq!(other(Layout::LmcacheMp, true, mine).as_deref(), Some(older));
        assert_eq!(other(Layout::LmcacheMp, true, older).as_deref(), Some(mine));
        assert_eq!(other(Layout::LmcacheMp, false, mine), None);
        assert_eq!(other(Layout::Lmcache, true, mine), None);
        // A listing that shows an older name shows that both occur.
        let names = ObjectNames::new(Layout::LmcacheMp, "p", None, false);
        assert!(names.parse_id(older).is_some());
        assert_eq!(names.other_name(mine).as_deref(), Some(older));
    }

    #[test]
    fn a_name_has_at_most_1024_bytes() {
        let name_bytes = |prefix: usize| {
            let names = ObjectNames::new(Layout::Kvtier, &"p".repeat(prefix), None, false);
            names.format(&key("m@1@0@ab@half")).map(|name| name.len())
        };
        // The digest, two letters of it, and two slashes.
        let most = NAME_BYTES_MAX - 64 - 4;
        assert_eq!(name_bytes(most).unwrap(), NAME_BYTES_MAX);
        let error = name_bytes(most + 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("1025 bytes"), "{error}");
    }

    #[test]
    fn a_layout_names_the_keys_of_its_own_mode_only() {
        let engine = key("m@1@0@ab@half");
        let id = ObjectNames::new(Layout::LmcacheMp, "p", None, false);
        assert_eq!(id.format(&engine).unwrap_err().kind(), ErrorKind::Unsupported);
        let object = id.parse_id("p/m@000000ff@0@0505").unwrap();
        let object = Key::new(Namespace::new("t", Digest::default()).into(), object);
        assert_eq!(id.format(&object).unwrap(), "p/m@000000ff@0@0505");
        let flat = ObjectNames::new(Layout::Lmcache, "p", None, false);
        assert_eq!(flat.format(&object).unwrap_err().kind(), ErrorKind::Unsupported);
        let layer = key("m@1@0@ab@half@3");
        assert!(flat.format(&layer).is_ok());
        assert_eq!(flat.parse_id("p/folder/m@1@0@ab@half"), None);
        assert_eq!(flat.parse_id("q/m@1@0@ab@half"), None);
        assert_eq!(flat.parse_id("p/.kvtier/m@1@0@ab@half"), None);
    }

    #[test]
    fn a_tier_of_a_layout_without_namespaces_has_those_of_one() {
        let names = ObjectNames::new(Layout::Lmcache, "", None, false);
        assert_eq!(names.root(), "");
        assert!(!names.can_parse() && !names.has_tenants());
        assert_eq!(names.parse_digest("m@1@0@ab@half"), None);
        assert_eq!(names.format(&key("m@1@0@ab@half")).unwrap(), "m@1@0@ab@half");
        assert!(names.can_parse() && names.has_tenants(), "of the tenant t");
        let id = || KeyId::from_engine_text("m@1@0@ab@half").unwrap();
        let other = |tenant: &str, layout| {
            let key = Key::new(Namespace::new(tenant, layout).into(), id());
            names.format(&key).unwrap_err().to_string()
        };
        let of_tenant = "and of another tenant";
        assert!(other("u", Digest::default()).contains(of_tenant));
        assert!(!other("t", Digest([1; 32])).contains(of_tenant));
        assert_eq!(names.format(&key("m@1@0@cd@half")).unwrap(), "m@1@0@cd@half");
        let of_one = Namespace::new("", Digest::default());
        let of_salts = of_one.clone().with_salts_as_tenants();
        let has_tenants = |layout, namespace: Namespace| {
            ObjectNames::new(layout, "p", Some(namespace.into()), false).has_tenants()
        };
        assert!(!has_tenants(Layout::LmcacheMp, of_one));
        assert!(has_tenants(Layout::LmcacheMp, of_salts.clone()));
        assert!(!has_tenants(Layout::Kvtier, of_salts), "names have the digest alone");
        assert!(ObjectNames::new(Layout::Kvtier, "p", None, false).can_parse());
    }

    #[test]
    fn chunks_without_a_name_are_entered_once_a_spelling_is_known() {
        let names = ObjectNames::new(Layout::Lmcache, "p", None, false);
        assert!(!names.admits_unnamed());
        names.format(&key("org/m@1@0@ab@half")).unwrap();
        assert!(names.admits_unnamed());
        for layout in [Layout::Kvtier, Layout::LmcacheMp] {
            assert!(ObjectNames::new(layout, "p", None, false).admits_unnamed(), "{layout}");
        }
    }

    #[test]
    fn a_key_has_an_older_name_once_one_was_seen() {
        let names = ObjectNames::new(Layout::LmcacheMp, "p", None, false);
        let object = names.parse_id("p/m@000000ff@0@0505").unwrap();
        let object = Key::new(Namespace::new("", Digest::default()).into(), object);
        assert_eq!(names.old_name(&object), None);
        let older = "p/m@000000ff@0505";
        assert_eq!(names.parse_id(older).as_ref(), Some(object.id()));
        assert_eq!(names.old_name(&object).as_deref(), Some(older));
        let of_others = ObjectNames::new(Layout::Kvtier, "p", None, true);
        assert_eq!(of_others.old_name(&object), None);
        assert_eq!(names.misread(&object), None);
    }

    #[test]
    fn the_spellings_that_are_remembered_have_a_maximum() {
        let names = ObjectNames::new(Layout::Lmcache, "", None, false);
        let format = |n: usize| names.format(&key(&format!("org/m{n}@1@0@ab@half")));
        for n in 0..MODELS_MAX {
            format(n).unwrap();
        }
        assert_eq!(format(MODELS_MAX).unwrap_err().kind(), ErrorKind::Invalid);
        assert!(format(MODELS_MAX - 1).is_ok());
        let tagged = names.format(&key("org/m0@1@0@ab@half@a%b/c")).unwrap_err();
        assert_eq!(tagged.kind(), ErrorKind::Unsupported);
    }
}
