//! Measures an encoding on this machine: bytes, and the time of one thread.

use std::time::{Duration, Instant};

use anyhow::Result;
use kvtier::codec::{DecodeProgress, TierEncoding};
use kvtier::key::{BlockSums, DType, Facts};
use kvtier::{Key, Namespace};

use super::sample_data::SampleData;

/// What an encoding does to data, and what that costs one thread.
#[derive(Clone, Copy, Debug)]
pub struct CodingRate {
    /// Stored bytes by raw bytes.
    pub ratio: f64,
    /// Raw bytes that are encoded in a second.
    pub encode: f64,
    /// Raw bytes that are decoded in a second; infinite if no chunk is encoded.
    pub decode: f64,
    /// Whether a chunk that arrives from S3 is decoded meanwhile.
    pub while_arriving: bool,
}

/// The time of passes over all chunks.
#[derive(Default)]
struct PassTimes {
    pass: Duration,
    all: Duration,
    shortest: Option<Duration>,
}

impl PassTimes {
    fn add<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.pass += start.elapsed();
        result
    }

    fn end_pass(&mut self) {
        let pass = std::mem::take(&mut self.pass);
        self.all += pass;
        self.shortest = Some(self.shortest.map_or(pass, |shortest| shortest.min(pass)));
    }

    /// By the shortest pass: others were interrupted by other programs.
    fn rate(&self, bytes: u64) -> f64 {
        bytes as f64 / self.shortest.unwrap_or_default().as_secs_f64()
    }
}

/// Encodes and decodes all chunks, again and again for `least` each.
pub fn measure(
    encoding: &TierEncoding,
    dtype: DType,
    data: &SampleData,
    least: Duration,
) -> Result<CodingRate> {
    let namespace = Namespace::new("plan", Default::default()).with_dtype(dtype);
    let key = Key::from_name(&namespace.into(), "chunk");
    let longest = data.chunks.iter().map(Vec::len).max().unwrap_or(0);
    let (mut out, mut raw) = (vec![0; encoding.bound(longest)?], vec![0; longest]);
    let (mut encoding_times, mut decoding_times) = (PassTimes::default(), PassTimes::default());
    let mut stored_bytes;
    let mut while_arriving = None;
    // The first chunk allocates working memory.
    if let Some(first) = data.chunks.first() {
        encoding.encode(&key, &[first], &mut out)?;
    }
    loop {
        stored_bytes = 0;
        for chunk in &data.chunks {
            let payload = encoding_times.add(|| encoding.encode(&key, &[chunk], &mut out))?;
            let Some((payload, len)) = payload else {
                // It stays as it is: loading it costs nothing.
                stored_bytes += chunk.len();
                continue;
            };
            stored_bytes += len;
            let sums = BlockSums::from_bytes(&out[..len]);
            let facts = Facts::encoded(*key.digest(), key.namespace().digest(), payload, sums);
            let raw = &mut raw[..chunk.len()];
            // Once, and not while time is measured.
            while_arriving.get_or_insert_with(|| {
                encoding
                    .decode_arrived(&facts, &out[..len], &mut [raw], DecodeProgress::default())
                    .is_ok_and(|decoded| decoded.raw_bytes() > 0)
            });
            decoding_times.add(|| encoding.decode(&facts, &out[..len], &mut [raw]))?;
        }
        encoding_times.end_pass();
        decoding_times.end_pass();
        let is_long = |times: &PassTimes| times.all >= least || times.all.is_zero();
        if is_long(&encoding_times) && is_long(&decoding_times) {
            break;
        }
    }
    Ok(CodingRate {
        ratio: stored_bytes as f64 / data.bytes() as f64,
        encode: encoding_times.rate(data.bytes()),
        decode: decoding_times.rate(data.bytes()),
        while_arriving: while_arriving.unwrap_or(false),
    })
}
