//! What a tier reports: usage, keys, events, and its status for the operator.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvtier_core::{Cursor, KeyInfo, KeyPage, Listener, Observe, Status, TenantUsage, Usage};
use kvtier_index::{Chunk, SlotCursor};

use super::Disk;
use crate::layout::Foreign;
use crate::mover::Mover;

impl<M: Mover> Observe for Disk<M> {
    fn usage(&self) -> Usage {
        let index = self.shared.index();
        let all = index.usage();
        let quarantine_bytes = self.shared.space.quarantine_bytes.load(Ordering::Relaxed);
        // Before the first scan the lengths of a foreign layout's files are unknown: no usage is
        // better than a wrong one.
        let is_counted = self.shared.data_dir.foreign().is_none_or(Foreign::is_scanned);
        let used = is_counted.then_some(all.used + quarantine_bytes);
        let tenants = index.tenants().map(|(id, totals)| {
            TenantUsage::new(self.shared.tenants.name(id), totals.bytes, totals.entries)
        });
        Usage::new(used, Some(all.capacity), all.entries).with_tenants(tenants)
    }

    fn keys(&self, from: Cursor, max: usize) -> KeyPage {
        let (page, good) = {
            let index = self.shared.index();
            let page = index.keys_page(SlotCursor::from_u32(from.slot()), max);
            let is_good = |chunk: &&Chunk| !index.is_suspect(&chunk.digest);
            let good: Vec<Chunk> = page.chunks.iter().filter(is_good).copied().collect();
            (page, good)
        };
        let info =
            |chunk: &Chunk| KeyInfo { key: chunk.digest, len: self.shared.reported_len(chunk) };
        KeyPage::from_slots(good.iter().map(info), page.next.map(SlotCursor::as_u32))
    }

    fn listen(&self, listener: Arc<dyn Listener>) {
        self.shared.listeners.add(listener);
    }

    fn status(&self) -> Status {
        let fault = self.shared.last_fault.get();
        let mut reasons = vec![self.shared.mover.describe()];
        reasons.extend(fault.map(|f| format!("last fault: {f}")));
        let read_only = "read-only: the file system takes no writes; loads and lookups are served, saves are shed, nothing is evicted, \
                         until it can be written again";
        reasons.extend(self.shared.data_dir.is_read_only().then(|| read_only.to_owned()));
        reasons.extend(self.shared.restored_note());
        reasons.extend(self.shared.data_dir.damage());
        reasons.extend(self.shared.space.full_device.describe(&self.shared.clock));
        reasons.extend(self.shared.data_dir.foreign().map(Foreign::describe));
        reasons.extend(self.shared.geometry.describe());
        let mut counters = self.shared.counters.all();
        counters.extend(self.shared.mover.counters());
        let gate = self.admission.gate().stats();
        counters.extend([("queue_us", self.threads.pool.waited_us())]);
        counters.extend([("throttled", gate.throttled), ("stranded", gate.stranded_total)]);
        let healthy = !self.admission.gate().is_closed()
            && !self.shared.space.full_device.sheds(&self.shared.clock);
        Status::new(healthy, reasons, counters)
    }
}
