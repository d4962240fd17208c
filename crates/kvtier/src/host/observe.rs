use std::sync::Arc;

use kvtier_core::{Cursor, KeyInfo, KeyPage, Listener, Observe, Status, TenantUsage, Usage};

use super::HostTier;

impl Observe for HostTier {
    fn usage(&self) -> Usage {
        let chunks = self.chunks();
        let all = chunks.index.usage();
        let mut usage = Usage::default();
        usage.used_bytes = Some(all.used);
        usage.capacity_bytes = Some(all.capacity);
        usage.chunks = all.entries as u64;
        let of = |(id, u): (_, kvtier_index::TenantTotals)| {
            let tenant = chunks.tenant_name(id);
            TenantUsage { tenant, used_bytes: u.bytes, chunks: u.entries as u64 }
        };
        usage.tenants = chunks.index.tenants().map(of).collect();
        usage
    }

    fn keys(&self, from: Cursor, max: usize) -> KeyPage {
        // A cursor that no page returned is past the end.
        let from = u32::try_from(from.0).unwrap_or(u32::MAX);
        let page = self.chunks().index.keys_page(kvtier_index::SlotCursor::from_u32(from), max);
        KeyPage {
            keys: page.chunks.iter().map(|c| KeyInfo { key: c.digest, len: c.len }).collect(),
            next: page.next.map(|cursor| Cursor(cursor.as_u32().into())),
        }
    }

    fn listen(&self, listener: Arc<dyn Listener>) {
        self.listeners.add(listener);
    }

    fn status(&self) -> Status {
        let closed = self.is_closed();
        let reasons = if closed { vec!["it was closed".into()] } else { vec![] };
        Status::new(!closed, reasons, self.counters.all())
    }
}
