use std::fmt;
use std::str::FromStr;

use crate::InvalidKey;

/// What the axes of a chunk's tensor mean, as LMCache numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum MemoryFormat {
    /// Unknown.
    Undefined = 0,
    /// Keys and values, layers, tokens, elements.
    Kv2Ltd = 1,
    /// One layer: tokens, keys and values, elements.
    KvT2d = 2,
    /// One layer: keys and values, tokens, elements.
    Kv2Td = 3,
    /// Bytes.
    Binary = 4,
    /// Bytes of a buffer.
    BinaryBuffer = 5,
    /// Latents: one plane, layers, tokens, elements.
    KvMla = 6,
    /// Embeddings: tokens, elements.
    EcTd = 7,
    /// Hidden states: tokens, elements.
    HsTd = 8,
}

// In the order of the numbers: `name` and `of_code` use them as indexes.
const NAMES: [(MemoryFormat, &str); 9] = [
    (MemoryFormat::Undefined, "UNDEFINED"),
    (MemoryFormat::Kv2Ltd, "KV_2LTD"),
    (MemoryFormat::KvT2d, "KV_T2D"),
    (MemoryFormat::Kv2Td, "KV_2TD"),
    (MemoryFormat::Binary, "BINARY"),
    (MemoryFormat::BinaryBuffer, "BINARY_BUFFER"),
    (MemoryFormat::KvMla, "KV_MLA_FMT"),
    (MemoryFormat::EcTd, "EC_TD"),
    (MemoryFormat::HsTd, "HS_TD"),
];

impl MemoryFormat {
    /// LMCache's name.
    pub fn name(self) -> &'static str {
        NAMES[usize::from(self.code())].1
    }

    /// LMCache's number.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The format of LMCache's number; `None` for an unknown number.
    pub fn from_code(code: u64) -> Option<Self> {
        usize::try_from(code).ok().and_then(|code| NAMES.get(code)).map(|(format, _)| *format)
    }

    /// The axis of the tokens, where all of LMCache agrees on it.
    pub fn token_axis(self) -> Option<usize> {
        // Parts of LMCache take different axes for the tokens of the other formats, so a guess
        // could cut a chunk at a wrong place.
        matches!(self, MemoryFormat::Kv2Ltd | MemoryFormat::KvMla).then_some(2)
    }
}

impl fmt::Display for MemoryFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for MemoryFormat {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let found = NAMES.iter().find(|(_, name)| *name == text).map(|(format, _)| *format);
        found.ok_or_else(|| {
            InvalidKey::new(format!(
                "no memory format is called {text:?}; KV_2LTD and KV_MLA_FMT are"
            ))
        })
    }
}
