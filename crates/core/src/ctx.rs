use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_key::{ChunkShape, Digest};

use crate::{Clock, Op, Save};

const A_CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

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
    /// Where the batch lies in its prefix chain: key `i` of the batch has depth `depth + i` and
    /// key `i - 1` as parent.
    pub chain: Option<Chain>,
    /// For a save: its chunks (keys, values and sidecars of the same tokens, say) are there
    /// together or not at all. Kept by tiers that know sets, as long as they are open; each
    /// answer is still of one chunk.
    pub atomic: bool,
    /// All that is there [together](Ctx::atomic), where the batch is only a part of it: a retry,
    /// or what one tier of several gets. `None`: the batch is all.
    pub atomic_set: Option<Arc<[Digest]>>,
    /// For a save: the tensor that a full chunk of this batch is, where the caller knows it;
    /// shorter chunks have fewer tokens. Only layouts whose files describe the tensor use it,
    /// and learn from it how other chunks of the same kind look.
    pub shape: Option<Arc<ChunkShape>>,
}

impl Ctx {
    /// A demand op that must answer within `timeout`; one beyond all time stands for a century.
    pub fn within(timeout: Duration) -> Self {
        Ctx::within_on(&Clock::real(), timeout)
    }

    /// The same on this clock, which is that of the tier.
    pub fn within_on(clock: &Clock, timeout: Duration) -> Self {
        let now = clock.now();
        Ctx {
            deadline: now.checked_add(timeout).unwrap_or(now + A_CENTURY),
            class: Class::Demand,
            hint: Hint::default(),
            chain: None,
            atomic: false,
            atomic_set: None,
            shape: None,
        }
    }

    /// The same for a save of chunks of this shape, see [`Ctx::shape`].
    ///
    /// ```
    /// # use kvtier_core::{Ctx, key::ChunkShape};
    /// let shape: ChunkShape = "2x32x256x1024".parse()?;
    /// let ctx = Ctx::within(std::time::Duration::from_secs(1)).with_shape(shape.into());
    /// assert_eq!(ctx.shape.unwrap().axes, [2, 32, 256, 1024]);
    /// # Ok::<(), kvtier_core::key::InvalidKey>(())
    /// ```
    pub fn with_shape(mut self, shape: Arc<ChunkShape>) -> Self {
        self.shape = Some(shape);
        self
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
    pub fn with_atomic(mut self) -> Self {
        self.atomic = true;
        self
    }

    /// The same for a save of a part of these chunks, which are there together or not at all.
    pub fn with_atomic_set(mut self, whole: Arc<[Digest]>) -> Self {
        (self.atomic, self.atomic_set) = (true, Some(whole));
        self
    }

    /// The keys that are there together once these saves have ended, in no order that means
    /// anything; `None` where each is on its own.
    pub fn atomic_set_of(&self, ops: &[Save]) -> Option<Arc<[Digest]>> {
        let all = || ops.iter().map(|op| *op.key().digest()).collect();
        self.atomic.then(|| self.atomic_set.clone().unwrap_or_else(all))
    }

    /// What is said of a part of a batch: those of its `keys` that are at `places`. Where they do
    /// not follow each other, their chain is unknown; what is there together stays the whole
    /// batch.
    pub fn for_part(&self, keys: &[Digest], places: &[usize]) -> Self {
        let mut part = self.clone();
        part.chain = self.chain.and_then(|chain| chain.part(keys, places));
        if self.atomic && self.atomic_set.is_none() {
            part.atomic_set = Some(keys.into());
        }
        part
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

impl Chain {
    /// Where those of a batch's keys stand that are at `places`; `None` if they do not follow each
    /// other.
    pub fn part(self, keys: &[Digest], places: &[usize]) -> Option<Chain> {
        let first = *places.first()?;
        let one_after_another = places.iter().enumerate().all(|(n, at)| *at == first + n);
        let parent = if first == 0 { self.parent } else { Some(*keys.get(first - 1)?) };
        one_after_another.then(|| Chain { parent, depth: self.depth.saturating_add(first as u32) })
    }
}

/// What a lookup is to answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Every key on its own.
    Each,
    /// Only how far the unbroken prefix reaches; keys after the first miss may be answered
    /// `Unknown`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_batch_has_its_own_place_in_the_chain_and_stays_part_of_the_whole() {
        let keys = [1, 2, 3, 4].map(|n| Digest([n; 32]));
        let chain = Chain { parent: Some(Digest([0; 32])), depth: 7 };
        assert_eq!(chain.part(&keys, &[0, 1, 2, 3]), Some(chain));
        assert_eq!(chain.part(&keys, &[2, 3]), Some(Chain { parent: Some(keys[1]), depth: 9 }));
        assert_eq!(chain.part(&keys, &[0, 2]), None);
        let ctx = Ctx::within(Duration::from_secs(1)).with_chain(chain).with_atomic();
        let part = ctx.for_part(&keys, &[2, 3]);
        assert_eq!(
            (part.chain, part.atomic_set.as_deref()),
            (chain.part(&keys, &[2, 3]), Some(&keys[..]))
        );
        let part = part.for_part(&keys[2..], &[0]);
        assert_eq!(
            (part.chain, part.atomic_set.as_deref()),
            (chain.part(&keys, &[2]), Some(&keys[..]))
        );
        assert!(Ctx::within(Duration::MAX).deadline > Instant::now());
        assert_eq!(Ctx::within(Duration::ZERO).for_part(&keys, &[0]).atomic_set, None);
    }
}
