use std::fmt;

/// Why a key, or a name of one, cannot be: one line that says what and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidKey(pub(crate) String);

impl InvalidKey {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        InvalidKey(why.into())
    }
}

impl fmt::Display for InvalidKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidKey {}
