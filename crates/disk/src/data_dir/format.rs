//! The format of directories: what processes that share one must agree on.

/// The format of the directories that this build opens and makes.
pub const FORMAT: u32 = 3;
/// The format of a directory whose chunks may be encoded.
pub const FORMAT_ENCODED: u32 = 4;
