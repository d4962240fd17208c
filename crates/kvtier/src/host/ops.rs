use std::sync::atomic::{AtomicU64, Ordering};

use kvtier_core::{
    Class, Ctx, Error, ErrorKind, Event, Load, Loaded, MissReason, Op, Save, Saved, ShedReason,
};
use kvtier_index::{ChainPlace, DigestTag, Refusal, Reservation, Reserve};
use kvtier_key::{Digest, Key};
use kvtier_mem::View;

use super::HostTier;
use super::chunks::{Gone, PAGE, Stored};
use super::copy::{copy_checked, sums_of};

/// How often a save drops chunks to join the pieces of a fragmented arena before it is shed.
const SPACE_ROUNDS_MAX: usize = 8;

impl HostTier {
    /// Notes that a batch used these chunks.
    pub(super) fn used(&self, ctx: &Ctx, chain: &[Digest]) {
        self.chunks().used(self.now_ms(), chain, &ctx.hint);
    }

    /// Where the chunks of a batch of saves stand in their chains: as the caller says, else as
    /// lookups told.
    pub(super) fn places(&self, ctx: &Ctx, ops: &[Save]) -> Vec<ChainPlace> {
        let Some(chain) = ctx.chain else {
            let chunks = self.chunks();
            return ops.iter().map(|op| chunks.index.place_of(&op.key)).collect();
        };
        let before =
            std::iter::once(chain.parent).chain(ops.iter().map(|op| Some(*op.key.digest())));
        let depths = (0..).map(|n| chain.depth.saturating_add(n));
        before
            .zip(depths)
            .take(ops.len())
            .map(|(parent, depth)| {
                ChainPlace::new(parent.as_ref().map(DigestTag::from_digest), depth)
            })
            .collect()
    }

    pub(super) fn load_one(&self, op: &mut Load) -> Result<Loaded, Error> {
        if op.into.iter().any(|lease| !lease.place().is_host()) {
            return Err(self.error(
                ErrorKind::Unsupported,
                "the CPU cannot write this memory; use a tier that can",
            ));
        }
        op.into.iter_mut().for_each(|lease| lease.assume_filled(0));
        let digest = *op.key.digest();
        let Some(stored) = self.chunks().find(&digest) else {
            return Ok(miss(&self.counters.misses_absent, MissReason::Absent));
        };
        if stored.bytes.len() as u64 > op.bytes() {
            return Ok(miss(&self.counters.misses_length, MissReason::Length));
        }
        if !copy_checked(stored.bytes.as_ref(), &stored.sums, &mut op.into) {
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
        if self.chunks().is_present(op.key.digest(), len) {
            add(&self.counters.present, 1);
            return Ok(Saved::Present);
        }
        let sums = sums_of(&op.from);
        let room = match self.claim(&op.key, len.next_multiple_of(PAGE), place) {
            Ok(room) => room,
            Err(reason) => return Ok(self.shed(reason)),
        };
        let Some(bytes) = self.keep(op, len, ctx.class == Class::Write) else {
            self.chunks().index.cancel(room);
            return Ok(self.shed(ShedReason::Full));
        };
        // For other tiers that may save it from here.
        let _ = bytes.memo(|| sums.clone());
        let mut chunks = self.chunks();
        if !chunks.enter(room, place, Stored { key: op.key.clone(), bytes, sums }) {
            drop(chunks);
            return Ok(self.shed(ShedReason::Full));
        }
        let above_mark = chunks.below_mark(self.now_ms());
        drop(chunks);
        add(&self.counters.stored, 1);
        add(&self.counters.saved_bytes, len);
        self.listeners.notify();
        self.give_up(above_mark);
        Ok(Saved::Stored)
    }

    pub(super) fn shed(&self, reason: ShedReason) -> Saved {
        add(&self.counters.shed, 1);
        Saved::Shed(reason)
    }

    /// Tells of what was evicted, and hands it to whoever takes it: as much as leaves memory for
    /// the next chunks.
    fn give_up(&self, gone: Gone) {
        if gone.count == 0 {
            return;
        }
        add(&self.counters.evicted, gone.count);
        self.listeners.notify();
        let Some(spill) = self.spill.get() else { return };
        // What is handed over keeps its memory until it lies below.
        let (mut chunks, room) = (gone.chunks, self.spill_room());
        let used = (self.arena.stats().capacity - self.arena.stats().free) as u64;
        let mut over = used.saturating_sub(room);
        let dropped = chunks.extract_if(.., |chunk| {
            let is_one = over > 0;
            over = over.saturating_sub(chunk.bytes.len() as u64);
            is_one
        });
        add(&self.counters.spill_dropped, dropped.count() as u64);
        spill.take(chunks);
    }

    /// How full the arena may be for what goes to be handed over: half of what it has beyond chunks
    /// and claims stays for the next ones.
    fn spill_room(&self) -> u64 {
        let (capacity, usage) = (self.arena.stats().capacity as u64, self.chunks().index.usage());
        usage.used + usage.reserved + capacity.saturating_sub(usage.capacity) / 2
    }

    /// Tells of what goes because memory is needed at once: to hand it over would keep it.
    fn drop_at_once(&self, gone: &Gone) {
        let is_spilled = self.spill.get().is_some();
        add(&self.counters.evicted, gone.count);
        add(&self.counters.spill_dropped, if is_spilled { gone.chunks.len() as u64 } else { 0 });
        self.listeners.notify();
    }

    fn claim(&self, key: &Key, bytes: u64, place: ChainPlace) -> Result<Reservation, ShedReason> {
        let (reserved, gone) = self.chunks().reserve(self.now_ms(), (key, bytes), place);
        self.give_up(gone);
        match reserved {
            Reserve::Granted(room) => Ok(room),
            Reserve::Full(Refusal::TooLarge { .. }) => Err(ShedReason::TooLarge),
            Reserve::Full(Refusal::NotWorth) => Err(ShedReason::NotWorth),
            Reserve::Full(Refusal::Quota { .. }) => Err(ShedReason::Quota),
            _ => Err(ShedReason::Full),
        }
    }

    /// The chunk in our own arena: as it is, or a copy.
    fn keep(&self, op: &Save, len: u64, may_share: bool) -> Option<View> {
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

    /// A lease for a chunk whose room is claimed. Chunks of mixed sizes leave gaps: then more of
    /// them go.
    fn space(&self, len: u64) -> Option<kvtier_mem::Lease> {
        let len_host = usize::try_from(len).ok()?;
        for _ in 0..SPACE_ROUNDS_MAX {
            if let Ok(lease) = self.arena.lease(len_host) {
                return Some(lease);
            }
            let gone = self.chunks().make_space(self.now_ms(), len);
            if gone.count == 0 {
                break;
            }
            self.drop_at_once(&gone);
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

/// Why a save can never succeed here.
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
    let (full, ns) = (op.key.full_bytes()?, op.key.namespace());
    (len > full || (len < full && !ns.allow_partial())).then(|| {
        let what = format!("the namespace has chunks of {full} bytes, this one has {len}");
        (ErrorKind::Invalid, format!("{what}; fix the layout or allow partial chunks"))
    })
}
