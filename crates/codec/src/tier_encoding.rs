//! What a tier uses to encode the chunks that it saves and to decode those that it loads.

use std::sync::{Mutex, PoisonError};

use kvtier_key::{BlockSums, CodecId, DType, Digest, EncodedPayload, Facts, Key};

use crate::padding::{PADDING_MAX, pad};
use crate::pieces::total_len;
use crate::{
    Chain, Chunk, DecodeProgress, Decoder, ElementType, Encoded, Error, ErrorKind, Scratch,
    StageKind, Stored, is_lossy,
};

/// The encoding of one tier: the chain of its saves, the stages that its loads undo, and working
/// memory for as many threads as use it at once.
///
/// ```
/// use std::sync::Arc;
///
/// use kvtier_codec::{Chain, Decoder, TierEncoding, stage_by_name};
/// use kvtier_key::{BlockSums, Facts, Key, Namespace};
///
/// let namespace = Namespace::from_name("model");
/// let key = Key::from_name(&namespace, "chunk 0");
/// let chain = Chain::new(vec![stage_by_name("zstd:3")?])?;
/// let encoding = TierEncoding::new(chain, Decoder::new());
///
/// let raw = vec![42; 10_000];
/// let mut out = vec![0; encoding.bound(raw.len())?];
/// let (payload, len) = encoding.encode(&key, &[&raw], &mut out)?.expect("it becomes smaller");
/// let sums = BlockSums::from_bytes(&out[..len]);
/// let facts = Facts::encoded(*key.digest(), key.namespace().digest(), payload, sums);
///
/// let mut loaded = vec![0; facts.raw_len as usize];
/// encoding.decode(&facts, &out[..len], &mut [&mut loaded])?;
/// assert_eq!(loaded, raw);
/// # Ok::<(), kvtier_codec::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct TierEncoding {
    chain: Chain,
    decoder: Decoder,
    /// The type of all elements, whatever keys declare.
    element_type: Option<ElementType>,
    /// Working memory that no thread uses now.
    idle: Mutex<Vec<Scratch>>,
}

impl TierEncoding {
    /// Chunks are saved through `chain`, and loaded by `decoder`, whichever of its stages they went
    /// through. Where `chain` encrypts, only encrypted chunks are loaded.
    pub fn new(chain: Chain, decoder: Decoder) -> Self {
        TierEncoding { chain, decoder, ..TierEncoding::default() }
    }

    /// Sets the type of all elements, whatever keys declare. Lossy stages do not use it.
    pub fn with_element_type(mut self, element_type: ElementType) -> Self {
        self.element_type = Some(element_type);
        self
    }

    /// Whether chunks are encoded when they are saved.
    pub fn is_on(&self) -> bool {
        !self.chain.is_empty()
    }

    /// Whether saved chunks may load as other bytes than were saved.
    pub fn is_lossy(&self) -> bool {
        self.chain.is_lossy()
    }

    /// The chain of saves.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// The bytes that `encode` needs for `raw_len` raw bytes.
    ///
    /// # Errors
    /// `Invalid`: more raw bytes than a stage takes.
    pub fn bound(&self, raw_len: usize) -> Result<usize, Error> {
        let bound = self.chain.bound(raw_len)?;
        let too_long = || Error::invalid(format!("{raw_len} bytes are too many to be encoded"));
        bound.checked_add(PADDING_MAX).ok_or_else(too_long)
    }

    /// Encodes the chunk `key` into the front of `out`, which has at least `bound` bytes. Answers
    /// what the facts say of it, and its length, which shows that it
    /// [may be encoded](crate::may_be_encoded). Nothing where all stages left it out: its raw bytes
    /// are to be stored.
    ///
    /// # Errors
    /// `KeyMissing` and `KeyExhausted` of an encryption: the chunk must not be saved. `Invalid`: a
    /// buffer that is too short.
    pub fn encode(
        &self,
        key: &Key,
        raw: &[&[u8]],
        out: &mut [u8],
    ) -> Result<Option<(EncodedPayload, usize)>, Error> {
        self.encode_by_digests(*key.digest(), key.namespace().digest(), key.dtype(), raw, out)
    }

    /// The same for a chunk of which only the digests of key and namespace are known, and perhaps
    /// the type of its elements.
    ///
    /// # Errors
    /// As of [`encode`](Self::encode).
    pub fn encode_by_digests(
        &self,
        key: Digest,
        namespace: Digest,
        dtype: Option<DType>,
        raw: &[&[u8]],
        out: &mut [u8],
    ) -> Result<Option<(EncodedPayload, usize)>, Error> {
        let raw_len = total_len(raw) as u64;
        if out.len() < self.bound(total_len(raw))? {
            let why = format!("a buffer of {} bytes for {raw_len} raw ones", out.len());
            return Err(Error::invalid(why));
        }
        let key_id = self.chain.stages().map(|stage| stage.key_id()).max().unwrap_or(0);
        let bound = BoundBytes::new(key, namespace, raw_len, key_id);
        let mut chunk = bound.chunk();
        let declared = || dtype.and_then(ElementType::from_dtype);
        chunk.element_type = self.element_type.or_else(declared);
        chunk.declared_dtype = dtype;
        let mut scratch = self.take_scratch();
        let encoded = self.chain.encode(&chunk, raw, out, &mut scratch);
        let proven = encoded.map(|encoded| (encoded, raw_crc(&encoded, raw, &scratch)));
        self.put_back(scratch);
        let (Encoded { codec, key_id, len }, raw_crc) = proven?;
        // Nothing leaves an encrypting tier in clear, whatever its stages answer.
        if self.encrypts() && key_id == 0 {
            return Err(Error::invalid("a chunk that its encryption left out: not saved"));
        }
        if codec == CodecId(0) {
            return Ok(None);
        }
        Ok(Some((EncodedPayload { codec, key_id, raw_len, raw_crc }, pad(out, len))))
    }

    /// Whether a chunk with these facts can be decoded here, as far as they say.
    ///
    /// # Errors
    /// `Unsupported`: a stage that is missing here, or a chunk that is not encrypted although this
    /// tier encrypts. `KeyMissing`: its key is not loaded. `Corrupt`: facts that no save writes.
    pub fn check(&self, facts: &Facts) -> Result<(), Error> {
        let is_proven = self.decoder.proves_bytes(facts.codec)?;
        if is_proven != (facts.key_id != 0) {
            return Err(Error::corrupt("facts with a key and no encryption, or the reverse"));
        }
        if !is_proven && self.encrypts() {
            let why = "a chunk that is not encrypted, in a tier that encrypts: save it again";
            return Err(Error::unsupported(why));
        }
        if !facts.is_plain() && is_proven == facts.raw_crc.is_some() {
            return Err(Error::corrupt(
                "facts without what proves the decoded bytes, or with both",
            ));
        }
        if !self.decoder.has_key(facts.codec, facts.key_id)? {
            let why = format!("the key with id {} is not loaded: add it", facts.key_id);
            return Err(Error::new(ErrorKind::KeyMissing, why));
        }
        Ok(())
    }

    /// Decodes the stored bytes of a chunk, which match the checksums of its facts, into all pieces
    /// of `raw`, which have its raw length. The caller has compared key and namespace.
    ///
    /// # Errors
    /// As of [`check`](Self::check). `Corrupt`: not the bytes that were encoded. `KeyMissing` also
    /// where the loaded key of that id did not encrypt the chunk: the stored bytes match their
    /// checksums, so nothing is wrong with the medium. What `raw` holds is then undefined.
    pub fn decode(&self, facts: &Facts, stored: &[u8], raw: &mut [&mut [u8]]) -> Result<(), Error> {
        self.decode_rest(facts, stored, raw, DecodeProgress::default())
    }

    /// Decodes what can be decoded of a chunk whose stored bytes are arriving: `arrived` has the
    /// first of them, which no checksum must have proven. `raw` has its raw length. It goes on at
    /// `from`, which the call before answered for the same chunk and memory.
    ///
    /// # Errors
    /// As of [`decode`](Self::decode).
    pub fn decode_arrived(
        &self,
        facts: &Facts,
        arrived: &[u8],
        raw: &mut [&mut [u8]],
        from: DecodeProgress,
    ) -> Result<DecodeProgress, Error> {
        self.check(facts)?;
        let bound = BoundBytes::of(facts);
        let arrived = Stored { codec: facts.codec, key_id: facts.key_id, bytes: arrived };
        let mut scratch = self.take_scratch();
        let chunk = bound.chunk();
        let progress = self.decoder.decode_arrived(&chunk, &arrived, raw, from, &mut scratch);
        self.put_back(scratch);
        progress
    }

    /// As [`decode`](Self::decode), for a chunk that [`decode_arrived`](Self::decode_arrived) has
    /// decoded up to `from`, into the same memory.
    ///
    /// # Errors
    /// As of [`decode`](Self::decode).
    pub fn decode_rest(
        &self,
        facts: &Facts,
        stored: &[u8],
        raw: &mut [&mut [u8]],
        from: DecodeProgress,
    ) -> Result<(), Error> {
        self.check(facts)?;
        let bound = BoundBytes::of(facts);
        let stored = Stored { codec: facts.codec, key_id: facts.key_id, bytes: stored };
        let mut scratch = self.take_scratch();
        let decoded = self.decoder.decode_rest(&bound.chunk(), &stored, raw, from, &mut scratch);
        self.put_back(scratch);
        decoded.map_err(|e| match (e.kind(), facts.key_id) {
            (ErrorKind::Corrupt, 1..) => another_key(facts.key_id, &e),
            _ => e,
        })?;
        let crc = || BlockSums::from_pieces(raw.iter().map(|piece| &**piece)).whole();
        match facts.raw_crc {
            Some(expected) if expected != crc() => {
                Err(Error::corrupt("it decodes to other bytes than were encoded"))
            }
            _ => Ok(()),
        }
    }

    /// Whether chunks are encrypted when they are saved.
    pub fn encrypts(&self) -> bool {
        self.chain.stages().any(|stage| stage.kind() == StageKind::Encryption)
    }

    fn take_scratch(&self) -> Scratch {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// As many are kept as were ever in use at once: one for each thread.
    fn put_back(&self, scratch: Scratch) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
    }
}

/// The checksum of what a chunk decodes to, which proves each load; none where a tag does, or where
/// nothing was encoded.
fn raw_crc(encoded: &Encoded, raw: &[&[u8]], scratch: &Scratch) -> Option<u32> {
    if encoded.codec == CodecId(0) || encoded.key_id != 0 {
        return None;
    }
    if is_lossy(encoded.codec) {
        let decoded = scratch.decoded.get(..total_len(raw))?;
        return Some(BlockSums::from_bytes(decoded).whole());
    }
    Some(BlockSums::from_pieces(raw.iter().copied()).whole())
}

fn another_key(key_id: u32, e: &Error) -> Error {
    let why = format!(
        "the loaded key with id {key_id} did not encrypt this chunk: load the one that did, and give \
         each secret an id of its own ({e})"
    );
    Error::new(ErrorKind::KeyMissing, why)
}

/// What an encryption binds to a chunk: the digests of its key and namespace, its raw length, and
/// the id of the encryption key.
struct BoundBytes([u8; 76]);

impl BoundBytes {
    fn new(key: Digest, namespace: Digest, raw_len: u64, key_id: u32) -> Self {
        let mut bytes = [0; 76];
        bytes[..32].copy_from_slice(key.as_bytes());
        bytes[32..64].copy_from_slice(namespace.as_bytes());
        bytes[64..72].copy_from_slice(&raw_len.to_le_bytes());
        bytes[72..].copy_from_slice(&key_id.to_le_bytes());
        BoundBytes(bytes)
    }

    /// Those of a stored chunk.
    fn of(facts: &Facts) -> Self {
        BoundBytes::new(facts.key, facts.namespace, facts.raw_len, facts.key_id)
    }

    /// The encryption key is derived for the namespace: tools that know no tenant by name decode too.
    fn chunk(&self) -> Chunk<'_> {
        Chunk::default().with_tenant(&self.0[32..64]).with_associated_data(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvtier_key::Namespace;

    use super::*;
    use crate::{Aes256Gcm, ErrorKind, Keyring, MasterKey, stage_by_name};

    fn key(name: &str) -> Key {
        let namespace = Namespace::new("t", Default::default()).with_dtype(DType::BFloat16);
        Key::from_name(&Arc::new(namespace), name)
    }

    /// Tiers that save in clear, with zstd, and with zstd and encryption by key 1; all have the key.
    fn tiers() -> [TierEncoding; 3] {
        let keys = Arc::new(Keyring::new());
        keys.insert(MasterKey::new(1, &[7; 32]).unwrap());
        let zstd = || stage_by_name("zstd").unwrap();
        let aes = Arc::new(Aes256Gcm::new(keys, 1));
        [vec![], vec![zstd()], vec![zstd(), aes.clone()]].map(|stages| {
            let decoder = Decoder::new().with_stage(aes.clone());
            TierEncoding::new(Chain::new(stages).unwrap(), decoder)
        })
    }

    fn stored(tier: &TierEncoding, key: &Key, raw: &[u8]) -> (Facts, Vec<u8>) {
        let mut out = vec![0; tier.bound(raw.len()).unwrap()];
        let namespace = key.namespace().digest();
        match tier.encode(key, &[raw], &mut out).unwrap() {
            Some((payload, len)) => {
                out.truncate(len);
                let sums = BlockSums::from_bytes(&out);
                (Facts::encoded(*key.digest(), namespace, payload, sums), out)
            }
            None => {
                let sums = BlockSums::from_bytes(raw);
                (Facts::plain(*key.digest(), namespace, sums), raw.to_vec())
            }
        }
    }

    fn load(tier: &TierEncoding, facts: &Facts, stored: &[u8]) -> Result<Vec<u8>, ErrorKind> {
        let mut raw = vec![0xee; facts.raw_len as usize];
        tier.decode(facts, stored, &mut [&mut raw]).map_err(|error| error.kind()).map(|()| raw)
    }

    #[test]
    fn each_tier_loads_what_it_may() {
        let (tiers, key, raw) = (tiers(), key("a"), vec![42; 10_000]);
        for (saved_by, saver) in tiers.iter().enumerate() {
            let (facts, bytes) = stored(saver, &key, &raw);
            assert_eq!(Facts::decode(&facts.encode()).as_ref(), Ok(&facts));
            for (loaded_by, loader) in tiers.iter().enumerate() {
                // The last one takes encrypted chunks only.
                let may = loaded_by < 2 || saved_by == 2;
                let expected = if may { Ok(raw.clone()) } else { Err(ErrorKind::Unsupported) };
                assert_eq!(load(loader, &facts, &bytes), expected, "{saved_by} {loaded_by}");
            }
        }
    }

    #[test]
    fn the_type_of_elements_is_declared_by_the_key_or_set_for_all() {
        // Exponents of few kinds; the other bits differ.
        let raw: Vec<u8> = (0..40_000_u32)
            .flat_map(|n| [n.wrapping_mul(2_654_435_761).to_be_bytes()[0], 0x3f])
            .collect();
        let tier = || {
            let chain = Chain::new(vec![stage_by_name("bf16-split").unwrap()]).unwrap();
            TierEncoding::new(chain, Decoder::new())
        };
        let undeclared = Key::from_name(&Namespace::from_name("t"), "a");
        let cases = [
            (tier(), &key("a"), true),
            (tier(), &undeclared, false),
            (tier().with_element_type(ElementType::Bf16), &undeclared, true),
        ];
        for (tier, key, is_encoded) in cases {
            let (facts, bytes) = stored(&tier, key, &raw);
            assert_eq!(!facts.is_plain(), is_encoded);
            assert_eq!(load(&tier, &facts, &bytes), Ok(raw.clone()));
        }
    }

    #[test]
    fn facts_of_another_chunk_or_with_changed_fields_are_refused() {
        let [_, zstd, aes] = tiers();
        let raw = vec![42; 10_000];
        for tier in [zstd, aes] {
            let (good, bytes) = stored(&tier, &key("a"), &raw);
            let changes: [(&str, fn(&mut Facts)); 6] = [
                ("codec", |facts| facts.codec.0 ^= 0x01),
                ("no codec", |facts| facts.codec.0 = 0),
                ("key id", |facts| facts.key_id ^= 3),
                ("raw length", |facts| facts.raw_len -= 1),
                ("raw checksum", |facts| facts.raw_crc = facts.raw_crc.map(|crc| crc ^ 1)),
                ("its presence", |facts| facts.raw_crc = facts.raw_crc.xor(Some(1))),
            ];
            for (what, change) in changes {
                let mut facts = good.clone();
                change(&mut facts);
                if facts != good {
                    assert!(load(&tier, &facts, &bytes).is_err(), "{what}");
                }
            }
        }
    }

    #[test]
    fn ciphertexts_do_not_move_between_chunks() {
        let [_, _, aes] = tiers();
        let raw = vec![42; 10_000];
        let (facts_a, bytes_a) = stored(&aes, &key("a"), &raw);
        let (facts_b, _) = stored(&aes, &key("b"), &raw);
        assert_eq!(load(&aes, &facts_a, &bytes_a), Ok(raw));
        assert_eq!(load(&aes, &facts_b, &bytes_a), Err(ErrorKind::KeyMissing));
        let mut other = facts_a;
        other.namespace = Default::default();
        assert_eq!(load(&aes, &other, &bytes_a), Err(ErrorKind::KeyMissing));
    }

    #[test]
    fn a_key_that_is_not_loaded_fails_the_save_and_misses_the_load() {
        let keys = Arc::new(Keyring::new());
        let stage = Arc::new(Aes256Gcm::new(keys, 9));
        let chain = Chain::new(vec![stage.clone()]).unwrap();
        let tier = TierEncoding::new(chain, Decoder::new().with_stage(stage));
        let mut out = vec![0; tier.bound(100).unwrap()];
        let error = tier.encode(&key("a"), &[&[1; 100]], &mut out).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::KeyMissing);

        let [_, _, with_key] = tiers();
        let (facts, bytes) = stored(&with_key, &key("a"), &[1; 100]);
        assert_eq!(load(&tier, &facts, &bytes), Err(ErrorKind::KeyMissing));
        let without = TierEncoding::default();
        assert_eq!(load(&without, &facts, &bytes), Err(ErrorKind::KeyMissing));
    }
}
