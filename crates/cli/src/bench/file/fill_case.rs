//! The state of the directory before puts: empty, or full of earlier chunks.

use std::str::FromStr;

use crate::BadInput;

/// What puts find in the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Case {
    /// Space for all of them.
    Fresh,
    /// A full directory, of chunks of another length.
    Churning,
    /// A full directory, of chunks of the same length.
    Recycled,
}

impl FromStr for Case {
    type Err = BadInput;

    fn from_str(text: &str) -> Result<Self, BadInput> {
        match text {
            "fresh" => Ok(Case::Fresh),
            "churning" => Ok(Case::Churning),
            "recycled" => Ok(Case::Recycled),
            _ => Err(BadInput(format!("no case {text:?}; choose fresh, churning, recycled"))),
        }
    }
}
