//! Writes LMCache's container: the pickle of its `CacheGenGPUEncoderOutput`, opcode for opcode as
//! Python writes it, without frames, which readers do not need.

use std::collections::HashMap;

use super::encode::{Encoded, EncodedBlock};
use super::layout::KvShape;
use super::pickle::{GLOBALS, Global, op};
use super::torch_storage::{StorageType, write_head, write_integer};
use crate::{Error, ErrorKind, FloatType};

/// What a container states beside an [`Encoded`].
pub(super) struct Description<'a> {
    pub(super) shape: KvShape,
    pub(super) tokens: usize,
    pub(super) dtype: FloatType,
    /// PyTorch's name of the device on which a reader gets the tensors.
    pub(super) device: &'a str,
}

/// Bytes of a container beside its tensors' data, and for each block of tokens: an upper limit.
pub(super) const FIXED_BYTES: usize = 4096;
/// As [`FIXED_BYTES`], for one block.
pub(super) const BLOCK_BYTES: usize = 2048;

/// Writes a container to the front of `out` and answers its length. Errors: `Invalid`, `out` is too
/// short.
pub(super) fn write_container(
    encoded: &Encoded,
    about: &Description<'_>,
    out: &mut [u8],
) -> Result<usize, Error> {
    let mut writer =
        Writer { about, out, len: 0, pending: vec![], memo: HashMap::new(), memoized: 0 };
    writer.put(&[op::PROTO, 4]);
    writer.write_output(encoded)?;
    writer.put(&[op::STOP]);
    writer.flush()?;
    Ok(writer.len)
}

struct Writer<'a, 'o> {
    about: &'a Description<'a>,
    out: &'o mut [u8],
    len: usize,
    /// Opcodes that are not in `out` yet: all but the tensors' data.
    pending: Vec<u8>,
    /// Where each text and global is in the reader's memo.
    memo: HashMap<&'static str, u32>,
    memoized: u32,
}

impl Writer<'_, '_> {
    fn write_output(&mut self, encoded: &Encoded) -> Result<(), Error> {
        let shape = self.about.shape;
        let channels = shape.heads * shape.head_size;
        let maxima = match self.about.dtype {
            FloatType::Bf16 => StorageType::BFloat16,
            FloatType::Fp16 => StorageType::Half,
            FloatType::Fp32 => StorageType::Float,
        };
        let max_extents = [shape.layers, self.about.tokens, 1];
        self.begin_object(Global::EncoderOutput);
        self.text("data_chunks");
        self.put(&[op::EMPTY_LIST]);
        self.memoize();
        // Python appends up to 1,000 items at once, and a single one in its own way.
        if let [block] = &encoded.blocks[..] {
            self.write_block(block, [2 * shape.layers, channels])?;
            self.put(&[op::APPEND]);
        } else {
            for batch in encoded.blocks.chunks(1000) {
                self.put(&[op::MARK]);
                for block in batch {
                    self.write_block(block, [2 * shape.layers, channels])?;
                }
                self.put(&[op::APPENDS]);
            }
        }
        self.text("cdf");
        let extents = [2 * shape.layers, channels, encoded.cdf_entries];
        self.tensor(StorageType::Short, &extents, &encoded.cdf)?;
        self.text("max_tensors_key");
        self.tensor(maxima, &max_extents, &encoded.max_key)?;
        self.text("max_tensors_value");
        self.tensor(maxima, &max_extents, &encoded.max_value)?;
        self.text("num_heads");
        write_integer(shape.heads as u64, &mut self.pending);
        self.text("head_size");
        write_integer(shape.head_size as u64, &mut self.pending);
        self.put(&[op::SETITEMS, op::BUILD]);
        Ok(())
    }

    fn write_block(&mut self, block: &EncodedBlock, extents: [usize; 2]) -> Result<(), Error> {
        self.begin_object(Global::Bytestream);
        self.text("bytestream");
        self.tensor(StorageType::Byte, &[block.streams.len()], &block.streams)?;
        self.text("bytestream_lengths");
        self.tensor(StorageType::Int, &extents, &block.lengths)?;
        self.text("ntokens");
        write_integer(block.tokens as u64, &mut self.pending);
        self.put(&[op::SETITEMS, op::BUILD]);
        Ok(())
    }

    /// A new object and the start of its fields.
    fn begin_object(&mut self, class: Global) {
        self.global(class);
        self.put(&[op::EMPTY_TUPLE, op::NEWOBJ]);
        self.memoize();
        self.put(&[op::EMPTY_DICT]);
        self.memoize();
        self.put(&[op::MARK]);
    }

    fn tensor(
        &mut self,
        element: StorageType,
        extents: &[usize],
        data: &[u8],
    ) -> Result<(), Error> {
        self.global(Global::RebuildTensor);
        self.put(&[op::MARK]);
        self.global(Global::LoadFromBytes);
        self.storage(element, data)?;
        self.put(&[op::TUPLE1]);
        self.memoize();
        self.put(&[op::REDUCE]);
        self.memoize();
        write_integer(0, &mut self.pending);
        self.extents(extents);
        let mut strides = vec![1; extents.len()];
        for inner in (1..extents.len()).rev() {
            strides[inner - 1] = strides[inner] * extents[inner];
        }
        self.extents(&strides);
        self.put(&[op::NEWFALSE]);
        self.global(Global::OrderedDict);
        self.put(&[op::EMPTY_TUPLE, op::REDUCE]);
        self.memoize();
        self.put(&[op::TUPLE]);
        self.memoize();
        self.put(&[op::REDUCE]);
        self.memoize();
        Ok(())
    }

    fn storage(&mut self, element: StorageType, data: &[u8]) -> Result<(), Error> {
        let mut head = vec![];
        write_head(element, self.about.device, data.len() / element.bytes(), &mut head);
        let len = (head.len() + data.len()) as u64;
        let (opcode, len_bytes) = match len {
            0..=0xff => (op::SHORT_BINBYTES, 1),
            0x100..=0xffff_ffff => (op::BINBYTES, 4),
            _ => (op::BINBYTES8, 8),
        };
        self.put(&[opcode]);
        self.put(&len.to_le_bytes()[..len_bytes]);
        self.put(&head);
        self.flush()?;
        self.emit(data)?;
        self.memoize();
        Ok(())
    }

    fn extents(&mut self, extents: &[usize]) {
        for extent in extents {
            write_integer(*extent as u64, &mut self.pending);
        }
        self.put(&[match extents.len() {
            1 => op::TUPLE1,
            2 => op::TUPLE2,
            _ => op::TUPLE3,
        }]);
        self.memoize();
    }

    fn global(&mut self, global: Global) {
        let found = GLOBALS.iter().find(|entry| entry.2 == global);
        let Some((module, name, _)) = found else { return };
        // A global's own name occurs nowhere else, so it stands for the global.
        if self.recall(name) {
            return;
        }
        self.text(module);
        self.text(name);
        self.put(&[op::STACK_GLOBAL]);
        self.memo.insert(name, self.memoized);
        self.memoize();
    }

    /// Writes a reference to what was memoized as `name`, if anything was.
    fn recall(&mut self, name: &str) -> bool {
        let Some(index) = self.memo.get(name).copied() else { return false };
        match u8::try_from(index) {
            Ok(index) => self.put(&[op::BINGET, index]),
            Err(_) => {
                self.put(&[op::LONG_BINGET]);
                self.put(&index.to_le_bytes());
            }
        }
        true
    }

    fn text(&mut self, text: &'static str) {
        if self.recall(text) {
            return;
        }
        self.put(&[op::SHORT_BINUNICODE, text.len() as u8]);
        self.put(text.as_bytes());
        self.memo.insert(text, self.memoized);
        self.memoize();
    }

    fn memoize(&mut self) {
        self.put(&[op::MEMOIZE]);
        self.memoized += 1;
    }

    fn put(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    fn flush(&mut self) -> Result<(), Error> {
        let pending = std::mem::take(&mut self.pending);
        self.emit(&pending)
    }

    fn emit(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let space = self.out.len();
        let out = self.out.get_mut(self.len..self.len + bytes.len()).ok_or_else(|| {
            let why = format!("the buffer has {space} bytes, the CacheGen container needs more");
            Error::new(ErrorKind::Invalid, why)
        })?;
        out.copy_from_slice(bytes);
        self.len += bytes.len();
        Ok(())
    }
}
