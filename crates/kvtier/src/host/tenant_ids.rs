//! Names of tenants and the numbers that the index uses for them.

use std::collections::{HashMap, HashSet};

use kvtier_index::TenantId;

/// The fewest tenants that are remembered, with or without chunks.
const TENANTS_MIN: usize = 1024;

/// Maps tenants' names to the index's numbers and back. Tenants without chunks are purged now and
/// then.
#[derive(Debug, Default)]
pub struct TenantIds {
    ids: HashMap<String, TenantId>,
    names: HashMap<TenantId, String>,
    /// Tenants with a limit of their own.
    kept: HashSet<TenantId>,
    next: u32,
    /// The number of tenants at which those without chunks are purged.
    most: usize,
}

impl TenantIds {
    /// The number of a tenant, 0 for the one without a name. `has_some` returns whether a tenant has
    /// chunks.
    pub fn id(&mut self, name: &str, has_some: impl Fn(TenantId) -> bool) -> TenantId {
        // Every index has the number 0 for chunks without a tenant.
        if name.is_empty() {
            return TenantId(0);
        }
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        if self.ids.len() >= self.most.max(TENANTS_MIN) {
            let kept = &self.kept;
            // A number that some chunk still has must keep its name, or usage would be shown under
            // a wrong one.
            self.names.retain(|id, _| kept.contains(id) || has_some(*id));
            let names = &self.names;
            self.ids.retain(|_, id| names.contains_key(id));
            // Amortized: a purge of n names happens after n new names.
            self.most = 2 * self.ids.len();
        }
        // Numbers wrap around after 2^32 names and skip those in use.
        while self.next == 0 || self.names.contains_key(&TenantId(self.next.into())) {
            self.next = self.next.wrapping_add(1);
        }
        let id = TenantId(self.next.into());
        self.next = self.next.wrapping_add(1);
        self.ids.insert(name.into(), id);
        self.names.insert(id, name.into());
        id
    }

    /// Excludes this tenant from purges, or no longer.
    pub fn keep(&mut self, id: TenantId, keep: bool) {
        if keep {
            self.kept.insert(id);
        } else {
            self.kept.remove(&id);
        }
    }

    /// The name of a tenant; empty for one that was purged.
    pub fn name(&self, id: TenantId) -> String {
        self.names.get(&id).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_without_chunks_are_purged_and_the_others_keep_their_numbers() {
        let mut tenants = TenantIds::default();
        let none = |_| false;
        let limited = tenants.id("limited", none);
        tenants.keep(limited, true);
        let here = tenants.id("here", none);
        for n in 0..100_000 {
            let id = tenants.id(&n.to_string(), |id| id == here);
            assert_eq!((tenants.name(id), id), (n.to_string(), tenants.id(&n.to_string(), none)));
        }
        assert!(tenants.ids.len() <= TENANTS_MIN && tenants.names.len() == tenants.ids.len());
        assert_eq!((tenants.id("here", none), tenants.id("limited", none)), (here, limited));
        assert_eq!((tenants.id("", none), tenants.name(TenantId(0))), (TenantId(0), String::new()));
        tenants.keep(limited, false);
        (0..10_000).for_each(|n| _ = tenants.id(&format!("more {n}"), |id| id == here));
        assert_eq!((tenants.name(here), tenants.name(limited)), ("here".to_owned(), String::new()));
    }
}
