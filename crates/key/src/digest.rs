use std::fmt;

/// 32 bytes of BLAKE3: the identity of a key, a namespace or a layout.
///
/// ```
/// use kvtier_key::Digest;
///
/// let digest = Digest::derive("my cache v1", b"layout of llama-3-8b");
/// assert_eq!(Digest::from_hex(&digest.to_hex()), Some(digest));
/// assert_ne!(digest, Digest::derive("my cache v2", b"layout of llama-3-8b"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of `bytes` under a `domain` of its own, so that digests of different things never
    /// collide.
    pub fn derive(domain: &str, bytes: &[u8]) -> Self {
        // BLAKE3 mixes the domain into its initial state, so no text in `bytes` can imitate another
        // domain.
        let mut hasher = blake3::Hasher::new_derive_key(domain);
        hasher.update(bytes);
        Digest(*hasher.finalize().as_bytes())
    }

    /// The digest of `bytes` under a secret key. Without the key, a guess cannot be tested.
    pub fn keyed(key: &[u8; 32], bytes: &[u8]) -> Self {
        Digest(*blake3::keyed_hash(key, bytes).as_bytes())
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// 64 lower-case hexadecimal digits.
    pub fn to_hex(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }

    /// Reads 64 hexadecimal digits; `None` for anything else.
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits: &[u8; 64] = text.as_bytes().try_into().ok()?;
        let mut bytes = [0; 32];
        // All digits before any is judged: names of random digits make every earlier exit a branch
        // that is guessed wrong.
        let mut bad = 0;
        for (byte, pair) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
            let [high, low] = pair.map(|digit| NIBBLES[digit as usize]);
            // A digit sets at most bits 0 to 3; 255 of a wrong one sets upper bits, which stay set.
            bad |= high | low;
            *byte = high << 4 | low & 15;
        }
        (bad < 16).then_some(Digest(bytes))
    }
}

/// The value of a hexadecimal digit; 255 for anything else.
const NIBBLES: [u8; 256] = {
    let mut table = [255; 256];
    let mut n = 0;
    while n < 16 {
        table[b"0123456789abcdef"[n] as usize] = n as u8;
        table[b"0123456789ABCDEF"[n] as usize] = n as u8;
        n += 1;
    }
    table
};

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(blake3::Hash::from_bytes(self.0).to_hex().as_str())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_digit_of_a_digest_counts_and_must_be_one() {
        let digest = Digest(std::array::from_fn(|at| (at * 37) as u8 ^ 9));
        let hex = digest.to_hex();
        assert_eq!(Digest::from_hex(&hex), Some(digest));
        assert_eq!(Digest::from_hex(&hex.to_uppercase()), Some(digest));
        for at in 0..64 {
            for wrong in ["g", "/", ":", "@", "`", " ", "\0", "gg"] {
                let mut text = hex.clone();
                text.replace_range(at..(at + wrong.len()).min(64), wrong);
                assert_eq!(Digest::from_hex(&text), None, "{text}");
            }
        }
        assert_eq!(Digest::from_hex(&hex[1..]), None);
        assert_eq!(Digest::from_hex(&format!("{hex}0")), None);
    }
}
