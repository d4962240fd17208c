//! The geometry of the chunks in a shared directory. The first save pins it in the manifest; a
//! process that is configured otherwise gets an error instead of wrong chunks.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use kvtier_core::{Error, ErrorKind, Key};
use kvtier_key::{KeyId, Namespace};

use crate::data_dir::manifest::{Manifest, escape};
use crate::data_dir::{DataDir, OPEN_WAIT_MAX, REGISTRATION_WAIT_MAX};
use crate::layout::Foreign;
use crate::tenant_key::Tenants;

/// The most kinds of chunks that one manifest notes; further kinds are not compared.
const KINDS_MAX: usize = 4096;
/// The most kinds that a process remembers, noted or not.
const KNOWN_MAX: usize = 2 * KINDS_MAX;

/// The shape of chunks of one kind: of one tenant, layout, model, rank and group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// Bytes of a full chunk; `None` while only chunks were seen that may be partial.
    bytes: Option<u64>,
    /// Whether shorter ones are allowed.
    partial: bool,
}

impl Shape {
    /// The shape that the namespace states for chunks like this one. Where partial chunks are not
    /// allowed, a save of `len` bytes also shows the length of a full one.
    fn of(key: &Key, len: Option<u64>) -> Self {
        let ns = key.namespace();
        Shape {
            bytes: key.full_bytes().or(len.filter(|_| !ns.allow_partial())),
            partial: ns.allow_partial(),
        }
    }

    /// Both shapes combined; `None` when they contradict each other.
    fn and(self, other: Shape) -> Option<Shape> {
        let same = self.partial == other.partial
            && (self.bytes == other.bytes || self.bytes.is_none() || other.bytes.is_none());
        same.then_some(Shape { bytes: self.bytes.or(other.bytes), partial: self.partial })
    }

    /// Whether it states nothing that another shape could contradict.
    fn is_any(self) -> bool {
        self.bytes.is_none() && self.partial
    }

    fn text(self) -> String {
        let bytes = self.bytes.map_or("any".into(), |bytes| bytes.to_string());
        format!("{bytes} {}", partial_text(self.partial))
    }

    fn parse(text: &str) -> Option<Self> {
        let (bytes, partial) = text.split_once(' ')?;
        let bytes = if bytes == "any" { None } else { Some(bytes.parse().ok()?) };
        Some(Shape { bytes, partial: partial == partial_text(true) })
    }
}

fn partial_text(allowed: bool) -> &'static str {
    if allowed { "partial" } else { "whole" }
}

/// The kinds of chunks that this process has read from the manifest or saved.
#[derive(Debug, Default)]
pub struct AgreedGeometry {
    known: RwLock<HashMap<String, Shape>>,
    /// Some kinds are not noted, because the manifest has too many.
    is_full: AtomicBool,
}

impl AgreedGeometry {
    /// The geometry in a manifest.
    pub fn new(manifest: &Manifest) -> Self {
        let kinds = manifest
            .agreed
            .iter()
            .filter_map(|(name, text)| Some((name.clone(), Shape::parse(text)?)));
        let known = RwLock::new(kinds.filter(|(name, _)| name.starts_with("chunk ")).collect());
        AgreedGeometry { known, is_full: AtomicBool::new(manifest.agreed.len() >= KINDS_MAX) }
    }

    /// A warning for the operator.
    pub fn describe(&self) -> Option<String> {
        self.is_full.load(Ordering::Relaxed).then(too_many)
    }

    /// Why a chunk does not fit this directory, as far as this process can decide without reading the
    /// manifest. `len` is the length of a save.
    pub fn refusal(
        &self,
        data_dir: &DataDir,
        tenants: &Tenants,
        key: &Key,
        len: Option<u64>,
    ) -> Option<Error> {
        let name = kind(key, tenants);
        let root = data_dir.root();
        let known =
            self.known.read().unwrap_or_else(PoisonError::into_inner).get(&name).copied()?;
        match (known.and(Shape::of(key, len)), len) {
            (None, _) => Some(clash(root, &name, known.text(), Shape::of(key, len).text())),
            (Some(Shape { bytes: Some(full), .. }), Some(len)) if len > full => {
                Some(clash(root, &name, known.text(), format!("one of {len} bytes")))
            }
            _ => None,
        }
    }

    /// Notes the shape of a saved chunk, where it is new.
    ///
    /// # Errors
    /// `Invalid` when another process noted another shape meanwhile, `Io` when the manifest cannot
    /// be read or written.
    pub fn learn(
        &self,
        data_dir: &DataDir,
        tenants: &Tenants,
        key: &Key,
        len: u64,
    ) -> Result<(), Error> {
        let name = kind(key, tenants);
        let ours = Shape::of(key, Some(len));
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).get(&name).copied();
        // The usual save: its shape is known, and no file is read.
        if known.is_some_and(|known| known.and(ours) == Some(known)) {
            return Ok(());
        }
        // Keys with ever new models must not fill the memory. Kinds beyond the limit are saved
        // without the comparison.
        if known.is_none()
            && self.known.read().unwrap_or_else(PoisonError::into_inner).len() >= KNOWN_MAX
        {
            self.report_full();
            return Ok(());
        }
        let mut both = ours;
        let mut refused = None;
        data_dir
            .edit_manifest(REGISTRATION_WAIT_MAX, |manifest| {
                // Under the registration lock: a peer may have noted the kind since this process
                // read the manifest.
                let noted = manifest.agreed.get(&name).and_then(|text| Shape::parse(text));
                match (noted, noted.map_or(Some(ours), |noted| noted.and(ours))) {
                    (Some(noted), None) => {
                        // Not returned here: an error of the closure would look like one of the
                        // file.
                        refused = Some(clash(data_dir.root(), &name, noted.text(), ours.text()))
                    }
                    // Nothing to note: the next save may show more.
                    (None, _) if ours.is_any() => {}
                    (None, _) if manifest.agreed.len() >= KINDS_MAX => self.report_full(),
                    (_, agreed) => {
                        both = agreed.unwrap_or(ours);
                        manifest.agreed.insert(name.clone(), both.text());
                    }
                }
                Ok(())
            })
            // Not `Invalid`, the error of a clash: the medium failed, and may be asked
            // again.
            .map_err(|e| {
                Error::new(ErrorKind::Io, "cannot read or write the manifest").with_source(e)
            })?;
        if let Some(refused) = refused {
            return Err(refused);
        }
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(name, both);
        Ok(())
    }

    /// Reports once in the log, and from then on in the status.
    fn report_full(&self) {
        if !self.is_full.swap(true, Ordering::Relaxed) {
            tracing::warn!("{}", too_many());
        }
    }
}

/// Notes the namespace with which a tier opens.
///
/// # Errors
/// `Invalid` when the directory notes another geometry for it.
pub fn agree_on_namespace(
    data_dir: &DataDir,
    tenants: &Tenants,
    ns: &Namespace,
) -> Result<(), Error> {
    let sizes: Vec<String> =
        ns.all_chunk_bytes().iter().map(|(group, bytes)| format!("{group}={bytes}")).collect();
    let sizes = if sizes.is_empty() { "any".into() } else { sizes.join(",") };
    let ours = format!("{sizes} {}", partial_text(ns.allow_partial()));
    let tenant = format!("namespace {} ", tenants.word(ns.tenant()));
    // Names of vLLM's files state the engine's configuration: each has a layout of its own.
    let base = data_dir.foreign().and_then(Foreign::run_base);
    let base = base.map_or(String::new(), |base| format!(" {}", escape(base)));
    let name = format!("{tenant}{}{base}", ns.layout().to_hex());
    data_dir
        .edit_manifest(OPEN_WAIT_MAX, |manifest| {
            // Files of a foreign layout do not state the key's layout, so a tenant has only one.
            let same = |noted: &str| {
                let of_tenant = noted.starts_with(&tenant) && noted.ends_with(&base);
                noted == name || (data_dir.foreign().is_some() && of_tenant)
            };
            match manifest.agreed.iter().find(|(noted, _)| same(noted)) {
                Some((noted, theirs)) if (noted, theirs) != (&name, &ours) => {
                    return Err(clash(
                        data_dir.root(),
                        noted,
                        theirs.clone(),
                        format!("{name}: {ours}"),
                    ));
                }
                None if manifest.agreed.len() >= KINDS_MAX => tracing::warn!("{}", too_many()),
                _ => drop(manifest.agreed.insert(name, ours)),
            }
            Ok(())
        })
        .map(drop)
}

/// The manifest's name for all chunks of one shape.
fn kind(key: &Key, tenants: &Tenants) -> String {
    let (model, rank, group) = match key.id() {
        KeyId::Object(id) => (&id.model, id.rank.0, id.group.to_string()),
        KeyId::Engine(id) => (&id.model, id.worker_id, "all".into()),
        KeyId::Layer(id) => (&id.key.model, id.key.worker_id, "layer".into()),
        _ => return "chunk other".into(),
    };
    let ns = key.namespace();
    format!(
        "chunk {} {} {} {rank} {group}",
        tenants.word(ns.tenant()),
        ns.layout().to_hex(),
        escape(model)
    )
}

fn clash(root: &Path, name: &str, theirs: String, ours: String) -> Error {
    let what = format!(
        "{} is shared with processes whose chunks have another geometry: its manifest has `{name}: {theirs}`, this is `{ours}`; give all the same \
         configuration, or use another directory",
        root.display()
    );
    Error::new(ErrorKind::Invalid, what)
}

fn too_many() -> String {
    format!(
        "the directory notes {KINDS_MAX} kinds of chunks, the maximum: the sizes of further kinds are not compared"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_come_back_and_add_up_unless_they_contradict() {
        let shape = |bytes, partial| Shape { bytes, partial };
        for one in [shape(None, true), shape(Some(7), true), shape(Some(8192), false)] {
            assert_eq!(Shape::parse(&one.text()), Some(one));
            assert_eq!(one.and(one), Some(one));
        }
        assert_eq!(shape(None, true).and(shape(Some(7), true)), Some(shape(Some(7), true)));
        assert_eq!(shape(Some(8), true).and(shape(Some(7), true)), None);
        assert_eq!(shape(Some(7), false).and(shape(Some(7), true)), None);
    }
}
