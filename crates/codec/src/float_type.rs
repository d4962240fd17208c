//! The float types of KV data and their conversions to and from `f32`, as PyTorch rounds them.

use kvtier_key::DType;

use crate::{Error, ErrorKind};

/// A float type that KV data may have in front of a lossy encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatType {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    Fp16,
    /// IEEE single precision.
    Fp32,
}

impl FloatType {
    /// The size of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::Fp16 => 2,
            Self::Fp32 => 4,
        }
    }

    /// Its name in PyTorch, such as `bfloat16`.
    pub const fn torch_name(self) -> &'static str {
        match self {
            Self::Bf16 => "bfloat16",
            Self::Fp16 => "float16",
            Self::Fp32 => "float32",
        }
    }
}

impl TryFrom<DType> for FloatType {
    type Error = Error;

    /// Errors: `Unsupported`, data of this type cannot be encoded with a loss.
    fn try_from(dtype: DType) -> Result<Self, Error> {
        match dtype {
            DType::BFloat16 => Ok(Self::Bf16),
            DType::Half => Ok(Self::Fp16),
            DType::Float => Ok(Self::Fp32),
            other => Err(Error::new(
                ErrorKind::Unsupported,
                format!("lossy encodings take bfloat16, half and float, not {}", other.name()),
            )),
        }
    }
}

/// One element type, chosen when the program is built: loops over it become vector code.
pub(crate) trait Element: Copy {
    /// Its bits.
    type Bits: Copy + Ord + Default;
    const BYTES: usize;
    const FLOAT: FloatType;

    fn read(bytes: &[u8]) -> Self::Bits;
    fn write(bits: Self::Bits, bytes: &mut [u8]);
    fn to_f32(bits: Self::Bits) -> f32;
    fn from_f32(value: f32) -> Self::Bits;
    /// The bits without their sign. As integers they are in the order of the magnitudes, and those
    /// of NaN are greater than all others.
    fn magnitude(bits: Self::Bits) -> Self::Bits;
}

#[derive(Clone, Copy)]
pub(crate) struct Bf16;
#[derive(Clone, Copy)]
pub(crate) struct Fp16;
#[derive(Clone, Copy)]
pub(crate) struct Fp32;

impl Element for Bf16 {
    type Bits = u16;
    const BYTES: usize = 2;
    const FLOAT: FloatType = FloatType::Bf16;

    #[inline(always)]
    fn read(bytes: &[u8]) -> u16 {
        u16::from_le_bytes([bytes[0], bytes[1]])
    }

    #[inline(always)]
    fn write(bits: u16, bytes: &mut [u8]) {
        bytes.copy_from_slice(&bits.to_le_bytes());
    }

    #[inline(always)]
    fn to_f32(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> u16 {
        if value.is_nan() {
            return 0x7fc0;
        }
        let bits = value.to_bits();
        let round = 0x7fff + ((bits >> 16) & 1);
        (bits.wrapping_add(round) >> 16) as u16
    }

    #[inline(always)]
    fn magnitude(bits: u16) -> u16 {
        bits & 0x7fff
    }
}

impl Element for Fp16 {
    type Bits = u16;
    const BYTES: usize = 2;
    const FLOAT: FloatType = FloatType::Fp16;

    #[inline(always)]
    fn read(bytes: &[u8]) -> u16 {
        u16::from_le_bytes([bytes[0], bytes[1]])
    }

    #[inline(always)]
    fn write(bits: u16, bytes: &mut [u8]) {
        bytes.copy_from_slice(&bits.to_le_bytes());
    }

    #[inline(always)]
    fn to_f32(bits: u16) -> f32 {
        let sign = u32::from(bits & 0x8000) << 16;
        let magnitude = u32::from(bits & 0x7fff);
        // 2^112 moves the bias of the exponent from 15 to 127, and is exact for subnormals too.
        let finite = f32::from_bits(magnitude << 13) * f32::from_bits((112 + 127) << 23);
        // Of infinities and NaN the exponent must be all ones.
        let special = if magnitude >= 0x7c00 { 0x7f80_0000 } else { 0 };
        f32::from_bits(finite.to_bits() | special | sign)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> u16 {
        let bits = value.to_bits();
        let sign = (bits >> 16) as u16 & 0x8000;
        let magnitude = bits & 0x7fff_ffff;
        if magnitude > 0x7f80_0000 {
            return sign | 0x7e00 | (magnitude >> 13) as u16 & 0x01ff;
        }
        // From 65520 on the result is infinite: half the last step above the greatest value.
        if magnitude >= 0x477f_f000 {
            return sign | 0x7c00;
        }
        if magnitude < 0x3880_0000 {
            // Below 2^-14: the addition rounds to a multiple of 2^-24, half to even.
            let rounded = f32::from_bits(magnitude) + 0.5;
            return sign | (rounded.to_bits() - 0.5f32.to_bits()) as u16;
        }
        let rebased = magnitude - (112 << 23);
        let round = 0x0fff + ((rebased >> 13) & 1);
        sign | ((rebased + round) >> 13) as u16
    }

    #[inline(always)]
    fn magnitude(bits: u16) -> u16 {
        bits & 0x7fff
    }
}

impl Element for Fp32 {
    type Bits = u32;
    const BYTES: usize = 4;
    const FLOAT: FloatType = FloatType::Fp32;

    #[inline(always)]
    fn read(bytes: &[u8]) -> u32 {
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    #[inline(always)]
    fn write(bits: u32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&bits.to_le_bytes());
    }

    #[inline(always)]
    fn to_f32(bits: u32) -> f32 {
        f32::from_bits(bits)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> u32 {
        value.to_bits()
    }

    #[inline(always)]
    fn magnitude(bits: u32) -> u32 {
        bits & 0x7fff_ffff
    }
}

/// Runs a generic function for the element type that a [`FloatType`] names.
macro_rules! for_float_type {
    ($float:expr, $function:ident ( $($argument:expr),* $(,)? )) => {
        match $float {
            $crate::float_type::FloatType::Bf16 =>
                $function::<$crate::float_type::Bf16>($($argument),*),
            $crate::float_type::FloatType::Fp16 =>
                $function::<$crate::float_type::Fp16>($($argument),*),
            $crate::float_type::FloatType::Fp32 =>
                $function::<$crate::float_type::Fp32>($($argument),*),
        }
    };
}
pub(crate) use for_float_type;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_returns_through_f32() {
        for bits in 0..=u16::MAX {
            let wide = Fp16::to_f32(bits);
            if wide.is_nan() {
                assert_eq!(Fp16::from_f32(wide), bits | 0x0200, "NaN becomes quiet");
                assert!(Bf16::to_f32(Bf16::from_f32(wide)).is_nan());
            } else {
                assert_eq!(Fp16::from_f32(wide), bits);
            }
            let wide = Bf16::to_f32(bits);
            assert!(wide.is_nan() || Bf16::from_f32(wide) == bits);
        }
    }

    #[test]
    fn halves_are_the_nearest_and_even_of_two() {
        for bits in (0..0x7bff_u16).step_by(if cfg!(miri) { 99 } else { 1 }) {
            let low = Fp16::to_f32(bits);
            let high = Fp16::to_f32(bits + 1);
            // Exact: both have 11 bits.
            let middle = (low + high) / 2.0;
            assert_eq!(Fp16::from_f32(middle), bits + (bits & 1), "{bits:#x}");
            assert_eq!(Fp16::from_f32(f32::from_bits(middle.to_bits() - 1)), bits);
            assert_eq!(Fp16::from_f32(-f32::from_bits(middle.to_bits() + 1)), (bits + 1) | 0x8000);
        }
        assert_eq!(Fp16::from_f32(65519.99), 0x7bff);
        assert_eq!(Fp16::from_f32(65520.0), 0x7c00);
        assert_eq!(Bf16::from_f32(f32::MAX), 0x7f80);
        let middle = 1.0 + f32::EPSILON * 32768.0;
        let above = f32::from_bits(middle.to_bits() + 1);
        assert_eq!(Bf16::from_f32(-above), 0xbf81, "above the middle");
        assert_eq!(Bf16::from_f32(middle), 0x3f80, "half to even");
    }
}
