use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtier_key::{ChunkShape, Digest};

use crate::{Clock, Hint, Op, Save};

const A_CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The context of an operation: its deadline, its class, and what the caller expects of the chunks.
///
/// ```
/// use std::time::Duration;
/// use kvtier_core::{Class, Ctx, Hint};
///
/// let mut hint = Hint::default();
/// hint.priority = 1;
/// let ctx = Ctx::within(Duration::from_millis(50)).with_class(Class::Prefetch).with_hint(hint);
/// assert_eq!((ctx.class, ctx.hint.priority, ctx.atomic), (Class::Prefetch, 1, false));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ctx {
    /// When the result stops being of use. Every op has a deadline.
    pub deadline: Instant,
    /// How urgent the op is.
    pub class: Class,
    /// What the caller expects of the chunks' future.
    pub hint: Hint,
    /// The batch's position in its prefix chain: key `i` of the batch has depth `depth + i`, and
    /// key `i - 1` is its parent.
    pub chain: Option<Chain>,
    /// For a save: the chunks of the batch form an atomic set, say keys, values and sidecars of the
    /// same tokens. All of them are hits, or none is. Tiers that support atomic sets keep them as
    /// long as they are open. Each chunk still has its own result.
    pub atomic: bool,
    /// All members of the [atomic set](Ctx::atomic), where the batch is only a part of it: a retry,
    /// or the share of one tier of several. `None`: the batch is the whole set.
    pub atomic_set: Option<Arc<[Digest]>>,
    /// For a save: the tensor that a full chunk of this batch holds, if the caller has it. Shorter
    /// chunks have fewer tokens. Only layouts whose files describe the tensor use it; they derive
    /// the shape of other chunks of the same kind from it.
    pub shape: Option<Arc<ChunkShape>>,
}

impl Ctx {
    /// A demand op with a deadline `timeout` from now. A timeout beyond the range of `Instant`
    /// means a century.
    pub fn within(timeout: Duration) -> Self {
        Ctx::within_on(&Clock::real(), timeout)
    }

    /// Like [`within`](Ctx::within), on this clock, which must be the tier's.
    pub fn within_on(clock: &Clock, timeout: Duration) -> Self {
        let now = clock.now();
        Ctx {
            // A caller may pass `Duration::MAX` for "no limit"; an addition would panic.
            deadline: now.checked_add(timeout).unwrap_or(now + A_CENTURY),
            class: Class::Demand,
            hint: Hint::default(),
            chain: None,
            atomic: false,
            atomic_set: None,
            shape: None,
        }
    }

    /// Sets the tensor of a full chunk, see [`Ctx::shape`].
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

    /// Sets the class.
    pub fn with_class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    /// Sets the hints.
    pub fn with_hint(mut self, hint: Hint) -> Self {
        self.hint = hint;
        self
    }

    /// Makes the chunks of a save an [atomic set](Ctx::atomic).
    pub fn with_atomic(mut self) -> Self {
        self.atomic = true;
        self
    }

    /// Makes the chunks of a save a part of this [atomic set](Ctx::atomic_set).
    pub fn with_atomic_set(mut self, whole: Arc<[Digest]>) -> Self {
        (self.atomic, self.atomic_set) = (true, Some(whole));
        self
    }

    /// The members of the atomic set that these saves belong to, in no particular order; `None` for
    /// chunks that are independent of each other.
    pub fn atomic_set_of(&self, ops: &[Save]) -> Option<Arc<[Digest]>> {
        let all = || ops.iter().map(|op| *op.key().digest()).collect();
        self.atomic.then(|| self.atomic_set.clone().unwrap_or_else(all))
    }

    /// The context for a part of a batch: the keys at `places` of `keys`. The chain is dropped
    /// where the places are not consecutive. The atomic set stays the whole batch.
    pub fn for_part(&self, keys: &[Digest], places: &[usize]) -> Self {
        let mut part = self.clone();
        part.chain = self.chain.and_then(|chain| chain.part(keys, places));
        // Written down now, because the part alone no longer shows which chunks belong together.
        if self.atomic && self.atomic_set.is_none() {
            part.atomic_set = Some(keys.into());
        }
        part
    }

    /// Sets the position in a prefix chain.
    pub fn with_chain(mut self, chain: Chain) -> Self {
        self.chain = Some(chain);
        self
    }
}

/// The urgency of an op; under load, tiers serve in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Class {
    /// A request is blocked on the result.
    Demand,
    /// The chunks will be needed soon.
    Prefetch,
    /// New chunks.
    Write,
    /// Maintenance.
    Background,
}

/// The position of a batch's first key in its prefix chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chain {
    /// The key before the first one; `None` at the root.
    pub parent: Option<Digest>,
    /// The number of chunks before the first one.
    pub depth: u32,
}

impl Chain {
    /// The position of the keys at `places` of a batch; `None` where the places are not
    /// consecutive.
    pub fn part(self, keys: &[Digest], places: &[usize]) -> Option<Chain> {
        let first = *places.first()?;
        // A gap breaks the chain: the key in front of a place would not be its parent.
        let one_after_another = places.iter().enumerate().all(|(n, at)| *at == first + n);
        let parent = if first == 0 { self.parent } else { Some(*keys.get(first - 1)?) };
        one_after_another.then(|| Chain { parent, depth: self.depth.saturating_add(first as u32) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_batch_has_its_own_chain_position_and_keeps_the_atomic_set() {
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
