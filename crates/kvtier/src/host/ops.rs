use std::sync::atomic::{AtomicU64, Ordering};

use kvtier_core::{Class, Ctx, Error, ErrorKind, Event, Load, Loaded, MissReason, Op, Save, Saved, ShedReason};
use kvtier_index::{Refusal, Reservation, Reserve};
use kvtier_mem::View;

use super::HostTier;
use super::chunks::{PAGE, Stored};
use super::copy::{copy_checked, sums_of};

/// How often a save drops chunks to join the pieces of a fragmented arena before it is shed.
const SPACE_ROUNDS_MAX: usize = 8;

impl HostTier {
    pub(super) fn load_one(&self, op: &mut Load) -> Result<Loaded, Error> {
        if op.into.iter().any(|lease| !lease.place().is_host()) {
            return Err(self.error(ErrorKind::Unsupported, "the CPU cannot write this memory; use a tier that can"));
        }
        op.into.iter_mut().for_each(|lease| lease.assume_filled(0));
        let digest = *op.key.digest();
        let Some(stored) = self.chunks().take_up(&digest) else {
            return Ok(miss(&self.counters.misses_absent, MissReason::Absent));
        };
        if stored.bytes.len() as u64 > op.bytes() {
            return Ok(miss(&self.counters.misses_length, MissReason::Length));
        }
        if !copy_checked(stored.bytes.as_ref(), &stored.sums, &mut op.into) {
            let gone = self.chunks().forget(&digest);
            self.tell(gone.as_slice());
            return Ok(miss(&self.counters.misses_corrupt, MissReason::Corrupt));
        }
        let len = stored.sums.len();
        add(&self.counters.hits, 1);
        add(&self.counters.loaded_bytes, len);
        self.tell(&[Event::Touched { key: digest }]);
        Ok(Loaded::Hit { len })
    }

    pub(super) fn save_one(&self, ctx: &Ctx, op: &Save) -> Result<Saved, Error> {
        let len = op.bytes();
        if let Some((kind, what)) = refusal(op, len) {
            return Err(Error::new(kind, what).with_tier(self.caps.name.clone()));
        }
        if self.chunks().is_present(op.key.digest(), len) {
            add(&self.counters.present, 1);
            return Ok(Saved::Present);
        }
        let sums = sums_of(&op.from);
        let room = match self.claim(len.next_multiple_of(PAGE)) {
            Ok(room) => room,
            Err(reason) => return Ok(self.shed(reason)),
        };
        let Some(bytes) = self.keep(op, len, ctx.class == Class::Write) else {
            self.chunks().index.cancel(room);
            return Ok(self.shed(ShedReason::Full));
        };
        let mut chunks = self.chunks();
        if !chunks.enter(room, &op.key, Stored { bytes, sums }) {
            drop(chunks);
            return Ok(self.shed(ShedReason::Full));
        }
        let above_mark = chunks.below_mark(self.now_ms());
        drop(chunks);
        add(&self.counters.stored, 1);
        add(&self.counters.saved_bytes, len);
        self.tell(&[Event::Stored { key: *op.key.digest(), len }]);
        self.tell_gone(&above_mark);
        Ok(Saved::Stored)
    }

    fn shed(&self, reason: ShedReason) -> Saved {
        add(&self.counters.shed, 1);
        Saved::Shed(reason)
    }

    fn tell_gone(&self, evicted: &[Event]) {
        add(&self.counters.evicted, evicted.len() as u64);
        self.tell(evicted);
    }

    fn claim(&self, bytes: u64) -> Result<Reservation, ShedReason> {
        let (reserved, gone) = self.chunks().reserve(self.now_ms(), bytes);
        self.tell_gone(&gone);
        match reserved {
            Reserve::Granted(room) => Ok(room),
            Reserve::Full(Refusal::TooLarge { .. }) => Err(ShedReason::TooLarge),
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

    /// A lease for a chunk whose room is claimed. Chunks of mixed sizes leave gaps: then more of them go.
    fn space(&self, len: u64) -> Option<kvtier_mem::Lease> {
        let len_host = usize::try_from(len).ok()?;
        for _ in 0..SPACE_ROUNDS_MAX {
            if let Ok(lease) = self.arena.lease(len_host) {
                return Some(lease);
            }
            let gone = self.chunks().make_space(self.now_ms(), len);
            if gone.is_empty() {
                break;
            }
            self.tell_gone(&gone);
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
        return Some((ErrorKind::Unsupported, "the CPU cannot read this memory; use a tier that can".into()));
    }
    let kvtier_key::KeyId::Object(id) = op.key.id() else { return None };
    let ns = op.key.namespace();
    let full = ns.chunk_bytes(id.group)?;
    (len > full || (len < full && !ns.allow_partial())).then(|| {
        let what = format!("the namespace has chunks of {full} bytes, this one has {len}");
        (ErrorKind::Invalid, format!("{what}; fix the layout or allow partial chunks"))
    })
}
