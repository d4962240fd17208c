//! The shapes of chunks in a directory with headers: keys do not contain the shape of the tensor, and
//! LMCache needs it to load a chunk.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use kvtier_key::{ChunkShape, DType, GdsElement, GdsHeader, KeyId};

/// The most kinds of chunks whose shapes are remembered.
const KINDS_MAX: usize = 4096;

/// Chunks that look alike: model, workers, which of them, element type, whether of one layer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Kind(String, i64, i64, DType, bool);

impl Kind {
    fn of(id: &KeyId) -> Option<Self> {
        let (key, layer) = match id {
            KeyId::Engine(key) => (key, false),
            KeyId::Layer(layer) => (&layer.key, true),
            _ => return None,
        };
        Some(Kind(key.model.to_string(), key.world_size, key.worker_id, key.dtype, layer))
    }
}

/// The known shapes.
#[derive(Debug, Default)]
pub struct TensorShapes {
    given: Option<ChunkShape>,
    learned: RwLock<HashMap<Kind, GdsHeader>>,
}

impl TensorShapes {
    pub fn new(given: Option<ChunkShape>) -> Self {
        TensorShapes { given, learned: RwLock::default() }
    }

    /// Whether the shape of this kind of chunks should be learned from stored files.
    fn is_wanted(&self, kind: &Kind) -> bool {
        let given = self.given.is_some() && !kind.4;
        let learned = self.learned.read().unwrap_or_else(PoisonError::into_inner);
        !given && learned.len() < KINDS_MAX && !learned.contains_key(kind)
    }

    /// Learns the shape of a kind of chunks, unless it is known. `read` reads the header of a file.
    pub(super) fn learn(&self, id: &KeyId, read: impl FnOnce() -> Option<GdsHeader>) {
        let Some(kind) = Kind::of(id).filter(|kind| self.is_wanted(kind)) else { return };
        if let Some(header) = read() {
            self.learned.write().unwrap_or_else(PoisonError::into_inner).insert(kind, header);
        }
    }

    /// The header of a chunk whose shape the caller states. Other chunks of its kind then get the same
    /// shape.
    pub(super) fn stated(
        &self,
        id: &KeyId,
        bytes: u64,
        shape: &ChunkShape,
    ) -> Result<GdsHeader, String> {
        let kind = Kind::of(id).ok_or("its mode has no such files")?;
        let header = shape.header(element(shape.dtype.unwrap_or(kind.3))?, bytes);
        let header = header.ok_or_else(|| {
            format!("{bytes} bytes are not whole tokens of the given shape {shape}")
        })?;
        // What a caller states is known for saves that state nothing.
        if self.is_wanted(&kind) {
            self.learned
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(kind, header.clone());
        }
        Ok(header)
    }

    /// `None` where the shape of its kind is unknown.
    pub(super) fn header(&self, id: &KeyId, bytes: u64) -> Result<Option<GdsHeader>, String> {
        let kind = Kind::of(id).ok_or("its mode has no such files")?;
        let element = element(kind.3)?;
        // The configured shape is that of a chunk of all layers. Layerwise chunks have another.
        if let Some(shape) = self.given.as_ref().filter(|_| !kind.4) {
            let of_it = shape.header(element, bytes);
            let why = || {
                format!(
                    "{bytes} bytes are no whole tokens of a chunk of shape {shape}; correct `shape`"
                )
            };
            return of_it.map(Some).ok_or_else(why);
        }
        let learned = self.learned.read().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = learned.get(&kind) else { return Ok(None) };
        let why = || {
            format!("{bytes} bytes do not fit what other files here look like, {:?}", known.shape)
        };
        known.with_payload_bytes(bytes).map(Some).ok_or_else(why)
    }

    /// The known shapes, for the status.
    pub(super) fn describe(&self) -> String {
        let learned = self.learned.read().unwrap_or_else(PoisonError::into_inner).len();
        match (&self.given, learned) {
            (Some(given), _) => format!("shape known: {given}"),
            (None, 0) => {
                "shape missing: a save must give it, until files here state it; or set `shape`"
                    .into()
            }
            (None, 1) => "shape learned of 1 kind of chunks".into(),
            (None, kinds) => format!("shape learned of {kinds} kinds of chunks"),
        }
    }
}

fn element(dtype: DType) -> Result<GdsElement, String> {
    GdsElement::from_dtype(dtype)
        .ok_or_else(|| format!("LMCache writes no elements of type {dtype}"))
}
