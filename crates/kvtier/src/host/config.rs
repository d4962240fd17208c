use kvtier_core::Clock;
use kvtier_evict::PolicyKind;
use kvtier_index::{LmcacheEviction, Quotas};

/// The settings of a host tier.
///
/// ```
/// use kvtier::evict::PolicyKind;
/// use kvtier::{Blocking, HostConfig, HostTier, Key, Namespace, Quotas};
///
/// let quotas = Quotas::new().with("tenant-a", 1 << 20);
/// let config = HostConfig::new(4 << 20).with_policy(PolicyKind::Lfu).with_quotas(quotas);
/// let tier = HostTier::open(config)?;
/// let key = Key::from_name(&Namespace::from_name("model"), "chunk 0");
/// tier.save_bytes(&key, vec![42; 4096])?;
/// assert!(tier.contains(&key)?);
/// # Ok::<(), kvtier::core::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HostConfig {
    /// The cap in bytes; every chunk counts as whole 4 KiB pages.
    pub bytes: u64,
    /// The tier's name in errors and reports.
    pub name: String,
    /// After a save, chunks are evicted down to this share of the cap (above 0, at most 1). At 1,
    /// the default, a save evicts only what it needs.
    pub high_mark: f64,
    /// Which chunks are evicted first.
    pub policy: PolicyKind,
    /// The quota of each tenant (cache salt).
    pub quotas: Quotas,
    /// Exact emulation of LMCache's eviction, in addition.
    pub compat: Option<LmcacheEviction>,
    /// The clock for deadlines, holds and hints.
    pub clock: Clock,
}

impl HostConfig {
    /// A host tier named `host` of at most `bytes` bytes of chunks.
    pub fn new(bytes: u64) -> Self {
        HostConfig {
            bytes,
            name: "host".into(),
            high_mark: 1.0,
            policy: PolicyKind::Default,
            quotas: Quotas::new(),
            compat: None,
            clock: Clock::real(),
        }
    }

    /// Sets the name.
    pub fn with_name(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the eviction policy.
    pub fn with_policy(mut self, policy: PolicyKind) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the clock, for tests.
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the quotas of tenants.
    pub fn with_quotas(mut self, quotas: Quotas) -> Self {
        self.quotas = quotas;
        self
    }

    /// Emulates LMCache's eviction exactly. It runs with saves.
    pub fn with_compat(mut self, compat: LmcacheEviction) -> Self {
        self.compat = Some(compat);
        self
    }

    /// Sets the high mark.
    pub fn with_high_mark(mut self, share: f64) -> Self {
        self.high_mark = share;
        self
    }
}
