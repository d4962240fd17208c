//! One step of an encoding: the trait, its number on media, and what it may use of a chunk.

use std::fmt::{self, Debug};

use kvtier_key::{CodecId, DType};

use crate::{ElementType, Error, Scratch};

/// The number of a stage: what [`CodecId`](kvtier_key::CodecId)s are made of. It is stored with
/// every chunk, so no number is ever reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StageId(u8);

impl StageId {
    /// `lz4`.
    pub const LZ4: StageId = StageId(1);
    /// `zstd`.
    pub const ZSTD: StageId = StageId(2);
    /// `bf16-split`.
    pub const BF16_SPLIT: StageId = StageId(3);
    /// `aes-256-gcm`.
    pub const AES_256_GCM: StageId = StageId(4);
    /// `cachegen`.
    pub const CACHEGEN: StageId = StageId(5);
    /// LMCache's `fp8` cast.
    pub const FP8: StageId = StageId(6);

    /// The number, from 1 to 15.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The stage with a number from 1 to 15, whether this build has it or not.
    pub const fn from_number(number: u8) -> Option<Self> {
        if number == 0 || number > 15 { None } else { Some(StageId(number)) }
    }

    /// Whether chunks decode to other bytes than were encoded.
    pub const fn is_lossy(self) -> bool {
        matches!(self, StageId::CACHEGEN | StageId::FP8)
    }

    /// The name in configurations, where the number has a meaning.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            StageId::LZ4 => "lz4",
            StageId::ZSTD => "zstd",
            StageId::BF16_SPLIT => "bf16-split",
            StageId::AES_256_GCM => "aes-256-gcm",
            StageId::CACHEGEN => "cachegen",
            StageId::FP8 => "fp8",
            _ => return None,
        })
    }
}

/// The name, or `stage 14` where the number has no meaning in this build.
impl fmt::Display for StageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "stage {}", self.number()),
        }
    }
}

/// Where in a chain a stage may stand: the kinds follow one another in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum StageKind {
    /// It reads elements of a known type: the first one, once.
    Typed,
    /// It makes any bytes smaller.
    Compression,
    /// It hides and authenticates bytes: the last one, once.
    Encryption,
}

/// What stages may use of a chunk besides its bytes.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Chunk<'a> {
    /// The type of the elements; none where the engine did not declare one.
    pub element_type: Option<ElementType>,
    /// The type of the elements as the engine declares it for this chunk. Lossy stages need it: what
    /// a setting says of all chunks is not enough for them.
    pub declared_dtype: Option<DType>,
    /// The tenant, whose key is derived from it. It may be empty.
    pub tenant: &'a [u8],
    /// What an encryption binds to the chunk besides its bytes: its key's digest, and those of its
    /// facts that are known before it is encoded. Decoding fails with any other.
    pub associated_data: &'a [u8],
    /// The stages that the bytes went through before this one, to which an encryption binds them.
    pub(crate) earlier_stages: CodecId,
}

impl<'a> Chunk<'a> {
    /// Sets the type of the elements.
    pub fn with_element_type(mut self, element_type: ElementType) -> Self {
        self.element_type = Some(element_type);
        self
    }

    /// Sets the type that the engine declares.
    pub fn with_declared_dtype(mut self, dtype: DType) -> Self {
        self.declared_dtype = Some(dtype);
        self
    }

    /// Sets the tenant.
    pub fn with_tenant(mut self, tenant: &'a [u8]) -> Self {
        self.tenant = tenant;
        self
    }

    /// Sets what an encryption binds to the chunk.
    pub fn with_associated_data(mut self, associated_data: &'a [u8]) -> Self {
        self.associated_data = associated_data;
        self
    }

    /// For the stage after those of `codec`.
    pub(crate) fn with_earlier_stages(mut self, codec: CodecId) -> Self {
        self.earlier_stages = codec;
        self
    }
}

/// How far a frame is decoded of which only the first bytes have arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeProgress {
    /// The stored bytes that are decoded.
    pub(crate) stored: usize,
    /// The raw bytes that they became.
    pub(crate) raw: usize,
    /// The stored bytes without which no more can be decoded.
    pub(crate) wanted: usize,
}

impl DecodeProgress {
    /// How many of the first bytes must have arrived before more can be decoded, as far as it is
    /// known; more than there can be where a stage decodes whole frames only.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// The raw bytes that are decoded.
    pub fn raw_bytes(&self) -> usize {
        self.raw
    }

    /// The first `stored` bytes became `raw` raw bytes, and no more can be decoded before `wanted` of
    /// the stored bytes have arrived.
    pub fn new(stored: usize, raw: usize, wanted: usize) -> Self {
        DecodeProgress { stored, raw, wanted }
    }

    /// The stored bytes that are decoded, as the stage counts them.
    pub fn stored_bytes(&self) -> usize {
        self.stored
    }

    /// Nothing can be decoded before the whole frame has arrived.
    pub fn only_whole() -> Self {
        DecodeProgress { wanted: usize::MAX, ..DecodeProgress::default() }
    }
}

/// Turns bytes into stored bytes and back. It has no state of its own but keys and settings.
///
/// A frame starts with a header of 16 bytes, which names the stage, the version of its format and
/// the raw length.
pub trait Stage: Debug + Send + Sync + 'static {
    /// The number that is stored with chunks.
    fn id(&self) -> StageId;

    /// Where it may stand in a chain.
    fn kind(&self) -> StageKind;

    /// The id of the key that it encodes with; 0 = none.
    fn key_id(&self) -> u32 {
        0
    }

    /// Whether frames that were encoded with this key can be decoded.
    fn has_key(&self, _key_id: u32) -> bool {
        true
    }

    /// The id of the key that the frame `stored` was encoded with; 0 = none.
    ///
    /// # Errors
    /// As of `raw_len`.
    fn stored_key_id(&self, _stored: &[u8]) -> Result<u32, Error> {
        Ok(0)
    }

    /// The most bytes that an encoder needs for `raw_len` raw bytes.
    ///
    /// # Errors
    /// `Invalid`: more raw bytes than the stage takes.
    fn bound(&self, raw_len: usize) -> Result<usize, Error>;

    /// Encodes the pieces of `raw` into the front of `out`, which has at least `bound` bytes, and
    /// returns how many bytes that took. Nothing where the stage refuses the chunk, because it
    /// gains too little or does not apply: what `out` holds is then undefined.
    ///
    /// # Errors
    /// `Invalid`: `out` is too short, or `raw` longer than the stage takes. Of an encryption also
    /// `KeyExhausted`.
    fn encode(
        &self,
        chunk: &Chunk<'_>,
        raw: &[&[u8]],
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<Option<usize>, Error>;

    /// The raw length that the frame `stored` announces.
    ///
    /// # Errors
    /// `Corrupt`: no frame of this stage. `Unsupported`: a version that this build does not read.
    fn raw_len(&self, stored: &[u8]) -> Result<usize, Error>;

    /// Decodes all of `stored` into all pieces of `raw`.
    ///
    /// # Errors
    /// `Corrupt`, unless `stored` is a frame of exactly that many bytes; what `raw` holds is then
    /// undefined. Of an encryption also `KeyMissing`.
    fn decode(
        &self,
        chunk: &Chunk<'_>,
        stored: &[u8],
        raw: &mut [&mut [u8]],
        scratch: &mut Scratch,
    ) -> Result<(), Error>;

    /// Decodes what can be decoded of `arrived`, the first bytes of a frame, and answers how far it
    /// came. It goes on at `from`: the first bytes and `raw` are those of the call that answered it.
    ///
    /// # Errors
    /// As of `decode`. What `raw` holds up to `from` stays.
    fn decode_arrived(
        &self,
        _chunk: &Chunk<'_>,
        _arrived: &[u8],
        _raw: &mut [&mut [u8]],
        _from: DecodeProgress,
        _scratch: &mut Scratch,
    ) -> Result<DecodeProgress, Error> {
        Ok(DecodeProgress::only_whole())
    }

    /// As `decode`, for a frame that `decode_arrived` has decoded up to `from`.
    ///
    /// # Errors
    /// As of `decode`.
    fn decode_rest(
        &self,
        chunk: &Chunk<'_>,
        stored: &[u8],
        raw: &mut [&mut [u8]],
        _from: DecodeProgress,
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        self.decode(chunk, stored, raw, scratch)
    }
}
