//! Tiers that a configuration opened.

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Error, Tier};

use super::{Config, KeyListing};
use crate::metrics::MonitoredTier;

/// The tiers of a configuration, running.
#[derive(Debug)]
pub struct OpenTiers {
    /// All of it as one tier.
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
    /// The tiers and the stack over them, as their metrics show them.
    pub fn monitored(&self) -> &[MonitoredTier] {
        &self.shown
    }

    /// Asks the store of each bucket whether the bucket is there, for at most this long. What keeps
    /// a tier from working, with what to do: `Invalid` where the bucket does not exist; empty
    /// where nothing does. The tiers try again by themselves.
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

    /// Registers an arena's memory with the engines that move files, so that what lies in it moves
    /// with less work. Without, everything works as well. Says for each tier of files what came
    /// of it.
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

    /// Registers an arena on a GPU with cuFile, where a tier uses it; without, everything works as
    /// well. Says for each GPU tier what came of it.
    #[cfg(feature = "gds")]
    pub fn register_gpu(&self, arena: &kvtier_mem::Arena) -> Vec<String> {
        let one = |gds: &Arc<kvtier_gds::GdsTier>| {
            let came = gds.register_gpu(arena);
            format!("{}: {} bytes: {}", gds.caps().name, came.bytes, came.reason)
        };
        self.gds.iter().map(one).collect()
    }

    /// The keys of the slowest tier, through which everything passes. `Unsupported` where its
    /// medium does not tell whose chunk is whose.
    pub fn list_keys(&self) -> Result<KeyListing, Error> {
        let slowest = self.config.tiers.last();
        #[cfg(feature = "s3")]
        if let (Some(super::TierSpec::S3(_)), Some(tier)) = (slowest, self.s3.last()) {
            return KeyListing::of_bucket(tier);
        }
        KeyListing::of(slowest)
    }
}
