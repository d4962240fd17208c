use kvtier_core::Clock;
use kvtier_evict::PolicyKind;
use kvtier_index::{LmcacheEviction, Quotas};

/// How to open a host tier.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HostConfig {
    /// The cap in bytes; every chunk counts as whole 4 KiB pages.
    pub bytes: u64,
    /// The tier's name in errors and reports.
    pub name: String,
    /// After a save, chunks go until what is there is below this share of the cap (above 0, at
    /// most 1). At 1, the default, every save evicts just what it needs.
    pub high_mark: f64,
    /// Which chunks go first.
    pub policy: PolicyKind,
    /// How much each tenant (cache salt) may have.
    pub quotas: Quotas,
    /// Eviction to the letter as LMCache does it, on top.
    pub compat: Option<LmcacheEviction>,
    /// The clock that deadlines, holds and hints go by.
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

    /// The same with another name.
    pub fn with_name(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// The same with another order in which chunks go.
    pub fn with_policy(mut self, policy: PolicyKind) -> Self {
        self.policy = policy;
        self
    }

    /// The same on another clock, for tests.
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The same with limits for tenants.
    pub fn with_quotas(mut self, quotas: Quotas) -> Self {
        self.quotas = quotas;
        self
    }

    /// The same with eviction to the letter as LMCache does it. It looks when something is saved.
    pub fn with_compat(mut self, compat: LmcacheEviction) -> Self {
        self.compat = Some(compat);
        self
    }

    /// The same with another high mark.
    pub fn with_high_mark(mut self, share: f64) -> Self {
        self.high_mark = share;
        self
    }
}
