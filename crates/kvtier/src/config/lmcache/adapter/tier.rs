//! The tiers that an object is, and notes about what has no effect.

use kvtier_core::{Error, ErrorKind};

use super::{Adapter, Dialect, serde};
use crate::config::settings::Role;
use crate::config::{Config, TierSpec, Value, native};

impl Adapter {
    /// The tiers of a plugin's `adapter_params`, JSON text; `place` says where they stand. They are
    /// what `--l2-adapter` takes without us: an object of LMCache's as it stands, or our own,
    /// or several under `tiers`.
    pub fn params(text: &str, place: &str) -> Result<Config, Error> {
        let json = serde_json::from_str::<serde_json::Value>(text);
        let json =
            json.map_err(|e| Error::new(ErrorKind::Invalid, format!("{place}: not JSON: {e}")))?;
        params(&json.into(), place, Dialect::Lmcache { lenient: false })
    }

    /// What has no effect, and why: unknown names first. And what `serde` does to chunks.
    pub fn notes(&self) -> Vec<String> {
        let unknown = self.fields.unknown.iter();
        let unknown = unknown.filter(|name| name.as_str() != "type");
        let mut notes: Vec<String> = unknown
            .map(|name| {
                format!("{name}: unknown, and ignored as LMCache does{}", self.fields.hint(name))
            })
            .collect();
        let eviction = self.eviction.iter().flat_map(|fields| &fields.all);
        let fields = self.fields.all.iter().chain(eviction).filter(|field| field.given);
        let idle = fields.filter(|field| field.definition.role == Role::Ignored);
        notes.extend(serde::note(self));
        notes.extend(notes_within(self));
        notes.extend(idle.map(|field| {
            format!("{}: no effect: {}", field.definition.name, field.definition.what)
        }));
        notes
    }

    /// The one of these notes that says that chunks are changed, if there is one.
    pub fn lossy(&self) -> impl Iterator<Item = String> + use<> {
        serde::note(self).filter(|_| serde::is_lossy(self)).into_iter()
    }

    /// The tiers that it is, the fastest first: one, but for plugins with several. `Unsupported`
    /// names the field that has none.
    pub fn tiers(&self) -> Result<Vec<TierSpec>, Error> {
        self.config().map(|config| config.tiers)
    }

    /// The same with what is asked of them as a stack.
    pub fn config(&self) -> Result<Config, Error> {
        config(self)
    }
}

fn config(adapter: &Adapter) -> Result<Config, Error> {
    if let Some(what) = serde::refusal(adapter) {
        return Err(unsupported(adapter, what));
    }
    match adapter.kind {
        "s3" => crate::config::s3::spec(adapter).map(|tier| Config::new().with(tier)),
        "fs" | "fs_native" | "raw_block" => file(adapter).map(|tier| Config::new().with(tier)),
        _ => plugin(adapter),
    }
}

fn unsupported(adapter: &Adapter, what: String) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{}: {what}", adapter.place))
}

/// A plugin that names us says which tiers it is.
fn plugin(adapter: &Adapter) -> Result<Config, Error> {
    let module = adapter.fields.text("module_path").unwrap_or_default();
    if !is_ours(adapter) {
        let what = format!(
            "module_path {module:?} is not kvtier's: LMCache loads it itself; name kvtier, or remove the object"
        );
        return Err(unsupported(adapter, what));
    }
    self::params(adapter.fields.value("adapter_params"), &place(adapter), adapter.dialect)
}

fn is_ours(adapter: &Adapter) -> bool {
    let module = adapter.fields.text("module_path").unwrap_or_default();
    module == "kvtier" || module.starts_with("kvtier.")
}

fn place(adapter: &Adapter) -> String {
    format!("{}: adapter_params", adapter.place)
}

/// The notes about an LMCache object within a kvtier plugin.
fn notes_within(adapter: &Adapter) -> Vec<String> {
    let params = own(adapter.fields.value("adapter_params"));
    let object = (is_ours(adapter) && is_lmcaches(&params))
        .then(|| Adapter::read(&params, "", adapter.dialect));
    let notes = object.and_then(Result::ok).map(|object| object.notes()).unwrap_or_default();
    notes.into_iter().map(|note| format!("adapter_params: {note}")).collect()
}

/// The tiers of a kvtier plugin: the native form, or the path of its file under `config`, or one tier
/// of a native type, or an LMCache object by LMCache's rules.
fn params(params: &Value, place: &str, dialect: Dialect) -> Result<Config, Error> {
    let params = &own(params);
    match (params.field("tiers"), params.field("config").and_then(Value::as_text)) {
        (Some(_), _) => Ok(native::config(params, place)?.listed_at(place)),
        (None, Some(path)) => Ok(Config::read(path.as_ref())?.listed_at(path)),
        (None, None) if is_lmcaches(params) => config(&Adapter::read(params, place, dialect)?),
        (None, None) => native::tier(params, place).map(|tier| Config::new().with(tier)),
    }
}

/// Parameters of the Python module itself: how long a batch may take, and where metrics are served.
const OF_PYTHON: [&str; 2] = ["timeout_seconds", "metrics"];

/// The parameters without what the Python module keeps for itself.
fn own(params: &Value) -> Value {
    let rest = params
        .as_map()
        .unwrap_or_default()
        .iter()
        .filter(|(name, _)| !OF_PYTHON.contains(&name.as_str()));
    Value::Map(rest.cloned().collect())
}

fn is_lmcaches(params: &Value) -> bool {
    let kind = params.field("type").and_then(Value::as_text).unwrap_or_default();
    params.field("tiers").is_none() && matches!(kind, "fs" | "fs_native" | "raw_block" | "s3")
}

#[cfg(not(feature = "file"))]
fn file(adapter: &Adapter) -> Result<TierSpec, Error> {
    Err(unsupported(adapter, "this build has no file tier; build with the feature `file`".into()))
}

#[cfg(feature = "file")]
fn file(adapter: &Adapter) -> Result<TierSpec, Error> {
    use kvtier_file::Layout;
    use kvtier_index::LmcacheEviction;

    use crate::config::{Capacity, FileSpec};
    let fields = &adapter.fields;
    let (path, capacity) = match adapter.kind {
        "raw_block" => (directory(adapter)?, fields.int("capacity_bytes").cast_unsigned()),
        _ => (
            fields.text("base_path").unwrap_or_default(),
            crate::byte_size::from_gib(fields.number("max_capacity_gb")),
        ),
    };
    let capacity = adapter.cap(capacity);
    let mut spec = FileSpec::new(path, capacity.map_or(Capacity::Share(1.0), Capacity::Bytes));
    let own = adapter.dialect != Dialect::Native && adapter.kind != "raw_block";
    spec.layout = own.then_some(Layout::LmcacheMp);
    spec.policy = adapter.policy();
    spec.compat =
        adapter.eviction.as_ref().filter(|eviction| eviction.is_on("compat")).map(|eviction| {
            let share = |name| eviction.number(name).clamp(0.0, 1.0);
            LmcacheEviction::new().with(share("trigger_watermark"), share("eviction_ratio"))
        });
    Ok(TierSpec::File(spec))
}

/// The directory of a `raw_block` object.
#[cfg(feature = "file")]
fn directory(adapter: &Adapter) -> Result<&str, Error> {
    let path = adapter.fields.text("device_path").unwrap_or_default();
    let at = std::path::Path::new(path);
    if at.starts_with("/dev") || (at.exists() && !at.is_dir()) {
        let next = "make a file system on it and name the directory where it is mounted";
        return Err(unsupported(
            adapter,
            format!("device_path {path:?}: a device has no file system; {next}"),
        ));
    }
    Ok(path)
}
