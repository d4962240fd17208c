//! Whether loaded chunks differ from what the model computed, by the settings in force.

use std::path::PathBuf;

use kvtier::config::ConfigReader;

use super::finding::Finding;
use crate::BadInput;

/// The variable by which LMCache finds its configuration.
const LMCACHE_FILE: &str = "LMCACHE_CONFIG_FILE";

/// The configuration whose lossy settings are reported.
#[derive(clap::Args)]
pub struct LossyArgs {
    /// A configuration as `kvtier config check` takes it: its settings that make loaded chunks differ
    /// from saved ones are reported. Without it that of LMCACHE_CONFIG_FILE, if it is set.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl LossyArgs {
    /// What the settings in force do to values; nothing without a configuration.
    ///
    /// # Errors
    /// The configuration that was named cannot be read.
    pub fn findings(&self) -> Result<Vec<Finding>, BadInput> {
        let reader = ConfigReader::new();
        let (read, name) = match &self.config {
            Some(path) => {
                (Ok(reader.file(path).map_err(crate::cannot_open)?), path.display().to_string())
            }
            None if std::env::var_os(LMCACHE_FILE).is_some_and(|name| !name.is_empty()) => {
                (reader.environment(), LMCACHE_FILE.to_owned())
            }
            None => return Ok(Vec::new()),
        };
        let found = |found: String| Finding::new("lossy settings", found);
        Ok(match read {
            Ok(read) if read.lossy.is_empty() => vec![found(format!("none in {name}"))],
            Ok(read) => read
                .lossy
                .into_iter()
                .map(|setting| found(setting).advising(true, ADVICE))
                .collect(),
            Err(e) => vec![found(format!("{name} cannot be read: {}", crate::cannot_open(e).0))],
        })
    }
}

pub(super) const ADVICE: &str = "loads do not give the bytes that were saved; compare the model's answers before you serve with it";
