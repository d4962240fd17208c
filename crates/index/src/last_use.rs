//! The last use of chunks, according to a snapshot and journals: for tools that inspect a
//! medium from outside.

use std::collections::HashMap;

use kvtier_key::Digest;

use crate::journal::{Record, RecordBatch};
use crate::{Chunk, TenantId};

/// The last use of a chunk, and its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastUse {
    /// Unix time in milliseconds.
    pub at_ms: u64,
    /// Whether it was used at that time, within the seconds between two writes of a journal. If
    /// not, it was used then or earlier: a snapshot has an order of use and no times.
    pub is_exact: bool,
    /// The tenant; [`TenantId::NONE`] where none is known.
    pub tenant: TenantId,
}

/// When chunks were used last, by the digests of their keys.
#[derive(Clone, Debug, Default)]
pub struct LastUses(HashMap<Digest, LastUse>);

impl LastUses {
    /// Adds chunks of a snapshot that was taken at `at_ms`, Unix time in milliseconds.
    pub fn add_snapshot(&mut self, at_ms: u64, chunks: &[Chunk]) {
        for chunk in chunks {
            self.enter(chunk.digest, LastUse { at_ms, is_exact: false, tenant: chunk.tenant });
        }
    }

    /// Adds a batch of a journal. Batches may come in any order; those from before a snapshot are
    /// in it.
    pub fn add_batch(&mut self, batch: &RecordBatch) {
        for record in &batch.records {
            let used = LastUse { at_ms: batch.at_ms, is_exact: true, tenant: TenantId::NONE };
            match record {
                Record::Touch(digest) => self.enter(*digest, used),
                Record::Insert(chunk) => {
                    self.enter(chunk.digest, LastUse { tenant: chunk.tenant, ..used })
                }
                Record::Remove(_) => {}
            }
        }
    }

    /// The last use of a chunk, if recorded.
    pub fn get(&self, digest: &Digest) -> Option<LastUse> {
        self.0.get(digest).copied()
    }

    /// Keeps the latest use, and a tenant once it is known.
    fn enter(&mut self, digest: Digest, used: LastUse) {
        let known = self.0.entry(digest).or_insert(used);
        let tenant = if known.tenant == TenantId::NONE { used.tenant } else { known.tenant };
        // At one time the exact use wins: the snapshot shows only an upper bound.
        if (used.at_ms, used.is_exact) >= (known.at_ms, known.is_exact) {
            *known = used;
        }
        // Last, because `used` may be of a touch, which has no tenant.
        known.tenant = tenant;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_use_counts_and_the_tenant_stays() {
        let digest = |n: u8| Digest::derive("test", &[n]);
        let chunk = |n: u8| Chunk::new(digest(n), 1, 1).with_tenant(TenantId(n.into()));
        let batch = |at_ms, records| RecordBatch { at_ms, follows: 0, records };
        let mut uses = LastUses::default();
        uses.add_snapshot(100, &[chunk(1), chunk(2)]);
        uses.add_batch(&batch(300, vec![Record::Touch(digest(1)), Record::Touch(digest(3))]));
        uses.add_batch(&batch(
            200,
            vec![Record::Touch(digest(1)), Record::Insert(chunk(3)), Record::Remove(digest(2))],
        ));
        let used = |at_ms, is_exact, n| Some(LastUse { at_ms, is_exact, tenant: TenantId(n) });
        assert_eq!(uses.get(&digest(1)), used(300, true, 1));
        assert_eq!(uses.get(&digest(2)), used(100, false, 2));
        assert_eq!(uses.get(&digest(3)), used(300, true, 3));
        assert_eq!(uses.get(&digest(4)), None);
    }
}
