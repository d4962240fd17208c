use crate::slots::NIL;

const CLASS: u16 = 0x3F;
const HITS_SHIFT: u32 = 6;
const WEIGHT_SHIFT: u32 = 9;
const GENERATION: u16 = 1 << 12;
const PARENT_GENERATION: u16 = 1 << 13;
const PINNED: u16 = 1 << 14;
const FRESH: u16 = 1 << 15;
const PARKED: u16 = 1 << 11;

/// What the default policy keeps of a slot: 12 bytes, 20 with its links.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    /// The slot before it in its chain; `NIL` where there is none.
    pub parent: u32,
    /// When it was used last.
    pub stamp: u32,
    /// How many slots have this one as parent; stays at the maximum once there.
    pub kids: u16,
    /// From the lowest: class 6 bits, hits 3, weight 2, and flags.
    bits: u16,
}

impl Default for Node {
    fn default() -> Self {
        Node { parent: NIL, stamp: 0, kids: 0, bits: 0 }
    }
}

impl Node {
    /// A slot that was just filled, of this generation.
    pub fn fresh(stamp: u32, hits: u8, weight: usize, generation: bool) -> Self {
        let mut node = Node { stamp, ..Node::default() };
        node.bits = FRESH | u16::from(hits) << HITS_SHIFT | (weight as u16) << WEIGHT_SHIFT;
        node.put(GENERATION, generation);
        node
    }

    pub fn class(self) -> u8 {
        (self.bits & CLASS) as u8
    }

    pub fn set_class(&mut self, class: u8) {
        self.bits = self.bits & !CLASS | u16::from(class);
    }

    pub fn hits(self) -> u8 {
        (self.bits >> HITS_SHIFT & 7) as u8
    }

    pub fn set_hits(&mut self, hits: u8) {
        self.bits = self.bits & !(7 << HITS_SHIFT) | u16::from(hits) << HITS_SHIFT;
    }

    pub fn weight(self) -> usize {
        usize::from(self.bits >> WEIGHT_SHIFT & 3)
    }

    pub fn set_weight(&mut self, weight: usize) {
        self.bits = self.bits & !(3 << WEIGHT_SHIFT) | (weight as u16) << WEIGHT_SHIFT;
    }

    /// The list of its class and weight.
    pub fn list(self) -> usize {
        self.weight() * 64 + usize::from(self.class())
    }

    /// Toggles when a slot is given up that has children: who came before is not taken for their parent.
    pub fn generation(self) -> bool {
        self.bits & GENERATION != 0
    }

    pub fn parent_generation(self) -> bool {
        self.bits & PARENT_GENERATION != 0
    }

    pub fn set_parent(&mut self, parent: u32, generation: bool) {
        self.parent = parent;
        self.put(PARENT_GENERATION, generation);
    }

    /// Ends the generation, children and all.
    pub fn orphan(&mut self) {
        if self.kids > 0 {
            self.kids = 0;
            self.bits ^= GENERATION;
        }
    }

    pub fn is_pinned(self) -> bool {
        self.bits & PINNED != 0
    }

    pub fn set_pinned(&mut self, yes: bool) {
        self.put(PINNED, yes);
    }

    /// Whether it was saved and not yet touched.
    pub fn is_fresh(self) -> bool {
        self.bits & FRESH != 0
    }

    pub fn set_fresh(&mut self, yes: bool) {
        self.put(FRESH, yes);
    }

    pub fn is_parked(self) -> bool {
        self.bits & PARKED != 0
    }

    pub fn set_parked(&mut self, yes: bool) {
        self.put(PARKED, yes);
    }

    fn put(&mut self, bit: u16, yes: bool) {
        self.bits = if yes { self.bits | bit } else { self.bits & !bit };
    }
}
