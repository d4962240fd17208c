use std::fmt;

use crate::{ChunkHash, EngineHash, PyInt};

/// The hash of one chunk: what names it, and what the next chunk is chained to.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum HashLink {
    /// 32 bytes, of `Blake3` and `Sha256Cbor`.
    Bytes([u8; 32]),
    /// A number, of `Sha256Cbor64`.
    Unsigned(u64),
    /// A signed number, of `Builtin`.
    Signed(i64),
}

impl HashLink {
    /// The hash as an `ObjectKey` holds it: numbers as 8 bytes big-endian.
    pub fn chunk_hash(self) -> ChunkHash {
        match self {
            HashLink::Bytes(bytes) => ChunkHash::new(&bytes),
            HashLink::Unsigned(number) => ChunkHash::new(&number.to_be_bytes()),
            HashLink::Signed(number) => ChunkHash::new(&number.to_be_bytes()),
        }
    }

    /// The hash as a `CacheEngineKey` holds it.
    pub fn engine_hash(self) -> EngineHash {
        match self {
            HashLink::Bytes(bytes) => EngineHash::Bytes(ChunkHash::new(&bytes)),
            HashLink::Unsigned(number) => EngineHash::Int(PyInt::from(number)),
            HashLink::Signed(number) => EngineHash::Int(PyInt::from(number)),
        }
    }
}

impl fmt::Debug for HashLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HashLink::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            HashLink::Unsigned(number) => write!(f, "{number}"),
            HashLink::Signed(number) => write!(f, "{number}"),
        }
    }
}
