use std::fmt;

use hashbrown::HashMap;

use crate::{TenantId, TenantKey};

/// Names are kept in two generations of at most this many.
// Names come from requests, so a caller that invents them must not fill the memory.
const NAMES_MAX: usize = 1 << 15;

/// Tenants by name and by identity, in one process. The identity derives from the key. The names of
/// recently used tenants are kept, in memory only, for reports.
pub struct TenantNames {
    key: TenantKey,
    /// Met since the last time that this was full, and before.
    young: HashMap<TenantId, String>,
    old: HashMap<TenantId, String>,
    names_max: usize,
}

impl TenantNames {
    /// No names.
    pub fn new(key: TenantKey) -> Self {
        TenantNames { key, young: HashMap::new(), old: HashMap::new(), names_max: NAMES_MAX }
    }

    /// The identity of a tenant.
    pub fn id(&self, name: &str) -> TenantId {
        self.key.id(name)
    }

    /// Whether the name of a tenant is known.
    pub fn is_noted(&self, id: TenantId) -> bool {
        id == TenantId::NONE || self.young.contains_key(&id)
    }

    /// Remembers the name of a tenant. Names that are not used for long are dropped.
    pub fn note(&mut self, id: TenantId, name: &str) {
        if self.is_noted(id) {
            return;
        }
        // A tenant in use is noted again within each generation, so only idle ones are lost with
        // the old one.
        if self.young.len() >= self.names_max {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id, name.to_owned());
    }

    /// The name of a tenant in reports of this process. If it is unknown, `~` and 32 hexadecimal
    /// digits; empty for [`TenantId::NONE`].
    pub fn name(&self, id: TenantId) -> String {
        match self.young.get(&id).or_else(|| self.old.get(&id)) {
            Some(name) => name.clone(),
            None if id == TenantId::NONE => String::new(),
            None => format!("~{id}"),
        }
    }

    /// The key.
    pub fn key(&self) -> &TenantKey {
        &self.key
    }

    /// Changes the key and drops all names.
    pub fn set_key(&mut self, key: TenantKey) {
        *self = TenantNames { names_max: self.names_max, ..TenantNames::new(key) };
    }
}

/// Names are not shown.
impl fmt::Debug for TenantNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TenantNames")
            .field("named", &(self.young.len() + self.old.len()))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_names_are_kept_within_a_bound_and_identities_do_not_depend_on_them() {
        let mut tenants = TenantNames { names_max: 4, ..TenantNames::new(TenantKey::new([7; 32])) };
        let meet = |tenants: &mut TenantNames, name: &str| {
            let id = tenants.id(name);
            tenants.note(id, name);
            id
        };
        let busy = meet(&mut tenants, "busy");
        for n in 0..100 {
            let name = format!("tenant {n}");
            let id = meet(&mut tenants, &name);
            assert_eq!((tenants.name(id), tenants.id(&name)), (name, id));
            meet(&mut tenants, "busy");
            assert_eq!(tenants.name(busy), "busy");
        }
        assert!(tenants.young.len() + tenants.old.len() <= 8);
        let forgotten = tenants.id("tenant 1");
        assert_eq!(tenants.name(forgotten), format!("~{forgotten}"));
        assert_eq!((tenants.id(""), tenants.name(TenantId::NONE)), (TenantId::NONE, String::new()));
        assert!(!format!("{tenants:?}").contains("busy"));
    }

    #[test]
    fn as_many_names_as_a_generation_has_are_not_dropped_by_as_many_more() {
        let mut tenants = TenantNames { names_max: 3, ..TenantNames::new(TenantKey::new([7; 32])) };
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        for name in names {
            let id = tenants.id(name);
            tenants.note(id, name);
            assert_eq!(tenants.name(tenants.id("a")) == "a", name != "g", "at {name}");
        }
        let named = |name: &&&str| tenants.name(tenants.id(name)) == ***name;
        assert_eq!(names.iter().filter(named).count(), 4, "one more than a generation");
    }

    #[test]
    fn the_name_of_no_tenant_and_of_a_noted_one_are_noted() {
        let mut tenants = TenantNames::new(TenantKey::new([7; 32]));
        let id = tenants.id("a");
        assert!(tenants.is_noted(TenantId::NONE) && !tenants.is_noted(id));
        tenants.note(id, "a");
        tenants.note(TenantId::NONE, "b");
        assert!(tenants.is_noted(id));
        assert_eq!(tenants.name(TenantId::NONE), "");
    }

    #[test]
    fn with_another_key_the_names_are_dropped_and_the_identities_change() {
        let mut tenants = TenantNames { names_max: 4, ..TenantNames::new(TenantKey::new([7; 32])) };
        let id = tenants.id("a");
        tenants.note(id, "a");
        tenants.set_key(TenantKey::new([8; 32]));
        assert_eq!((tenants.name(id), tenants.names_max), (format!("~{id}"), 4));
        assert_eq!(tenants.id("a"), TenantKey::new([8; 32]).id("a"));
    }
}
