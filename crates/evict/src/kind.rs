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
    use super::*;

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
}
