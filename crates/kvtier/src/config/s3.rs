//! A bucket in the configuration.

use kvtier_core::Error;

use super::TierSpec;
use super::lmcache::Adapter;

#[cfg(feature = "s3")]
mod from_adapter;
#[cfg(feature = "aws-config")]
mod lazy_chain;
#[cfg(feature = "s3")]
mod open;
#[cfg(feature = "s3")]
mod spec;

#[cfg(feature = "s3")]
pub use spec::S3Spec;

/// The tier that an object of type `s3` is.
#[cfg(feature = "s3")]
pub(super) fn spec(adapter: &Adapter) -> Result<TierSpec, Error> {
    from_adapter::of(adapter).map(|spec| TierSpec::S3(Box::new(spec)))
}

#[cfg(not(feature = "s3"))]
pub(super) fn spec(adapter: &Adapter) -> Result<TierSpec, Error> {
    let what =
        format!("{}: this build has no S3 tier; build with the feature `s3`", adapter.place());
    Err(Error::new(kvtier_core::ErrorKind::Unsupported, what))
}
