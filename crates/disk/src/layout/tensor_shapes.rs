//! The shapes of chunks in a directory with headers: keys do not contain the shape of the tensor, and
//! LMCache needs it to load a chunk.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use kvtier_core::{Error, ErrorKind};
use kvtier_key::{ChunkShape, DType, GdsElement, GdsHeader, Key, KeyId};

use super::Foreign;

/// The most kinds of chunks whose shapes are remembered.
const KINDS_MAX: usize = 4096;

const UNKNOWN: &str = "the shape of its tensor is unknown, which LMCache needs to load it, and no file here states it: give the shape with the \
    save, or set `shape` to that of a full chunk, such as 2x32x256x1024 (keys and values, layers, tokens, elements)";

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

/// Why a chunk can have no header.
#[derive(Debug)]
pub enum Unshaped {
    /// The shape is unknown, and the sweep may still find it.
    Yet,
    /// The shape cannot be found with this configuration.
    Never(Error),
}

/// The known shapes.
#[derive(Debug, Default)]
pub struct Shapes {
    given: Option<ChunkShape>,
    learned: RwLock<HashMap<Kind, GdsHeader>>,
}

impl Shapes {
    pub fn new(given: Option<ChunkShape>) -> Self {
        Shapes { given, learned: RwLock::default() }
    }

    /// Whether the shape of this kind of chunks should be learned from stored files.
    fn is_wanted(&self, kind: &Kind) -> bool {
        let given = self.given.is_some() && !kind.4;
        let learned = self.learned.read().unwrap_or_else(PoisonError::into_inner);
        !given && learned.len() < KINDS_MAX && !learned.contains_key(kind)
    }

    /// The header of a chunk whose shape the caller states. Other chunks of its kind then get the same
    /// shape.
    fn stated(&self, id: &KeyId, bytes: u64, shape: &ChunkShape) -> Result<GdsHeader, String> {
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
    fn header(&self, id: &KeyId, bytes: u64) -> Result<Option<GdsHeader>, String> {
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

impl Foreign {
    /// Learns the shape of a kind of chunks from a file's header, unless it is known. `read` reads the
    /// header.
    pub fn learn_shape(&self, id: &KeyId, read: impl FnOnce() -> Option<GdsHeader>) {
        let Some(kind) =
            Kind::of(id).filter(|kind| self.layout.has_headers() && self.shapes.is_wanted(kind))
        else {
            return;
        };
        if let Some(header) = read() {
            self.shapes
                .learned
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(kind, header);
        }
    }

    /// The header of a chunk of `bytes` bytes, of the `stated` shape if there is one; `None` in a layout
    /// without headers.
    pub fn header(
        &self,
        key: &Key,
        bytes: u64,
        stated: Option<&ChunkShape>,
    ) -> Result<Option<Vec<u8>>, Unshaped> {
        if !self.layout.has_headers() {
            return Ok(None);
        }
        let refused = |why: String| {
            let what = format!("layout {}: the chunk can have no header: {why}", self.layout);
            Unshaped::Never(Error::new(ErrorKind::Unsupported, what).with_key(*key.digest()))
        };
        let header = match stated {
            Some(shape) => self.shapes.stated(key.id(), bytes, shape).map(Some),
            None => self.shapes.header(key.id(), bytes),
        };
        match header {
            Ok(Some(header)) => header.encode().map(Some).map_err(|e| refused(e.to_string())),
            // The sweep may still find a file that states the shape.
            Ok(None) if !self.is_swept() => Err(Unshaped::Yet),
            // After the sweep no file here states it: a file without a header would be invisible
            // for LMCache, so the save is refused.
            Ok(None) => Err(refused(UNKNOWN.into())),
            Err(why) => Err(refused(why)),
        }
    }
}
