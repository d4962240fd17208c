//! A directory of a file tier, seen from outside.

mod chunk_infos;

use std::path::Path;

use anyhow::{Context, Result};
use kvtier::file::inspect::{ChunkName, Directory};

use crate::BadInput;

pub use chunk_infos::{InfoReader, written_s};

/// Opens a directory in the layout of its manifest, of the arguments, or of its file names.
pub fn open_as(path: &Path, layout: Option<&str>) -> Result<Directory> {
    if let Some(layout) = layout {
        let layout = layout.parse().map_err(crate::cannot_open)?;
        return Ok(Directory::open_as(path, layout).map_err(crate::cannot_open)?);
    }
    if !path.exists() {
        return Err(BadInput(format!("{} does not exist; check the path", path.display())).into());
    }
    // With `.kvtier` the manifest decides, and its absence there is an error. Without it another
    // program wrote the directory.
    let guessed = if path.join(".kvtier").exists() {
        None
    } else {
        Directory::detect_layout(path).ok().flatten()
    };
    let Some(layout) = guessed else {
        return Ok(Directory::open(path).map_err(crate::cannot_open)?);
    };
    eprintln!(
        "kvtier: {} has no manifest; its names are those of layout {layout} (--layout says otherwise)",
        path.display()
    );
    Ok(Directory::open_as(path, layout).map_err(crate::cannot_open)?)
}

/// The chunks of a directory, in no order.
pub fn listed(dir: &Directory, path: &Path) -> Result<Vec<ChunkName>> {
    dir.chunks().with_context(|| format!("cannot list {}", path.display()))
}
