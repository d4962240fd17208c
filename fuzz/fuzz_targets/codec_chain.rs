//! Chunks of any codec: a chain of stages around any bytes ends in an error or within the buffer,
//! with bounded memory. Behind compression and encryption too: real stages wrap forged frames.
#![no_main]

use std::sync::Arc;

use kvtier_codec::cachegen::{KvOrder, KvShape};
use kvtier_codec::{
    Aes256Gcm, Bf16Split, CacheGenStage, Chain, Chunk, Decoder, Error, ErrorKind, Keyring, Lz4,
    MasterKey, Scratch, Stage, StageId, StageKind, Stored, Zstd,
};
use kvtier_key::CodecId;
use libfuzzer_sys::fuzz_target;

/// Stands for a stage and writes these bytes as its frame, whatever it encodes.
#[derive(Clone, Debug)]
struct Forged {
    stage: Arc<dyn Stage>,
    frame: Vec<u8>,
}

impl Forged {
    /// The payload behind a header that is valid for the stage.
    fn new(stage: Arc<dyn Stage>, parameter: u8, raw_len: u64, payload: &[u8]) -> Self {
        let parameter = if stage.kind() == StageKind::Typed { parameter % 5 } else { 0 };
        let mut frame = vec![stage.id().number(), 1, parameter, 0, 0, 0, 0, 0];
        frame.extend(raw_len.to_le_bytes());
        frame.extend(payload);
        Forged { stage, frame }
    }
}

impl Stage for Forged {
    fn id(&self) -> StageId {
        self.stage.id()
    }

    fn kind(&self) -> StageKind {
        self.stage.kind()
    }

    fn bound(&self, raw_len: usize) -> Result<usize, Error> {
        Ok(raw_len.max(self.frame.len()))
    }

    fn encode(
        &self,
        _: &Chunk<'_>,
        _: &[&[u8]],
        out: &mut [u8],
        _: &mut Scratch,
    ) -> Result<Option<usize>, Error> {
        out[..self.frame.len()].copy_from_slice(&self.frame);
        Ok(Some(self.frame.len()))
    }

    fn raw_len(&self, stored: &[u8]) -> Result<usize, Error> {
        self.stage.raw_len(stored)
    }

    fn decode(
        &self,
        chunk: &Chunk<'_>,
        stored: &[u8],
        raw: &mut [&mut [u8]],
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        self.stage.decode(chunk, stored, raw, scratch)
    }
}

fuzz_target!(|input: (u8, u16, u32, u16, &[u8])| {
    let (wrap, codec, key_id, raw_len, bytes) = input;
    let keys = Arc::new(Keyring::new());
    keys.insert(MasterKey::new(1, &[7; 32]).unwrap());
    let aes: Arc<dyn Stage> = Arc::new(Aes256Gcm::new(keys, 1));
    let shape = KvShape { layers: 1, heads: 1, head_size: 1 };
    let cachegen = Arc::new(CacheGenStage::new(shape, KvOrder::ByLayer, 1).unwrap());
    let decoder = Decoder::new().with_stage(aes.clone()).with_stage(cachegen.clone());

    let stored = Stored { codec: CodecId(codec), key_id, bytes };
    check(&decoder, &stored, raw_len);

    let stages: [Arc<dyn Stage>; 4] =
        [Arc::new(Bf16Split), cachegen, Arc::new(Zstd::default()), Arc::new(Lz4)];
    let inner = stages[usize::from(wrap) % 4].clone();
    let raw_len_inner = u64::from(if wrap & 4 == 0 { raw_len } else { codec });
    let forged = Arc::new(Forged::new(inner.clone(), codec as u8, raw_len_inner, bytes));
    let mut chain: Vec<Arc<dyn Stage>> = vec![forged];
    // Another forged frame that announces the first one, or a real one around it.
    if wrap & 8 != 0 && inner.id() != StageId::ZSTD {
        let announced = u64::from(key_id % 0x2_0000);
        match wrap & 16 {
            0 => chain.push(Arc::new(Zstd::default())),
            _ => chain.push(Arc::new(Forged::new(stages[2].clone(), 0, announced, bytes))),
        }
    }
    if wrap & 32 == 0 {
        chain.push(aes);
    }
    let chain = Chain::new(chain).unwrap();
    let (raw, mut scratch) = (vec![0; raw_len.into()], Scratch::new());
    let mut out = vec![0; chain.bound(raw.len()).unwrap()];
    let encoded = chain.encode(&Chunk::default(), &[&raw], &mut out, &mut scratch).unwrap();
    let bytes = &out[..encoded.len];
    check(&decoder, &Stored { codec: encoded.codec, key_id: encoded.key_id, bytes }, raw_len);
});

fn check(decoder: &Decoder, stored: &Stored<'_>, raw_len: u16) {
    let (mut raw, mut scratch) = (vec![0; raw_len.into()], Scratch::new());
    let outcome = decoder.decode(&Chunk::default(), stored, &mut [&mut raw], &mut scratch);
    if let Err(error) = outcome {
        let kind = error.kind();
        let is_miss = [ErrorKind::Corrupt, ErrorKind::Unsupported, ErrorKind::KeyMissing];
        assert!(is_miss.contains(&kind), "{error}");
        // A valid tag is never taken for another one.
        assert!(stored.key_id != 1 || kind != ErrorKind::KeyMissing, "{error}");
    }
    assert!(scratch.buffer_bytes() < 4 << 20);
}
