//! What a connector's batches do to the tiers, from submission to end. Nothing here touches Python.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvtier::core::{
    Class, Ctx, Digest, Error, Hold, Key, Load, Loaded, Mode, Namespace, Save, Saved, ShedReason, Tier, TierExt,
};
use kvtier::key::{KeyId, ObjectKey};
use kvtier::{Lease, View};

use crate::holds::{HOLD, Holds};
use crate::inbox::End;

/// At most this many salts' namespaces are remembered; beyond, they are made anew each time.
const NAMESPACES_MAX: usize = 4096;

/// The tiers, as a connector sees them.
pub struct Store {
    pub tier: Arc<dyn Tier>,
    timeout: Duration,
    layout: Digest,
    namespaces: Mutex<HashMap<String, Arc<Namespace>>>,
    holds: Mutex<Holds>,
}

/// A key as LMCache spells it, or why it is none.
pub type Named = Result<Key, String>;

impl Store {
    /// Over `tier`; each batch must end within `timeout`.
    pub fn new(tier: Arc<dyn Tier>, timeout: Duration) -> Self {
        let layout = Digest::of("kvtier layout", b"lmcache-mp");
        Store { tier, timeout, layout, namespaces: Mutex::default(), holds: Mutex::default() }
    }

    /// The key that LMCache spells `name`.
    pub fn key(&self, name: &str) -> Named {
        let id =
            ObjectKey::from_native_name(name).map_err(|e| format!("the key {name:?} is none of LMCache's: {e}"))?;
        Ok(Key::new(self.namespace(&id.salt), KeyId::Object(id)))
    }

    /// A salt is a tenant. Chunks of a model, rank and group have one length, which the first teaches.
    fn namespace(&self, salt: &str) -> Arc<Namespace> {
        let mut known = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = known.get(salt) {
            return Arc::clone(there);
        }
        let made = Arc::new(Namespace::new(salt, self.layout).with_partial(false));
        if known.len() < NAMESPACES_MAX {
            known.insert(salt.to_owned(), Arc::clone(&made));
        }
        made
    }

    fn ctx(&self, class: Class) -> Ctx {
        Ctx::within(self.timeout).with_class(class)
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Saves each view; the end is good only if all were.
    pub async fn set(self: Arc<Self>, keys: Vec<Named>, from: Vec<View>) -> End {
        let (mut ends, mut ops) = (Ends::new(keys.len()), Vec::with_capacity(keys.len()));
        for (at, (key, view)) in keys.into_iter().zip(from).enumerate() {
            if let Some(key) = ends.key(at, key) {
                ops.push((at, Save { key, from: vec![view] }));
            }
        }
        let (at, ops): (Vec<_>, Vec<_>) = ops.into_iter().unzip();
        let done = self.tier.save_waiting(&self.ctx(Class::Write), ops).await;
        for (at, done) in at.into_iter().zip(done) {
            match done.result {
                Ok(Saved::Stored | Saved::Present) => ends.good(at),
                Ok(Saved::Shed(why)) => ends.bad(said(why)),
                Ok(_) => ends.bad("the chunk was not kept".into()),
                Err(e) => ends.bad(whole(&e)),
            }
        }
        let ok = ends.each.iter().all(|good| *good);
        End { ok, error: ends.error, each: None }
    }

    /// Loads into each lease; a chunk that does not fill it is none.
    pub async fn get(self: Arc<Self>, keys: Vec<Named>, into: Vec<Lease>) -> End {
        let (mut ends, mut ops) = (Ends::new(keys.len()), Vec::with_capacity(keys.len()));
        for (at, (key, lease)) in keys.into_iter().zip(into).enumerate() {
            if let Some(key) = ends.key(at, key) {
                ops.push(((at, lease.len() as u64), Load { key, into: vec![lease] }));
            }
        }
        let (at, ops): (Vec<_>, Vec<_>) = ops.into_iter().unzip();
        let done = self.tier.load_waiting(&self.ctx(Class::Demand), ops).await;
        let now = Instant::now();
        for ((at, wanted), done) in at.into_iter().zip(done) {
            match done.result {
                Ok(Loaded::Hit { len }) if len == wanted => ends.good(at),
                Ok(Loaded::Hit { len }) => {
                    ends.bad(format!("the chunk {} has {len} bytes, {wanted} were wanted", done.op.key.digest()));
                }
                Ok(_) => {}
                Err(e) => ends.bad(whole(&e)),
            }
            let over = self.holds().loaded(done.op.key.digest(), now);
            if let Some(hold) = over {
                self.tier.release(hold);
            }
        }
        ends.finish()
    }

    /// Which keys are there; they stay for [`HOLD`], or until they are loaded.
    pub async fn exists(self: Arc<Self>, keys: Vec<Named>) -> End {
        let mut ends = Ends::new(keys.len());
        let (at, keys): (Vec<_>, Vec<_>) =
            keys.into_iter().enumerate().filter_map(|(at, key)| Some((at, ends.key(at, key)?))).unzip();
        let keys: Arc<[Key]> = keys.into();
        let ctx = self.ctx(Class::Demand);
        let answer = self.tier.lookup_waiting(&ctx, Arc::clone(&keys), Mode::Each, Hold::For(HOLD)).await;
        match answer {
            Ok(answer) => {
                let hits = keys.iter().zip(&answer.found).filter(|(_, found)| found.is_hit());
                let hits: Vec<Digest> = hits.map(|(key, _)| *key.digest()).collect();
                at.into_iter().zip(&answer.found).filter(|(_, found)| found.is_hit()).for_each(|(at, _)| ends.good(at));
                if let Some(hold) = answer.hold {
                    self.holds().add(hold, hits, Instant::now());
                }
            }
            Err(e) => ends.bad(whole(&e)),
        }
        // A lookup that could not be made is a miss for each, which the caller takes only from a good end.
        End { ok: true, ..ends.finish() }
    }

    /// Deletes what nobody holds; what is held is answered with `false`.
    pub async fn delete(self: Arc<Self>, keys: Vec<Named>) -> End {
        let mut ends = Ends::new(keys.len());
        let (at, keys): (Vec<_>, Vec<_>) =
            keys.into_iter().enumerate().filter_map(|(at, key)| Some((at, ends.key(at, key)?))).unzip();
        let (ctx, keys): (_, Arc<[Key]>) = (self.ctx(Class::Background), keys.into());
        let stay = match self.tier.remove_waiting(&ctx, Arc::clone(&keys)).await {
            Ok(removed) if removed.held == 0 => Ok(Vec::new()),
            Ok(_) => self.tier.lookup_waiting(&ctx, keys, Mode::Each, Hold::None).await.map(|there| there.found),
            Err(e) => Err(e),
        };
        match stay {
            Ok(stay) => {
                let gone = |i: usize| stay.get(i).is_none_or(|there| !there.is_hit());
                at.into_iter().enumerate().filter(|(i, _)| gone(*i)).for_each(|(_, at)| ends.good(at));
            }
            Err(e) => ends.bad(whole(&e)),
        }
        ends.finish()
    }
}

/// The answers of a batch, one by one.
struct Ends {
    each: Vec<bool>,
    error: String,
}

impl Ends {
    fn new(len: usize) -> Self {
        Ends { each: vec![false; len], error: String::new() }
    }

    fn good(&mut self, at: usize) {
        self.each[at] = true;
    }

    /// The first error is the one that is told.
    fn bad(&mut self, error: String) {
        if self.error.is_empty() {
            self.error = error;
        }
    }

    fn key(&mut self, _at: usize, key: Named) -> Option<Key> {
        key.map_err(|e| self.bad(e)).ok()
    }

    fn finish(self) -> End {
        End { ok: self.error.is_empty(), error: self.error, each: Some(self.each) }
    }
}

fn said(why: ShedReason) -> String {
    match why {
        ShedReason::Full => "no room: everything that could go is held".into(),
        ShedReason::TooLarge => "the chunk is larger than the tier may hold".into(),
        _ => "the tier took no more work before the deadline".into(),
    }
}

/// An error with all that caused it.
pub fn whole(e: &Error) -> String {
    let mut text = e.to_string();
    let mut source = std::error::Error::source(e);
    while let Some(e) = source {
        text = format!("{text}: {e}");
        source = e.source();
    }
    text
}
