//! The tenants that this node met, and how much each may have. On the bucket a tenant is a keyed
//! digest of its name (its cache salt) and nothing else. The key lies in the bucket and is asked
//! for when the first tenant is met; what it means for the index follows here, how it is
//! read and written in `truth/tenant_key.rs`.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use kvtier_core::OTHER_TENANTS;
use kvtier_index::{Index, TenantId, TenantKey, Tenants};
use tokio::sync::Notify;

/// The most names that are remembered before the key is known.
const MET_MAX: usize = 4096;

/// Tenants, from the moment on that the bucket's key is known.
#[derive(Default)]
pub struct TenantTable {
    known: Option<Tenants>,
    /// Notified when a tenant is met whose identity the key has to say.
    key_wanted: Arc<Notify>,
    /// The names of some that were met before the key was known.
    met: BTreeSet<String>,
    /// How much single tenants may have, in bytes, by name.
    limits: HashMap<String, u64>,
    /// The same by identity.
    limits_by_id: HashMap<TenantId, u64>,
    /// How much every other tenant may have.
    limit_of_others: Option<u64>,
}

/// Names are not shown.
impl std::fmt::Debug for TenantTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TenantTable")
            .field("known", &self.known)
            .field("limits", &self.limits.len())
            .finish_non_exhaustive()
    }
}

impl TenantTable {
    /// The identity of a tenant, whose name is remembered; that of none until the key is known.
    pub fn id(&mut self, name: &str) -> TenantId {
        let Some(known) = &mut self.known else {
            if !name.is_empty() {
                self.key_wanted.notify_one();
                if self.met.len() < MET_MAX && !self.met.contains(name) {
                    self.met.insert(name.to_owned());
                }
            }
            return TenantId::NONE;
        };
        let id = known.id(name);
        known.note(id, name);
        id
    }

    /// What a tenant is called in reports of this process.
    pub fn name(&self, id: TenantId) -> String {
        match &self.known {
            Some(known) => known.name(id),
            None if id == TenantId::NONE => String::new(),
            None => format!("~{id}"),
        }
    }

    /// Whether saves of this tenant have to wait for the key.
    pub fn lacks_key(&self, name: &str) -> bool {
        self.known.is_none() && !name.is_empty()
    }

    /// Notified when a tenant is met whose identity the key has to say.
    pub fn key_wanted(&self) -> Arc<Notify> {
        Arc::clone(&self.key_wanted)
    }

    /// The key in use.
    pub fn key(&self) -> Option<&TenantKey> {
        self.known.as_ref().map(Tenants::key)
    }

    /// Goes on with this key. What was counted under another one is its tenant's again when it is
    /// used.
    pub fn set_key(&mut self, key: TenantKey, index: &mut Index) {
        if self.key() == Some(&key) {
            return;
        }
        self.limits_by_id.drain().for_each(|(id, _)| index.set_quota(id, None));
        let mut known = Tenants::new(key);
        for name in std::mem::take(&mut self.met) {
            known.note(known.id(&name), &name);
        }
        self.known = Some(known);
        for (name, bytes) in std::mem::take(&mut self.limits) {
            self.set_quota(&name, Some(bytes), index);
        }
    }

    /// Limits what one tenant may have, or all others. Without a key a tenant's limit begins with
    /// the key.
    pub fn set_quota(&mut self, name: &str, bytes: Option<u64>, index: &mut Index) {
        if name == OTHER_TENANTS {
            self.limit_of_others = bytes;
            return index.set_quota_of_others(bytes);
        }
        let id = self.id(name);
        match bytes {
            Some(bytes) => self.limits.insert(name.to_owned(), bytes),
            None => self.limits.remove(name),
        };
        if self.known.is_none() && !name.is_empty() {
            return;
        }
        match bytes {
            Some(bytes) => self.limits_by_id.insert(id, bytes),
            None => self.limits_by_id.remove(&id),
        };
        index.set_quota(id, bytes);
    }

    /// How much a tenant may have, in bytes. Whose chunks nobody knows is none of the others.
    pub fn quota_of(&self, id: TenantId) -> Option<u64> {
        self.limits_by_id
            .get(&id)
            .copied()
            .or(self.limit_of_others.filter(|_| id != TenantId::NONE))
    }
}

#[cfg(test)]
mod tests {
    use kvtier_evict::PolicyKind;
    use kvtier_index::{Chunk, IndexConfig, ReserveRequest};
    use kvtier_key::Digest;

    use super::*;

    fn index() -> Index {
        Index::new(IndexConfig::new(1 << 40), PolicyKind::Lru.build()).unwrap()
    }

    #[test]
    fn limits_follow_the_key_and_identities_are_never_shared() {
        let (mut tenants, mut index) = (TenantTable::default(), index());
        tenants.set_quota("alice", Some(10), &mut index);
        assert!(tenants.lacks_key("alice") && !tenants.lacks_key(""));
        assert_eq!((tenants.id("alice"), tenants.quota_of(TenantId::NONE)), (TenantId::NONE, None));
        tenants.set_key(TenantKey::new([1; 32]), &mut index);
        let first = tenants.id("alice");
        assert_eq!((tenants.quota_of(first), tenants.name(first)), (Some(10), "alice".to_owned()));
        let _ = index.insert(Chunk::new(Digest([1; 32]), 8, 8).with_tenant(first));
        assert!(index.is_above_quota(&ReserveRequest::new(5).with_tenant(first)));
        tenants.set_key(TenantKey::new([2; 32]), &mut index);
        let second = tenants.id("alice");
        assert!(
            first != second
                && tenants.quota_of(first).is_none()
                && tenants.quota_of(second) == Some(10)
        );
        assert!(
            !index.is_above_quota(&ReserveRequest::new(5).with_tenant(first)),
            "nobody is called so any more"
        );
        assert!(!format!("{tenants:?}").contains("alice"));
    }
}
