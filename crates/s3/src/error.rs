use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What the caller can do next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request can never succeed: fix the argument or the configuration.
    Invalid,
    /// This store cannot do it: use another way.
    Unsupported,
    /// The bucket or the upload does not exist. (An object that does not exist is `None`, not an
    /// error.)
    NotFound,
    /// The object changed or a condition failed during the operation: start again.
    Conflict,
    /// The bytes are not as announced, or their checksum is wrong: treat it as a miss.
    Corrupt,
    /// The connection or the server failed; the source says how.
    Io,
    /// The deadline passed, or nothing moved for too long.
    Timeout,
    /// The store refused us: fix credentials, permissions or the clock.
    Denied,
    /// The store asks us to slow down: wait and retry.
    Throttled,
    /// The endpoint failed repeatedly, so the breaker refuses requests for a short time: use
    /// another tier meanwhile.
    Unavailable,
}

impl ErrorKind {
    fn word(self) -> &'static str {
        match self {
            ErrorKind::Invalid => "invalid",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::NotFound => "not found",
            ErrorKind::Conflict => "conflict",
            ErrorKind::Corrupt => "corrupt",
            ErrorKind::Io => "failed",
            ErrorKind::Timeout => "timed out",
            ErrorKind::Denied => "denied",
            ErrorKind::Throttled => "throttled",
            ErrorKind::Unavailable => "unavailable",
        }
    }
}

/// An error of the client: a kind, what happened in words, and typed context. Pointer-sized.
/// `Display` prints its own layer; the cause is its `source`. Never holds a secret.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    what: Cow<'static, str>,
    op: Option<&'static str>,
    status: Option<u16>,
    code: Option<String>,
    request_id: Option<String>,
    retryable: bool,
    attempts: u32,
    elapsed: Option<Duration>,
    mark: Mark,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// Distinguishes errors within this crate, beside their kind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    None,
    IgnoredRange,
    Foreign,
    Endless,
    WrongChecksum,
}

const _: () = assert!(size_of::<Error>() == size_of::<usize>());

impl Error {
    /// An error that says `what` happened and, where the reader can act, what to do.
    pub fn new(kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Self {
        let retryable = matches!(kind, ErrorKind::Io | ErrorKind::Timeout | ErrorKind::Throttled);
        let op = None;
        let status = None;
        let code = None;
        let request_id = None;
        let source = None;
        let attempts = 0;
        let elapsed = None;
        let what = what.into();
        let mark = Mark::None;
        Error(Box::new(Inner {
            kind,
            what,
            op,
            status,
            code,
            request_id,
            retryable,
            attempts,
            elapsed,
            mark,
            source,
        }))
    }

    /// Adds the operation (`get`, `put`, ...), unless one is there.
    pub fn with_op(mut self, op: &'static str) -> Self {
        self.0.op.get_or_insert(op);
        self
    }

    /// Adds what the store answered.
    pub fn with_answer(
        mut self,
        status: u16,
        code: Option<String>,
        request_id: Option<String>,
    ) -> Self {
        self.0.status = Some(status);
        self.0.code = code;
        self.0.request_id = request_id;
        self
    }

    /// Adds the cause.
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.0.source = Some(Arc::from(source.into()));
        self
    }

    /// Adds how many requests the operation sent and how long it took.
    pub(crate) fn with_attempts(mut self, attempts: u32, elapsed: Duration) -> Self {
        (self.0.attempts, self.0.elapsed) = (attempts, Some(elapsed));
        self
    }

    /// A part of an object was asked for, and the store sent the whole.
    pub(crate) fn ignored_range() -> Self {
        let mut error =
            Error::new(ErrorKind::Unsupported, "the store ignores ranges: read whole objects");
        error.0.mark = Mark::IgnoredRange;
        error
    }

    /// Whether it is [`Error::ignored_range`].
    pub(crate) fn is_ignored_range(&self) -> bool {
        self.0.mark == Mark::IgnoredRange
    }

    /// It was not the store that answered, or not what was asked.
    pub(crate) fn foreign(what: &'static str) -> Self {
        let mut error = Error::new(ErrorKind::Io, what).retryable(true);
        error.0.mark = Mark::Foreign;
        error
    }

    /// A listing that does not end.
    pub(crate) fn endless() -> Self {
        let what = "the store's listing does not end: pages of it come again; list anew later";
        let mut error = Error::new(ErrorKind::Io, what).retryable(true);
        error.0.mark = Mark::Endless;
        error
    }

    /// Whether a listing did not end: its pages came again.
    pub fn is_endless(&self) -> bool {
        self.0.mark == Mark::Endless
    }

    /// The whole body came, and fails the checksum that the store keeps for it.
    pub(crate) fn wrong_checksum() -> Self {
        let what = "the bytes do not have the checksum that the store keeps for them";
        let mut error = Error::new(ErrorKind::Corrupt, what).retryable(true);
        error.0.mark = Mark::WrongChecksum;
        error
    }

    /// Whether a whole body failed the checksum that the store keeps for it. Other retryable errors
    /// of kind [`ErrorKind::Corrupt`] concern the response, and say nothing of the object.
    pub fn is_wrong_checksum(&self) -> bool {
        self.0.mark == Mark::WrongChecksum
    }

    /// Whether it is [`Error::foreign`].
    pub(crate) fn is_foreign(&self) -> bool {
        self.0.mark == Mark::Foreign
    }

    /// Says whether the same request may succeed later, where the kind alone would mislead.
    pub fn retryable(mut self, retryable: bool) -> Self {
        self.0.retryable = retryable;
        self
    }

    /// The error and all its causes in one line, for logs and status texts.
    pub fn report(&self) -> String {
        let causes = std::iter::successors(std::error::Error::source(self), |e| e.source());
        causes.fold(self.to_string(), |text, cause| format!("{text}: {cause}"))
    }

    /// What the caller can do next.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the same request may succeed if it is sent again.
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }

    /// The operation (`get`, `put`, ...), where one was under way.
    pub fn op(&self) -> Option<&'static str> {
        self.0.op
    }

    /// The HTTP status, where the store answered.
    pub fn status(&self) -> Option<u16> {
        self.0.status
    }

    /// S3's error code (`SlowDown`, `AccessDenied`, ...), where the answer had one.
    pub fn code(&self) -> Option<&str> {
        self.0.code.as_deref()
    }

    /// How many requests the operation sent before it failed; 0 when the error is of no operation,
    /// or nothing was sent.
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// How long the operation took, where one was under way.
    pub fn elapsed(&self) -> Option<Duration> {
        self.0.elapsed
    }

    /// Whether the cause may lie in the connection or the server, so that attempts and time say
    /// something.
    fn shows_effort(&self) -> bool {
        use ErrorKind::{Io, Throttled, Timeout, Unavailable};
        self.0.attempts > 1 || matches!(self.0.kind, Io | Timeout | Throttled | Unavailable)
    }

    /// The store's name for the request, for its operator's logs.
    pub fn request_id(&self) -> Option<&str> {
        self.0.request_id.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(op) = self.0.op {
            write!(f, "{op} ")?;
        }
        write!(f, "{}: {}", self.0.kind.word(), self.0.what)?;
        match (self.0.status, &self.0.code) {
            (Some(status), Some(code)) => write!(f, " (HTTP {status}, {code}")?,
            (Some(status), None) => write!(f, " (HTTP {status}")?,
            _ => {}
        }
        if self.0.status.is_some() {
            match &self.0.request_id {
                Some(id) => write!(f, ", request {id})")?,
                None => f.write_str(")")?,
            }
        }
        match self.0.elapsed {
            Some(elapsed) if self.shows_effort() => {
                let n = self.0.attempts;
                let ms = elapsed.as_millis();
                write!(f, " ({n} {} in {ms} ms)", if n == 1 { "attempt" } else { "attempts" })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        match &self.0.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

/// A result of the client.
pub type Result<T, E = Error> = std::result::Result<T, E>;
