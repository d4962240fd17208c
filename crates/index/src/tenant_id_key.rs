//! The key that maps names to tenants: one per directory or bucket, stored there, so that a
//! name is the same tenant in all processes.
//!
//! ```text
//! kvtier tenant key
//! format: 1
//! key: <64 hexadecimal digits>
//! crc: 1a2b3c4d
//! ```

use std::fmt;

use kvtier_key::{BlockSums, Digest};

use crate::TenantId;

const HEAD: &str = "kvtier tenant key\nformat: 1\n";

/// The key of the digests that identify tenants on a medium. Names (cache salts) cannot be derived
/// from such a digest. With the key, a guessed name can be tested.
#[derive(Clone, PartialEq, Eq)]
pub struct TenantKey([u8; 32]);

impl TenantKey {
    /// The most bytes of an encoded key.
    pub const BYTES_MAX: usize = 256;

    /// The key of these bytes, which must come from a random source.
    pub fn new(random: [u8; 32]) -> Self {
        TenantKey(random)
    }

    /// The tenant of this name: the first 128 bits of its digest; [`TenantId::NONE`] for the empty
    /// name.
    pub fn id(&self, name: &str) -> TenantId {
        if name.is_empty() {
            return TenantId::NONE;
        }
        let digest = Digest::keyed(&self.0, name.as_bytes());
        let (head, _) = digest.as_bytes().split_first_chunk().expect("a digest has 32 bytes");
        // 0 stands for no tenant.
        TenantId(TenantId::from_bytes(*head).0.max(1))
    }

    /// The key as it is stored.
    pub fn encode(&self) -> String {
        let text = format!("{HEAD}key: {}\n", Digest(self.0));
        format!("{text}crc: {:08x}\n", crc(&text))
    }

    /// Parses [`encode`](Self::encode)'s result; `None` for any other bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let key = TenantKey(
            Digest::from_hex(text.strip_prefix(HEAD)?.strip_prefix("key: ")?.get(..64)?)?.0,
        );
        // Encoding again checks all at once: the checksum, the case of digits, and bytes behind the
        // end.
        (key.encode() == text).then_some(key)
    }
}

/// The key itself is not shown.
impl fmt::Debug for TenantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TenantKey(..)")
    }
}

fn crc(text: &str) -> u32 {
    BlockSums::from_bytes(text.as_bytes()).whole()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_one_is_this_and_anything_else_is_no_key() {
        let key = TenantKey::new([0xa5; 32]);
        let golden = include_bytes!("../tests/golden/tenant-key-v1.txt");
        assert_eq!(key.encode(), String::from_utf8_lossy(golden));
        assert_eq!(TenantKey::decode(golden), Some(key.clone()));
        assert!(golden.len() <= TenantKey::BYTES_MAX);
        assert!((0..golden.len()).all(|len| TenantKey::decode(&golden[..len]).is_none()));
        for bit in 0..golden.len() * 8 {
            let mut flipped = golden.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(TenantKey::decode(&flipped), None, "bit {bit}");
        }
        assert_eq!(TenantKey::decode(&[golden, &b"x"[..]].concat()), None);
        assert!(!format!("{key:?}").contains("a5"));
    }

    #[test]
    fn a_tenant_follows_from_name_and_key() {
        let [a, b] = [1, 2].map(|n| TenantKey::new([n; 32]));
        assert_eq!(a.id(""), TenantId::NONE);
        assert!(
            a.id("alice") == a.id("alice")
                && a.id("alice") != a.id("bob")
                && a.id("alice") != b.id("alice")
        );
        assert_eq!(a.id("alice").to_string(), "11e0f42a7add419fe2060947b606cb02");
    }
}
