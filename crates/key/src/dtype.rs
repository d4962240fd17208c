use std::fmt;

/// The element type of KV data, as LMCache names it in keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[non_exhaustive]
#[repr(u8)]
pub enum DType {
    /// 16-bit IEEE float.
    Half = 1,
    /// bfloat16.
    BFloat16 = 2,
    /// 32-bit float.
    Float = 3,
    /// 64-bit float.
    Double = 4,
    /// 8-bit integer.
    Int8 = 5,
    /// 8-bit unsigned integer.
    UInt8 = 6,
    /// 16-bit integer.
    Int16 = 7,
    /// 32-bit integer.
    Int32 = 8,
    /// 64-bit integer.
    Int64 = 9,
    /// Boolean, one byte.
    Bool = 10,
    /// 8-bit float, 4 bits exponent, finite only.
    Fp8E4M3Fn = 11,
    /// 8-bit float, 4 bits exponent, finite only, no negative zero.
    Fp8E4M3FnUz = 12,
    /// 8-bit float, 5 bits exponent.
    Fp8E5M2 = 13,
    /// 8-bit float, 5 bits exponent, finite only, no negative zero.
    Fp8E5M2FnUz = 14,
}

/// (type, LMCache's name, PyTorch's name, name in GDS headers, bytes).
type DTypeRow = (DType, &'static str, &'static str, Option<&'static str>, u32);

// In the order of the variants: `row` uses the variant's number, which starts at 1, as index.
const ROWS: [DTypeRow; 14] = [
    (DType::Half, "half", "float16", Some("F16"), 2),
    (DType::BFloat16, "bfloat16", "bfloat16", Some("BF16"), 2),
    (DType::Float, "float", "float32", Some("F32"), 4),
    (DType::Double, "double", "float64", Some("F64"), 8),
    (DType::Int8, "int8", "int8", Some("I8"), 1),
    (DType::UInt8, "uint8", "uint8", Some("U8"), 1),
    (DType::Int16, "int16", "int16", Some("I16"), 2),
    (DType::Int32, "int32", "int32", Some("I32"), 4),
    (DType::Int64, "int64", "int64", Some("I64"), 8),
    (DType::Bool, "bool", "bool", None, 1),
    (DType::Fp8E4M3Fn, "fp8_e4m3fn", "float8_e4m3fn", Some("F8E4M3FN"), 1),
    (DType::Fp8E4M3FnUz, "fp8_e4m3fnuz", "float8_e4m3fnuz", None, 1),
    (DType::Fp8E5M2, "fp8_e5m2", "float8_e5m2", Some("F8E5M2"), 1),
    (DType::Fp8E5M2FnUz, "fp8_e5m2fnuz", "float8_e5m2fnuz", None, 1),
];

impl DType {
    /// Every type that can stand in a key.
    pub fn all() -> impl Iterator<Item = DType> {
        ROWS.iter().map(|row| row.0)
    }

    /// LMCache's name, as it stands in keys: `half`, `bfloat16`, `fp8_e4m3fn`, ...
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// PyTorch's name: `float16`, `bfloat16`, `float8_e4m3fn`, ...
    pub fn torch_name(self) -> &'static str {
        self.row().2
    }

    /// The name in the header of GDS files, for types that may stand there.
    pub fn gds_name(self) -> Option<&'static str> {
        self.row().3
    }

    /// The size of one element in bytes.
    pub fn bytes(self) -> u32 {
        self.row().4
    }

    /// The type of LMCache's `name`.
    pub fn from_name(name: &str) -> Option<DType> {
        ROWS.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// The type of PyTorch's `name`.
    pub fn from_torch_name(name: &str) -> Option<DType> {
        ROWS.iter().find(|row| row.2 == name).map(|row| row.0)
    }

    fn row(self) -> &'static DTypeRow {
        &ROWS[self as usize - 1]
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
