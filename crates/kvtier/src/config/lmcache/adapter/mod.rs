//! LMCache's `--l2-adapter` objects (0.5.6), with kvtier's additions. The same objects are tiers of
//! the native form.

mod fields;
mod raw_block;
mod serde;
mod tier;

use kvtier_core::{Error, ErrorKind};
#[cfg(any(feature = "file", feature = "s3"))]
use kvtier_evict::PolicyKind;

pub(crate) use fields::AdapterFields;
pub use fields::Field;

use crate::config::settings::lmcache_adapter;
use crate::config::settings::native::OWN_TYPES;
use crate::config::suggest;
use crate::config::value::Value;

/// The rules for unknown names and defaults of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dialect {
    /// LMCache's: unknown names are ignored, and the default layout is LMCache's.
    Lmcache {
        /// Whether invalid values are treated as LMCache treats them.
        lenient: bool,
    },
    /// kvtier's: unknown names are errors, and the default layout is `kvtier`.
    Native,
}

/// One object, read and checked.
#[derive(Clone, Debug)]
pub struct Adapter {
    kind: &'static str,
    place: String,
    dialect: Dialect,
    fields: AdapterFields,
    eviction: Option<AdapterFields>,
}

impl Adapter {
    /// Reads the objects of a program's `--l2-adapter` arguments, each JSON text, in their order,
    /// which is their priority.
    pub fn list<T: AsRef<str>>(arguments: &[T], lenient: bool) -> Result<Vec<Self>, Error> {
        let dialect = Dialect::Lmcache { lenient };
        let one = |(at, text): (usize, &T)| {
            let place = format!("--l2-adapter #{}", at + 1);
            let json = serde_json::from_str::<serde_json::Value>(text.as_ref());
            let json = json.map_err(|e| invalid(format!("{place}: not JSON: {e}")))?;
            Adapter::read(&json.into(), &place, dialect)
        };
        arguments.iter().enumerate().map(one).collect()
    }

    /// Reads one object; `place` names it in messages.
    pub(crate) fn read(value: &Value, place: &str, dialect: Dialect) -> Result<Self, Error> {
        let Some(object) = value.as_map() else {
            return Err(invalid(format!(
                "{place}: a {} instead of an object; write {{\"type\": ...}}",
                value.type_name()
            )));
        };
        let name = match value.field("type") {
            None => {
                return Err(invalid(format!(
                    "{place}: `type` is missing; known are {}",
                    lmcache_adapter::TYPES.join(", ")
                )));
            }
            Some(Value::Text(name)) => name.as_str(),
            Some(other) => return Err(invalid(format!("{place}: type takes a text, not {other}"))),
        };
        let Some(kind) = lmcache_adapter::TYPES.iter().find(|kind| **kind == name) else {
            return Err(unknown(name, place));
        };
        let place = format!("{place} ('{kind}')");
        let wrong = |what: String| invalid(format!("{place}: {what}"));
        let plain: Vec<(String, Value)> =
            object.iter().filter(|(name, _)| name != "type").cloned().collect();
        let optional: &[&str] =
            // LMCache itself insists on both. In the native form a bucket at AWS, or the provider's
            // host, says them.
            if dialect == Dialect::Native { &["s3_endpoint", "s3_region"] } else { &[] };
        let fields =
            AdapterFields::read(lmcache_adapter::of(kind), &plain, optional).map_err(wrong)?;
        let eviction = fields.value("eviction").as_map();
        let eviction = eviction
            .map(|map| AdapterFields::read(lmcache_adapter::of_eviction(), map, &[]))
            .transpose();
        let eviction = eviction.map_err(|what| wrong(format!("eviction.{what}")))?;
        let read = Adapter { kind, place: place.clone(), dialect, fields, eviction };
        // What single fields cannot show: settings that need or exclude each other.
        read.check(object).map_err(wrong)?;
        Ok(read)
    }

    /// Its type.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Its fields, those of the table's that it leaves out included.
    pub fn fields(&self) -> &[Field] {
        &self.fields.all
    }

    /// The fields of its `eviction` object, if it has one.
    pub fn eviction(&self) -> Option<&[Field]> {
        self.eviction.as_ref().map(|fields| fields.all.as_slice())
    }

    /// Its place, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The cap that a capacity and the `eviction` object give together: LMCache evicts above the
    /// watermark, so that is the cap, unless it is to be taken to the letter; under `noop` it
    /// never does, so there is none. A capacity of 0 is none either.
    #[cfg(feature = "file")]
    pub(crate) fn cap(&self, capacity_bytes: u64) -> Option<u64> {
        let Some(eviction) = &self.eviction else {
            return Some(capacity_bytes).filter(|bytes| *bytes > 0);
        };
        // LMCache starts to evict at the watermark. The cap of a tier here is never passed, so the
        // watermark is the cap, unless LMCache's own eviction is emulated.
        let evicts = eviction.text("eviction_policy") != Some("noop");
        let share = if eviction.is_on("compat") {
            1.0
        } else {
            eviction.number("trigger_watermark").clamp(0.0, 1.0)
        };
        let bytes = (capacity_bytes as f64 * share) as u64;
        (evicts && bytes > 0).then_some(bytes)
    }

    /// The policy of the `eviction` object, if it names one.
    #[cfg(any(feature = "file", feature = "s3"))]
    pub(crate) fn policy(&self) -> Option<PolicyKind> {
        match self.eviction.as_ref()?.text("eviction_policy") {
            Some("LRU") => Some(PolicyKind::Lru),
            Some("ARC") => Some(PolicyKind::Arc),
            Some("IsolatedLRU") => Some(PolicyKind::IsolatedLru),
            _ => None,
        }
    }

    #[cfg(feature = "s3")]
    pub(crate) fn parts(&self) -> (&AdapterFields, &str) {
        (&self.fields, &self.place)
    }

    #[cfg(feature = "s3")]
    pub(crate) fn eviction_fields(&self) -> Option<&AdapterFields> {
        self.eviction.as_ref()
    }

    #[cfg(feature = "s3")]
    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn is_lenient(&self) -> bool {
        self.dialect == Dialect::Lmcache { lenient: true }
    }

    /// What the fields must be together.
    fn check(&self, object: &[(String, Value)]) -> Result<(), String> {
        // LMCache ignores settings that it does not know, so its own objects only get a note. The
        // native form is ours alone, and a misspelled cap must not pass in silence.
        if let (Dialect::Native, Some(name)) = (self.dialect, self.fields.unknown.first()) {
            return Err(format!(
                "{name}: no setting of this tier is called that{}",
                self.fields.hint(name)
            ));
        }
        if let Some(serde) = self.fields.value("serde").as_map()
            && !serde.iter().any(|(name, _)| name == "type")
        {
            return Err("serde must have a `type`".into());
        }
        if let Some(eviction) = &self.eviction {
            self.check_eviction(eviction)?;
        }
        match self.kind {
            "fs" | "fs_native" => temporary(self.fields.text("relative_tmp_dir")),
            "raw_block" => raw_block::check(&self.fields, object),
            "s3" => self.check_s3(),
            _ => Ok(()),
        }
    }

    fn check_eviction(&self, eviction: &AdapterFields) -> Result<(), String> {
        let policies = ["LRU", "ARC", "IsolatedLRU", "noop"];
        let policy = eviction.text("eviction_policy").unwrap_or_default();
        if !policies.contains(&policy) {
            return Err(format!(
                "eviction.eviction_policy {policy:?} is none of {}",
                policies.join(", ")
            ));
        }
        for name in ["trigger_watermark", "eviction_ratio"] {
            let n = eviction.number(name);
            if !(0.0..=1.0).contains(&n) && !self.is_lenient() {
                return Err(format!("eviction.{name} {n} is no share; write a number from 0 to 1"));
            }
        }
        Ok(())
    }

    fn check_s3(&self) -> Result<(), String> {
        let has = |name| self.fields.text(name).is_some();
        if has("aws_access_key_id") != has("aws_secret_access_key") && !self.is_lenient() {
            return Err(
                "aws_access_key_id and aws_secret_access_key go together; write both or neither"
                    .into(),
            );
        }
        if self.dialect == Dialect::Native && !has("s3_endpoint") && !has("bucket") {
            return Err("s3_endpoint is missing; write one, or the `bucket` at AWS".into());
        }
        if has("prefix")
            && has("s3_file_prefix")
            && self.fields.text("prefix") != self.fields.text("s3_file_prefix")
        {
            return Err("prefix and s3_file_prefix are the same setting and contradict each other; keep one".into());
        }
        Ok(())
    }
}

fn temporary(path: Option<&str>) -> Result<(), String> {
    let parts = || std::path::Path::new(path.unwrap_or_default()).components();
    // The path is joined to `base_path` by LMCache. With `..` or a root it would leave it.
    let inside = parts()
        .all(|part| matches!(part, std::path::Component::Normal(_) | std::path::Component::CurDir));
    if inside { Ok(()) } else { Err("relative_tmp_dir must stay below base_path".into()) }
}

fn unknown(name: &str, place: &str) -> Error {
    // Three different mistakes get three answers: a store of LMCache's, a tier of the native form,
    // and a misspelling.
    if lmcache_adapter::FOREIGN.contains(&name) {
        let what = format!(
            "{place}: type {name:?} is a store of LMCache's that has no tier here; use it beside us, or one of {}",
            lmcache_adapter::TYPES.join(", ")
        );
        return Error::new(ErrorKind::Unsupported, what);
    }
    if OWN_TYPES.contains(&name) {
        return invalid(format!(
            "{place}: type {name:?} is of kvtier's own form; write the object into a list under `tiers`"
        ));
    }
    let names = lmcache_adapter::TYPES.iter().chain(lmcache_adapter::FOREIGN).copied();
    let hint = suggest::hint(name, names);
    invalid(format!(
        "{place}: no adapter is of type {name:?}{hint}; known are {}",
        lmcache_adapter::TYPES.join(", ")
    ))
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, what.into())
}
