//! Why a payload could not be encoded or decoded.

use std::fmt;

/// What a caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call cannot succeed as it is: a buffer too short, a payload too long, a chain of stages
    /// in the wrong order.
    Invalid,
    /// The stored bytes are no encoding of what was announced: a miss, and the chunk is suspect.
    Corrupt,
    /// No such stage in this build, or a version of its frame that this build does not read: a
    /// miss, and the chunk is not suspect.
    Unsupported,
    /// The key with the chunk's id is not loaded: a miss, and the chunk is not suspect.
    KeyMissing,
    /// A key has encrypted as many chunks as it may: rotate it.
    KeyExhausted,
}

/// Why a payload could not be encoded or decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<(ErrorKind, String)>);

impl Error {
    pub(crate) fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Error(Box::new((kind, what.into())))
    }

    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Error::new(ErrorKind::Corrupt, what)
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Error::new(ErrorKind::Invalid, what)
    }

    pub(crate) fn unsupported(what: impl Into<String>) -> Self {
        Error::new(ErrorKind::Unsupported, what)
    }

    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.0.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.1)
    }
}

impl std::error::Error for Error {}
