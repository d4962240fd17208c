//! The file tier of a directory in LMCache's settings.

use kvtier_core::Error;
#[cfg(not(feature = "file"))]
use kvtier_core::ErrorKind;

use crate::config::TierSpec;

/// The tier in this directory, in LMCache's layout or in kvtier's own.
#[cfg(feature = "file")]
pub(super) fn file(
    path: impl Into<std::path::PathBuf>,
    bytes: Option<u64>,
    lmcache: bool,
) -> Result<TierSpec, Error> {
    use crate::config::{Capacity, FileSpec};
    let mut spec = FileSpec::new(path, bytes.map_or(Capacity::Share(1.0), Capacity::Bytes));
    spec.layout = lmcache.then_some(kvtier_file::Layout::Lmcache);
    Ok(TierSpec::File(spec))
}

#[cfg(not(feature = "file"))]
pub(super) fn file(
    path: impl Into<std::path::PathBuf>,
    _: Option<u64>,
    _: bool,
) -> Result<TierSpec, Error> {
    let path = path.into();
    let what =
        format!("{}: this build has no file tier; build with the feature `file`", path.display());
    Err(Error::new(ErrorKind::Unsupported, what))
}
