//! What batches do to the tiers, from submission to end. Nothing here touches Python.

use std::sync::Arc;

use kvtier::core::{
    Class, Digest, ErrorKind, Hold, Key, Load, Loaded, MissReason, Mode, Presence, Save, Saved,
    ShedReason, TierExt,
};
use kvtier::key::ChunkShape;
use kvtier::{Lease, View};

use crate::end::{End, NONE};
use crate::store::{Named, Store};

/// How to load.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Whether a chunk must fill its memory.
    pub exact: bool,
    /// Who waits for it.
    pub class: Class,
}

impl How {
    /// For somebody who waits for it now, or will later.
    pub fn of(exact: bool, prefetch: bool) -> Self {
        How { exact, class: if prefetch { Class::Prefetch } else { Class::Demand } }
    }
}

impl Store {
    /// Saves the views of each.
    pub async fn save(self: Arc<Self>, keys: Vec<Named>, from: Vec<Vec<View>>) -> End {
        self.save_as(keys, from, None).await
    }

    /// The same for chunks that are tensors of this shape, which layouts with headers write down.
    pub async fn save_as(
        self: Arc<Self>,
        keys: Vec<Named>,
        from: Vec<Vec<View>>,
        shape: Option<Arc<ChunkShape>>,
    ) -> End {
        let mut end = End::of(keys.len());
        let (at, ops) = end.keys(keys.into_iter().zip(from));
        let ops = ops.into_iter().map(|(key, from)| Save { key, from }).collect();
        let mut ctx = self.ctx(Class::Write);
        ctx.shape = shape;
        let done = self.tier().save_waiting(&ctx, ops).await;
        for (at, done) in at.into_iter().zip(done) {
            match done.result {
                Ok(Saved::Stored) => end.answers[at] = 1,
                // What a policy chose not to keep was no failure: it is a miss when it is asked
                // for.
                Ok(Saved::Present | Saved::Shed(ShedReason::NotWorth)) => end.answers[at] = 0,
                Ok(Saved::Shed(why)) => {
                    let (kind, text) = shed(why);
                    end.bad(kind, text.into());
                }
                Ok(_) => end.bad(ErrorKind::Full, "the chunk was not kept".into()),
                Err(e) => end.error(&e),
            }
        }
        end
    }

    /// Loads into the leases of each; where `exact`, a chunk that does not fill them is none.
    pub async fn load(self: Arc<Self>, keys: Vec<Named>, into: Vec<Vec<Lease>>, how: How) -> End {
        let mut end = End::of(keys.len());
        let (at, ops) = end.keys(keys.into_iter().zip(into));
        let len = |into: &[Lease]| into.iter().map(|lease| lease.len() as u64).sum::<u64>();
        let at: Vec<(usize, u64)> =
            at.into_iter().zip(ops.iter().map(|(_, into)| len(into))).collect();
        let ops = ops.into_iter().map(|(key, into)| Load { key, into }).collect();
        let done = self.tier().load_waiting(&self.ctx(how.class), ops).await;
        let (mut loaded, mut misfits) = (Vec::with_capacity(done.len()), Vec::new());
        for ((at, wanted), done) in at.into_iter().zip(done) {
            let digest = *done.op.key.digest();
            loaded.push(digest);
            match done.result {
                Ok(Loaded::Hit { len }) if len == wanted || !how.exact => {
                    end.answers[at] = len.cast_signed()
                }
                Ok(Loaded::Hit { len }) => {
                    let text = format!("the chunk {digest} has {len} bytes, {wanted} were wanted");
                    end.bad(ErrorKind::Invalid, text);
                }
                Ok(Loaded::Miss(MissReason::Length)) => misfits.push((done.op.key, wanted)),
                Ok(_) => {}
                Err(e) => end.error(&e),
            }
        }
        if self.settings.load_releases {
            self.release(&loaded);
        }
        self.note_lengths(&mut end, &misfits).await;
        end
    }

    /// Notes an error where a chunk is longer than its buffer. `misfits` are keys whose loads
    /// missed for their length, with the bytes of their buffers: objects of a wrong length miss
    /// so too, and those are misses and nothing more.
    async fn note_lengths(&self, end: &mut End, misfits: &[(Key, u64)]) {
        if misfits.is_empty() {
            return;
        }
        let keys: Arc<[Key]> = misfits.iter().map(|(key, _)| key.clone()).collect();
        let ctx = self.ctx(Class::Demand);
        let Ok(answer) = self.tier().lookup_waiting(&ctx, keys, Mode::Each, Hold::None).await
        else {
            return;
        };
        let mut too_long =
            misfits.iter().zip(&answer.found).filter_map(|((key, wanted), found)| match found {
                Presence::Hit { len } if len > wanted => Some((key.digest(), *len, *wanted)),
                _ => None,
            });
        let Some((digest, len, wanted)) = too_long.next() else { return };
        let others = match too_long.count() {
            0 => String::new(),
            others => format!(", and {others} others of the batch fit no better"),
        };
        let text = format!(
            "the chunk {digest} has {len} bytes and its buffer {wanted}{others}: pass buffers of the lengths that lookup answers"
        );
        end.bad(ErrorKind::Invalid, text);
    }

    /// Which keys are there, those after the first miss left out where `mode` says so; where
    /// `hold`, they stay for the store's time, or until they are let go.
    pub async fn lookup(self: Arc<Self>, keys: Vec<Named>, mode: Mode, hold: bool) -> End {
        let mut end = End::of(keys.len());
        let (at, keys) = whole_batch(&mut end, keys);
        let hold = if hold { Hold::For(self.settings.hold) } else { Hold::None };
        let ctx = self.ctx(Class::Demand);
        match self.tier().lookup_waiting(&ctx, Arc::clone(&keys), mode, hold).await {
            Ok(answer) => {
                let mut hits: Vec<Digest> = Vec::new();
                for ((at, key), found) in at.into_iter().zip(&*keys).zip(&answer.found) {
                    if let Presence::Hit { len } = found {
                        end.answers[at] = len.cast_signed();
                        hits.push(*key.digest());
                    }
                }
                if let Some(hold) = answer.hold {
                    self.hold(hold, hits);
                }
            }
            Err(e) => end.error(&e),
        }
        end
    }

    /// Deletes what nobody holds; what is held has no answer.
    pub async fn remove(self: Arc<Self>, keys: Vec<Named>) -> End {
        let mut end = End::of(keys.len());
        let (at, keys) = whole_batch(&mut end, keys);
        let ctx = self.ctx(Class::Background);
        let stay = match self.tier().remove_waiting(&ctx, Arc::clone(&keys)).await {
            Ok(removed) if removed.held == 0 => Ok(Vec::new()),
            Ok(_) => self
                .tier()
                .lookup_waiting(&ctx, keys, Mode::Each, Hold::None)
                .await
                .map(|there| there.found),
            Err(e) => Err(e),
        };
        match stay {
            Ok(stay) => {
                let stays = |i: usize| stay.get(i).is_some_and(|there| there.is_hit());
                at.into_iter()
                    .enumerate()
                    .for_each(|(i, at)| end.answers[at] = if stays(i) { NONE } else { 1 });
            }
            Err(e) => end.error(&e),
        }
        end
    }
}

fn whole_batch(end: &mut End, keys: Vec<Named>) -> (Vec<usize>, Arc<[Key]>) {
    let (at, keys) = end.keys(keys.into_iter().map(|key| (key, ())));
    (at, keys.into_iter().map(|(key, ())| key).collect())
}

fn shed(why: ShedReason) -> (ErrorKind, &'static str) {
    match why {
        ShedReason::Full => (ErrorKind::Full, "no room: everything that could go is held"),
        ShedReason::DeviceFull => {
            (ErrorKind::Full, "the file system is full, below the cap of the tier")
        }
        ShedReason::ReadOnly => (ErrorKind::Denied, "the medium is read-only"),
        ShedReason::TooLarge => (ErrorKind::Full, "the chunk is larger than the tier may hold"),
        _ => (ErrorKind::Throttled, "the tier took no more work before the deadline"),
    }
}
