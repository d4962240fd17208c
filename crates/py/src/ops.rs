//! The operations of a batch on the tiers. Nothing here uses Python.

use std::sync::Arc;

use kvtier::core::{
    Class, ErrorKind, Hold, Key, Load, Loaded, LookedUp, MissReason, Mode, Presence, Save, Saved,
    ShedReason, TierExt,
};
use kvtier::key::ChunkShape;
use kvtier::{Lease, View};

use crate::open_store::{ParsedKey, Store};
use crate::result::{BatchResult, NO_ANSWER, ValidKeys};

/// How to load.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// Whether a chunk must fill its buffer.
    pub exact: bool,
    /// The priority.
    pub class: Class,
}

impl LoadOptions {
    /// A load on demand, or a prefetch.
    pub fn new(exact: bool, prefetch: bool) -> Self {
        LoadOptions { exact, class: if prefetch { Class::Prefetch } else { Class::Demand } }
    }
}

/// A load that missed because the chunk and its buffer differ in length.
struct LengthMismatch {
    key: Key,
    buffer_bytes: u64,
}

impl Store {
    /// Saves the views of each key.
    pub async fn save(self: Arc<Self>, keys: Vec<ParsedKey>, from: Vec<Vec<View>>) -> BatchResult {
        self.save_with_shape(keys, from, None).await
    }

    /// Saves chunks that are tensors of this shape; layouts with headers store it.
    pub async fn save_with_shape(
        self: Arc<Self>,
        keys: Vec<ParsedKey>,
        from: Vec<Vec<View>>,
        shape: Option<Arc<ChunkShape>>,
    ) -> BatchResult {
        let mut result = BatchResult::new(keys.len());
        let ValidKeys { at, keys } = result.valid_keys(keys.into_iter().zip(from));
        let ops = keys.into_iter().map(|(key, from)| Save { key, from }).collect();
        let mut ctx = self.ctx(Class::Write);
        ctx.shape = shape;
        let done = self.tier().save_waiting(&ctx, ops).await;
        for (at, done) in at.into_iter().zip(done) {
            match done.result {
                Ok(Saved::Stored) => result.answers[at] = 1,
                // A chunk that the admission policy declines is no failure: later it is a miss.
                Ok(Saved::Present | Saved::Shed(ShedReason::NotWorth)) => result.answers[at] = 0,
                Ok(Saved::Shed(reason)) => {
                    let (kind, text) = shed_error(reason);
                    result.record(kind, text.into());
                }
                Ok(_) => result.record(ErrorKind::Full, "the chunk was not kept".into()),
                Err(e) => result.record_error(&e),
            }
        }
        result
    }

    /// Loads each key into its leases. With `exact`, a chunk that does not fill them is an error.
    pub async fn load(
        self: Arc<Self>,
        keys: Vec<ParsedKey>,
        into: Vec<Vec<Lease>>,
        options: LoadOptions,
    ) -> BatchResult {
        let mut result = BatchResult::new(keys.len());
        let ValidKeys { at, keys } = result.valid_keys(keys.into_iter().zip(into));
        let len = |into: &[Lease]| into.iter().map(|lease| lease.len() as u64).sum::<u64>();
        let wanted: Vec<u64> = keys.iter().map(|(_, into)| len(into)).collect();
        let ops = keys.into_iter().map(|(key, into)| Load { key, into }).collect();
        let done = self.tier().load_waiting(&self.ctx(options.class), ops).await;
        let mut loaded = Vec::with_capacity(done.len());
        let mut mismatches = Vec::new();
        for ((at, wanted), done) in at.into_iter().zip(wanted).zip(done) {
            let digest = *done.op.key.digest();
            loaded.push(digest);
            match done.result {
                Ok(Loaded::Hit { len }) if len == wanted || !options.exact => {
                    result.answers[at] = len.cast_signed()
                }
                Ok(Loaded::Hit { len }) => {
                    let text = format!("the chunk {digest} has {len} bytes, {wanted} were wanted");
                    result.record(ErrorKind::Invalid, text);
                }
                Ok(Loaded::Miss(MissReason::Length)) => {
                    mismatches.push(LengthMismatch { key: done.op.key, buffer_bytes: wanted });
                }
                Ok(_) => {}
                Err(e) => result.record_error(&e),
            }
        }
        if self.settings.load_releases {
            self.release(&loaded);
        }
        self.record_too_long(&mut result, &mismatches).await;
        result
    }

    /// Records an error if a chunk is longer than its buffer. A stored object of a wrong length
    /// misses for the same reason and stays a plain miss, so the chunks are looked up.
    async fn record_too_long(&self, result: &mut BatchResult, mismatches: &[LengthMismatch]) {
        if mismatches.is_empty() {
            return;
        }
        let keys: Arc<[Key]> = mismatches.iter().map(|mismatch| mismatch.key.clone()).collect();
        let ctx = self.ctx(Class::Demand);
        let Ok(answer) = self.tier().lookup_waiting(&ctx, keys, Mode::Each, Hold::None).await
        else {
            return;
        };
        let mut too_long =
            mismatches.iter().zip(&answer.found).filter_map(|(mismatch, found)| match found {
                Presence::Hit { len } if *len > mismatch.buffer_bytes => Some((mismatch, *len)),
                _ => None,
            });
        let Some((LengthMismatch { key, buffer_bytes }, len)) = too_long.next() else { return };
        let others = match too_long.count() {
            0 => String::new(),
            others => format!(", and {others} others of the batch do not fit either"),
        };
        let text = format!(
            "the chunk {} has {len} bytes and its buffer {buffer_bytes}{others}: pass buffers of the lengths that lookup answers",
            key.digest()
        );
        result.record(ErrorKind::Invalid, text);
    }

    /// Looks up which keys are stored; in prefix mode up to the first miss. With `hold`, found
    /// chunks are held for the store's hold time or until they are released.
    pub async fn lookup(
        self: Arc<Self>,
        keys: Vec<ParsedKey>,
        mode: Mode,
        hold: bool,
    ) -> BatchResult {
        let mut result = BatchResult::new(keys.len());
        let mut open = key_batch(&mut result, keys);
        let hold = if hold { Hold::For(self.settings.hold) } else { Hold::None };
        let ctx = self.ctx(Class::Demand);
        // A medium that answers for a part of the keys does not say why it is silent about the
        // others. It is asked for these alone, until it answers for all or says why not.
        loop {
            let asked = open.keys.len();
            match self.tier().lookup_waiting(&ctx, Arc::clone(&open.keys), mode, hold).await {
                Ok(answer) => open = self.take_answers(&mut result, open, &answer, mode),
                Err(e) => {
                    result.record_error(&e);
                    break;
                }
            }
            // A round without one more answer ends it: the next would bring none either.
            if open.keys.is_empty() || open.keys.len() == asked {
                break;
            }
        }
        result
    }

    /// Records the hits, and returns the keys without an answer.
    fn take_answers(
        &self,
        result: &mut BatchResult,
        asked: KeyBatch,
        answer: &LookedUp,
        mode: Mode,
    ) -> KeyBatch {
        for (at, found) in asked.at.iter().zip(&answer.found) {
            if let Presence::Hit { len } = found {
                result.answers[*at] = len.cast_signed();
            }
        }
        if let Some(hold) = answer.hold {
            self.hold(hold, answer.hits(&asked.keys));
        }
        let found = |i: usize| answer.found.get(i).copied().unwrap_or(Presence::Unknown);
        let unknown: Vec<usize> = match mode {
            // A stack's answer is final: it has asked all its tiers, and one that failed makes no
            // lookup fail while others answer.
            _ if !answer.tiers.is_empty() => Vec::new(),
            Mode::Each => (0..asked.at.len()).filter(|i| found(*i) == Presence::Unknown).collect(),
            // Keys behind the end of a prefix need no answer.
            Mode::Prefix => (0..asked.at.len())
                .find(|i| !found(*i).is_hit())
                .filter(|i| found(*i) == Presence::Unknown)
                .into_iter()
                .collect(),
        };
        KeyBatch {
            at: unknown.iter().map(|i| asked.at[*i]).collect(),
            keys: unknown.iter().map(|i| asked.keys[*i].clone()).collect(),
        }
    }

    /// Deletes the chunks that are not held; a held one has no answer.
    pub async fn remove(self: Arc<Self>, keys: Vec<ParsedKey>) -> BatchResult {
        let mut result = BatchResult::new(keys.len());
        let KeyBatch { at, keys } = key_batch(&mut result, keys);
        let ctx = self.ctx(Class::Background);
        let remaining = match self.tier().remove_waiting(&ctx, Arc::clone(&keys)).await {
            Ok(removed) if removed.held == 0 => Ok(Vec::new()),
            Ok(_) => self
                .tier()
                .lookup_waiting(&ctx, keys, Mode::Each, Hold::None)
                .await
                .map(|answer| answer.found),
            Err(e) => Err(e),
        };
        match remaining {
            Ok(remaining) => {
                // A key of which the medium says nothing may remain.
                let remains =
                    |i: usize| remaining.get(i).is_some_and(|found| *found != Presence::Miss);
                at.into_iter().enumerate().for_each(|(i, at)| {
                    result.answers[at] = if remains(i) { NO_ANSWER } else { 1 }
                });
            }
            Err(e) => result.record_error(&e),
        }
        result
    }
}

/// The valid keys of a batch without values.
struct KeyBatch {
    /// The index of each key in the batch.
    at: Vec<usize>,
    keys: Arc<[Key]>,
}

fn key_batch(result: &mut BatchResult, keys: Vec<ParsedKey>) -> KeyBatch {
    let ValidKeys { at, keys } = result.valid_keys(keys.into_iter().map(|key| (key, ())));
    KeyBatch { at, keys: keys.into_iter().map(|(key, ())| key).collect() }
}

/// The kind and the text of a save that a tier did not accept.
pub fn shed_error(reason: ShedReason) -> (ErrorKind, &'static str) {
    match reason {
        ShedReason::Full => {
            (ErrorKind::Full, "the tier is full: every chunk that could be evicted is held")
        }
        ShedReason::DeviceFull => {
            (ErrorKind::Full, "the file system is full, below the cap of the tier")
        }
        ShedReason::ReadOnly => (ErrorKind::Denied, "the medium is read-only"),
        ShedReason::TooLarge => (ErrorKind::Full, "the chunk is larger than the tier's cap"),
        _ => (ErrorKind::Throttled, "the tier took no more work before the deadline"),
    }
}
