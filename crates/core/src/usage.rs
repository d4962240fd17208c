use std::collections::HashMap;

/// The space in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Bytes on the medium; `None` while unknown.
    pub used_bytes: Option<u64>,
    /// Capacity in bytes; `None` if unlimited.
    pub capacity_bytes: Option<u64>,
    /// Number of chunks.
    pub chunks: u64,
    /// Usage per tenant.
    pub tenants: Vec<TenantUsage>,
}

impl Usage {
    /// The usage of a medium by this number of chunks, without tenants.
    pub fn new(used_bytes: Option<u64>, capacity_bytes: Option<u64>, chunks: usize) -> Self {
        Usage { used_bytes, capacity_bytes, chunks: chunks as u64, tenants: Vec::new() }
    }

    /// Adds the usage per tenant.
    pub fn with_tenants(mut self, tenants: impl Iterator<Item = TenantUsage>) -> Self {
        self.tenants = tenants.collect();
        self
    }

    /// Used bytes divided by capacity; above 1 when the medium is over its capacity. This is
    /// LMCache's `get_usage()`. `None` (-1 there) without a capacity, with a capacity of 0, and
    /// while the used bytes are unknown.
    ///
    /// ```
    /// use kvtier_core::Usage;
    ///
    /// let mut usage = Usage::default();
    /// assert_eq!(usage.fraction(), None, "unlimited");
    /// (usage.used_bytes, usage.capacity_bytes) = (Some(25), Some(100));
    /// assert_eq!(usage.fraction(), Some(0.25));
    /// ```
    pub fn fraction(&self) -> Option<f64> {
        let capacity = self.capacity_bytes.filter(|bytes| *bytes > 0)?;
        self.used_bytes.map(|used| used as f64 / capacity as f64)
    }

    /// The usage of this and another medium together. A chunk on both counts twice, as it occupies
    /// both. Unknown or unlimited where one of them is.
    pub fn combine(mut self, other: Usage) -> Self {
        // An overflow counts as unknown or unlimited, too.
        let sum = |a: Option<u64>, b: Option<u64>| a?.checked_add(b?);
        self.used_bytes = sum(self.used_bytes, other.used_bytes);
        self.capacity_bytes = sum(self.capacity_bytes, other.capacity_bytes);
        self.chunks += other.chunks;
        // There may be as many tenants as users, so find them by hash.
        let places = self.tenants.iter().enumerate().map(|(at, one)| (one.tenant.clone(), at));
        let places: HashMap<String, usize> = places.collect();
        for more in other.tenants {
            match places.get(&more.tenant) {
                Some(at) => {
                    let one = &mut self.tenants[*at];
                    (one.used_bytes, one.chunks) =
                        (one.used_bytes + more.used_bytes, one.chunks + more.chunks)
                }
                None => self.tenants.push(more),
            }
        }
        self
    }
}

/// The usage of one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantUsage {
    /// The tenant's name.
    pub tenant: String,
    /// Bytes on the medium.
    pub used_bytes: u64,
    /// Number of chunks.
    pub chunks: u64,
}

impl TenantUsage {
    /// The usage of a tenant by this number of chunks.
    pub fn new(tenant: String, used_bytes: u64, chunks: usize) -> Self {
        TenantUsage { tenant, used_bytes, chunks: chunks as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(used_bytes: Option<u64>, capacity_bytes: Option<u64>) -> Usage {
        Usage { used_bytes, capacity_bytes, ..Usage::default() }
    }

    #[test]
    fn the_used_fraction_is_unknown_without_a_capacity() {
        assert_eq!(usage(Some(30), Some(120)).fraction(), Some(0.25));
        assert_eq!(usage(Some(180), Some(120)).fraction(), Some(1.5));
        for unknown in [
            usage(Some(30), Some(0)),
            usage(Some(0), Some(0)),
            usage(Some(30), None),
            usage(None, Some(9)),
        ] {
            assert_eq!(unknown.fraction(), None, "{unknown:?}");
        }
    }

    #[test]
    fn two_media_add_up_tenant_by_tenant() {
        let of = |tenant: &str, chunks| TenantUsage {
            tenant: tenant.into(),
            used_bytes: 10 * chunks,
            chunks,
        };
        let with =
            |tenants: Vec<TenantUsage>| Usage { chunks: 3, tenants, ..usage(Some(30), Some(100)) };
        let both = with(vec![of("a", 1), of("b", 2)]).combine(with(vec![of("c", 2), of("a", 1)]));
        assert_eq!((both.used_bytes, both.capacity_bytes, both.chunks), (Some(60), Some(200), 6));
        assert_eq!(both.tenants, [of("a", 2), of("b", 2), of("c", 2)]);
        let unknown = with(vec![]).combine(usage(None, None));
        assert_eq!((unknown.used_bytes, unknown.capacity_bytes), (None, None));
    }
}
