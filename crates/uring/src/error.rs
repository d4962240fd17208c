use std::fmt;
use std::io;

/// The failure of a job or an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The kernel refused; [`Error::raw_os_error`] says why.
    Io,
    /// The file ended before the job did.
    ShortRead {
        /// Bytes read, counting each part up to its first gap.
        got: u64,
    },
    /// The job can never succeed: fix it.
    Invalid,
    /// This machine cannot do it.
    Unsupported,
    /// The engine was closed before the job ended.
    Closed,
}

/// An error of this crate.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    what: String,
    source: Option<io::Error>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Error { kind, what: what.into(), source: None }
    }

    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Error { kind: ErrorKind::Io, what: what.into(), source: Some(source) }
    }

    pub(crate) fn closed() -> Self {
        Error::new(ErrorKind::Closed, "the I/O engine was closed before the job ended")
    }

    pub(crate) fn short_read(got: u64) -> Self {
        Error::new(
            ErrorKind::ShortRead { got },
            format!("the file ended after {got} bytes of what was to be read"),
        )
    }

    /// The kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The kernel's error number, if it was the kernel.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.source.as_ref()?.raw_os_error()
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
