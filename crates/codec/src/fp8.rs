//! LMCache's `fp8` serde: a lossy cast of KV data to one byte per element, as PyTorch rounds it.

use crate::float_type::{Element, for_float_type};
use crate::{Error, ErrorKind, FloatType};

/// The 8-bit float to which data is cast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fp8Kind {
    /// 4 bits of exponent, 3 of mantissa, no infinities: `float8_e4m3fn`, LMCache's default. What
    /// is greater than 448 becomes 448, as in PyTorch from 2.12 on; earlier versions make NaN of it.
    #[default]
    E4M3Fn,
    /// 5 bits of exponent, 2 of mantissa: `float8_e5m2`. What is greater than 57344 becomes
    /// infinite.
    E5M2,
}

impl Fp8Kind {
    /// The kind that PyTorch, and LMCache's option `fp8_dtype`, call `name`. Errors: `Unsupported`.
    pub fn by_torch_name(name: &str) -> Result<Fp8Kind, Error> {
        match name {
            "float8_e4m3fn" => Ok(Self::E4M3Fn),
            "float8_e5m2" => Ok(Self::E5M2),
            other => Err(Error::new(
                ErrorKind::Unsupported,
                format!("no fp8 type {other:?}: float8_e4m3fn and float8_e5m2 are"),
            )),
        }
    }
}

/// LMCache's `fp8` serde for data of one float type. **Lossy**: 3 or 2 bits of each mantissa remain.
///
/// ```
/// use kvtier_codec::{FloatType, Fp8, Fp8Kind};
///
/// let fp8 = Fp8::new(Fp8Kind::E4M3Fn, FloatType::Fp32);
/// let raw: Vec<u8> = [1.0f32, 1.1, -1000.0].iter().flat_map(|x| x.to_le_bytes()).collect();
/// let mut stored = vec![0; fp8.bound(raw.len())?];
/// assert_eq!(fp8.encode(&raw, &mut stored)?, 3);
/// assert_eq!(stored, [0x38, 0x39, 0xfe]);
///
/// let mut loaded = vec![0; raw.len()];
/// fp8.decode(&stored, &mut loaded)?;
/// assert!(Fp8::LOSSY);
/// assert_eq!(loaded[4..8], 1.125f32.to_le_bytes());
/// # Ok::<(), kvtier_codec::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fp8 {
    kind: Fp8Kind,
    dtype: FloatType,
}

impl Fp8 {
    /// Its name in configurations, as LMCache has it.
    pub const NAME: &'static str = "fp8";
    /// A decode does not give the bytes that were encoded.
    pub const LOSSY: bool = true;

    /// The cast of data of the type `dtype`.
    pub fn new(kind: Fp8Kind, dtype: FloatType) -> Fp8 {
        Fp8 { kind, dtype }
    }

    /// Exactly the bytes that `raw_len` raw bytes encode to. Errors: `Invalid`, these are no whole
    /// elements.
    pub fn bound(&self, raw_len: usize) -> Result<usize, Error> {
        if raw_len.is_multiple_of(self.dtype.bytes()) {
            return Ok(raw_len / self.dtype.bytes());
        }
        let why = format!("{raw_len} bytes are no elements of type {}", self.dtype.torch_name());
        Err(Error::new(ErrorKind::Invalid, why))
    }

    /// Encodes `raw` into the front of `out` and answers how many bytes that took. Errors:
    /// `Invalid`, `out` is too short or `raw` is no whole elements.
    pub fn encode(&self, raw: &[u8], out: &mut [u8]) -> Result<usize, Error> {
        let len = self.bound(raw.len())?;
        let space = out.len();
        let out = out.get_mut(..len).ok_or_else(|| {
            let why = format!("the buffer has {space} bytes, the payload needs {len}");
            Error::new(ErrorKind::Invalid, why)
        })?;
        match self.kind {
            Fp8Kind::E4M3Fn => for_float_type!(self.dtype, encode_e4m3fn(raw, out)),
            Fp8Kind::E5M2 => for_float_type!(self.dtype, encode_e5m2(raw, out)),
        }
        Ok(len)
    }

    /// Decodes all of `stored` into all of `raw`. Errors: `Corrupt`, unless `stored` has a byte for
    /// each element. Each byte is a value, so damage is not found.
    pub fn decode(&self, stored: &[u8], raw: &mut [u8]) -> Result<(), Error> {
        if self.bound(raw.len()).ok() != Some(stored.len()) {
            let why = format!("{} fp8 bytes are not {} raw ones", stored.len(), raw.len());
            return Err(Error::new(ErrorKind::Corrupt, why));
        }
        let value = match self.kind {
            Fp8Kind::E4M3Fn => e4m3fn_to_f32,
            Fp8Kind::E5M2 => e5m2_to_f32,
        };
        for_float_type!(self.dtype, decode_by_table(stored, raw, value));
        Ok(())
    }
}

fn encode_e4m3fn<E: Element>(raw: &[u8], out: &mut [u8]) {
    for (byte, element) in out.iter_mut().zip(raw.chunks_exact(E::BYTES)) {
        *byte = e4m3fn_from_f32(E::to_f32(E::read(element)));
    }
}

fn encode_e5m2<E: Element>(raw: &[u8], out: &mut [u8]) {
    for (byte, element) in out.iter_mut().zip(raw.chunks_exact(E::BYTES)) {
        *byte = e5m2_from_f32(E::to_f32(E::read(element)));
    }
}

fn decode_by_table<E: Element>(stored: &[u8], raw: &mut [u8], value: fn(u8) -> f32) {
    let table: [E::Bits; 256] = std::array::from_fn(|byte| E::from_f32(value(byte as u8)));
    for (byte, element) in stored.iter().zip(raw.chunks_exact_mut(E::BYTES)) {
        E::write(table[usize::from(*byte)], element);
    }
}

/// Rounds to the nearest, half to even, as the cast of PyTorch 2.15 does.
#[inline(always)]
fn e4m3fn_from_f32(value: f32) -> u8 {
    let bits = value.to_bits();
    let sign = (bits >> 24) as u8 & 0x80;
    let magnitude = bits & 0x7fff_ffff;
    // Below 2^-6: the sum's last bit is worth 2^-9.
    let small = (f32::from_bits(magnitude) + 16384.0).to_bits().wrapping_sub(16384f32.to_bits());
    let round = 0x7_ffff + ((magnitude >> 20) & 1);
    let normal = magnitude.wrapping_sub(120 << 23).wrapping_add(round) >> 20;
    let result = if magnitude > 0x7f80_0000 {
        0x7f
    } else if magnitude >= 448f32.to_bits() {
        0x7e
    } else if magnitude < 121 << 23 {
        small
    } else {
        normal
    };
    sign | result as u8
}

/// As [`e4m3fn_from_f32`], with infinities.
#[inline(always)]
fn e5m2_from_f32(value: f32) -> u8 {
    let bits = value.to_bits();
    let sign = (bits >> 24) as u8 & 0x80;
    let magnitude = bits & 0x7fff_ffff;
    // Below 2^-14: the sum's last bit is worth 2^-16.
    let small = (f32::from_bits(magnitude) + 128.0).to_bits().wrapping_sub(128f32.to_bits());
    let round = 0xf_ffff + ((magnitude >> 21) & 1);
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(round) >> 21;
    let result = if magnitude > 0x7f80_0000 {
        0x7f
    } else if magnitude >= 65536f32.to_bits() {
        0x7c
    } else if magnitude < 113 << 23 {
        small
    } else {
        normal
    };
    sign | result as u8
}

fn e4m3fn_to_f32(byte: u8) -> f32 {
    let magnitude = u32::from(byte & 0x7f);
    let sign = u32::from(byte & 0x80) << 24;
    if magnitude == 0x7f {
        return f32::from_bits(sign | 0x7ff0_0000);
    }
    // 2^120 moves the bias of the exponent from 7 to 127.
    let value = f32::from_bits(magnitude << 20) * f32::from_bits((120 + 127) << 23);
    f32::from_bits(value.to_bits() | sign)
}

fn e5m2_to_f32(byte: u8) -> f32 {
    let magnitude = u32::from(byte & 0x7f);
    let sign = u32::from(byte & 0x80) << 24;
    if magnitude > 0x7c {
        // The conversion makes NaN quiet.
        return f32::from_bits(sign | 0x7fc0_0000 | (magnitude & 3) << 21);
    }
    if magnitude == 0x7c {
        return f32::from_bits(sign | 0x7f80_0000);
    }
    let value = f32::from_bits(magnitude << 21) * f32::from_bits((112 + 127) << 23);
    f32::from_bits(value.to_bits() | sign)
}
