use kvtier_core::Key;
use kvtier_index::journal::Record;
use kvtier_index::{Chunk, TenantId};

use crate::mover::Mover;
use crate::shared::Shared;

impl<M: Mover> Shared<M> {
    /// Corrects the tenants of chunks in the index. A key belongs to one tenant, so each use of it
    /// shows the tenant, also where the stored one is unknown or was lost.
    pub fn assign_tenants<'a>(&self, keys: impl Iterator<Item = &'a Key>) {
        let mut last = None;
        let mut adopted = Vec::new();
        let keys: Vec<(&Key, TenantId)> = keys
            .filter(|key| !key.namespace().tenant().is_empty())
            .map(|key| {
                let name = key.namespace().tenant();
                let id = match last {
                    Some((known, id)) if known == name => id,
                    _ => self.tenants.id(name),
                };
                last = Some((name, id));
                (key, id)
            })
            .collect();
        if keys.is_empty() {
            return;
        }
        let mut index = self.index();
        for (key, tenant) in keys {
            if let Some(known) =
                index.known(key.digest()).filter(|known| known.chunk.tenant != tenant)
            {
                let chunk: Chunk = known.chunk.with_tenant(tenant);
                let _ = index.insert(chunk);
                adopted.push(Record::Insert(chunk));
            }
        }
        drop(index);
        self.journal.note(adopted);
    }
}
