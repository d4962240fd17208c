//! The space of a file system.

use std::path::Path;

use anyhow::{Context, Result};

/// Bytes of a file system.
pub struct Space {
    /// All of them.
    pub all: u64,
    /// Those that are free for us.
    pub free: u64,
}

impl Space {
    /// What a file tier keeps free if nothing else is said: one hundredth, at most 1 GiB.
    pub fn reserve(&self) -> u64 {
        (self.all / 100).min(1 << 30)
    }
}

/// The file system that `path` is on, or will be once it is made.
pub fn of(path: &Path) -> Result<Space> {
    // The directory may not exist yet. The one above it is on the same file system.
    let there = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    let stat = nix::sys::statvfs::statvfs(there)
        .with_context(|| format!("cannot look at {}", there.display()))?;
    Ok(Space {
        all: stat.blocks() * stat.fragment_size(),
        // What an unprivileged process may use: root's reserve is left out.
        free: stat.blocks_available() * stat.fragment_size(),
    })
}
