//! The tenants of this node's chunks, and their quotas. In the bucket a tenant is a keyed digest of
//! its name (its cache salt) and nothing else. `background/tenant_key.rs` reads and writes the
//! key when the first tenant occurs; this module applies it to the index.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use kvtier_core::OTHER_TENANTS;
use kvtier_index::{Index, TenantId, TenantKey, TenantNames};
use tokio::sync::Notify;

/// The most names that are remembered before the key is known.
const MET_MAX: usize = 4096;

/// Tenants and quotas.
#[derive(Default)]
pub struct TenantTable {
    known: Option<TenantNames>,
    /// Notified when a tenant occurs before the key is known.
    key_wanted: Arc<Notify>,
    /// Names that occurred before the key was known.
    met: BTreeSet<String>,
    /// Quotas in bytes, by name.
    limits: HashMap<String, u64>,
    /// The same by identity.
    limits_by_id: HashMap<TenantId, u64>,
    /// The quota of every other tenant.
    limit_of_others: Option<u64>,
}

/// Does not print names.
impl std::fmt::Debug for TenantTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TenantTable")
            .field("known", &self.known)
            .field("limits", &self.limits.len())
            .finish_non_exhaustive()
    }
}

impl TenantTable {
    /// The identity of a tenant, whose name is remembered; `TenantId::NONE` until the key is known.
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

    /// The name of a tenant in reports of this process.
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

    /// Notified when a tenant occurs before the key is known.
    pub fn key_wanted(&self) -> Arc<Notify> {
        Arc::clone(&self.key_wanted)
    }

    /// The key in use.
    pub fn key(&self) -> Option<&TenantKey> {
        self.known.as_ref().map(TenantNames::key)
    }

    /// Uses this key from now on. A chunk that was counted under another one returns to its tenant
    /// with its next use.
    pub fn set_key(&mut self, key: TenantKey, index: &mut Index) {
        if self.key() == Some(&key) {
            return;
        }
        self.limits_by_id.drain().for_each(|(id, _)| index.set_quota(id, None));
        let mut known = TenantNames::new(key);
        for name in std::mem::take(&mut self.met) {
            known.note(known.id(&name), &name);
        }
        self.known = Some(known);
        for (name, bytes) in std::mem::take(&mut self.limits) {
            self.set_quota(&name, Some(bytes), index);
        }
    }

    /// Sets the quota of one tenant, or of all others. It takes effect once the key is known.
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

    /// The quota of a tenant, in bytes. An unknown tenant has none.
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
        let mut tenants = TenantTable::default();
        let mut index = index();
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
            "no tenant has this identity any more"
        );
        assert!(!format!("{tenants:?}").contains("alice"));
    }

    #[test]
    fn names_are_remembered_before_the_key_up_to_a_limit() {
        let mut tenants = TenantTable::default();
        let name = |n: usize| format!("tenant {n}");
        (0..=MET_MAX).for_each(|n| assert_eq!(tenants.id(&name(n)), TenantId::NONE));
        tenants.set_key(TenantKey::new([1; 32]), &mut index());
        let known = TenantNames::new(TenantKey::new([1; 32]));
        let names = [0, MET_MAX - 1, MET_MAX].map(|n| (name(n), tenants.name(known.id(&name(n)))));
        assert!(names[..2].iter().all(|(name, known)| name == known), "{names:?}");
        assert_ne!(names[2].0, names[2].1, "one more than are remembered");
    }

    #[test]
    fn the_key_is_wanted_from_the_first_tenant_on() {
        let mut tenants = TenantTable::default();
        let wanted = tenants.key_wanted();
        let is_wanted = || std::pin::pin!(wanted.notified()).enable();
        assert_eq!(tenants.id(""), TenantId::NONE);
        assert!(!is_wanted(), "chunks without a tenant need no key");
        tenants.id("alice");
        assert!(is_wanted() && tenants.key().is_none());
        tenants.set_key(TenantKey::new([1; 32]), &mut index());
        assert_eq!(tenants.key(), Some(&TenantKey::new([1; 32])));
        tenants.id("bob");
        assert!(!is_wanted());
    }

    #[test]
    fn without_the_key_a_tenant_has_a_name_that_shows_only_its_identity() {
        let tenants = TenantTable::default();
        assert_eq!(tenants.name(TenantId::NONE), "");
        assert_eq!(tenants.name(TenantId(7)), format!("~{}", TenantId(7)));
    }

    #[test]
    fn the_quota_of_the_others_is_not_that_of_chunks_without_a_tenant() {
        let mut tenants = TenantTable::default();
        tenants.set_quota(OTHER_TENANTS, Some(50), &mut index());
        let quotas = [TenantId(7), TenantId::NONE].map(|id| tenants.quota_of(id));
        assert_eq!(quotas, [Some(50), None]);
    }
}
