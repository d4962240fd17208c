use kvtier_key::Digest;

/// The start of a page of keys; valid only for the tier that returned it. The default is the start
/// of the listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(pub u64);

impl Cursor {
    /// The number of a slot, for tiers that list their slots. A number that no page of theirs
    /// returned is past the end.
    pub fn slot(self) -> u32 {
        u32::try_from(self.0).unwrap_or(u32::MAX)
    }
}

/// One key of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// The key's digest.
    pub key: Digest,
    /// Payload length in bytes, or that of the object where a bucket's tier has no other, as in
    /// [`Event::Stored`](crate::Event::Stored).
    pub len: u64,
}

/// A page of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPage {
    /// The keys.
    pub keys: Vec<KeyInfo>,
    /// The start of the next page; `None` at the end. A page before the end may be short or empty.
    pub next: Option<Cursor>,
}

impl KeyPage {
    /// A page of a tier that lists its slots; `next` is the slot where the next page begins.
    pub fn from_slots(keys: impl Iterator<Item = KeyInfo>, next: Option<u32>) -> Self {
        KeyPage { keys: keys.collect(), next: next.map(|slot| Cursor(slot.into())) }
    }
}
