use std::fmt;

/// What the caller can do about an [`Error`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Nothing that large is free now: wait, evict, or ask for less.
    Full {
        /// Free bytes in all.
        free: usize,
        /// The largest run that could be leased now, in bytes.
        largest: usize,
    },
    /// The request can never succeed: fix the argument.
    Invalid,
    /// This machine or build cannot do it.
    Unsupported,
    /// The kernel refused; the source says why.
    Io,
}

/// An error of this crate.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    what: String,
    source: Option<std::io::Error>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Error { kind, what: what.into(), source: None }
    }

    pub(crate) fn with_source(mut self, source: std::io::Error) -> Self {
        self.source = Some(source);
        self
    }

    /// Adds the cause and what to do about it. A message then reads "what failed: cause; next
    /// step".
    pub(crate) fn with_cause(self, cause: std::io::Error, next_step: &str) -> Self {
        self.with_source(std::io::Error::new(cause.kind(), format!("{cause}; {next_step}")))
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}
