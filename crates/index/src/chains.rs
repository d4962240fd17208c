//! Where chunks stand in their chains, for those that are not there yet.

use hashbrown::HashMap;
use kvtier_key::{Digest, Key, KeyId};

use crate::{DigestTag, Index};

/// How many places of absent chunks are remembered, at least; twice that at most.
const KNOWN_MIN: usize = 1 << 14;
/// The most chunks that are announced and not settled.
const PENDING_MAX: usize = 1 << 16;
/// How far back in a lookup the chunk before one may stand: so many chains may be asked for at
/// once, key by key.
const APART_MAX: usize = 64;
/// No way up to the head of a chain is followed further than this.
const WAY_UP_MAX: usize = 1 << 14;

/// A chunk's place in its prefix chain; the default is that nothing is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ChainPlace {
    /// The chunk before it; `None` for the first, or where the chain is unknown.
    pub parent: Option<DigestTag>,
    /// How many chunks lie before it; 0 for the first, or where the chain is unknown.
    pub depth: u32,
    /// Whether the caller said so, or it was inferred.
    pub explicit: bool,
}

impl ChainPlace {
    /// The place after `parent`, with `depth` chunks before it, as the caller says.
    pub fn new(parent: Option<DigestTag>, depth: u32) -> Self {
        ChainPlace { parent, depth, explicit: true }
    }

    fn inferred(parent: DigestTag, depth: u32) -> Self {
        ChainPlace { parent: Some(parent), depth, explicit: false }
    }
}

/// What lookups told of chunks that are not there, and which chunks are on their way in.
#[derive(Debug, Default)]
pub(crate) struct Chains {
    /// Two generations: the young one becomes the old one when it is full, and the old one is
    /// forgotten.
    young: HashMap<DigestTag, ChainPlace>,
    old: HashMap<DigestTag, ChainPlace>,
    pending: HashMap<DigestTag, PendingSave>,
    /// How many of those come right after each.
    followed: HashMap<DigestTag, u32>,
}

/// A chunk that is being written.
#[derive(Debug, Default)]
struct PendingSave {
    /// The chunk before it.
    before: Option<DigestTag>,
    /// By how many saves.
    saves: u32,
    /// Who comes after it and was there sooner: the policy could not be told whose child that is.
    early: Option<DigestTag>,
}

impl Chains {
    fn note(&mut self, tag: DigestTag, place: ChainPlace) {
        if self.young.len() >= KNOWN_MIN {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(tag, place);
    }

    fn of(&self, tag: DigestTag) -> Option<ChainPlace> {
        self.young.get(&tag).or_else(|| self.old.get(&tag)).copied()
    }

    /// One more chunk is on its way right after this one.
    fn follow(&mut self, before: Option<DigestTag>) {
        before.into_iter().for_each(|before| *self.followed.entry(before).or_default() += 1);
    }

    /// One less.
    fn unfollow(&mut self, before: Option<DigestTag>) {
        if let Some(before) = before
            && let Some(of) = self.followed.get_mut(&before)
        {
            *of -= 1;
            if *of == 0 {
                self.followed.remove(&before);
            }
        }
    }
}

impl Index {
    /// Learns from the order of a lookup which chunk comes after which: each after the one before
    /// it of the same rank and group. Saves of what was not there can ask for it with
    /// [`place_of`](Index::place_of); of old lookups it is forgotten.
    pub fn learn_order(&mut self, keys: &[Key]) {
        for (at, key) in keys.iter().enumerate().skip(1) {
            let line = lane(key);
            let before = keys[..at].iter().rev().take(APART_MAX).find(|other| lane(other) == line);
            let Some(before) = before.filter(|before| before.digest() != key.digest()) else {
                continue;
            };
            let (tag, parent) =
                (DigestTag::from_digest(key.digest()), DigestTag::from_digest(before.digest()));
            if let Some(slot) = self.find(key.digest()) {
                self.slab[slot].learn_parent(parent, at as u32);
            } else {
                let depth =
                    self.chains.of(parent).map_or(at as u32, |place| place.depth.saturating_add(1));
                self.chains.note(tag, ChainPlace::inferred(parent, depth));
            }
        }
    }

    /// What lookups told of the place of a chunk that is not there.
    pub fn place_of(&self, key: &Key) -> ChainPlace {
        self.chains.of(DigestTag::from_digest(key.digest())).unwrap_or_default()
    }

    /// A chunk is about to be saved at this place: what comes after it is no orphan, until all
    /// saves of it have ended ([`remove_pending`](Index::remove_pending)). `false`, and nothing is noted, when too many
    /// chunks are on their way.
    #[must_use = "what is not noted is not settled"]
    pub fn add_pending(&mut self, tag: DigestTag, place: ChainPlace) -> bool {
        let has_room =
            self.chains.pending.len() < PENDING_MAX || self.chains.pending.contains_key(&tag);
        if has_room {
            let coming = self.chains.pending.entry(tag).or_default();
            coming.saves += 1;
            let before = std::mem::replace(&mut coming.before, place.parent);
            self.chains.unfollow(before);
            self.chains.follow(place.parent);
        }
        has_room
    }

    /// The save of a chunk that was [pending](Index::add_pending) has ended, however it did.
    pub fn remove_pending(&mut self, tag: DigestTag) {
        if let Some(coming) = self.chains.pending.get_mut(&tag) {
            coming.saves -= 1;
            if coming.saves == 0 {
                let before = coming.before;
                self.chains.pending.remove(&tag);
                self.chains.unfollow(before);
            }
        }
    }

    /// A chunk came, and the one before it is not there: if that is on its way, the policy hears of
    /// the two then.
    pub(crate) fn note_early(&mut self, digest: &Digest, before: DigestTag) {
        if let Some(coming) = self.chains.pending.get_mut(&before) {
            coming.early = Some(DigestTag::from_digest(digest));
        }
    }

    /// The slot of a chunk that came sooner than this one, which is before it.
    pub(crate) fn take_early(&mut self, digest: &Digest) -> Option<u32> {
        if self.chains.pending.is_empty() {
            return None;
        }
        let early = self.chains.pending.get_mut(&DigestTag::from_digest(digest))?.early.take()?;
        self.find_tag(early)
    }

    /// The nearest chunk before a place that is there; `Err` if one in between is neither there nor
    /// on its way.
    pub(crate) fn ancestor(&self, place: ChainPlace) -> Result<Option<u32>, Orphan> {
        let mut next = place.parent;
        // Longer than this is a ring.
        for _ in 0..=self.chains.pending.len() {
            let Some(tag) = next else { return Ok(None) };
            if let Some(slot) = self.find_tag(tag) {
                return Ok(Some(slot));
            }
            next = self.chains.pending.get(&tag).ok_or(Orphan)?.before;
        }
        Ok(None)
    }

    /// Whether a slot is among those before another in its chain, as far as their chunks are there
    /// or on their way.
    pub(crate) fn leads_to(&self, slot: u32, of: Option<u32>) -> bool {
        let before = |at: &u32| {
            let parent = self.slab[*at].parent();
            self.ancestor(ChainPlace { parent, ..ChainPlace::default() }).ok()?
        };
        std::iter::successors(of, before).take(WAY_UP_MAX).any(|at| at == slot)
    }

    /// Whether what comes right after a slot is on its way: the policy cannot know of that.
    pub(crate) fn is_followed(&self, slot: u32) -> bool {
        let followed = &self.chains.followed;
        !followed.is_empty()
            && followed.contains_key(&DigestTag::from_digest(&self.slab[slot].digest))
    }
}

/// A chunk that nothing leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orphan;

/// What keys of one chain share, besides what all keys of a lookup do.
fn lane(key: &Key) -> (i64, u32) {
    match key.id() {
        KeyId::Object(id) => (id.rank.0, id.group),
        KeyId::Engine(id) => (id.worker_id, 0),
        KeyId::Layer(id) => (id.key.worker_id, id.layer as u32),
        _ => (0, 0),
    }
}
