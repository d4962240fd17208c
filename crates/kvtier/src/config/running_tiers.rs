//! The running tiers of a configuration.

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Error, Tier};

use super::{Config, KeyListing};
use crate::metrics::MonitoredTier;

/// The tiers of a configuration, running.
#[derive(Debug)]
pub struct OpenTiers {
    /// All tiers as one.
    pub top: Arc<dyn Tier>,
    /// Each tier, fastest first.
    pub tiers: Vec<Arc<dyn Tier>>,
    pub(super) shown: Vec<MonitoredTier>,
    #[cfg(feature = "file")]
    pub(super) files: Vec<Arc<kvtier_file::FileTier>>,
    #[cfg(feature = "gds")]
    pub(super) gds: Vec<Arc<kvtier_gds::GdsTier>>,
    #[cfg(feature = "s3")]
    pub(super) s3: Vec<Arc<kvtier_s3_tier::S3Tier>>,
    pub(super) config: Config,
}

impl OpenTiers {
    /// The tiers and the stack over them, for metrics.
    pub fn monitored(&self) -> &[MonitoredTier] {
        &self.shown
    }

    /// Checks for at most this long that each bucket exists and can be used. Returns the problems that
    /// it found, with a remedy: `Invalid` for a bucket that does not exist. The tiers retry by
    /// themselves.
    pub fn check(&self, time: Duration) -> Vec<Error> {
        #[cfg(feature = "s3")]
        {
            let ctx = kvtier_core::Ctx::within(time);
            let asked: Vec<_> = self.s3.iter().map(|s3| s3.check(&ctx)).collect();
            asked.into_iter().filter_map(|asked| asked.wait().err()).collect()
        }
        #[cfg(not(feature = "s3"))]
        {
            let _ = time;
            Vec::new()
        }
    }

    /// Registers an arena's memory with the I/O engines of file tiers, which makes transfers to and
    /// from it cheaper. It is optional. Returns the result for each file tier in words.
    #[cfg(feature = "file")]
    pub fn register(&self, arena: &kvtier_mem::Arena) -> Result<Vec<String>, Error> {
        let one = |file: &Arc<kvtier_file::FileTier>| {
            Ok(format!("{}: {}", file.caps().name, file.register(arena)?.reason))
        };
        let files = self.files.iter().map(one);
        #[cfg(feature = "gds")]
        let files = files.chain(
            self.gds
                .iter()
                .map(|gds| Ok(format!("{}: {}", gds.caps().name, gds.register(arena)?.reason))),
        );
        files.collect()
    }

    /// Registers an arena on a GPU with cuFile, where a tier uses it. It is optional. Returns the
    /// result for each GPU tier in words.
    #[cfg(feature = "gds")]
    pub fn register_gpu(&self, arena: &kvtier_mem::Arena) -> Vec<String> {
        let one = |gds: &Arc<kvtier_gds::GdsTier>| {
            let came = gds.register_gpu(arena);
            format!("{}: {} bytes: {}", gds.caps().name, came.bytes, came.reason)
        };
        self.gds.iter().map(one).collect()
    }

    /// Lists the keys of the slowest tier, which gets every chunk.
    ///
    /// # Errors
    /// `Unsupported` if its medium has no keys, only digests of them.
    pub fn list_keys(&self) -> Result<KeyListing, Error> {
        let slowest = self.config.tiers.last();
        #[cfg(feature = "s3")]
        if let (Some(super::TierSpec::S3(_)), Some(tier)) = (slowest, self.s3.last()) {
            return KeyListing::of_bucket(tier);
        }
        KeyListing::of(slowest)
    }
}
