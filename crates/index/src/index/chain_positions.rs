//! Positions in prefix chains, for chunks that are not in the index.
//!
//! A policy needs the predecessor of a chunk when the chunk is saved. Two sources give it: the
//! context of the save (`explicit`), or the order of keys in an earlier lookup, which is remembered
//! for absent chunks in two bounded generations.
//!
//! Saves of one chain end in any order, so a chunk may be committed before its predecessor. Pending
//! saves are therefore counted from [`Index::add_pending`] to [`Index::remove_pending`]: the chunk
//! after a pending one is no orphan, and the policy gets the link when the predecessor arrives.

use hashbrown::HashMap;
use kvtier_key::{Digest, Key, KeyId};

use crate::{ChainPlace, DigestTag, Index};

/// The fewest positions of absent chunks that are remembered; at most twice as many.
const KNOWN_MIN: usize = 1 << 14;
/// The most pending chunks.
const PENDING_MAX: usize = 1 << 16;
/// How far back in a lookup the predecessor of a key may be. So one lookup may interleave this many
/// chains.
const APART_MAX: usize = 64;
/// The longest path to the head of a chain that is followed.
// A chain of 16,384 chunks of 256 tokens has four million tokens.
const WAY_UP_MAX: usize = 1 << 14;

/// Positions learnt from lookups of absent chunks, and the pending saves.
#[derive(Debug, Default)]
pub(crate) struct Chains {
    /// Two generations: when the young one is full it becomes the old one, which is dropped.
    young: HashMap<DigestTag, ChainPlace>,
    old: HashMap<DigestTag, ChainPlace>,
    pending: HashMap<DigestTag, PendingPosition>,
    /// The number of pending chunks right after each chunk.
    followed: HashMap<DigestTag, u32>,
}

/// A chunk that is being saved.
#[derive(Debug, Default)]
struct PendingPosition {
    /// The previous chunk.
    before: Option<DigestTag>,
    /// The number of saves.
    saves: u32,
    /// A successor that was committed first, so that the policy does not have its parent yet.
    early: Option<DigestTag>,
}

impl Chains {
    fn remember(&mut self, tag: DigestTag, place: ChainPlace) {
        // Two generations instead of an order of use: no list to maintain, and at least the last
        // `KNOWN_MIN` positions are always known.
        if self.young.len() >= KNOWN_MIN {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(tag, place);
    }

    /// Forgets the position of an absent chunk until the next lookup that shows it.
    pub(crate) fn forget(&mut self, tag: DigestTag) {
        self.young.remove(&tag);
        self.old.remove(&tag);
    }

    fn place(&self, tag: DigestTag) -> Option<ChainPlace> {
        self.young.get(&tag).or_else(|| self.old.get(&tag)).copied()
    }

    /// One more chunk is pending right after this one.
    fn follow(&mut self, before: Option<DigestTag>) {
        before.into_iter().for_each(|before| *self.followed.entry(before).or_default() += 1);
    }

    /// One chunk less.
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
    /// Learns the predecessors from the order of a lookup: each key follows the last one before it
    /// of the same rank and group. [`place_of`](Index::place_of) returns them for saves; those of
    /// old lookups are dropped.
    pub fn learn_order(&mut self, keys: &[Key]) {
        for (at, key) in keys.iter().enumerate().skip(1) {
            // A lookup lists the chunks of all ranks and groups in turn; each of them has a chain
            // of its own.
            let own_lane = lane(key);
            let before =
                keys[..at].iter().rev().take(APART_MAX).find(|other| lane(other) == own_lane);
            let Some(before) = before.filter(|before| before.digest() != key.digest()) else {
                continue;
            };
            let tag = DigestTag::from_digest(key.digest());
            let parent = DigestTag::from_digest(before.digest());
            // A chunk that is there, found in a listing say, has no parent yet unless a snapshot
            // gave one.
            if let Some(slot) = self.find(key.digest()) {
                self.slab[slot].learn_parent(parent, at as u32);
            } else {
                let depth = self
                    .chains
                    .place(parent)
                    // Without a known predecessor its place in the lookup is the best guess of its
                    // depth.
                    .map_or(at as u32, |place| place.depth.saturating_add(1));
                self.chains.remember(tag, ChainPlace::inferred(parent, depth));
            }
        }
    }

    /// The position of an absent chunk, as learnt from lookups.
    pub fn place_of(&self, key: &Key) -> ChainPlace {
        self.chains.place(DigestTag::from_digest(key.digest())).unwrap_or_default()
    }

    /// The position of the next chunk of a batch: `next`, which then moves on to the chunk after it;
    /// without one, as learnt from lookups.
    pub fn place_in(&self, next: &mut Option<ChainPlace>, key: &Key) -> ChainPlace {
        let Some(next) = next else { return self.place_of(key) };
        let after = ChainPlace::after(Some(key.digest()), next.depth.saturating_add(1));
        std::mem::replace(next, after)
    }

    /// A chunk is about to be saved at this position: its successors are no orphans until
    /// [`remove_pending`](Index::remove_pending) was called for each of its saves. `false`, with
    /// nothing recorded, if there are too many pending chunks.
    #[must_use = "what is not noted is not settled"]
    pub fn add_pending(&mut self, tag: DigestTag, place: ChainPlace) -> bool {
        // A chunk that is pending already needs no further entry.
        let has_capacity =
            self.chains.pending.len() < PENDING_MAX || self.chains.pending.contains_key(&tag);
        if has_capacity {
            let coming = self.chains.pending.entry(tag).or_default();
            coming.saves += 1;
            // A second save of the same chunk may name another position. The count of successors
            // follows the latest one, so each `follow` has exactly one `unfollow`.
            let before = std::mem::replace(&mut coming.before, place.parent);
            self.chains.unfollow(before);
            self.chains.follow(place.parent);
        }
        has_capacity
    }

    /// A save of a [pending](Index::add_pending) chunk has ended, in whatever way.
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

    /// A chunk was committed before its predecessor. If that is pending, the policy gets the link
    /// when it arrives.
    pub(crate) fn remember_early(&mut self, digest: &Digest, before: DigestTag) {
        if let Some(coming) = self.chains.pending.get_mut(&before) {
            coming.early = Some(DigestTag::from_digest(digest));
        }
    }

    /// The slot of the successor that was committed before this chunk.
    pub(crate) fn take_early(&mut self, digest: &Digest) -> Option<u32> {
        if self.chains.pending.is_empty() {
            return None;
        }
        // Taken, so that the successor is entered again only once.
        let early = self.chains.pending.get_mut(&DigestTag::from_digest(digest))?.early.take()?;
        self.find_tag(early)
    }

    /// The nearest present chunk before a position; `Err` if one in between is neither present nor
    /// pending.
    pub(crate) fn ancestor(&self, place: ChainPlace) -> Result<Option<u32>, Orphan> {
        let mut next = place.parent;
        // A longer path is a ring.
        for _ in 0..=self.chains.pending.len() {
            let Some(tag) = next else { return Ok(None) };
            if let Some(slot) = self.find_tag(tag) {
                return Ok(Some(slot));
            }
            // Neither present nor pending: the chain is broken here.
            next = self.chains.pending.get(&tag).ok_or(Orphan)?.before;
        }
        Ok(None)
    }

    /// Whether a slot is among the predecessors of another, as far as their chunks are present or
    /// pending.
    pub(crate) fn leads_to(&self, slot: u32, of: Option<u32>) -> bool {
        let before = |at: &u32| {
            let parent = self.slab[*at].parent();
            self.ancestor(ChainPlace { parent, ..ChainPlace::default() }).ok()?
        };
        std::iter::successors(of, before).take(WAY_UP_MAX).any(|at| at == slot)
    }

    /// Whether the successor of a slot is pending; the policy cannot see that.
    pub(crate) fn is_followed(&self, slot: u32) -> bool {
        let followed = &self.chains.followed;
        !followed.is_empty()
            && followed.contains_key(&DigestTag::from_digest(&self.slab[slot].digest))
    }
}

/// A chunk whose predecessor is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orphan;

/// What the keys of one chain share, within a lookup.
fn lane(key: &Key) -> (i64, u32) {
    match key.id() {
        KeyId::Object(id) => (id.rank.0, id.group),
        KeyId::Engine(id) => (id.worker_id, 0),
        KeyId::Layer(id) => (id.key.worker_id, id.layer as u32),
        // Kinds of keys of later versions: one chain for all.
        _ => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvtier_evict::PolicyKind;
    use kvtier_key::Namespace;

    use super::*;
    use crate::{Chunk, IndexConfig};

    fn index() -> Index {
        Index::new(IndexConfig::new(1 << 20), PolicyKind::Lru.build()).unwrap()
    }

    fn digest(n: u8) -> Digest {
        Digest([n; 32])
    }

    fn after(n: u8) -> ChainPlace {
        ChainPlace::after(Some(&digest(n)), 1)
    }

    #[test]
    fn each_worker_and_each_layer_of_a_lookup_has_a_chain_of_its_own() {
        let ns = Arc::new(Namespace::new("tests", Digest::default()));
        let layers = ["1@0@aa@half@0", "1@0@aa@half@1", "1@0@bb@half@0", "1@0@bb@half@1"];
        let workers = ["2@0@aa@half", "2@1@aa@half", "2@0@bb@half", "2@1@bb@half"];
        for texts in [layers, workers] {
            let keys = texts.map(|text| {
                let id = KeyId::from_engine_text(&format!("m@{text}")).unwrap();
                Key::new(Arc::clone(&ns), id)
            });
            let mut index = index();
            index.learn_order(&keys);
            let parents = [0, 1, 2, 3].map(|at: usize| index.place_of(&keys[at]).parent);
            let tags = [0, 1].map(|at: usize| Some(DigestTag::from_digest(keys[at].digest())));
            assert_eq!(parents, [None, None, tags[0], tags[1]], "{texts:?}");
        }
    }

    #[test]
    fn a_chunk_is_followed_until_the_last_pending_save_after_it_ends() {
        let mut index = index();
        for n in [1, 2] {
            let _ = index.insert(Chunk::new(digest(n), 1, 1));
        }
        let tags = [3, 4].map(|n| DigestTag::from_digest(&digest(n)));
        let followed = |index: &Index| [0, 1].map(|slot| index.is_followed(slot));
        assert_eq!(followed(&index), [false, false]);
        assert!(tags.iter().all(|tag| index.add_pending(*tag, after(1))));
        assert_eq!(followed(&index), [true, false]);
        index.remove_pending(tags[0]);
        assert_eq!(followed(&index), [true, false]);
        index.remove_pending(tags[1]);
        assert_eq!((followed(&index), index.chains.followed.len()), ([false, false], 0));
    }

    #[test]
    fn a_second_save_at_another_position_follows_that_one() {
        let mut index = index();
        for n in [1, 2] {
            let _ = index.insert(Chunk::new(digest(n), 1, 1));
        }
        let tag = DigestTag::from_digest(&digest(3));
        assert!(index.add_pending(tag, after(1)) && index.add_pending(tag, after(2)));
        assert_eq!([0, 1].map(|slot| index.is_followed(slot)), [false, true]);
    }

    #[test]
    fn only_the_chunks_before_another_lead_to_it() {
        let mut index = index();
        let _ = index.insert(Chunk::new(digest(1), 1, 1));
        let _ = index.insert(Chunk::new(digest(2), 1, 1).with_place(after(1)));
        let _ = index.insert(Chunk::new(digest(3), 1, 1));
        let leads = [0, 1, 2].map(|slot| index.leads_to(slot, Some(1)));
        assert_eq!((leads, index.leads_to(0, None)), ([true, true, false], false));
    }

    #[test]
    fn pending_chunks_have_a_most_and_each_counts_until_its_last_save_has_ended() {
        let mut index = index();
        let tag = |n: usize| DigestTag::from_u64(n as u64 + 1).unwrap();
        let place = ChainPlace::default();
        assert!((0..PENDING_MAX).all(|n| index.add_pending(tag(n), place)));
        assert!(!index.add_pending(tag(PENDING_MAX), place), "one too many");
        assert!(index.add_pending(tag(0), place), "it is pending already");
        index.remove_pending(tag(0));
        assert!(!index.add_pending(tag(PENDING_MAX), place), "its first save has not ended");
        index.remove_pending(tag(0));
        assert!(index.add_pending(tag(PENDING_MAX), place));
    }

    #[test]
    fn a_chunk_that_came_before_its_predecessor_is_linked_to_it_once() {
        let mut index = Index::new(IndexConfig::new(99), PolicyKind::Default.build()).unwrap();
        assert!(index.add_pending(DigestTag::from_digest(&digest(1)), ChainPlace::default()));
        let _ = index.insert(Chunk::new(digest(2), 1, 1).with_place(after(1)));
        let early = [(); 2].map(|()| index.take_early(&digest(1)));
        assert_eq!(early, [index.find(&digest(2)), None]);
        assert!(early[0].is_some());
    }
}
