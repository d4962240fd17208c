//! Where the shapes of chunks come from, in layouts whose files state them.

use std::fmt;

use kvtier_core::{Error, ErrorKind};
use kvtier_file::inspect::Directory;
use kvtier_key::ChunkShape;

use super::{Config, FileSpec, TierSpec};

/// What is known of the shape of a tier's chunks before it opens. Its text begins with `known`,
/// `learned` or `missing`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShapeState {
    /// The configuration states it.
    Known(ChunkShape),
    /// It is learned from files that are already in the directory: this is the shape of one of
    /// them.
    Files(ChunkShape),
    /// It is learned from the first save: the caller of saves states it.
    Saves,
    /// It is missing: only a caller that states the shape with a save can save.
    Missing,
}

impl fmt::Display for ShapeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShapeState::Known(shape) => write!(f, "known: {shape}"),
            ShapeState::Files(shape) => write!(f, "learned from files that are there: {shape}"),
            ShapeState::Saves => f.write_str("learned from the first save, whose caller states it"),
            ShapeState::Missing => f.write_str("missing"),
        }
    }
}

impl FileSpec {
    /// Where the shape of the tier's chunks comes from; `None` in layouts whose files do not state
    /// it. Looks into the directory.
    pub fn shape_state(&self) -> Option<ShapeState> {
        let layout = self.layout.filter(|layout| layout.has_headers())?;
        if let Some(shape) = &self.shape {
            return Some(ShapeState::Known(shape.clone()));
        }
        // A directory that cannot be read states nothing; opening it says why.
        let found = Directory::find_shape(&self.path, layout).ok().flatten();
        Some(match found {
            Some(shape) => ShapeState::Files(shape),
            None if self.saves_state_shape => ShapeState::Saves,
            None => ShapeState::Missing,
        })
    }
}

impl TierSpec {
    /// See [`FileSpec::shape_state`]; `None` for tiers without files.
    pub fn shape_state(&self) -> Option<ShapeState> {
        self.files().and_then(FileSpec::shape_state)
    }

    /// The settings of its directory, if it has one.
    pub(super) fn files(&self) -> Option<&FileSpec> {
        match self {
            TierSpec::File(spec) => Some(spec),
            #[cfg(feature = "gds")]
            TierSpec::Gds(spec) => Some(&spec.file),
            _ => None,
        }
    }
}

impl Config {
    /// Checks that every tier whose files state the shape of their chunks has a source for it.
    ///
    /// # Errors
    /// `Invalid` for a tier whose shape is missing. It opens all the same: a caller that states the
    /// shape with each save can use it ([`Ctx::with_shape`](kvtier_core::Ctx::with_shape)).
    pub fn check_shapes(&self) -> Result<(), Error> {
        let missing =
            self.tiers.iter().position(|tier| tier.shape_state() == Some(ShapeState::Missing));
        let Some(spec) = missing.and_then(|at| self.tiers[at].files()) else { return Ok(()) };
        let what = format!(
            "the shape of chunks in {} is missing: files of layout {} state it, no file there does yet, and nothing else says it, so that \
             nothing could be saved; write the shape of a full chunk, such as extra_config: {{kvtier.gds_shape: 2x32x256x1024}} in LMCache's \
             file or \"shape\": \"2x32x256x1024\" in the tier (keys and values, layers, tokens, elements of all heads)",
            spec.path.display(),
            spec.layout.unwrap_or_default()
        );
        Err(Error::new(ErrorKind::Invalid, what))
    }
}
