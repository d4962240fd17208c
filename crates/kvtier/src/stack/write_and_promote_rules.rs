//! The rules for the tiers of a stack: how saves reach each, and which chunks are promoted to it.

use std::time::Duration;

/// How saves reach a tier of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Write {
    /// A save waits for the tier.
    #[default]
    Through,
    /// A save does not wait for the tier once a tier above has the chunk; the chunk is copied from
    /// there soon after. The bytes that wait are bounded.
    Back,
    /// The tier gets the chunks that the tier above evicts, and those that no tier above accepts.
    Spill,
}

/// Which chunks found below a tier are promoted to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Admit {
    /// All are offered; the tier's own policy decides.
    #[default]
    Policy,
    /// Those found below at least this often.
    AfterHits(u8),
    /// None.
    Never,
}

/// The rules for one tier of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct TierRule {
    /// How saves reach it.
    pub write: Write,
    /// Which chunks found below are promoted to it.
    pub admit: Admit,
    /// How long a lookup or load may take in it; `None` for the caller's deadline.
    pub deadline: Option<Duration>,
}

impl TierRule {
    /// Write-through, every chunk promoted, no deadline of its own.
    pub fn new() -> Self {
        TierRule::default()
    }

    /// Sets how saves reach the tier.
    pub fn with_write(mut self, write: Write) -> Self {
        self.write = write;
        self
    }

    /// Sets which chunks are promoted to it.
    pub fn with_admit(mut self, admit: Admit) -> Self {
        self.admit = admit;
        self
    }

    /// Sets a deadline of its own.
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }
}
