//! Loads and saves of single chunks.

use std::sync::atomic::{AtomicU64, Ordering};

use kvtier_core::{
    Class, Ctx, Error, ErrorKind, Event, Hint, Load, Loaded, MissReason, Op, Save, Saved,
    ShedReason,
};
use kvtier_evict::EvictionHint;
use kvtier_index::{ChainPlace, Index, Refusal, Reservation, Reserve, SharedIndex};
use kvtier_key::{Digest, Key};
use kvtier_mem::View;

use super::HostTier;
use super::checked_copy::{copy_checked, sums_of};
use super::chunks::{Evicted, PAGE, StoredChunk};

/// How often a save evicts chunks to defragment the arena before it is shed.
const SPACE_ROUNDS_MAX: usize = 8;

impl SharedIndex for HostTier {
    fn with_index<R>(&self, work: impl FnOnce(&mut Index) -> R) -> R {
        work(&mut self.chunks().index)
    }

    fn now_ms(&self) -> u64 {
        HostTier::now_ms(self)
    }
}

impl HostTier {
    /// Records that a batch used these chunks.
    pub(super) fn used(&self, chain: &[Digest], hint: &Hint) {
        // One call for the chain: its head is kept longer than its tail.
        self.chunks().index.touch_batch(chain);
        let hint = EvictionHint::from_durations(
            hint.session_ended,
            hint.priority,
            hint.expected_return,
            hint.retention,
        );
        self.hint(chain, &hint);
    }

    /// The places of the chunks of a batch of saves in their chains: from the context, else as learned
    /// from lookups.
    pub(super) fn places(&self, ctx: &Ctx, ops: &[Save]) -> Vec<ChainPlace> {
        let mut next = ctx.chain.map(|chain| ChainPlace::after(chain.parent.as_ref(), chain.depth));
        let chunks = self.chunks();
        ops.iter().map(|op| chunks.index.place_in(&mut next, &op.key)).collect()
    }

    pub(super) fn load_one(&self, op: &mut Load) -> Result<Loaded, Error> {
        if op.into.iter().any(|lease| !lease.place().is_host()) {
            return Err(self.error(
                ErrorKind::Unsupported,
                "the CPU cannot write this memory; use a tier that can",
            ));
        }
        // Leases may come back from an earlier load. Old bytes must not count after a miss.
        op.into.iter_mut().for_each(|lease| lease.assume_filled(0));
        let digest = *op.key.digest();
        // Only the view is cloned under the lock. The copy below runs without it, so loads of
        // several threads copy at the same time.
        let Some(stored) = self.chunks().find(&digest) else {
            return Ok(miss(&self.counters.misses_absent, MissReason::Absent));
        };
        if stored.bytes.len() as u64 > op.bytes() {
            return Ok(miss(&self.counters.misses_length, MissReason::Length));
        }
        if !copy_checked(stored.bytes.as_ref(), &stored.sums, &mut op.into) {
            // The bytes in memory are wrong: they are forgotten at once, so that the next save
            // stores them anew.
            self.chunks().forget(&digest);
            self.listeners.notify();
            return Ok(miss(&self.counters.misses_corrupt, MissReason::Corrupt));
        }
        let len = stored.sums.len();
        add(&self.counters.hits, 1);
        add(&self.counters.loaded_bytes, len);
        self.listeners.push(Event::Touched { key: digest });
        self.listeners.notify();
        Ok(Loaded::Hit { len })
    }

    /// Saves a chunk at a place of its chain.
    pub(super) fn save_one(&self, ctx: &Ctx, op: &Save, place: ChainPlace) -> Result<Saved, Error> {
        let len = op.bytes();
        if let Some((kind, what)) = refusal(op, len) {
            return Err(Error::new(kind, what).with_tier(self.caps.name.clone()));
        }
        // Before the checksums: most saves of a busy engine are of chunks that are here.
        if self.chunks().is_present(op.key.digest(), len) {
            add(&self.counters.present, 1);
            return Ok(Saved::Present);
        }
        // Computed without the lock, and before space is reserved, which other saves may need
        // meanwhile.
        let sums = sums_of(&op.from);
        let reservation = match self.claim(&op.key, len.next_multiple_of(PAGE), place) {
            Ok(reservation) => reservation,
            Err(reason) => return Ok(self.shed(reason)),
        };
        let Some(bytes) = self.store_bytes(op, len, ctx.class == Class::Write) else {
            // A reservation that is not given back would shrink the tier for ever.
            self.chunks().index.cancel(reservation);
            return Ok(self.shed(ShedReason::Full));
        };
        // Other tiers that save it from here reuse the checksums.
        let _ = bytes.memo(|| sums.clone());
        let mut chunks = self.chunks();
        if !chunks.insert(reservation, place, StoredChunk { key: op.key.clone(), bytes, sums }) {
            // The index has no entry left for another chunk.
            drop(chunks);
            return Ok(self.shed(ShedReason::Full));
        }
        let above_mark = chunks.evict_above_mark(self.now_ms());
        drop(chunks);
        add(&self.counters.stored, 1);
        add(&self.counters.saved_bytes, len);
        self.listeners.notify();
        self.pass_on(above_mark);
        Ok(Saved::Stored)
    }

    pub(super) fn shed(&self, reason: ShedReason) -> Saved {
        add(&self.counters.shed, 1);
        Saved::Shed(reason)
    }

    /// Reports evicted chunks, and passes them to the tier below as far as memory for the next chunks
    /// remains.
    fn pass_on(&self, evicted: Evicted) {
        if evicted.count == 0 {
            return;
        }
        add(&self.counters.evicted, evicted.count);
        self.listeners.notify();
        let Some(spill) = self.spill.get() else { return };
        // A spilled chunk keeps its memory until the tier below has written it.
        let mut chunks = evicted.chunks;
        // Spilled chunks keep their memory until they are written. Beyond the limit they are
        // dropped, or a slow tier below would leave no space for saves.
        let limit = self.spill_limit();
        let used = (self.arena.stats().capacity - self.arena.stats().free) as u64;
        let mut over = used.saturating_sub(limit);
        let dropped = chunks.extract_if(.., |chunk| {
            let is_one = over > 0;
            over = over.saturating_sub(chunk.bytes.len() as u64);
            is_one
        });
        add(&self.counters.spill_dropped, dropped.count() as u64);
        spill.take(chunks);
    }

    /// How full the arena may be when evicted chunks are spilled: half of the memory beyond chunks and
    /// reservations stays free for the next chunks.
    fn spill_limit(&self) -> u64 {
        let capacity = self.arena.stats().capacity as u64;
        // What chunks use, and half of the spare part of the arena: the other half stays for gaps
        // and for saves in progress.
        let usage = self.chunks().index.usage();
        usage.used + usage.reserved + capacity.saturating_sub(usage.capacity) / 2
    }

    /// Reports chunks that are evicted without spilling, because their memory is needed at once.
    fn count_dropped(&self, evicted: &Evicted) {
        let is_spilled = self.spill.get().is_some();
        add(&self.counters.evicted, evicted.count);
        add(&self.counters.spill_dropped, if is_spilled { evicted.chunks.len() as u64 } else { 0 });
        self.listeners.notify();
    }

    fn claim(&self, key: &Key, bytes: u64, place: ChainPlace) -> Result<Reservation, ShedReason> {
        let (reserved, evicted) = self.chunks().reserve(self.now_ms(), key, bytes, place);
        self.pass_on(evicted);
        match reserved {
            Reserve::Granted(reservation) => Ok(reservation),
            Reserve::Full(Refusal::TooLarge { .. }) => Err(ShedReason::TooLarge),
            Reserve::Full(Refusal::NotWorth) => Err(ShedReason::NotWorth),
            Reserve::Full(Refusal::Quota { .. }) => Err(ShedReason::Quota),
            _ => Err(ShedReason::Full),
        }
    }

    /// The chunk in the tier's arena: the caller's view if it is there, else a copy.
    fn store_bytes(&self, op: &Save, len: u64, may_share: bool) -> Option<View> {
        // The view is in the tier's own arena already, so the tier keeps it instead of a copy. Only
        // for class `Write`, whose callers do not write to the memory again.
        if let [one] = op.from.as_slice()
            && may_share
            && self.arena.regions().iter().any(|region| Some(region.id) == one.region())
        {
            add(&self.counters.shared_save_bytes, len);
            return Some(one.clone());
        }
        let mut lease = self.space(len)?;
        let mut at = 0;
        for view in &op.from {
            lease.write_at(at, view.as_ref()).ok()?;
            at += view.len();
        }
        add(&self.counters.copied_save_bytes, len);
        Some(lease.freeze())
    }

    /// A lease for a chunk that has a reservation. Chunks of mixed sizes leave gaps; more chunks are
    /// evicted then.
    fn space(&self, len: u64) -> Option<kvtier_mem::Lease> {
        let len_host = usize::try_from(len).ok()?;
        // The cap allows the chunk, but free memory is in gaps between others. Each round evicts a
        // few more chunks until a gap is long enough.
        for _ in 0..SPACE_ROUNDS_MAX {
            if let Ok(lease) = self.arena.lease(len_host) {
                return Some(lease);
            }
            let evicted = self.chunks().defragment(self.now_ms(), len);
            if evicted.count == 0 {
                break;
            }
            self.count_dropped(&evicted);
        }
        self.arena.lease(len_host).ok()
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

fn miss(counter: &AtomicU64, reason: MissReason) -> Loaded {
    add(counter, 1);
    Loaded::Miss(reason)
}

/// Why a save can never succeed in this tier.
fn refusal(op: &Save, len: u64) -> Option<(ErrorKind, String)> {
    if len == 0 {
        return Some((ErrorKind::Invalid, "a chunk has at least one byte".into()));
    }
    if op.from.iter().any(|view| view.as_host().is_none()) {
        return Some((
            ErrorKind::Unsupported,
            "the CPU cannot read this memory; use a tier that can".into(),
        ));
    }
    let full = op.key.full_bytes()?;
    let ns = op.key.namespace();
    (len > full || (len < full && !ns.allow_partial())).then(|| {
        let what = format!("the namespace has chunks of {full} bytes, this one has {len}");
        (ErrorKind::Invalid, format!("{what}; fix the layout or allow partial chunks"))
    })
}
