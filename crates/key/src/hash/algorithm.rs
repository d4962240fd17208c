use super::{HashError, HashLink, Token, builtin, cbor};

/// How a chunk is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// BLAKE3 over the parent's 32 bytes and each token as 4 bytes big-endian: LMCache's default in
    /// multi-process mode.
    Blake3,
    /// SHA-256 over canonical CBOR as vLLM does it; the multi-process mode keeps all 32 bytes.
    Sha256Cbor,
    /// SHA-256 over canonical CBOR, of which the in-process mode keeps and chains the first 8 bytes
    /// as a number.
    Sha256Cbor64,
    /// CPython's own `hash()` of a tuple: LMCache's default in in-process mode.
    Builtin,
}

impl Algorithm {
    /// Its name in our configuration and in layouts.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Blake3 => "blake3",
            Algorithm::Sha256Cbor => "sha256_cbor",
            Algorithm::Sha256Cbor64 => "sha256_cbor_64bit",
            Algorithm::Builtin => "builtin",
        }
    }

    /// The link before the first chunk. See [`HashChain::start`](super::HashChain::start).
    pub(super) fn first_link(self, seed: Option<&str>) -> Result<HashLink, HashError> {
        Ok(match self {
            // LMCache's constant start. It needs no seed, so all engines share these chains.
            Algorithm::Blake3 => HashLink::Bytes(*blake3::hash(&[0; 12]).as_bytes()),
            Algorithm::Sha256Cbor => {
                // A missing seed is an error and not an empty text: an engine without one draws
                // random bytes, so no key computed here would ever match.
                HashLink::Bytes(cbor::text_sha256(seed.ok_or(HashError::Seed)?))
            }
            Algorithm::Sha256Cbor64 => {
                HashLink::Unsigned(fold(&cbor::text_sha256(seed.ok_or(HashError::Seed)?)))
            }
            // `NONE_HASH` of LMCache where vLLM is absent. Hashes of whole numbers do not depend on
            // Python's seed.
            Algorithm::Builtin => HashLink::Signed(0),
        })
    }

    /// Whether its hashes are links of this kind.
    pub(super) fn makes(self, link: HashLink) -> bool {
        matches!(
            (self, link),
            (Algorithm::Blake3 | Algorithm::Sha256Cbor, HashLink::Bytes(_))
                | (Algorithm::Sha256Cbor64, HashLink::Unsigned(_))
                | (Algorithm::Builtin, HashLink::Signed(_))
        )
    }

    /// The hash of one chunk after `parent`, which is a link of its own kind.
    pub(super) fn next_link<T: Token>(
        self,
        parent: HashLink,
        tokens: &[T],
        scratch: &mut Vec<u8>,
    ) -> Result<HashLink, HashError> {
        Ok(match parent {
            // Both algorithms of 32 bytes have the same kind of link, so here the algorithm
            // decides; for the numbers the kind of link does.
            HashLink::Bytes(parent) if self == Algorithm::Blake3 => {
                HashLink::Bytes(blake3_of(&parent, tokens, scratch)?)
            }
            HashLink::Bytes(parent) => {
                HashLink::Bytes(cbor::object_sha256(&parent, tokens, scratch))
            }
            HashLink::Unsigned(parent) => {
                HashLink::Unsigned(fold(&cbor::engine_sha256(parent, tokens, scratch)))
            }
            HashLink::Signed(parent) => HashLink::Signed(builtin::hash(parent, tokens)),
        })
    }
}

fn blake3_of<T: Token>(
    parent: &[u8; 32],
    tokens: &[T],
    scratch: &mut Vec<u8>,
) -> Result<[u8; 32], HashError> {
    scratch.clear();
    scratch.extend_from_slice(parent);
    for token in tokens {
        // Big-endian: the byte order is part of the hash, and must be LMCache's on every machine.
        scratch.extend_from_slice(&token.as_u32().ok_or(HashError::Token)?.to_be_bytes());
    }
    Ok(*blake3::hash(scratch).as_bytes())
}

fn fold(hash: &[u8; 32]) -> u64 {
    u64::from_be_bytes(*hash.first_chunk().expect("32 bytes have a first eight"))
}
