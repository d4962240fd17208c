//! The keys of a process, by id, and the tenants' keys that were derived from them.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::cipher::Cipher;
use super::master_key::MasterKey;
use crate::{Error, ErrorKind};

/// The most derived keys that are kept; another one is derived again in microseconds.
const DERIVED_MAX: usize = 4096;

/// The loaded keys. Keys can be added and removed while chunks are encrypted and decrypted.
#[derive(Debug, Default)]
pub struct Keyring {
    keys: RwLock<Keys>,
}

#[derive(Debug, Default)]
struct Keys {
    masters: HashMap<u32, Master>,
    derived: usize,
}

#[derive(Debug)]
struct Master {
    key: Arc<MasterKey>,
    tenants: HashMap<Vec<u8>, Arc<Cipher>>,
}

/// A tenant's key, and the master key that counts for it.
#[derive(Clone, Debug)]
pub(super) struct TenantKey {
    pub(super) master: Arc<MasterKey>,
    pub(super) cipher: Arc<Cipher>,
}

impl Keyring {
    /// Without keys.
    pub fn new() -> Self {
        Keyring::default()
    }

    /// Adds a key. It replaces the one with the same id, and brings its own count of encrypted
    /// chunks: a new `MasterKey` starts at 0.
    pub fn insert(&self, key: MasterKey) {
        let mut keys = self.write();
        let id = key.id();
        let new = Master { key: Arc::new(key), tenants: HashMap::new() };
        let replaced = keys.masters.insert(id, new);
        keys.derived -= replaced.map_or(0, |old| old.tenants.len());
    }

    /// Removes a key: the chunks that it encrypted cannot be read any more. Answers whether it was
    /// there.
    pub fn remove(&self, id: u32) -> bool {
        let mut keys = self.write();
        let removed = keys.masters.remove(&id);
        keys.derived -= removed.as_ref().map_or(0, |old| old.tenants.len());
        removed.is_some()
    }

    /// The key with this id.
    pub fn get(&self, id: u32) -> Option<Arc<MasterKey>> {
        self.read().masters.get(&id).map(|master| master.key.clone())
    }

    /// The ids of all keys, in their order.
    pub fn ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.read().masters.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// The key of a tenant.
    pub(super) fn tenant_key(&self, id: u32, tenant: &[u8]) -> Result<TenantKey, Error> {
        let missing = || {
            Error::new(ErrorKind::KeyMissing, format!("the key with id {id} is not loaded: add it"))
        };
        let master = {
            let keys = self.read();
            let found = keys.masters.get(&id).ok_or_else(missing)?;
            if let Some(cipher) = found.tenants.get(tenant) {
                return Ok(TenantKey { master: found.key.clone(), cipher: cipher.clone() });
            }
            found.key.clone()
        };
        let cipher = Arc::new(master.derive(tenant)?);
        self.write().keep(&master, tenant, &cipher);
        Ok(TenantKey { master, cipher })
    }

    fn read(&self) -> RwLockReadGuard<'_, Keys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Keys> {
        self.keys.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keys {
    fn keep(&mut self, master: &Arc<MasterKey>, tenant: &[u8], cipher: &Arc<Cipher>) {
        if self.derived >= DERIVED_MAX {
            self.masters.values_mut().for_each(|master| master.tenants.clear());
            self.derived = 0;
        }
        // Meanwhile the key may have been replaced by another one with the same id.
        let same = |found: &&mut Master| Arc::ptr_eq(&found.key, master);
        if let Some(found) = self.masters.get_mut(&master.id()).filter(same)
            && found.tenants.insert(tenant.to_vec(), cipher.clone()).is_none()
        {
            self.derived += 1;
        }
    }
}
