//! Undoes the stages that a chunk's facts name: the entry point for loading.

use std::sync::Arc;

use kvtier_key::CodecId;

use crate::chain_order::check_order;
use crate::codec_id::{STAGES_MAX, StageIds};
use crate::pieces::{copy_to_pieces, grow, total_len_mut};
use crate::scratch::Memory;
use crate::{
    Aes256Gcm, Bf16Split, Chunk, DecodeProgress, Error, Keyring, Lz4, Scratch, Stage, StageId,
    StageKind, Zstd,
};

/// A stored chunk, as its facts describe it.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    /// The stages that it went through; 0 = it is stored as it is.
    pub codec: CodecId,
    /// The id of the key that encrypted it; 0 = none.
    pub key_id: u32,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// Decodes chunks of any codec whose stages it has. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Decoder {
    stages: Vec<Arc<dyn Stage>>,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder::new()
    }
}

impl Decoder {
    /// With all lossless stages, and no key. Until stages are added, chunks of lossy ones are
    /// `Unsupported`, and encrypted ones are `KeyMissing`.
    pub fn new() -> Self {
        let without_keys = Aes256Gcm::new(Arc::new(Keyring::new()), 0);
        let plain: [Arc<dyn Stage>; 3] =
            [Arc::new(Lz4), Arc::new(Zstd::default()), Arc::new(Bf16Split)];
        Decoder { stages: plain.into_iter().chain([Arc::new(without_keys) as _]).collect() }
    }

    /// Adds a stage. It replaces the one with the same number.
    pub fn with_stage(mut self, stage: Arc<dyn Stage>) -> Self {
        self.stages.retain(|other| other.id() != stage.id());
        self.stages.push(stage);
        self
    }

    /// Whether chunks of this codec decode to exactly the bytes that were encoded, or to an error.
    /// Those of other codecs need a digest of the raw bytes.
    ///
    /// Stored bytes under codec 0 decode as they are, of any writer: where encryption is on,
    /// refuse chunks whose codec proves nothing.
    ///
    /// # Errors
    /// `Unsupported`: a stage that is missing here. `Corrupt`: no chain has this codec.
    pub fn proves_bytes(&self, codec: CodecId) -> Result<bool, Error> {
        let last = self.stages(codec)?.into_iter().flatten().next_back();
        Ok(last.is_some_and(|stage| stage.kind() == StageKind::Encryption))
    }

    /// Whether all stages of this codec have the key with this id, as far as they need one.
    ///
    /// # Errors
    /// As of [`proves_bytes`](Self::proves_bytes).
    pub fn has_key(&self, codec: CodecId, key_id: u32) -> Result<bool, Error> {
        Ok(self.stages(codec)?.into_iter().flatten().all(|stage| stage.has_key(key_id)))
    }

    /// Decodes a chunk into all pieces of `raw`, whose bytes are its raw length.
    ///
    /// Working memory is bounded by what the stages could have written for that raw length,
    /// whatever the stored bytes announce.
    ///
    /// # Errors
    /// `Corrupt`, unless the stored bytes are the encoding of that many raw bytes. `Unsupported`: a
    /// stage or a version that is missing here. `KeyMissing`: its key is not loaded. What `raw`
    /// holds is then undefined.
    pub fn decode(
        &self,
        chunk: &Chunk<'_>,
        stored: &Stored<'_>,
        raw: &mut [&mut [u8]],
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        self.decode_rest(chunk, stored, raw, DecodeProgress::default(), scratch)
    }

    /// As [`decode`](Self::decode), for a chunk that [`decode_arrived`](Self::decode_arrived) has
    /// decoded up to `from`, into the same memory.
    ///
    /// # Errors
    /// As of [`decode`](Self::decode).
    pub fn decode_rest(
        &self,
        chunk: &Chunk<'_>,
        stored: &Stored<'_>,
        raw: &mut [&mut [u8]],
        from: DecodeProgress,
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        scratch.with_between(|memory| self.decode_through(chunk, stored, raw, from, memory))
    }

    /// Decodes what can be decoded of a chunk whose stored bytes are arriving: `arrived` has the
    /// first of them. It goes on at `from`, which the call before answered for the same chunk and
    /// memory. Chunks of several stages are decoded when all of them have arrived.
    ///
    /// # Errors
    /// As of [`decode`](Self::decode).
    pub fn decode_arrived(
        &self,
        chunk: &Chunk<'_>,
        arrived: &Stored<'_>,
        raw: &mut [&mut [u8]],
        from: DecodeProgress,
        scratch: &mut Scratch,
    ) -> Result<DecodeProgress, Error> {
        match self.stages(arrived.codec)? {
            [Some(stage), None, ..] => {
                stage.decode_arrived(chunk, arrived.bytes, raw, from, scratch)
            }
            _ => Ok(DecodeProgress::only_whole()),
        }
    }

    fn decode_through(
        &self,
        chunk: &Chunk<'_>,
        stored: &Stored<'_>,
        raw: &mut [&mut [u8]],
        from: DecodeProgress,
        memory: Memory<'_>,
    ) -> Result<(), Error> {
        let Memory { between: [held, free], scratch } = memory;
        let steps = self.steps(stored.codec, total_len_mut(raw))?;
        let (mut held, mut free) = (held, free);
        // The bytes that `held` has; none while the stored bytes are the input.
        let mut len = None;
        let mut key_id = 0;
        for step in steps.into_iter().flatten().rev() {
            let input = len.map_or(stored.bytes, |len| &held[..len]);
            key_id = key_id.max(step.stage.stored_key_id(input)?);
            if key_id != 0 && key_id != stored.key_id {
                let why = format!("encrypted with key {key_id}, not {}", stored.key_id);
                return Err(Error::corrupt(why));
            }
            let chunk = &chunk.with_earlier_stages(step.earlier);
            if step.earlier == CodecId(0) {
                // Only chunks of one stage are decoded before all of them is there.
                match len {
                    None => step.stage.decode_rest(chunk, input, raw, from, scratch)?,
                    Some(_) => step.stage.decode(chunk, input, raw, scratch)?,
                }
                return check_key_id(key_id, stored.key_id);
            }
            let announced = step.stage.raw_len(input)?;
            if announced > step.raw_len_max {
                let why = format!("a frame of {announced} bytes, at most {}", step.raw_len_max);
                return Err(Error::corrupt(why));
            }
            step.stage.decode(chunk, input, &mut [grow(free, announced)], scratch)?;
            len = Some(announced);
            std::mem::swap(&mut held, &mut free);
        }
        copy_plain(stored.bytes, raw)?;
        check_key_id(0, stored.key_id)
    }

    /// What is to be undone, in the order in which it was applied.
    fn steps(
        &self,
        codec: CodecId,
        raw_len: usize,
    ) -> Result<[Option<Step<'_>>; STAGES_MAX], Error> {
        let mut steps = [const { None }; STAGES_MAX];
        let (mut raw_len_max, mut earlier) = (raw_len, StageIds::default());
        for (stage, step) in self.stages(codec)?.into_iter().flatten().zip(&mut steps) {
            *step = Some(Step { stage, earlier: earlier.to_codec(), raw_len_max });
            earlier.push(stage.id());
            let bound = stage.bound(raw_len_max);
            let no_encoder = |error| Error::corrupt(format!("no encoder wrote this: {error}"));
            raw_len_max = raw_len_max.max(bound.map_err(no_encoder)?);
        }
        Ok(steps)
    }

    /// The stages of a codec in the order in which they were applied, which is that of a chain.
    fn stages(&self, codec: CodecId) -> Result<[Option<&dyn Stage>; STAGES_MAX], Error> {
        let mut stages = [None; STAGES_MAX];
        for (id, stage) in StageIds::from_codec(codec)?.iter().zip(&mut stages) {
            *stage = Some(self.stage(id, codec)?);
        }
        check_order(stages.iter().flatten().copied())
            .map_err(|why| Error::corrupt(format!("no chain has codec {:#06x}: {why}", codec.0)))?;
        Ok(stages)
    }

    fn stage(&self, id: StageId, codec: CodecId) -> Result<&dyn Stage, Error> {
        let found = self.stages.iter().find(|stage| stage.id() == id);
        found.map(|stage| &**stage).ok_or_else(|| {
            let codec = codec.0;
            let why = if id.is_lossy() {
                format!("codec {codec:#06x} is lossy, and {id} is not set here: add it to load such chunks")
            } else {
                format!("encoding {id} of codec {codec:#06x} is missing here")
            };
            Error::unsupported(why)
        })
    }
}

/// A stage of a stored chunk.
#[derive(Clone, Copy, Debug)]
struct Step<'a> {
    stage: &'a dyn Stage,
    /// The stages before it. Without any, its raw bytes are those of the chunk.
    earlier: CodecId,
    /// The most raw bytes that its encoder can have had.
    raw_len_max: usize,
}

fn check_key_id(found: u32, announced: u32) -> Result<(), Error> {
    if found != announced {
        return Err(Error::corrupt(format!("encrypted with key {found}, not {announced}")));
    }
    Ok(())
}

fn copy_plain(stored: &[u8], raw: &mut [&mut [u8]]) -> Result<(), Error> {
    let raw_len = total_len_mut(raw);
    if stored.len() != raw_len {
        let why = format!("{} stored bytes are not {raw_len} raw ones", stored.len());
        return Err(Error::corrupt(why));
    }
    copy_to_pieces(stored, raw);
    Ok(())
}
