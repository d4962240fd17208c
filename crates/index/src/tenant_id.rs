use std::fmt;

/// The tenant of a chunk: 128 bits of a keyed digest of its name, see
/// [`TenantKey`](crate::TenantKey); 0 for none or an unknown one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TenantId(pub u128);

impl TenantId {
    /// For chunks without a tenant, and for those with an unknown one.
    pub const NONE: TenantId = TenantId(0);

    /// The 16 bytes on the media, little-endian.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    /// Parses [`to_bytes`](Self::to_bytes)' result.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        TenantId(u128::from_le_bytes(bytes))
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TenantId({self})")
    }
}
