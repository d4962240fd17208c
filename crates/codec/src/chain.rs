//! The stages of a tier's `encode` setting, one after the other: the entry point for saving.

use std::sync::Arc;

use kvtier_key::CodecId;

use crate::chain_order::check_order;
use crate::codec_id::{STAGES_MAX, StageIds};
use crate::pieces::{grow, total_len};
use crate::scratch::Memory;
use crate::{Chunk, Error, Scratch, Stage};

/// The stages that chunks go through when they are saved. Cheap to clone.
///
/// ```
/// use std::sync::Arc;
///
/// use kvtier_codec::{Aes256Gcm, Chain, Chunk, Decoder, Keyring, MasterKey, Scratch, Stored};
/// use kvtier_codec::stage_by_name;
///
/// let keys = Arc::new(Keyring::new());
/// keys.insert(MasterKey::new(1, &[7; 32])?);
/// let aes = Arc::new(Aes256Gcm::new(keys, 1));
/// let chain = Chain::new(vec![stage_by_name("zstd:3")?, aes.clone()])?;
///
/// let chunk = Chunk::default().with_tenant(b"a").with_associated_data(b"digest of the key");
/// let raw = vec![42; 10_000];
/// let mut scratch = Scratch::new();
/// let mut out = vec![0; chain.bound(raw.len())?];
/// let encoded = chain.encode(&chunk, &[&raw], &mut out, &mut scratch)?;
/// assert!(encoded.len < 200);
///
/// // The facts of a chunk name its codec and its key. Chunks load into memory in pieces.
/// let stored = Stored { codec: encoded.codec, key_id: encoded.key_id, bytes: &out[..encoded.len] };
/// let mut loaded = vec![0; raw.len()];
/// let (head, tail) = loaded.split_at_mut(300);
/// let decoder = Decoder::new().with_stage(aes);
/// decoder.decode(&chunk, &stored, &mut [head, tail], &mut scratch)?;
/// assert_eq!(loaded, raw);
/// # Ok::<(), kvtier_codec::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Chain {
    stages: Arc<[Arc<dyn Stage>]>,
}

/// What `encode` did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Encoded {
    /// The stages that took part. 0 = none did, nothing was written, and the raw bytes are what is
    /// to be stored.
    pub codec: CodecId,
    /// The id of the key that encrypted the chunk; 0 = none.
    pub key_id: u32,
    /// The bytes to be stored, at the front of the output.
    pub len: usize,
}

impl Chain {
    /// The chain of `stages`, which are applied in this order.
    ///
    /// # Errors
    /// `Invalid`: more than `STAGES_MAX` stages, one of them twice, or in an order that makes no
    /// sense.
    pub fn new(stages: Vec<Arc<dyn Stage>>) -> Result<Self, Error> {
        if stages.len() > STAGES_MAX {
            let why = format!("{} encodings: set at most {STAGES_MAX}", stages.len());
            return Err(Error::invalid(why));
        }
        check_order(stages.iter().map(|stage| &**stage)).map_err(Error::invalid)?;
        Ok(Chain { stages: stages.into() })
    }

    /// Whether there are no stages.
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// The stages in the order in which they are applied.
    pub fn stages(&self) -> impl ExactSizeIterator<Item = &dyn Stage> {
        self.stages.iter().map(|stage| &**stage)
    }

    /// Whether chunks may decode to other bytes than were encoded.
    pub fn is_lossy(&self) -> bool {
        self.stages().any(|stage| stage.id().is_lossy())
    }

    /// The bytes that `encode` needs for `raw_len` raw bytes.
    ///
    /// # Errors
    /// `Invalid`: more raw bytes than a stage takes.
    pub fn bound(&self, raw_len: usize) -> Result<usize, Error> {
        let mut most = raw_len;
        for stage in &*self.stages {
            most = most.max(stage.bound(most)?);
        }
        Ok(most)
    }

    /// Encodes the pieces of `raw` into the front of `out`, which has at least `bound` bytes.
    /// Stages that gain nothing are left out.
    ///
    /// # Errors
    /// As of `Stage::encode`.
    pub fn encode(
        &self,
        chunk: &Chunk<'_>,
        raw: &[&[u8]],
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<Encoded, Error> {
        scratch.with_between(|memory| self.encode_through(chunk, raw, out, memory))
    }

    fn encode_through(
        &self,
        chunk: &Chunk<'_>,
        raw: &[&[u8]],
        out: &mut [u8],
        memory: Memory<'_>,
    ) -> Result<Encoded, Error> {
        let Memory { between: [held, free], scratch } = memory;
        let raw_len = total_len(raw);
        if out.len() < self.bound(raw_len)? {
            let why = format!("a buffer of {} bytes for {raw_len} raw ones", out.len());
            return Err(Error::invalid(why));
        }
        let (mut held, mut free) = (held, free);
        // The bytes that `held` has; none while no stage took part.
        let mut len = None;
        let (mut ids, mut key_id) = (StageIds::default(), 0);
        for (nth, stage) in self.stages.iter().enumerate() {
            let from_held;
            let input = match len {
                None => raw,
                Some(len) => {
                    from_held = [&held[..len]];
                    &from_held
                }
            };
            let is_last = nth + 1 == self.stages.len();
            let to =
                if is_last { &mut *out } else { grow(free, stage.bound(len.unwrap_or(raw_len))?) };
            let chunk = chunk.with_earlier_stages(ids.to_codec());
            let Some(encoded) = stage.encode(&chunk, input, to, scratch)? else { continue };
            ids.push(stage.id());
            key_id = key_id.max(stage.key_id());
            if is_last {
                return Ok(Encoded { codec: ids.to_codec(), key_id, len: encoded });
            }
            len = Some(encoded);
            std::mem::swap(&mut held, &mut free);
        }
        // The last stage refused.
        let Some(len) = len else { return Ok(Encoded { len: raw_len, ..Encoded::default() }) };
        out[..len].copy_from_slice(&held[..len]);
        Ok(Encoded { codec: ids.to_codec(), key_id, len })
    }
}
