use std::time::{Duration, Instant};

use kvtier_key::Digest;

/// What every operation carries: until when, how urgent, and what the caller knows.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ctx {
    /// When the answer stops being of use. Every op has one.
    pub deadline: Instant,
    /// Who waits for it.
    pub class: Class,
    /// What the caller knows of the future of these chunks.
    pub hint: Hint,
    /// Where the batch lies in its prefix chain: key `i` of the batch has depth `depth + i` and key `i - 1` as parent.
    pub chain: Option<Chain>,
    /// For a save: its chunks (keys, values and sidecars of the same tokens, say) are there together or not at all. Kept by tiers that know
    /// sets, as long as they are open; each answer is still of one chunk.
    pub together: bool,
}

impl Ctx {
    /// A demand op that must answer within `timeout`.
    pub fn within(timeout: Duration) -> Self {
        Ctx {
            deadline: Instant::now() + timeout,
            class: Class::Demand,
            hint: Hint::default(),
            chain: None,
            together: false,
        }
    }

    /// The same with another class.
    pub fn with_class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    /// The same with hints.
    pub fn with_hint(mut self, hint: Hint) -> Self {
        self.hint = hint;
        self
    }

    /// The same for a save of chunks that are there together or not at all.
    pub fn with_together(mut self) -> Self {
        self.together = true;
        self
    }

    /// The same at a place in a prefix chain.
    pub fn with_chain(mut self, chain: Chain) -> Self {
        self.chain = Some(chain);
        self
    }
}

/// Who waits for an op; the order of service under load.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Class {
    /// A request stands still until it is answered.
    Demand,
    /// Will be wanted soon.
    Prefetch,
    /// New chunks on their way down.
    Write,
    /// Housekeeping.
    Background,
}

/// What the caller knows of the chunks' future. All optional; feeds eviction.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct Hint {
    /// The conversation is over.
    pub session_ended: bool,
    /// When the chunks will likely be asked for again.
    pub expected_return: Option<Duration>,
    /// Higher stays longer; 0 is normal.
    pub priority: i8,
    /// Keep at least this long, then treat as normal.
    pub retention: Option<Duration>,
}

/// The place of a batch's first key in its prefix chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chain {
    /// The key before the first, `None` at the root.
    pub parent: Option<Digest>,
    /// How many chunks lie before the first.
    pub depth: u32,
}

/// What a lookup is to answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Every key on its own.
    Each,
    /// Only how far the unbroken prefix reaches; keys after the first miss may be answered `Unknown`.
    Prefix,
}

/// Whether a lookup keeps what it found from eviction and remove.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hold {
    /// No.
    None,
    /// Until released, at most this long.
    For(Duration),
}
