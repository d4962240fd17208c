use std::time::Duration;

/// What the caller expects of the chunks' future. All fields are optional; they guide eviction.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct Hint {
    /// The conversation has ended.
    pub session_ended: bool,
    /// How long until the chunks are probably requested again.
    pub expected_return: Option<Duration>,
    /// Chunks of a higher priority stay longer; 0 is normal.
    pub priority: i8,
    /// How long to keep the chunks at least. After that they are treated as normal.
    pub retention: Option<Duration>,
}
