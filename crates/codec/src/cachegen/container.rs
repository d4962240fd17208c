//! LMCache's container: the tensors of an encoded chunk, read from the pickle of its
//! `CacheGenGPUEncoderOutput`.

use super::pickle::{Global, Pickle, Ref, Value, corrupt};
use super::stream_encoder::{BLOCK_TOKENS, STREAM_BYTES_MAX};
use super::torch_storage::{Storage, StorageType, read_storage};
use crate::{Error, FloatType};

/// The extents of an encoded chunk, as its container states them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContainerShape {
    /// Layers of the model.
    pub layers: usize,
    /// Tokens of the chunk.
    pub tokens: usize,
    /// KV heads.
    pub heads: usize,
    /// Elements of one head.
    pub head_size: usize,
    /// The type that the data had when it was encoded.
    pub dtype: FloatType,
}

/// A container whose tensors have the extents that they must have. Data is borrowed.
#[derive(Debug)]
pub(super) struct Container<'a> {
    pub(super) shape: ContainerShape,
    /// Entries of each CDF: the greatest number of bins, and one.
    pub(super) cdf_entries: usize,
    pub(super) cdf: &'a [u8],
    pub(super) max_type: FloatType,
    pub(super) max_key: &'a [u8],
    pub(super) max_value: &'a [u8],
    pub(super) blocks: Vec<Block<'a>>,
}

/// The streams of up to 256 tokens.
#[derive(Debug)]
pub(super) struct Block<'a> {
    pub(super) tokens: usize,
    pub(super) streams: &'a [u8],
    /// 32 bits for each channel.
    pub(super) lengths: &'a [u8],
}

impl Block<'_> {
    /// The bytes of the stream of `channel`, which counts through all layers.
    pub(super) fn length(&self, channel: usize) -> usize {
        let bytes = &self.lengths[channel * 4..channel * 4 + 4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize
    }
}

impl<'a> Container<'a> {
    /// Reads a container. Errors: `Corrupt`, it is not one, or its parts do not fit each other.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, Error> {
        let pickle = Pickle::read(bytes)?;
        let output = Object::new(&pickle, pickle.root(), Global::EncoderOutput)?;
        let max_key = output.tensor("max_tensors_key")?;
        let max_value = output.tensor("max_tensors_value")?;
        let cdf = output.tensor("cdf")?;
        let [layers, tokens, 1] = *max_key.shape else {
            return Err(corrupt("the maxima have another shape"));
        };
        let [planes, channels, cdf_entries] = *cdf.shape else {
            return Err(corrupt("the CDFs have another shape"));
        };
        let shape = ContainerShape {
            layers,
            tokens,
            heads: output.integer("num_heads")?,
            head_size: output.integer("head_size")?,
            dtype: max_key.float()?,
        };
        let fits = max_value.shape == max_key.shape
            && max_value.storage.element == max_key.storage.element
            && cdf.storage.element == StorageType::Short
            && (2..=130).contains(&cdf_entries)
            && layers.checked_mul(2) == Some(planes)
            && shape.heads.checked_mul(shape.head_size) == Some(channels)
            && layers > 0
            && tokens > 0
            && channels > 0;
        if !fits {
            return Err(corrupt("its tensors do not fit each other"));
        }
        Ok(Container {
            shape,
            cdf_entries,
            cdf: cdf.storage.data,
            max_type: shape.dtype,
            max_key: max_key.storage.data,
            max_value: max_value.storage.data,
            blocks: read_blocks(&output, [planes, channels], tokens, bytes.len())?,
        })
    }

    pub(super) fn bins(&self) -> usize {
        self.cdf_entries - 1
    }
}

/// Reads the streams of all blocks. Their data is in `bytes_left` bytes, so a pickle that names the
/// same tensor again and again is refused before it costs time.
fn read_blocks<'a>(
    output: &Object<'a, '_>,
    planes_and_channels: [usize; 2],
    tokens: usize,
    mut bytes_left: usize,
) -> Result<Vec<Block<'a>>, Error> {
    let pickle = output.pickle;
    let Value::List(chunks) = pickle.get(output.field("data_chunks")?) else {
        return Err(corrupt("its chunks are no list"));
    };
    let mut blocks = Vec::with_capacity(chunks.len());
    let mut read = 0usize;
    for chunk in chunks {
        let chunk = Object::new(pickle, *chunk, Global::Bytestream)?;
        let streams = chunk.tensor("bytestream")?;
        let lengths = chunk.tensor("bytestream_lengths")?;
        let bytes = streams.storage.data.len() + lengths.storage.data.len();
        bytes_left = bytes_left
            .checked_sub(bytes)
            .ok_or_else(|| corrupt("its chunks share their streams"))?;
        let block = Block {
            tokens: chunk.integer("ntokens")?,
            streams: streams.storage.data,
            lengths: lengths.storage.data,
        };
        let fits = streams.storage.element == StorageType::Byte
            && streams.shape.len() == 1
            && lengths.storage.element == StorageType::Int
            && *lengths.shape == planes_and_channels
            && (1..=BLOCK_TOKENS).contains(&block.tokens);
        let channels = lengths.storage.data.len() / 4;
        let longest = (0..channels).map(|channel| block.length(channel)).max();
        let total: u64 = (0..channels).map(|channel| block.length(channel) as u64).sum();
        if !fits
            || longest.is_some_and(|longest| longest > STREAM_BYTES_MAX)
            || total != block.streams.len() as u64
        {
            return Err(corrupt("the streams do not fit their lengths"));
        }
        read = read.saturating_add(block.tokens);
        blocks.push(block);
    }
    if read == tokens { Ok(blocks) } else { Err(corrupt("its chunks have other tokens than it")) }
}

/// An object with fields.
struct Object<'a, 'p> {
    pickle: &'p Pickle<'a>,
    fields: &'p [(Ref, Ref)],
}

impl<'a, 'p> Object<'a, 'p> {
    fn new(pickle: &'p Pickle<'a>, value: Ref, class: Global) -> Result<Self, Error> {
        if let Value::Object(found, Some(fields)) = pickle.get(value)
            && *found == class
            && let Value::Dict(fields) = pickle.get(*fields)
        {
            return Ok(Object { pickle, fields });
        }
        Err(corrupt(format!("no {class:?} where one must be")))
    }

    fn field(&self, name: &str) -> Result<Ref, Error> {
        let is_it = |key: Ref| matches!(self.pickle.get(key), Value::Text(text) if *text == name);
        let found = self.fields.iter().find(|(key, _)| is_it(*key));
        Ok(found.ok_or_else(|| corrupt(format!("no field {name}")))?.1)
    }

    fn integer(&self, name: &str) -> Result<usize, Error> {
        integer(self.pickle, self.field(name)?)
    }

    fn tensor(&self, name: &str) -> Result<Tensor<'a>, Error> {
        Tensor::read(self.pickle, self.field(name)?)
    }
}

fn integer(pickle: &Pickle<'_>, value: Ref) -> Result<usize, Error> {
    match pickle.get(value) {
        Value::Int(value) => usize::try_from(*value).map_err(|_| corrupt("an integer too large")),
        _ => Err(corrupt("no integer where one must be")),
    }
}

fn arguments<'p>(pickle: &'p Pickle<'_>, value: Ref, function: Global) -> Result<&'p [Ref], Error> {
    if let Value::Call(found, arguments) = pickle.get(value)
        && *found == function
        && let Value::Tuple(arguments) = pickle.get(*arguments)
    {
        return Ok(arguments);
    }
    Err(corrupt(format!("no {function:?} where one must be")))
}

fn extents(pickle: &Pickle<'_>, value: Ref) -> Result<Vec<usize>, Error> {
    match pickle.get(value) {
        Value::Tuple(extents) if extents.len() <= 3 => {
            extents.iter().map(|extent| integer(pickle, *extent)).collect()
        }
        _ => Err(corrupt("a tensor's extents are no tuple of up to 3")),
    }
}

/// A tensor that fills its storage, element after element.
struct Tensor<'a> {
    storage: Storage<'a>,
    shape: Vec<usize>,
}

impl<'a> Tensor<'a> {
    fn read(pickle: &Pickle<'a>, value: Ref) -> Result<Self, Error> {
        let [storage, offset, shape, strides, gradient, hooks] =
            *arguments(pickle, value, Global::RebuildTensor)?
        else {
            return Err(corrupt("a tensor with other arguments"));
        };
        let [bytes] = *arguments(pickle, storage, Global::LoadFromBytes)? else {
            return Err(corrupt("a tensor's data with other arguments"));
        };
        let Value::Bytes(bytes) = pickle.get(bytes) else {
            return Err(corrupt("a tensor's data are no bytes"));
        };
        let storage = read_storage(bytes)?;
        let shape = extents(pickle, shape)?;
        let plain = integer(pickle, offset)? == 0
            && matches!(pickle.get(gradient), Value::False)
            && arguments(pickle, hooks, Global::OrderedDict)?.is_empty();
        if !plain || !is_dense(&shape, &extents(pickle, strides)?, storage) {
            return Err(corrupt("a tensor is a view of other data"));
        }
        Ok(Tensor { storage, shape })
    }

    fn float(&self) -> Result<FloatType, Error> {
        match self.storage.element {
            StorageType::BFloat16 => Ok(FloatType::Bf16),
            StorageType::Half => Ok(FloatType::Fp16),
            StorageType::Float => Ok(FloatType::Fp32),
            _ => Err(corrupt("the maxima are no floats")),
        }
    }
}

/// Whether a tensor with these strides is its storage, element after element.
fn is_dense(shape: &[usize], strides: &[usize], storage: Storage<'_>) -> bool {
    let mut elements = 1usize;
    if shape.len() != strides.len() {
        return false;
    }
    for (extent, stride) in shape.iter().zip(strides).rev() {
        // The stride of a single element means nothing.
        if *extent != 1 && *stride != elements {
            return false;
        }
        match elements.checked_mul(*extent) {
            Some(all) => elements = all,
            None => return false,
        }
    }
    elements.checked_mul(storage.element.bytes()) == Some(storage.data.len())
}
