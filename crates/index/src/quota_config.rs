//! Quotas as a configuration has them: by the names of tenants.

use std::collections::BTreeMap;

/// The quotas of tenants, by name.
///
/// ```
/// use kvtier_index::Quotas;
///
/// // Tenant a may hold 1 GiB, every other tenant 100 MiB; each keeps what its quota guarantees.
/// let quotas = Quotas::new().with("a", 1 << 30).with_others(100 << 20).with_fair(true);
/// assert!(!quotas.is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Quotas {
    /// Quotas of single tenants, in bytes.
    pub by_tenant: BTreeMap<String, u64>,
    /// The quota of every other tenant, in bytes; `None` for none. It does not apply to the tenant
    /// `""`: chunks without a salt, or with an unknown one.
    pub others: Option<u64>,
    /// Whether the quotas of single tenants are also guaranteed to them: see
    /// [`Index::set_fair_sharing`](crate::Index::set_fair_sharing).
    pub fair: bool,
}

impl Quotas {
    /// No quotas.
    pub fn new() -> Self {
        Quotas::default()
    }

    /// Sets the quota of a tenant.
    pub fn with(mut self, tenant: &str, bytes: u64) -> Self {
        self.by_tenant.insert(tenant.into(), bytes);
        self
    }

    /// Sets the quota of every tenant without one of its own.
    pub fn with_others(mut self, bytes: u64) -> Self {
        self.others = Some(bytes);
        self
    }

    /// Also guarantees the quotas of single tenants to them.
    pub fn with_fair(mut self, fair: bool) -> Self {
        self.fair = fair;
        self
    }

    /// Whether there is no quota.
    pub fn is_empty(&self) -> bool {
        self.by_tenant.is_empty() && self.others.is_none()
    }
}
