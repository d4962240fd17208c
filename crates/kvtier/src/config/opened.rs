//! Tiers that a configuration opened.

use std::sync::Arc;

use kvtier_core::{Error, Tier};

use super::{Config, Names};
use crate::metrics::Shown;

/// The tiers of a configuration, running.
#[derive(Debug)]
pub struct Opened {
    /// All of it as one tier.
    pub top: Arc<dyn Tier>,
    /// Each tier, fastest first.
    pub tiers: Vec<Arc<dyn Tier>>,
    pub(super) shown: Vec<Shown>,
    #[cfg(feature = "file")]
    pub(super) files: Vec<Arc<kvtier_file::FileTier>>,
    pub(super) config: Config,
}

impl Opened {
    /// The tiers and the stack over them, as their metrics show them.
    pub fn shown(&self) -> &[Shown] {
        &self.shown
    }

    /// Registers an arena's memory with the engines that move files, so that what lies in it moves with less work. Without, everything works
    /// as well. Says for each tier of files what came of it.
    #[cfg(feature = "file")]
    pub fn register(&self, arena: &kvtier_mem::Arena) -> Result<Vec<String>, Error> {
        let one =
            |file: &Arc<kvtier_file::FileTier>| Ok(format!("{}: {}", file.caps().name, file.register(arena)?.reason));
        self.files.iter().map(one).collect()
    }

    /// The keys of the slowest tier, through which everything passes. `Unsupported` where its medium does not tell whose chunk is whose.
    pub fn names(&self) -> Result<Names, Error> {
        Names::of(self.config.tiers.last())
    }
}
