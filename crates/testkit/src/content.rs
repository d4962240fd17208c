use std::fmt;

use kvtier_key::Key;

use crate::seed::{STEP, mix};

/// The bytes of one chunk, endless, derived from a number: any piece can be made or checked by
/// itself.
///
/// ```
/// use kvtier_testkit::Content;
///
/// let content = Content::new(7);
/// let chunk = content.bytes(4096);
/// // Any piece can be checked without the whole.
/// assert!(content.check(1000, &chunk[1000..2000]).is_ok());
/// assert!(content.check(1001, &chunk[1000..2000]).is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Content(u64);

/// Bytes that are not what they should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wrong {
    /// The offset of the first wrong byte in the chunk.
    pub at: u64,
}

impl Content {
    /// The content that this number stands for.
    pub fn new(seed: u64) -> Self {
        Content(mix(seed ^ STEP))
    }

    /// The content of the chunk `key`: another for every key and every namespace.
    pub fn of(key: &Key) -> Self {
        let (first, _) =
            key.digest().as_bytes().split_first_chunk().expect("a digest has 32 bytes");
        Content::new(u64::from_le_bytes(*first))
    }

    /// Writes the bytes from `offset` of the chunk to `out`.
    pub fn write(&self, offset: u64, out: &mut [u8]) {
        self.words(offset, out.len(), |at, word| out[at..at + word.len()].copy_from_slice(word));
    }

    /// The first `len` bytes.
    pub fn bytes(&self, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.write(0, &mut out);
        out
    }

    /// Checks that `bytes` are those from `offset` of the chunk.
    pub fn check(&self, offset: u64, bytes: &[u8]) -> Result<(), Wrong> {
        let mut wrong = None;
        self.words(offset, bytes.len(), |at, word| {
            let here = &bytes[at..at + word.len()];
            // Words are compared first. The byte is looked for only in the first word that differs.
            if here != word && wrong.is_none() {
                let first = here.iter().zip(word).position(|(a, b)| a != b).unwrap_or(0);
                wrong = Some(Wrong { at: offset + (at + first) as u64 });
            }
        });
        wrong.map_or(Ok(()), Err)
    }

    /// Calls `each` with the parts of eight-byte words that lie in `offset..offset + len`, and
    /// where they lie in it.
    fn words(&self, offset: u64, len: usize, mut each: impl FnMut(usize, &[u8])) {
        let mut at = 0;
        while at < len {
            // The word at an index depends on the seed and the index alone, so any range can be
            // written or checked without what stands before it.
            let index = (offset + at as u64) / 8;
            let skip = (offset + at as u64) as usize % 8;
            let word = mix(self.0.wrapping_add(index.wrapping_mul(STEP))).to_le_bytes();
            // The first and the last word may be cut, where the range does not begin or end at a
            // multiple of 8.
            let n = (8 - skip).min(len - at);
            each(at, &word[skip..skip + n]);
            at += n;
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the byte at {} is wrong", self.at)
    }
}

impl std::error::Error for Wrong {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_agree_with_the_whole_and_a_flip_is_found() {
        let content = Content::new(7);
        let mut all = content.bytes(100);
        for (from, to) in [(0, 100), (3, 5), (7, 9), (8, 16), (99, 100), (50, 50)] {
            assert_eq!(content.check(from as u64, &all[from..to]), Ok(()));
        }
        all[42] ^= 1;
        assert_eq!(content.check(0, &all), Err(Wrong { at: 42 }));
        assert_eq!(content.check(40, &all[40..]), Err(Wrong { at: 42 }));
        assert!(Content::new(8).check(0, &content.bytes(8)).is_err());
    }
}
