use std::path::PathBuf;

use kvtier_core::{Error, ErrorKind};
use kvtier_disk::DiskConfig;
use kvtier_uring::EngineKind;

const MIB: usize = 1 << 20;

/// How to open a GPU tier.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GdsConfig {
    /// The directory and what is kept there; the same as for a file tier.
    pub disk: DiskConfig,
    /// What reads and writes files.
    pub engine: EngineKind,
    /// Bytes that are read at once on their way to a GPU (4 MiB; 64 KiB to 64 MiB, whole pages).
    pub piece_bytes: usize,
    /// How many pieces of one chunk are read or copied at a time (3).
    pub pieces_ahead: usize,
    /// Pinned memory for loads, in bytes (64 MiB); at least one piece. All loads share it.
    pub buffer_bytes: usize,
    /// Pinned memory for saves, in bytes (256 MiB), and so the longest chunk that can be saved from a GPU.
    pub staging_bytes: usize,
    /// Threads for each GPU (4).
    pub threads: usize,
}

impl GdsConfig {
    /// A tier in the directory `path` (made if it is not there) of at most `capacity_bytes`, padding and footers included. Pinned memory is
    /// taken when GPU memory is first loaded or saved.
    pub fn new(path: impl Into<PathBuf>, capacity_bytes: u64) -> Self {
        let mut disk = DiskConfig::new(path, capacity_bytes);
        disk.name = "gds".into();
        GdsConfig {
            disk,
            engine: EngineKind::Auto,
            piece_bytes: 4 * MIB,
            pieces_ahead: 3,
            buffer_bytes: 64 * MIB,
            staging_bytes: 256 * MIB,
            threads: 4,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let bad = |what: String| Err(Error::new(ErrorKind::Invalid, what));
        let piece = self.piece_bytes;
        if !(64 * 1024..=64 * MIB).contains(&piece) || !piece.is_multiple_of(4096) {
            return bad(format!("piece_bytes is {piece}; choose a multiple of 4096 between 64 KiB and 64 MiB"));
        }
        if self.buffer_bytes < piece {
            return bad(format!(
                "buffer_bytes is {}, less than one piece of {piece}; make it larger",
                self.buffer_bytes
            ));
        }
        if self.staging_bytes < 4096 {
            return bad(format!("staging_bytes is {}; give at least the length of a chunk", self.staging_bytes));
        }
        if !(1..=64).contains(&self.pieces_ahead) || !(1..=64).contains(&self.threads) {
            return bad("pieces_ahead and threads are 1 to 64".into());
        }
        Ok(())
    }
}
