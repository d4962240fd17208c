//! Configuration of the GPU tier.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use kvtier_core::{Error, ErrorKind};
use kvtier_disk::DiskConfig;
use kvtier_uring::EngineKind;

const MIB: usize = 1 << 20;

/// Whether cuFile is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CufileMode {
    /// Never.
    Off,
    /// If it works without host memory; otherwise pinned memory is used, and the status names the
    /// reason.
    #[default]
    Auto,
    /// As `Auto`, but a tier that cannot use it is not opened.
    Require,
}

/// Which loads by cuFile are verified. Loads through pinned memory always are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Proof {
    /// All: the GPU computes the checksums, or the bytes are copied back and verified in host memory.
    #[default]
    Always,
    /// Every n-th load; the others are counted as `unverified_loads`.
    Sample(u32),
    /// None; all are counted.
    Off,
}

impl FromStr for CufileMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "off" => Ok(CufileMode::Off),
            "auto" => Ok(CufileMode::Auto),
            "require" => Ok(CufileMode::Require),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!("no cuFile mode {text:?}; choose off, auto or require"),
            )),
        }
    }
}

/// `sample` verifies one load in this number.
const SAMPLE_INTERVAL: u32 = 16;

impl FromStr for Proof {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "always" => Ok(Proof::Always),
            "sample" => Ok(Proof::Sample(SAMPLE_INTERVAL)),
            "off" => Ok(Proof::Off),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!("no proof {text:?}; choose always, sample or off"),
            )),
        }
    }
}

/// How to open a GPU tier.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GdsConfig {
    /// The directory and its settings, as for a file tier.
    pub disk: DiskConfig,
    /// Whether cuFile is used. `Auto` is decided once, at the first transfer with GPU memory.
    pub cufile: CufileMode,
    /// The GPU with which `cufile` is decided when the tier opens. By default no GPU is used before
    /// the first transfer, since a process that uses a GPU occupies memory there;
    /// `CufileMode::Require` uses GPU 0.
    pub gpu: Option<u32>,
    /// Which loads by cuFile are verified.
    pub proof: Proof,
    /// The path of libcufile, if it is not where packages and wheels install it.
    pub cufile_library: Option<PathBuf>,
    /// Whether cuFile may be used in compatibility mode, where it goes through host memory. For
    /// measurements.
    pub compat: bool,
    /// The timeout (5 s) for opening cuFile's driver, for the probe of the directory, for loading the
    /// checksum kernel, and on close for calls of the GPU's libraries that have not returned.
    pub open_timeout: Duration,
    /// The directory with the `/proc`, `/sys`, `/dev` and `/run` that are checked before cuFile is
    /// used: `/`. With another one, for tests, every file system passes.
    pub system_root: PathBuf,
    /// The I/O engine.
    pub engine: EngineKind,
    /// Bytes per read for loads to a GPU (4 MiB; 64 KiB to 64 MiB, whole pages).
    pub piece_bytes: usize,
    /// Pieces of one chunk that are read or copied at a time (3).
    pub read_ahead_pieces: usize,
    /// Bytes of pinned memory for loads (64 MiB), shared by all loads; at least one piece.
    pub buffer_bytes: usize,
    /// Bytes of pinned memory for saves (256 MiB), which is also the longest chunk that can be saved
    /// from a GPU.
    pub staging_bytes: usize,
    /// Threads per GPU (4).
    pub threads: usize,
}

impl GdsConfig {
    /// A tier in the directory `path`, created if missing, of at most `capacity_bytes` with padding
    /// and footers. Pinned memory is allocated at the first transfer with GPU memory.
    pub fn new(path: impl Into<PathBuf>, capacity_bytes: u64) -> Self {
        let mut disk = DiskConfig::new(path, capacity_bytes);
        disk.name = "gds".into();
        GdsConfig {
            disk,
            cufile: CufileMode::Auto,
            gpu: None,
            proof: Proof::Always,
            cufile_library: None,
            compat: false,
            open_timeout: Duration::from_secs(5),
            system_root: "/".into(),
            engine: EngineKind::Auto,
            piece_bytes: 4 * MIB,
            read_ahead_pieces: 3,
            buffer_bytes: 64 * MIB,
            staging_bytes: 256 * MIB,
            threads: 4,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let bad = |what: String| Err(Error::new(ErrorKind::Invalid, what));
        let piece = self.piece_bytes;
        if !(64 * 1024..=64 * MIB).contains(&piece) || !piece.is_multiple_of(4096) {
            return bad(format!(
                "piece_bytes is {piece}; choose a multiple of 4096 between 64 KiB and 64 MiB"
            ));
        }
        if self.buffer_bytes < piece {
            return bad(format!(
                "buffer_bytes is {}, less than one piece of {piece}; make it larger",
                self.buffer_bytes
            ));
        }
        if self.staging_bytes < 4096 {
            return bad(format!(
                "staging_bytes is {}; give at least the length of a chunk",
                self.staging_bytes
            ));
        }
        if self.proof == Proof::Sample(0) {
            return bad("a sample of one in 0 loads is none; choose at least 1, or off".into());
        }
        if !(1..=64).contains(&self.read_ahead_pieces) || !(1..=64).contains(&self.threads) {
            return bad("read_ahead_pieces and threads are 1 to 64".into());
        }
        Ok(())
    }
}
