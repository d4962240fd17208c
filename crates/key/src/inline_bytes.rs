use std::hash::{Hash, Hasher};
use std::sync::Arc;

// A SHA-256 or BLAKE3 digest.
const INLINE_MAX: usize = 32;

/// Immutable bytes that are copied, not allocated, up to 32 of them: the size of nearly every hash.
#[derive(Clone)]
pub(crate) struct SmallBytes(Repr);

#[derive(Clone)]
enum Repr {
    Inline(u8, [u8; INLINE_MAX]),
    Shared(Arc<[u8]>),
}

impl SmallBytes {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut inline = [0; INLINE_MAX];
        match inline.get_mut(..bytes.len()) {
            Some(space) => {
                space.copy_from_slice(bytes);
                SmallBytes(Repr::Inline(bytes.len() as u8, inline))
            }
            None => SmallBytes(Repr::Shared(bytes.into())),
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline(len, bytes) => &bytes[..*len as usize],
            Repr::Shared(bytes) => bytes,
        }
    }
}

impl PartialEq for SmallBytes {
    fn eq(&self, other: &Self) -> bool {
        // By bytes in all four traits, so that equality, order and hash agree whatever the form.
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for SmallBytes {}

impl PartialOrd for SmallBytes {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SmallBytes {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for SmallBytes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

    use super::*;

    #[test]
    fn bytes_compare_and_hash_alike_whatever_their_form() {
        let all = [&[][..], &[0], &[0, 0], &[1], &[1; 32], &[1; 33], &[2; 33], &[3]];
        for (at, a) in all.into_iter().enumerate() {
            for (other, b) in all.into_iter().enumerate() {
                let (small_a, small_b) = (SmallBytes::new(a), SmallBytes::new(b));
                assert_eq!(small_a.partial_cmp(&small_b), Some(at.cmp(&other)), "{a:?} {b:?}");
                let state = BuildHasherDefault::<DefaultHasher>::default();
                let is_same = state.hash_one(&small_a) == state.hash_one(&small_b);
                assert_eq!((small_a == small_b, is_same), (at == other, at == other));
            }
        }
    }
}
