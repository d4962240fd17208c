use std::num::NonZeroU64;

use kvtier_key::Digest;

/// The first eight bytes of a digest: enough to find a parent that is present, never enough to name
/// a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DigestTag(NonZeroU64);

impl DigestTag {
    /// The tag of `digest`.
    pub fn from_digest(digest: &Digest) -> Self {
        let (head, _) = digest.as_bytes().split_first_chunk().expect("a digest has 32 bytes");
        // 0 means "no parent" in records, so a digest that begins with eight zeros has the tag 1.
        DigestTag(NonZeroU64::new(u64::from_le_bytes(*head)).unwrap_or(NonZeroU64::MIN))
    }

    /// The tag as a number; never 0.
    pub fn as_u64(self) -> u64 {
        self.0.get()
    }

    /// The tag of this number; 0 is no tag.
    pub fn from_u64(tag: u64) -> Option<Self> {
        NonZeroU64::new(tag).map(DigestTag)
    }
}
