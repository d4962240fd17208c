//! The floating-point types that `bf16-split` takes apart.

use kvtier_key::DType;

/// The floating-point type of a chunk's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum ElementType {
    /// bfloat16: 8 bits of exponent, 7 of mantissa.
    Bf16 = 1,
    /// 16-bit IEEE float: 5 bits of exponent, 10 of mantissa.
    Fp16 = 2,
    /// 8-bit float: 4 bits of exponent, 3 of mantissa.
    Fp8E4M3 = 3,
    /// 8-bit float: 5 bits of exponent, 2 of mantissa.
    Fp8E5M2 = 4,
}

impl ElementType {
    /// Every type.
    pub const ALL: [ElementType; 4] =
        [ElementType::Bf16, ElementType::Fp16, ElementType::Fp8E4M3, ElementType::Fp8E5M2];

    /// The type as a key names it; none for types that `bf16-split` does not take apart.
    pub fn from_dtype(dtype: DType) -> Option<Self> {
        match dtype {
            DType::BFloat16 => Some(ElementType::Bf16),
            DType::Half => Some(ElementType::Fp16),
            DType::Fp8E4M3Fn | DType::Fp8E4M3FnUz => Some(ElementType::Fp8E4M3),
            DType::Fp8E5M2 | DType::Fp8E5M2FnUz => Some(ElementType::Fp8E5M2),
            _ => None,
        }
    }

    /// The number in stored frames.
    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|element| element.number() == number)
    }
}
