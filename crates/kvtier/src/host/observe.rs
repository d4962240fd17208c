use std::sync::Arc;

use kvtier_core::{Cursor, KeyInfo, KeyPage, Listener, Observe, Status, TenantUsage, Usage};
use kvtier_index::SlotCursor;

use super::HostTier;

impl Observe for HostTier {
    fn usage(&self) -> Usage {
        let chunks = self.chunks();
        let all = chunks.index.usage();
        let tenants = chunks.index.tenants().map(|(id, totals)| {
            TenantUsage::new(chunks.tenant_name(id), totals.bytes, totals.entries)
        });
        Usage::new(Some(all.used), Some(all.capacity), all.entries).with_tenants(tenants)
    }

    fn keys(&self, from: Cursor, max: usize) -> KeyPage {
        let page = self.chunks().index.keys_page(SlotCursor::from_u32(from.slot()), max);
        let keys = page.chunks.iter().map(|chunk| KeyInfo { key: chunk.digest, len: chunk.len });
        KeyPage::from_slots(keys, page.next.map(SlotCursor::as_u32))
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
