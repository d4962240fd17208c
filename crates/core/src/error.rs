use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use kvtier_key::Digest;

/// The text of an operation that did not end in time.
pub const DEADLINE_PASSED: &str = "the deadline passed";

/// What the caller can do about an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request can never succeed: fix the argument or the configuration.
    Invalid,
    /// This tier, build or machine cannot do it: use another.
    Unsupported,
    /// No space, and nothing to evict: retry later or with less.
    Full,
    /// The medium holds other bytes than were saved: treat it as a miss. The bytes are quarantined.
    Corrupt,
    /// The medium failed; the source has the details.
    Io,
    /// The deadline passed first: recompute.
    Timeout,
    /// The medium denied access: fix credentials or permissions.
    Denied,
    /// Too much in flight: wait and retry.
    Throttled,
    /// The tier was closed, or its thread died: open another.
    Closed,
    /// The caller cancelled the operation.
    Canceled,
}

/// An error of a tier: a kind, a message, and typed context. Pointer-sized. `Display` prints its
/// own layer; the cause is its `source`. It never contains a secret: keys appear as digests.
pub struct Error(Box<ErrorParts>);

struct ErrorParts {
    kind: ErrorKind,
    what: Cow<'static, str>,
    op: Option<&'static str>,
    key: Option<Digest>,
    tier: Option<Arc<str>>,
    range: Option<(u64, u64)>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

// Results of hot paths carry an error only rarely; boxed, it does not make them larger.
const _: () = assert!(size_of::<Error>() == size_of::<usize>());

impl Error {
    /// An error that says `what` failed and, where the reader can act, what to do.
    pub fn new(kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Self {
        Error(Box::new(ErrorParts {
            kind,
            what: what.into(),
            op: None,
            key: None,
            tier: None,
            range: None,
            source: None,
        }))
    }

    /// Adds the operation (`save`, `load`, ...).
    pub fn with_op(mut self, op: &'static str) -> Self {
        self.0.op = Some(op);
        self
    }

    /// Adds the key's digest.
    pub fn with_key(mut self, key: Digest) -> Self {
        self.0.key = Some(key);
        self
    }

    /// Adds the tier's name.
    pub fn with_tier(mut self, tier: Arc<str>) -> Self {
        self.0.tier = Some(tier);
        self
    }

    /// Adds the offset and length in bytes.
    pub fn with_range(mut self, offset: u64, len: u64) -> Self {
        self.0.range = Some((offset, len));
        self
    }

    /// Adds the cause.
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Adds the cause and what to do about it. A message then reads "what failed: cause; next
    /// step".
    pub fn with_cause(
        self,
        cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
        next_step: impl Into<Cow<'static, str>>,
    ) -> Self {
        self.with_source(Cause { cause: cause.into(), next_step: next_step.into() })
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

    /// The operation, if known.
    pub fn op(&self) -> Option<&'static str> {
        self.0.op
    }

    /// The key's digest, if one key is concerned.
    pub fn key(&self) -> Option<&Digest> {
        self.0.key.as_ref()
    }

    /// The tier's name, if known.
    pub fn tier(&self) -> Option<&str> {
        self.0.tier.as_deref()
    }

    /// Offset and length in bytes, if a range is concerned.
    pub fn range(&self) -> Option<(u64, u64)> {
        self.0.range
    }

    /// Whether the same request may succeed later unchanged.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.0.kind,
            // Each of them depends on load, on other chunks or on the medium, which all change
            // without the caller.
            ErrorKind::Full | ErrorKind::Io | ErrorKind::Timeout | ErrorKind::Throttled
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &self.0;
        if let Some(tier) = &e.tier {
            write!(f, "tier {tier}: ")?;
        }
        if let Some(op) = e.op {
            write!(f, "{op}: ")?;
        }
        f.write_str(&e.what)?;
        if let Some(key) = &e.key {
            // 64 bits identify a key in a log, and leave the line readable.
            write!(f, " (key {})", &key.to_hex()[..16])?;
        }
        if let Some((offset, len)) = e.range {
            write!(f, " (bytes {offset}..{})", offset.saturating_add(len))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)?;
        match &self.0.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|e| e as _)
    }
}

/// A cause, and what to do about it.
#[derive(Debug)]
struct Cause {
    cause: Box<dyn std::error::Error + Send + Sync>,
    next_step: Cow<'static, str>,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.cause, self.next_step)
    }
}

impl std::error::Error for Cause {
    /// What caused the cause, which this displays itself.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_step_follows_the_cause() {
        let cause = Error::new(ErrorKind::Io, "outer").with_source(std::io::Error::other("inner"));
        let error =
            Error::new(ErrorKind::Invalid, "cannot read it").with_cause(cause, "check the path");
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source());
        let texts: Vec<_> = causes.map(ToString::to_string).collect();
        assert_eq!(texts, ["cannot read it", "outer; check the path", "inner"]);
        assert_eq!(error.report(), "cannot read it: outer; check the path: inner");
    }
}
