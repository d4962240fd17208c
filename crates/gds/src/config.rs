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
    /// Where it works without going through host memory; else pinned memory, and the tier says why.
    #[default]
    Auto,
    /// As `Auto`, but a tier that cannot use it is not opened.
    Require,
}

/// Which loads by cuFile are compared with their checksums. Loads through pinned memory always are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Proof {
    /// All: the GPU takes the checksums of what arrived there, or it is copied back for them.
    #[default]
    Always,
    /// Every n-th; the others are counted as `unverified_loads`.
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

/// One load of so many is compared under `sample`.
const SAMPLE: u32 = 16;

impl FromStr for Proof {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "always" => Ok(Proof::Always),
            "sample" => Ok(Proof::Sample(SAMPLE)),
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
    /// The directory and what is kept there; the same as for a file tier.
    pub disk: DiskConfig,
    /// Whether cuFile is used; what follows from it is decided once, when memory of a GPU first
    /// comes by.
    pub cufile: CufileMode,
    /// The GPU with which that is decided at the start instead. Each GPU that a process touches
    /// costs memory there, so by default none is touched before it has to be; `CufileMode::Require`
    /// takes GPU 0.
    pub gpu: Option<u32>,
    /// Which loads by cuFile are compared with their checksums.
    pub proof: Proof,
    /// Where libcufile lies, if not where packages and wheels put it.
    pub cufile_library: Option<PathBuf>,
    /// Whether cuFile may be used in compatibility mode, where it goes through host memory: for
    /// comparisons.
    pub compat: bool,
    /// The longest that cuFile's driver may take to open, and to prove itself in a directory, and
    /// a GPU to prove that it takes checksums; and that closing waits for calls of the GPU's
    /// libraries that are under way (5 s).
    pub open_timeout: Duration,
    /// Where `/proc`, `/dev` and `/run` are looked at before cuFile is used: `/`, but for tests,
    /// for which every file system will do.
    pub system_root: PathBuf,
    /// What reads and writes files.
    pub engine: EngineKind,
    /// Bytes that are read at once on their way to a GPU (4 MiB; 64 KiB to 64 MiB, whole pages).
    pub piece_bytes: usize,
    /// How many pieces of one chunk are read or copied at a time (3).
    pub read_ahead_pieces: usize,
    /// Pinned memory for loads, in bytes (64 MiB); at least one piece. All loads share it.
    pub buffer_bytes: usize,
    /// Pinned memory for saves, in bytes (256 MiB), and so the longest chunk that can be saved
    /// from a GPU.
    pub staging_bytes: usize,
    /// Threads for each GPU (4).
    pub threads: usize,
}

impl GdsConfig {
    /// A tier in the directory `path` (made if it is not there) of at most `capacity_bytes`,
    /// padding and footers included. Pinned memory is taken when GPU memory is first loaded or
    /// saved.
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
