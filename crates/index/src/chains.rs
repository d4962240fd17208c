//! Where chunks stand in their chains, for those that are not there yet.

use hashbrown::HashMap;
use kvtier_key::{Key, KeyId};

use crate::{Index, Tag};

/// How many places of absent chunks are remembered, at least; twice that at most.
const KNOWN_MIN: usize = 1 << 14;
/// The most chunks that are announced and not settled.
const COMING_MAX: usize = 1 << 16;
/// How far back in a lookup the chunk before one may stand: so many chains may be asked for at once, key by key.
const APART_MAX: usize = 64;

/// A chunk's place in its prefix chain; the default is that nothing is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ChainPlace {
    /// The chunk before it; `None` for the first, or where the chain is unknown.
    pub parent: Option<Tag>,
    /// How many chunks lie before it; 0 for the first, or where the chain is unknown.
    pub depth: u32,
    /// Whether the caller said so, or it was inferred.
    pub told: bool,
}

impl ChainPlace {
    /// The place after `parent`, with `depth` chunks before it, as the caller says.
    pub fn new(parent: Option<Tag>, depth: u32) -> Self {
        ChainPlace { parent, depth, told: true }
    }

    fn inferred(parent: Tag, depth: u32) -> Self {
        ChainPlace { parent: Some(parent), depth, told: false }
    }
}

/// What lookups told of chunks that are not there, and which chunks are on their way in.
#[derive(Debug, Default)]
pub(crate) struct Chains {
    /// Two generations: the young one becomes the old one when it is full, and the old one is forgotten.
    young: HashMap<Tag, ChainPlace>,
    old: HashMap<Tag, ChainPlace>,
    /// Chunks that are being written: the chunk before each, and by how many saves.
    coming: HashMap<Tag, (Option<Tag>, u32)>,
}

impl Chains {
    fn note(&mut self, tag: Tag, place: ChainPlace) {
        if self.young.len() >= KNOWN_MIN {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(tag, place);
    }

    fn of(&self, tag: Tag) -> Option<ChainPlace> {
        self.young.get(&tag).or_else(|| self.old.get(&tag)).copied()
    }
}

impl Index {
    /// Learns from the order of a lookup which chunk comes after which: each after the one before it of the same rank and group. Saves of
    /// what was not there can ask for it with [`place_of`](Index::place_of); of old lookups it is forgotten.
    pub fn learn_order(&mut self, keys: &[Key]) {
        for (at, key) in keys.iter().enumerate().skip(1) {
            let line = lane(key);
            let before = keys[..at].iter().rev().take(APART_MAX).find(|other| lane(other) == line);
            let Some(before) = before.filter(|before| before.digest() != key.digest()) else { continue };
            let (tag, parent) = (Tag::of(key.digest()), Tag::of(before.digest()));
            if let Some(slot) = self.find(key.digest()) {
                self.slab[slot].learn_parent(parent, at as u32);
            } else {
                let depth = self.chains.of(parent).map_or(at as u32, |place| place.depth.saturating_add(1));
                self.chains.note(tag, ChainPlace::inferred(parent, depth));
            }
        }
    }

    /// What lookups told of the place of a chunk that is not there.
    pub fn place_of(&self, key: &Key) -> ChainPlace {
        self.chains.of(Tag::of(key.digest())).unwrap_or_default()
    }

    /// A chunk is about to be saved at this place: what comes after it is no orphan, until all saves of it have [settled](Index::settle).
    /// `false`, and nothing is noted, when too many chunks are on their way.
    #[must_use = "what is not noted is not settled"]
    pub fn expect(&mut self, tag: Tag, place: ChainPlace) -> bool {
        let has_room = self.chains.coming.len() < COMING_MAX || self.chains.coming.contains_key(&tag);
        if has_room {
            let (before, saves) = self.chains.coming.entry(tag).or_insert((None, 0));
            (*before, *saves) = (place.parent, *saves + 1);
        }
        has_room
    }

    /// The save of a chunk that was [expected](Index::expect) has ended, however it did.
    pub fn settle(&mut self, tag: Tag) {
        if let Some((_, saves)) = self.chains.coming.get_mut(&tag) {
            *saves -= 1;
            if *saves == 0 {
                self.chains.coming.remove(&tag);
            }
        }
    }

    /// The nearest chunk before a place that is there; `Err` if one in between is neither there nor on its way.
    pub(crate) fn ancestor(&self, place: ChainPlace) -> Result<Option<u32>, Orphan> {
        let mut next = place.parent;
        // Longer than this is a ring.
        for _ in 0..=self.chains.coming.len() {
            let Some(tag) = next else { return Ok(None) };
            if let Some(slot) = self.find_tag(tag) {
                return Ok(Some(slot));
            }
            next = self.chains.coming.get(&tag).ok_or(Orphan)?.0;
        }
        Ok(None)
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
