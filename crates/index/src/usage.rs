use hashbrown::HashMap;

use crate::{Chunk, TenantId};

/// The space in use on the medium, according to the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct IndexUsage {
    /// The capacity in bytes.
    pub capacity: u64,
    /// Bytes of chunks; victims count until they are deleted.
    pub used: u64,
    /// Bytes claimed by writes in flight.
    pub reserved: u64,
    /// Bytes of `used` that are victims.
    pub evicting: u64,
    /// The number of chunks; victims count until they are deleted.
    pub entries: usize,
    /// Holds that were neither released nor found expired.
    pub holds: usize,
}

/// One tenant's share of [`IndexUsage::used`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TenantTotals {
    /// Bytes of its chunks.
    pub bytes: u64,
    /// The number of its chunks.
    pub entries: usize,
}

/// The sums behind [`IndexUsage`].
#[derive(Debug, Default)]
pub(crate) struct UsageTotals {
    pub used: u64,
    pub reserved: u64,
    pub evicting: u64,
    pub tenants: HashMap<TenantId, TenantTotals>,
}

impl UsageTotals {
    pub fn add(&mut self, chunk: &Chunk) {
        self.used += chunk.bytes;
        let tenant = self.tenants.entry(chunk.tenant).or_default();
        tenant.bytes += chunk.bytes;
        tenant.entries += 1;
    }

    pub fn sub(&mut self, chunk: &Chunk) {
        self.used -= chunk.bytes;
        let tenant =
            self.tenants.get_mut(&chunk.tenant).expect("a tenant with a chunk has an account");
        tenant.bytes -= chunk.bytes;
        tenant.entries -= 1;
        // Salts may be as many as users: without this the map would only grow.
        if tenant.entries == 0 {
            self.tenants.remove(&chunk.tenant);
        }
    }
}
