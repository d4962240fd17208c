//! CacheGen for one model: raw KV data to LMCache's container and back.

use super::container::{Container, ContainerShape};
use super::container_writer::{BLOCK_BYTES, Description, FIXED_BYTES, write_container};
use super::decode::decode_chunk;
use super::encode::encode_chunk;
use super::layout::ChunkLayout;
use super::stream_encoder::{BLOCK_TOKENS, STREAM_BYTES_MAX};
use super::{Bins, KvOrder, KvShape};
use crate::float_type::for_float_type;
use crate::{Error, ErrorKind, FloatType};

// PyTorch's names of devices are short, and nothing else may get into a container.
const DEVICE_BYTES_MAX: usize = 32;

/// CacheGen for one model's KV data. **Lossy**: a decode gives other data than was encoded, about
/// as many values for each token as the layer has bins.
///
/// ```
/// use kvtier_codec::cachegen::{Bins, CacheGen, KvOrder, KvShape};
/// use kvtier_codec::FloatType;
///
/// let shape = KvShape { layers: 2, heads: 1, head_size: 4 };
/// let cachegen =
///     CacheGen::new(shape, KvOrder::KeysThenValues, FloatType::Fp32, Bins::for_layers(2))?;
/// let values = [3.0f32, -1.5, 0.1, 0.0];
/// let raw: Vec<u8> = values.repeat(2 * 2 * 8).iter().flat_map(|x| x.to_le_bytes()).collect();
/// let mut stored = vec![0; cachegen.bound(raw.len())?];
/// let len = cachegen.encode(&raw, &mut stored)?;
///
/// let mut loaded = vec![0; raw.len()];
/// cachegen.decode(&stored[..len], &mut loaded)?;
/// assert!(CacheGen::LOSSY);
/// assert_eq!(f32::from_le_bytes(loaded[..4].try_into()?), 3.0);
/// assert_eq!(f32::from_le_bytes(loaded[4..8].try_into()?), -1.4, "the nearest of 31 values");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheGen {
    shape: KvShape,
    order: KvOrder,
    dtype: FloatType,
    bins: Bins,
    device: String,
}

impl CacheGen {
    /// Its name in configurations, as LMCache has it.
    pub const NAME: &'static str = "cachegen";
    /// A decode does not give the bytes that were encoded.
    pub const LOSSY: bool = true;

    /// CacheGen for KV data of this shape, order and type. Containers are written for the device
    /// `cuda:0`. Errors: `Invalid`, an extent is zero or too large, or there are bins for another
    /// number of layers.
    pub fn new(
        shape: KvShape,
        order: KvOrder,
        dtype: FloatType,
        bins: Bins,
    ) -> Result<CacheGen, Error> {
        shape.check()?;
        if bins.layers() != shape.layers {
            let why = format!("bins for {} layers, of {}", bins.layers(), shape.layers);
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        Ok(CacheGen { shape, order, dtype, bins, device: "cuda:0".into() })
    }

    /// Names the device in written containers, such as `cuda:1` or `cpu`: LMCache gets the tensors
    /// there, and its CUDA code needs them on its own device. Reading ignores it. Errors: `Invalid`,
    /// not a device's name.
    pub fn with_device(mut self, device: &str) -> Result<CacheGen, Error> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b':';
        if device.is_empty() || device.len() > DEVICE_BYTES_MAX || !device.bytes().all(is_name) {
            let why = format!("{device:?} is no device of PyTorch, such as cuda:0 or cpu");
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        self.device = device.into();
        Ok(self)
    }

    /// The most bytes that `raw_len` raw bytes can encode to. Errors: `Invalid`, these are no whole
    /// tokens.
    pub fn bound(&self, raw_len: usize) -> Result<usize, Error> {
        let layout = self.layout(raw_len)?;
        self.checked_bound(layout.tokens).ok_or_else(|| {
            Error::new(ErrorKind::Invalid, format!("{raw_len} bytes are more than CacheGen takes"))
        })
    }

    /// Nothing where memory has no such length.
    fn checked_bound(&self, tokens: usize) -> Option<usize> {
        let channels = 2 * self.shape.layers * self.shape.channels();
        let blocks = tokens.div_ceil(BLOCK_TOKENS);
        let streams = blocks.checked_mul(STREAM_BYTES_MAX + 4)?;
        let per_channel = streams.checked_add((self.bins.most() + 1) * 2)?;
        let maxima = tokens.checked_mul(2 * self.shape.layers * self.dtype.bytes())?;
        let heads = blocks.checked_mul(BLOCK_BYTES)?.checked_add(FIXED_BYTES)?;
        channels.checked_mul(per_channel)?.checked_add(maxima)?.checked_add(heads)
    }

    /// Encodes `raw` into the front of `out` as LMCache's container, and answers how many bytes
    /// that took. Errors: `Invalid`, `out` is too short, `raw` is no whole tokens, or LMCache could
    /// not read the result.
    pub fn encode(&self, raw: &[u8], out: &mut [u8]) -> Result<usize, Error> {
        let layout = self.layout(raw.len())?;
        let encoded = for_float_type!(self.dtype, encode_chunk(raw, &layout, &self.bins))?;
        let about = Description {
            shape: self.shape,
            tokens: layout.tokens,
            dtype: self.dtype,
            device: &self.device,
        };
        write_container(&encoded, &about, out)
    }

    /// Decodes LMCache's container into all of `raw`. The container may be of data of another float
    /// type: LMCache converts likewise. Errors: `Corrupt`, unless it is one of this shape and of as
    /// many tokens as `raw` has; what `raw` holds is then undefined. A container has no checksum:
    /// of damaged bytes a decode may also give other values.
    pub fn decode(&self, stored: &[u8], raw: &mut [u8]) -> Result<(), Error> {
        let layout = self.layout(raw.len())?;
        let container = self.container(stored)?;
        if container.shape.tokens != layout.tokens {
            let why = format!(
                "a CacheGen container of {} tokens, not of {}",
                container.shape.tokens, layout.tokens
            );
            return Err(Error::new(ErrorKind::Corrupt, why));
        }
        for_float_type!(self.dtype, decode_chunk(&container, &layout, &self.bins, raw))
    }

    /// What a container states about its chunk. Errors: `Corrupt`, it is no container.
    pub fn inspect(stored: &[u8]) -> Result<ContainerShape, Error> {
        Ok(Container::read(stored)?.shape)
    }

    /// The tokens of a container of this model's data, without decoding it. Errors: `Corrupt`, it
    /// is no container, or one of another shape or other bins.
    pub fn tokens(&self, stored: &[u8]) -> Result<usize, Error> {
        Ok(self.container(stored)?.shape.tokens)
    }

    /// Reads a container, and checks that it is one of this model's data, of any number of tokens.
    fn container<'a>(&self, stored: &'a [u8]) -> Result<Container<'a>, Error> {
        let container = Container::read(stored)?;
        let found = container.shape;
        let expected = ContainerShape {
            layers: self.shape.layers,
            heads: self.shape.heads,
            head_size: self.shape.head_size,
            ..found
        };
        if found != expected || container.bins() != self.bins.most() {
            let why = format!(
                "a CacheGen container of {found:?} and {} bins, not of {expected:?} and {}",
                container.bins(),
                self.bins.most(),
            );
            return Err(Error::new(ErrorKind::Corrupt, why));
        }
        Ok(container)
    }

    fn layout(&self, raw_len: usize) -> Result<ChunkLayout, Error> {
        ChunkLayout::new(self.shape, self.order, self.dtype, raw_len)
    }
}
