use std::fmt;

/// Why tokens could not be hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HashError {
    /// The algorithm takes tokens of 32 bits, unsigned, and one is not.
    Token,
    /// The algorithm starts from a seed, and none was given.
    Seed,
    /// The parent is no hash of this algorithm.
    Parent,
    /// The tokens to skip are no whole number of chunks, or more than there are.
    Skip,
}

impl fmt::Display for HashError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HashError::Token => {
                "a token is no unsigned number of 32 bits, which this algorithm needs"
            }
            HashError::Seed => {
                "this algorithm starts from a seed (the engines' PYTHONHASHSEED) and none was given"
            }
            HashError::Parent => "the parent is no hash of this algorithm",
            HashError::Skip => {
                "the tokens to skip are no whole number of chunks of the given tokens"
            }
        })
    }
}

impl std::error::Error for HashError {}
