//! Applies one listing of the bucket to the index, without undoing what happened while it ran.
//!
//! A page shows the bucket at one moment before now. The index may be newer: this node saved,
//! deleted or saw a key meanwhile. So keys in `ChangedKeys` are skipped, and entries that are being
//! evicted or suspect keep their state; only their length is corrected.
//!
//! After the last page each entry whose slot was not listed is dropped, unless it changed during
//! the listing or is younger than the delay with which stores list new objects. Slots are safe to
//! compare: a slot that was freed and reused belongs to a key that changed.

use kvtier_index::{Chunk, Index, IndexEntry, InsertOutcome, SlotCursor, TenantId};
use kvtier_key::Digest;

use crate::state::catalog::UNKNOWN_LEN;
use crate::state::changed_during_listing::ChangedKeys;

/// Entries that are processed while the catalog is locked once.
pub const CHUNKS_PER_LOCK: usize = 4096;

/// A chunk in a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedChunk {
    pub digest: Digest,
    /// Raw bytes; `UNKNOWN_LEN` where the listing does not show them.
    pub len: u64,
    /// Bytes of the object.
    pub bytes: u64,
    /// When it was written, in Unix seconds by the store's clock.
    pub modified: i64,
    /// The tenant, where the name contains it.
    pub tenant: TenantId,
}

/// A set of slots, one bit for each.
#[derive(Debug, Default)]
pub struct SlotSet(Vec<u64>);

impl SlotSet {
    pub fn add(&mut self, slot: u32) {
        let at = slot as usize / 64;
        if self.0.len() <= at {
            self.0.resize((at + 1).next_power_of_two(), 0);
        }
        self.0[at] |= 1 << (slot % 64);
    }

    pub fn has(&self, slot: u32) -> bool {
        self.0.get(slot as usize / 64).is_some_and(|bits| bits >> (slot % 64) & 1 == 1)
    }
}

/// A listing that is being applied.
#[derive(Debug, Default)]
pub struct Reconciliation {
    /// The slots whose chunks were listed.
    seen: SlotSet,
    /// For each discovered chunk when it was written, in seconds, and its slot.
    new: Vec<(u32, u32)>,
}

impl Reconciliation {
    /// Applies a page. Returns for each chunk its slot and whether it is new; `None` where the
    /// index is newer than the page.
    pub fn apply_page(
        &mut self,
        index: &mut Index,
        changed: &ChangedKeys,
        found: &[ListedChunk],
    ) -> Vec<Option<(u32, bool)>> {
        found
            .iter()
            .map(|listed| {
                (!changed.has(&listed.digest)).then(|| self.apply_chunk(index, listed))?
            })
            .collect()
    }

    fn apply_chunk(
        &mut self,
        index: &mut Index,
        ListedChunk { digest, len, bytes, modified, tenant }: &ListedChunk,
    ) -> Option<(u32, bool)> {
        let (slot, new) = match index.get(digest) {
            Some(entry) => {
                // The listing has the store's length; ours may come from a proxy's answer.
                if shows_more(&entry.chunk, *len, *bytes) {
                    index.resize(digest, *len, *bytes);
                }
                // A peer that lacked the tenant key journals tenants under one of its own.
                if *tenant != TenantId::NONE && entry.chunk.tenant != *tenant {
                    let _ = index.insert(entry.chunk.with_tenant(*tenant));
                }
                (entry.slot, false)
            }
            // Suspect, or being evicted: the index is newer than the page.
            None if index.is_known(digest) => {
                // The known length may come from the answer of a proxy.
                if index.known(digest).is_some_and(|known| shows_more(&known.chunk, *len, *bytes)) {
                    index.resize(digest, *len, *bytes);
                }
                index.slot(digest).into_iter().for_each(|slot| self.seen.add(slot));
                return None;
            }
            None => {
                let chunk = Chunk::new(*digest, *len, *bytes).with_tenant(*tenant);
                // The policy may not want it: its object stays, uncounted, until something uses it.
                let InsertOutcome::New(slot) = index.insert(chunk) else { return None };
                self.new.push((u32::try_from(*modified).unwrap_or(0), slot));
                (slot, true)
            }
        };
        self.seen.add(slot);
        Some((slot, new))
    }

    /// After the last page: drops entries that existed before the first page and were on none.
    /// Processes a part; returns what was dropped, and where to go on. Slots for which `is_young`
    /// holds stay: some stores list new objects late.
    pub fn drop_unlisted(
        &self,
        index: &mut Index,
        changed: &ChangedKeys,
        from: SlotCursor,
        is_young: impl Fn(u32) -> bool,
    ) -> (Vec<IndexEntry>, Option<SlotCursor>) {
        // A part at a time. Between the parts the lock is free, and keys that change meanwhile are
        // in `changed`.
        let page = index.keys_page(from, CHUNKS_PER_LOCK);
        // Suspects too: what others quarantined takes no space any more.
        let unlisted = |index: &Index, digest: &Digest| {
            index.slot(digest).is_some_and(|slot| !self.seen.has(slot) && !is_young(slot))
        };
        let mut gone = Vec::new();
        for Chunk { digest, .. } in &page.chunks {
            if unlisted(index, digest) && !changed.has(digest) {
                gone.extend(index.forget(digest));
            }
        }
        (gone, page.next)
    }

    /// The order of eviction, as slots. Discovered chunks are placed by age: before all known
    /// chunks if written before `known_ms` (Unix time), else behind. Chunks used or saved during
    /// the listing come last.
    pub fn order(
        &mut self,
        index: &mut Index,
        changed: &ChangedKeys,
        known_ms: Option<u64>,
    ) -> Vec<u32> {
        self.new.sort_unstable();
        // From the first to be evicted to the last.
        let all = index.eviction_order();
        let index = &*index;
        let mut new = SlotSet::default();
        self.new.iter().for_each(|(_, slot)| new.add(*slot));
        let used = |slot: &u32| index.chunks_at(&[*slot]).any(|chunk| changed.has(&chunk.digest));
        let is_old = |at_s: u32| known_ms.is_some_and(|known| u64::from(at_s) * 1000 <= known);
        // What was used during the listing stays the most recent, whatever the listing says about
        // its age.
        let (last, before): (Vec<u32>, Vec<u32>) = all.into_iter().partition(used);
        let discovered = |old: bool| {
            self.new.iter().filter(move |(at_s, _)| is_old(*at_s) == old).map(|(_, slot)| *slot)
        };
        let known = before.into_iter().filter(|slot| !new.has(*slot));
        let still = |slot: &u32| !used(slot);
        discovered(true)
            .filter(still)
            .chain(known)
            .chain(discovered(false).filter(still))
            .chain(last)
            .collect()
    }

    /// The slots of discovered chunks, oldest first.
    pub fn discovered(&mut self) -> Vec<u32> {
        self.new.sort_unstable();
        self.new.iter().map(|(_, slot)| *slot).collect()
    }
}

/// Whether a listing shows lengths of a chunk that are not known. It never replaces a known raw
/// length of the same object.
fn shows_more(known: &Chunk, len: u64, bytes: u64) -> bool {
    known.bytes != bytes || known.len == UNKNOWN_LEN && len != UNKNOWN_LEN
}

/// Makes these slots the most recent, in their order, without counting a use.
pub fn make_recent(index: &mut Index, slots: &[u32]) {
    let chunks: Vec<Chunk> = index.chunks_at(slots).collect();
    for chunk in chunks {
        let _ = index.insert(chunk);
    }
}

#[cfg(test)]
mod tests {
    use kvtier_evict::PolicyKind;
    use kvtier_index::IndexConfig;

    use super::*;

    fn index() -> (Index, ChangedKeys) {
        let mut changed = ChangedKeys::default();
        changed.begin();
        (Index::new(IndexConfig::new(1 << 40), PolicyKind::Lru.build()).unwrap(), changed)
    }

    fn digest(n: u32) -> Digest {
        Digest::derive("test", &n.to_le_bytes())
    }

    fn listed(n: u32, modified: i64) -> ListedChunk {
        ListedChunk { digest: digest(n), len: 10, bytes: 10, modified, tenant: TenantId::NONE }
    }

    fn know(index: &mut Index, n: u32) {
        let _ = index.insert(Chunk::new(digest(n), 10, 10));
    }

    fn finish(round: &Reconciliation, index: &mut Index, changed: &ChangedKeys) -> Vec<Digest> {
        let mut gone = Vec::new();
        let mut from = Some(SlotCursor::default());
        while let Some(at) = from {
            let (some, next) = round.drop_unlisted(index, changed, at, |_| false);
            gone.extend(some.iter().map(|entry| entry.chunk.digest));
            from = next;
        }
        gone
    }

    fn order(index: &mut Index) -> Vec<Digest> {
        let slots = index.eviction_order();
        index.chunks_at(&slots).map(|chunk| chunk.digest).collect()
    }

    #[test]
    fn discovered_vanished_and_resized() {
        let (mut index, changed) = index();
        (0..3).for_each(|n| know(&mut index, n));
        let mut round = Reconciliation::default();
        let longer = ListedChunk { len: 99, bytes: 99, ..listed(1, 1) };
        let applied = round.apply_page(&mut index, &changed, &[listed(0, 1), longer, listed(7, 1)]);
        assert_eq!(
            applied.iter().map(|applied| applied.unwrap().1).collect::<Vec<_>>(),
            [false, false, true]
        );
        assert_eq!(finish(&round, &mut index, &changed), [digest(2)]);
        assert_eq!(index.get(&digest(1)).unwrap().chunk.len, 99);
        let usage = index.usage();
        assert_eq!((usage.used, usage.entries), (10 + 99 + 10, 3));
    }

    #[test]
    fn the_length_of_a_suspect_is_that_of_the_listing() {
        let (mut index, changed) = index();
        know(&mut index, 1);
        index.mark_suspect(&digest(1));
        index.resize(&digest(1), 4000, 4000);
        let applied = Reconciliation::default().apply_page(&mut index, &changed, &[listed(1, 1)]);
        assert_eq!((applied, index.usage().used), (vec![None], 10));
        assert!(index.is_suspect(&digest(1)), "its bytes were not seen");
    }

    #[test]
    fn a_raw_length_is_added_where_it_is_unknown_and_never_replaced() {
        let (mut index, changed) = index();
        for (n, known) in [(1, UNKNOWN_LEN), (2, 99), (3, 99)] {
            let _ = index.insert(Chunk::new(digest(n), known, 10));
        }
        let unknown = ListedChunk { len: UNKNOWN_LEN, ..listed(3, 1) };
        let page = [listed(1, 1), listed(2, 1), unknown];
        Reconciliation::default().apply_page(&mut index, &changed, &page);
        let len = |n| index.get(&digest(n)).unwrap().chunk.len;
        assert_eq!([1, 2, 3].map(len), [10, 99, 99]);
    }

    #[test]
    fn what_was_seen_a_moment_ago_stays_though_it_is_not_listed_yet() {
        let (mut index, changed) = index();
        (0..2).for_each(|n| know(&mut index, n));
        let round = Reconciliation::default();
        let young = index.get(&digest(1)).unwrap().slot;
        let (gone, _) =
            round.drop_unlisted(&mut index, &changed, SlotCursor::default(), |slot| slot == young);
        assert_eq!(gone.iter().map(|entry| entry.chunk.digest).collect::<Vec<_>>(), [digest(0)]);
    }

    #[test]
    fn what_happens_while_it_runs_is_not_undone() {
        let (mut index, mut changed) = index();
        (0..3).for_each(|n| know(&mut index, n));
        let mut round = Reconciliation::default();
        // One is saved after its page, one deleted before its page, one saved again with another
        // length.
        know(&mut index, 5);
        index.forget(&digest(0));
        let _ = index.insert(Chunk::new(digest(1), 50, 50));
        [5, 0, 1].into_iter().for_each(|n| changed.note(digest(n)));
        // And one is being evicted.
        let victim = index.evict_bytes(0, 10)[0].chunk.digest;
        let applied =
            round.apply_page(&mut index, &changed, &[listed(0, 1), listed(1, 1), listed(2, 1)]);
        assert!(
            applied.iter().all(Option::is_none) && index.is_evicting(&victim),
            "a page brings no victim back"
        );
        assert_eq!(finish(&round, &mut index, &changed), []);
        assert!(index.get(&digest(0)).is_none(), "what was deleted stays so");
        assert!(index.get(&digest(5)).is_some(), "what was saved stays so");
        assert_eq!(index.get(&digest(1)).map(|e| e.chunk.len), Some(50));
    }

    #[test]
    fn unused_chunks_are_ordered_by_age() {
        let (mut known, mut changed) = index();
        (0..2).for_each(|n| know(&mut known, n));
        let mut round = Reconciliation::default();
        let page = [listed(12, 300), listed(0, 1), listed(10, 100), listed(1, 1), listed(11, 200)];
        round.apply_page(&mut known, &changed, &page);
        // Number 0 is used while the listing runs.
        known.touch_batch(&[digest(0)]);
        changed.note(digest(0));
        let slots = round.order(&mut known, &changed, Some(150_000));
        make_recent(&mut known, &slots);
        assert_eq!(order(&mut known), [digest(10), digest(1), digest(11), digest(12), digest(0)]);
        let (mut empty, changed) = index();
        let mut round = Reconciliation::default();
        round.apply_page(&mut empty, &changed, &[listed(3, 30), listed(1, 10), listed(2, 20)]);
        let slots = round.order(&mut empty, &changed, None);
        make_recent(&mut empty, &slots);
        assert_eq!(
            order(&mut empty),
            [digest(1), digest(2), digest(3)],
            "without a snapshot the age decides"
        );
    }

    #[test]
    fn a_listing_counts_however_much_changes_meanwhile() {
        let (mut index, mut changed) = index();
        (0..3).for_each(|n| know(&mut index, n));
        let mut round = Reconciliation::default();
        (0..=1u64 << 20).for_each(|n| changed.note(Digest::derive("more", &n.to_le_bytes())));
        // One is saved after its page.
        know(&mut index, 5);
        changed.note(digest(5));
        let applied = round.apply_page(&mut index, &changed, &[listed(0, 1), listed(9, 1)]);
        assert_eq!(
            applied.iter().map(|applied| applied.unwrap().1).collect::<Vec<_>>(),
            [false, true]
        );
        let mut gone = finish(&round, &mut index, &changed);
        gone.sort_unstable_by_key(|gone| *gone == digest(2));
        assert_eq!(gone, [digest(1), digest(2)]);
        assert!(index.get(&digest(5)).is_some() && index.usage().entries == 3);
    }
}
