//! The policies by name: parses a name and builds the policy.

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use crate::{
    ArcPolicy, Fifo, IsolatedLru, KvPolicy, Lfu, Lru, LruCompat, Mru, Noop, Policy, S3Fifo, Sieve,
    WTinyLfu,
};

/// The policies, by name.
///
/// ```
/// use kvtier_evict::PolicyKind;
///
/// let kind: PolicyKind = "lfu".parse().unwrap();
/// assert_eq!((kind, kind.name()), (PolicyKind::Lfu, "lfu"));
/// let error = "lifo".parse::<PolicyKind>().unwrap_err();
/// assert!(error.to_string().contains("fifo"), "the error lists the names");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum PolicyKind {
    /// Lowest hit density first, learnt from the chunks that return: made for KV-cache chunks.
    #[default]
    Default,
    /// Least recently used first.
    Lru,
    /// Most recently used first.
    Mru,
    /// First in, first out.
    Fifo,
    /// Least frequently used first.
    Lfu,
    /// Adaptive replacement: balances recency and frequency by the evicted chunks that return.
    Arc,
    /// Three queues: a small one, the main one, and the ghosts of evicted slots.
    S3Fifo,
    /// One queue and a hand.
    Sieve,
    /// A window by recency before a main part by frequency.
    WTinyLfu,
    /// One LRU per tenant; the tenant with the most bytes is evicted from first.
    IsolatedLru,
    /// Never evicts.
    Noop,
}

impl PolicyKind {
    /// Every policy.
    pub const ALL: [PolicyKind; 11] = [
        PolicyKind::Default,
        PolicyKind::Lru,
        PolicyKind::Mru,
        PolicyKind::Fifo,
        PolicyKind::Lfu,
        PolicyKind::Arc,
        PolicyKind::S3Fifo,
        PolicyKind::Sieve,
        PolicyKind::WTinyLfu,
        PolicyKind::IsolatedLru,
        PolicyKind::Noop,
    ];

    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Default => "default",
            PolicyKind::Lru => "lru",
            PolicyKind::Mru => "mru",
            PolicyKind::Fifo => "fifo",
            PolicyKind::Lfu => "lfu",
            PolicyKind::Arc => "arc",
            PolicyKind::S3Fifo => "s3-fifo",
            PolicyKind::Sieve => "sieve",
            PolicyKind::WTinyLfu => "w-tinylfu",
            PolicyKind::IsolatedLru => "isolated-lru",
            PolicyKind::Noop => "noop",
        }
    }

    /// An empty policy of this kind.
    pub fn build(self) -> Box<dyn Policy> {
        match self {
            PolicyKind::Default => Box::new(KvPolicy::new()),
            PolicyKind::Lru => Box::new(Lru::new()),
            PolicyKind::Mru => Box::new(Mru::new()),
            PolicyKind::Fifo => Box::new(Fifo::new()),
            PolicyKind::Lfu => Box::new(Lfu::new()),
            PolicyKind::Arc => Box::new(ArcPolicy::new()),
            PolicyKind::S3Fifo => Box::new(S3Fifo::new()),
            PolicyKind::Sieve => Box::new(Sieve::new()),
            PolicyKind::WTinyLfu => Box::new(WTinyLfu::new()),
            PolicyKind::IsolatedLru => Box::new(IsolatedLru::new()),
            PolicyKind::Noop => Box::new(Noop::new()),
        }
    }

    /// Like [`build`](PolicyKind::build), with exactly LMCache's decisions where these differ: a
    /// pinned slot keeps its position.
    pub fn build_compat(self) -> Box<dyn Policy> {
        match self {
            PolicyKind::Lru => Box::new(LruCompat::new()),
            kind => kind.build(),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    /// Parses a name, in any case and with or without hyphens (LMCache writes `IsolatedLRU`).
    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        // Configurations of LMCache are accepted as they are.
        let plain = |name: &str| name.replace('-', "").to_ascii_lowercase();
        let found = PolicyKind::ALL.into_iter().find(|kind| plain(kind.name()) == plain(text));
        found.ok_or_else(|| UnknownPolicy { name: text.to_string() })
    }
}

/// A name of no policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy {
    name: String,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown eviction policy {:?}; choose one of:", self.name)?;
        PolicyKind::ALL.iter().try_for_each(|kind| write!(f, " {kind}"))
    }
}

impl core::error::Error for UnknownPolicy {}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::{EvictionHint, PerTenant, SlotInfo};

    /// Every policy, each alone and within one that divides by tenant.
    fn policies() -> Vec<Box<dyn Policy>> {
        let alone = || PolicyKind::ALL.map(|kind| kind.build_compat()).into_iter();
        let within = |policy| Box::new(PerTenant::around(policy, |_| 0, |_| false));
        let lru = PolicyKind::Lru.build();
        alone().chain([lru]).chain(alone().map(|policy| within(policy) as _)).collect()
    }

    fn fill(policy: &mut dyn Policy, slots: u32) {
        (0..slots).for_each(|slot| policy.insert(SlotInfo::new(slot, 1)));
    }

    #[test]
    fn every_kind_is_found_by_its_name() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.name().to_uppercase().parse(), Ok(kind));
            assert_eq!(kind.build().name(), kind.name());
        }
        assert_eq!("IsolatedLRU".parse(), Ok(PolicyKind::IsolatedLru));
        let error = "fifo?".parse::<PolicyKind>().unwrap_err().to_string();
        assert!(
            error.starts_with(
                "unknown eviction policy \"fifo?\"; choose one of: default lru mru fifo"
            ),
            "{error}"
        );
    }

    #[test]
    fn every_policy_counts_its_slots_and_their_memory() {
        for mut policy in policies() {
            let name = policy.name();
            assert_eq!((policy.len(), policy.is_empty()), (0, true), "{name}");
            fill(&mut *policy, 5);
            fill(&mut *policy, 4);
            assert_eq!((policy.len(), policy.is_empty()), (5, false), "{name}");
            assert!(policy.memory_bytes() >= 5 * 8, "{name}: {}", policy.memory_bytes());
            policy.remove(4);
            assert_eq!((policy.len(), policy.eviction_order().len()), (4, 4), "{name}");
        }
    }

    #[test]
    fn a_slot_is_no_victim_while_it_is_pinned_and_last_in_the_order() {
        for mut policy in policies().into_iter().filter(|policy| policy.name() != "noop") {
            let name = policy.name();
            fill(&mut *policy, 4);
            let order = policy.eviction_order();
            // No search has met it yet.
            policy.pin(order[0]);
            let expected: Vec<u32> = (0..4).map(|at| order[(at + 1) % 4]).collect();
            assert_eq!(policy.eviction_order(), expected, "{name}");
            order.iter().for_each(|slot| policy.pin(*slot));
            assert_eq!(policy.victim(), None, "{name}");
            policy.unpin(2);
            policy.unpin(2);
            assert_eq!((policy.victim(), policy.len()), (Some(2), 4), "{name}");
            let mut order = policy.eviction_order();
            assert_eq!(order[0], 2, "{name}");
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2, 3], "{name}");
        }
    }

    #[test]
    fn calls_for_slots_that_are_not_tracked_change_nothing() {
        for mut policy in policies() {
            // Before the first slot; then near the tracked ones and far from them.
            for slots in [0, 3] {
                fill(&mut *policy, slots);
                let order = policy.eviction_order();
                for slot in [7, 20_000] {
                    policy.touch(slot);
                    policy.touch_chain(&[slot]);
                    policy.hint(slot, &EvictionHint::new().with_session_ended());
                    policy.pin(slot);
                    policy.begin_evict(slot);
                    policy.unpin(slot);
                    policy.remove(slot);
                    policy.evict(slot, 1);
                }
                let name = policy.name();
                assert_eq!((policy.len(), policy.eviction_order()), (order.len(), order), "{name}");
            }
        }
    }

    #[test]
    fn a_tenant_has_a_victim_where_tenants_are_tracked() {
        let victim = |policy: &mut dyn Policy| {
            policy.insert(SlotInfo::new(3, 1));
            policy.insert(SlotInfo::new(9, 1).with_tenant(5));
            (policy.tracks_tenants(), policy.tenant_victim(5))
        };
        for kind in PolicyKind::ALL {
            let expected = match kind {
                PolicyKind::IsolatedLru => (true, Some(9)),
                // That of a policy that never evicts is none.
                PolicyKind::Noop => (true, None),
                _ => (false, None),
            };
            assert_eq!(victim(&mut *kind.build()), expected, "{kind}");
            let mut within = PerTenant::around(kind.build(), |_| 0, |_| false);
            assert_eq!(victim(&mut within), (true, Some(9)), "{kind}");
        }
    }
}
