//! The directory of a replay.

use std::path::Path;

use anyhow::Result;
use kvtier::config::{Config, ConfigReader, TierSpec};
use kvtier::file::Layout;
use kvtier::file::inspect::Scratch;

use super::{ReplayArgs, size};
use crate::BadInput;
use crate::json::json;

/// The directories of the configuration, one directory that is kept, or a temporary one that is
/// removed on drop.
pub enum WorkDir {
    Config,
    Kept(std::path::PathBuf),
    Temporary(Scratch),
}

impl WorkDir {
    pub fn choose(args: &ReplayArgs) -> Result<Self, BadInput> {
        if args.config.is_some() {
            return Ok(WorkDir::Config);
        }
        if let Some(path) = &args.path {
            return Ok(WorkDir::Kept(path.clone()));
        }
        // Also removes the directories of replays that were killed.
        let made = Scratch::new(&std::env::temp_dir(), "replay");
        made.map(WorkDir::Temporary).map_err(|e| {
            BadInput(format!(
                "cannot make a temporary directory in {}: {e}; set TMPDIR, or name a directory with --path",
                std::env::temp_dir().display()
            ))
        })
    }

    /// The file tier's directory, unless the configuration states it.
    pub fn files(&self) -> Option<&Path> {
        match self {
            WorkDir::Config => None,
            WorkDir::Kept(path) => Some(path),
            WorkDir::Temporary(dir) => Some(dir.path()),
        }
    }

    /// The tiers, for blocks of `chunk` bytes.
    pub fn config(&self, args: &ReplayArgs, chunk: usize) -> Result<Config> {
        if let Some(file) = &args.config {
            let read = ConfigReader::new().file(file).map_err(crate::cannot_open)?;
            read.notes.iter().for_each(|note| eprintln!("kvtier: {note}"));
            let mut config = read.config;
            for tier in &mut config.tiers {
                let file = match tier {
                    TierSpec::File(spec) => spec,
                    TierSpec::Gds(spec) => &mut spec.file,
                    _ => continue,
                };
                // The flag allows what the configuration may forbid: a smaller cap than the
                // directory had.
                file.shrink |= args.shrink;
                if file.layout.is_some_and(Layout::has_headers) {
                    // The blocks are no tensors of the configuration's model: rows of bytes, as
                    // their keys say.
                    file.shape = Some([1, 1, 1, chunk as u64].into());
                }
            }
            return Ok(config);
        }
        let host = size("--host-bytes", &args.host_bytes)?;
        let file = args.file_cap()?;
        let host = json!({"type": "host", "bytes": host});
        let files = json!({"type": "file", "path": ".", "bytes": file, "shrink": args.shrink});
        let mut config =
            Config::from_json(&json!({"tiers": [host, files]}).to_string(), "the command line")?;
        // Not by way of the text: a directory's name need not be UTF-8.
        for tier in &mut config.tiers {
            if let (TierSpec::File(spec), Some(path)) = (tier, self.files()) {
                path.clone_into(&mut spec.path);
            }
        }
        Ok(config)
    }
}
