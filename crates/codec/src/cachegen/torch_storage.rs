//! A tensor's data as PyTorch pickles it: what `torch.save` writes in its old format. Apart from
//! the element type, a key, the device, the length and the data all bytes are fixed.

use super::pickle::{Input, corrupt, op};
use crate::Error;

/// The element types of the container's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StorageType {
    Byte,
    Short,
    Int,
    BFloat16,
    Half,
    Float,
}

impl StorageType {
    const ALL: [StorageType; 6] =
        [Self::Byte, Self::Short, Self::Int, Self::BFloat16, Self::Half, Self::Float];

    fn global(self) -> &'static [u8] {
        match self {
            Self::Byte => b"ctorch\nByteStorage\n",
            Self::Short => b"ctorch\nShortStorage\n",
            Self::Int => b"ctorch\nIntStorage\n",
            Self::BFloat16 => b"ctorch\nBFloat16Storage\n",
            Self::Half => b"ctorch\nHalfStorage\n",
            Self::Float => b"ctorch\nFloatStorage\n",
        }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Byte => 1,
            Self::Short | Self::BFloat16 | Self::Half => 2,
            Self::Int | Self::Float => 4,
        }
    }
}

/// What was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storage<'a> {
    pub(super) element: StorageType,
    pub(super) data: &'a [u8],
}

// Three pickles: a magic number, the format's version 1001 and the writer's byte order and sizes.
const HEAD: &[u8] = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\
    \x80\x02M\xe9\x03.\
    \x80\x02}q\x00(X\x10\0\0\0protocol_versionq\x01M\xe9\x03X\x0d\0\0\0little_endianq\x02\x88\
    X\x0a\0\0\0type_sizesq\x03}q\x04(X\x05\0\0\0shortq\x05K\x02X\x03\0\0\0intq\x06K\x04\
    X\x04\0\0\0longq\x07K\x04uu.";
const STORAGE: &[u8] = b"\x80\x02(X\x07\0\0\0storageq\x00";
const TYPE_END: &[u8] = b"q\x01";
const KEY_END: &[u8] = b"q\x02";
const DEVICE_END: &[u8] = b"q\x03";
// No view, the end of the tuple, its persistent id; then the list of all keys.
const TUPLE_END: &[u8] = b"Ntq\x04Q.\x80\x02]q\x00";
const LIST_END: &[u8] = b"q\x01a.";
// PyTorch takes the address of the data, and asks only that keys of one file differ. This is as
// long as most addresses.
const KEY: &[u8] = b"94000000000000";

// Keys are addresses, and devices have short names.
const TEXT_BYTES_MAX: usize = 64;

/// Reads all of `bytes`. Errors: `Corrupt`.
pub(super) fn read_storage(bytes: &[u8]) -> Result<Storage<'_>, Error> {
    let mut input = Input { bytes, at: 0 };
    expect(&mut input, HEAD)?;
    expect(&mut input, STORAGE)?;
    let rest = &bytes[input.at..];
    let element = StorageType::ALL.into_iter().find(|element| rest.starts_with(element.global()));
    let element = element.ok_or_else(|| corrupt("a tensor of another element type"))?;
    input.take(element.global().len())?;
    expect(&mut input, TYPE_END)?;
    let key = text(&mut input)?;
    expect(&mut input, KEY_END)?;
    text(&mut input)?;
    expect(&mut input, DEVICE_END)?;
    let opcode = input.byte()?;
    let elements = input.integer(opcode)?;
    expect(&mut input, TUPLE_END)?;
    if text(&mut input)? != key {
        return Err(corrupt("a storage with another key than its data"));
    }
    expect(&mut input, LIST_END)?;
    let stored = input.number(8)?;
    let data = &bytes[input.at..];
    let len = elements.checked_mul(element.bytes() as u64);
    if stored != elements || len != Some(data.len() as u64) {
        return Err(corrupt(format!("{} bytes are not {elements} elements", data.len())));
    }
    Ok(Storage { element, data })
}

fn expect(input: &mut Input<'_>, bytes: &[u8]) -> Result<(), Error> {
    if input.take(bytes.len())? == bytes {
        Ok(())
    } else {
        Err(corrupt("a tensor's data in another format than PyTorch's"))
    }
}

/// A key or a device. Containers may name the same tensor often, so these must be short.
fn text<'a>(input: &mut Input<'a>) -> Result<&'a str, Error> {
    if input.byte()? != b'X' {
        return Err(corrupt("no text in a tensor's data"));
    }
    let bytes = input.bytes(4)?;
    if bytes.len() > TEXT_BYTES_MAX {
        return Err(corrupt(format!("a tensor's key or device of {} bytes", bytes.len())));
    }
    std::str::from_utf8(bytes).map_err(|_| corrupt("a text is no UTF-8"))
}

/// Writes the bytes before the data. `device` is PyTorch's name of where the tensor is.
pub(super) fn write_head(element: StorageType, device: &str, elements: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(HEAD);
    out.extend_from_slice(STORAGE);
    out.extend_from_slice(element.global());
    out.extend_from_slice(TYPE_END);
    write_text(KEY, out);
    out.extend_from_slice(KEY_END);
    write_text(device.as_bytes(), out);
    out.extend_from_slice(DEVICE_END);
    write_integer(elements as u64, out);
    out.extend_from_slice(TUPLE_END);
    write_text(KEY, out);
    out.extend_from_slice(LIST_END);
    out.extend_from_slice(&(elements as u64).to_le_bytes());
}

fn write_text(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'X');
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text);
}

/// Writes an integer with the opcode that Python takes for it.
pub(super) fn write_integer(value: u64, out: &mut Vec<u8>) {
    match value {
        0..=0xff => out.extend_from_slice(&[op::BININT1, value as u8]),
        0x100..=0xffff => {
            out.push(op::BININT2);
            out.extend_from_slice(&(value as u16).to_le_bytes());
        }
        0x1_0000..=0x7fff_ffff => {
            out.push(op::BININT);
            out.extend_from_slice(&(value as u32).to_le_bytes());
        }
        _ => {
            // Two's complement: the top bit of the last byte is clear.
            let len = (64 - value.leading_zeros()) as usize / 8 + 1;
            out.extend_from_slice(&[op::LONG1, len as u8]);
            out.extend_from_slice(&u128::from(value).to_le_bytes()[..len]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A storage without elements whose device and key have these lengths.
    fn storage(device: usize, key: usize) -> Vec<u8> {
        let mut bytes = vec![];
        write_head(StorageType::Byte, &"d".repeat(device), 0, &mut bytes);
        let (mut short, mut long) = (vec![], vec![]);
        write_text(KEY, &mut short);
        write_text(&b"k".repeat(key), &mut long);
        while let Some(at) = bytes.windows(short.len()).position(|window| window == short) {
            bytes.splice(at..at + short.len(), long.iter().copied());
        }
        bytes
    }

    #[test]
    fn keys_and_devices_of_more_than_64_bytes_are_refused() {
        for (device, key) in [(1, 1), (6, 14), (64, 64)] {
            assert!(read_storage(&storage(device, key)).unwrap().data.is_empty());
        }
        for (device, key) in [(65, 14), (6, 65), (1 << 20, 14), (6, 1 << 20)] {
            let error = read_storage(&storage(device, key)).unwrap_err();
            assert!(error.to_string().contains("key or device"), "{device} {key}: {error}");
        }
    }
}
