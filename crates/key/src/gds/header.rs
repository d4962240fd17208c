//! The header of the files of LMCache's GDS backend: what tensor follows it.
//!
//! It is 4 KiB: a length (little-endian, 4088), JSON, blanks. The chunk's bytes follow. The same 4
//! KiB stand once more in a file beside it.

use std::fmt;
use std::str::FromStr;

use super::MemoryFormat;
use crate::json::{self, Json};
use crate::{DType, InvalidKey};

/// Bytes of a header.
pub const GDS_HEADER_BYTES: usize = 4096;

/// Bytes before the JSON, which say how long that is.
const LENGTH_BYTES: usize = 8;

/// The version of the header that LMCache 0.5.6 writes, and the only one that it reads at its
/// start.
const VERSION: &str = "1";

/// Names of element types in headers, and their bytes.
const ELEMENTS: [(&str, u32); 14] = [
    ("F16", 2),
    ("BF16", 2),
    ("F32", 4),
    ("F64", 8),
    ("U8", 1),
    ("U16", 2),
    ("U32", 4),
    ("U64", 8),
    ("I8", 1),
    ("I16", 2),
    ("I32", 4),
    ("I64", 8),
    ("F8E4M3FN", 1),
    ("F8E5M2", 1),
];

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GdsElement(usize);

impl GdsElement {
    /// The type of this name in headers; `None` for an unknown name.
    pub fn from_name(name: &str) -> Option<Self> {
        ELEMENTS.iter().position(|(own, _)| *own == name).map(GdsElement)
    }

    /// The type of a key's elements; `None` for types that LMCache does not write.
    pub fn from_dtype(dtype: DType) -> Option<Self> {
        dtype.gds_name().and_then(GdsElement::from_name)
    }

    /// Its name in headers.
    pub fn name(self) -> &'static str {
        ELEMENTS[self.0].0
    }

    /// Bytes of one element.
    pub fn bytes(self) -> u32 {
        ELEMENTS[self.0].1
    }
}

/// A parsed header.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GdsHeader {
    /// The elements.
    pub element: GdsElement,
    /// How many there are along each axis.
    pub shape: Vec<u64>,
    /// What the axes mean.
    pub format: MemoryFormat,
    /// Texts by name; `lmcache_version` first.
    pub metadata: Vec<(String, String)>,
    /// The difference of its two offsets where that is not the number of bytes of the shape: the
    /// header contradicts itself. LMCache reads such a header, too, and goes by the shape.
    pub contradiction: Option<i64>,
}

/// Why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GdsHeaderError {
    /// Too few bytes for the length at its beginning.
    Length,
    /// No JSON.
    Text,
    /// A field is missing or of another kind.
    Fields,
    /// No such element type.
    Element,
    /// No such memory format.
    Format,
    /// Its shape has more bytes than 64 bits count.
    Size,
}

impl fmt::Display for GdsHeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GdsHeaderError::Length => "header is cut off",
            GdsHeaderError::Text => "header is no JSON",
            GdsHeaderError::Fields => "header lacks a field",
            GdsHeaderError::Element => "header has an unknown element type",
            GdsHeaderError::Format => "header has an unknown memory format",
            GdsHeaderError::Size => "header's shape has more bytes than 64 bits count",
        })
    }
}

impl std::error::Error for GdsHeaderError {}

impl GdsHeader {
    /// As LMCache 0.5.6 writes it.
    pub fn new(element: GdsElement, shape: Vec<u64>, format: MemoryFormat) -> Self {
        let metadata = vec![("lmcache_version".into(), VERSION.into())];
        GdsHeader { element, shape, format, metadata, contradiction: None }
    }

    /// Adds a text to the metadata.
    pub fn with_metadata(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.metadata.push((name.into(), text.into()));
        self
    }

    /// Bytes of the tensor; `None` for more than 64 bits count.
    pub fn payload_bytes(&self) -> Option<u64> {
        self.shape
            .iter()
            .try_fold(u64::from(self.element.bytes()), |bytes, n| bytes.checked_mul(*n))
    }

    /// Bytes of the tensor by the offsets, which LMCache takes for its size.
    pub fn offset_bytes(&self) -> Option<i64> {
        self.contradiction.or_else(|| self.payload_bytes()?.try_into().ok())
    }

    /// Whether LMCache 0.5.6 reads files with such a header.
    pub fn is_current(&self) -> bool {
        self.metadata.iter().any(|(name, text)| name == "lmcache_version" && text == VERSION)
    }

    /// The header of a chunk of `bytes` bytes that differs from this one only in its tokens. `None`
    /// if those are not whole tokens, or if the format does not define the axis of the tokens.
    pub fn with_payload_bytes(&self, bytes: u64) -> Option<Self> {
        let mut other = GdsHeader::new(self.element, self.shape.clone(), self.format);
        if self.payload_bytes() == Some(bytes) {
            return Some(other);
        }
        // With one token the payload is the bytes of one token, whatever the other axes are.
        *other.shape.get_mut(self.format.token_axis()?)? = 1;
        let token_bytes = other.payload_bytes().filter(|bytes| *bytes > 0)?;
        let tokens = bytes / token_bytes;
        *other.shape.get_mut(self.format.token_axis()?)? = tokens;
        // Chunks of a model differ in their tokens only. A length with a part of a token is of
        // another model.
        (tokens > 0 && bytes.is_multiple_of(token_bytes)).then_some(other)
    }

    /// Its bytes. Errors: metadata too long for it, or a tensor of more than 64 bits of bytes.
    pub fn encode(&self) -> Result<Vec<u8>, InvalidKey> {
        let bytes = self
            .offset_bytes()
            .ok_or_else(|| InvalidKey::new("a tensor of more bytes than 63 bits count"))?;
        let shape: Vec<String> = self.shape.iter().map(u64::to_string).collect();
        // The order of fields and the blanks are LMCache's own: a comparison of headers byte by
        // byte then holds.
        let mut text = format!(
            "{{\"kvcache\": {{\"dtype\": \"{}\", \"shape\": [{}], \"data_offsets\": [0, {bytes}], \"fmt\": {}, \"__metadata__\": {{",
            self.element.name(),
            shape.join(", "),
            self.format.code()
        );
        for (n, (name, value)) in self.metadata.iter().enumerate() {
            text.push_str(if n == 0 { "" } else { ", " });
            json::push_text(&mut text, name);
            text.push_str(": ");
            json::push_text(&mut text, value);
        }
        text.push_str("}}}");
        // The header is one block of 4 KiB, so that the payload begins at an aligned offset for
        // direct I/O.
        let text_max = GDS_HEADER_BYTES - LENGTH_BYTES;
        if text.len() > text_max {
            let len = text.len();
            return Err(InvalidKey::new(format!(
                "a header of {len} bytes is longer than {text_max}"
            )));
        }
        let mut out = Vec::with_capacity(GDS_HEADER_BYTES);
        // The length of the padded text: the blanks behind the JSON belong to it.
        out.extend_from_slice(&(text_max as u64).to_le_bytes());
        out.extend_from_slice(text.as_bytes());
        out.resize(GDS_HEADER_BYTES, b' ');
        Ok(out)
    }

    /// Reads a header at the beginning of `bytes`, as LMCache does: a length beyond the end means
    /// all that there is, and of the offsets only the difference counts, since the payload
    /// begins behind the header whatever they say.
    ///
    /// # Errors
    ///
    /// What LMCache does not read either, and shapes of more bytes than 64 bits count.
    pub fn decode(bytes: &[u8]) -> Result<Self, GdsHeaderError> {
        let (len, rest) =
            bytes.split_first_chunk::<LENGTH_BYTES>().ok_or(GdsHeaderError::Length)?;
        // A length from a foreign file: it may be larger than the file or than the address space.
        let len = usize::try_from(u64::from_le_bytes(*len)).unwrap_or(usize::MAX);
        let text = rest.get(..len).unwrap_or(rest);
        let json = str::from_utf8(text).ok().and_then(json::parse).ok_or(GdsHeaderError::Text)?;
        let tensor = json.member("kvcache").ok_or(GdsHeaderError::Fields)?;
        GdsHeader::from_json(tensor)
    }

    fn from_json(tensor: &Json) -> Result<Self, GdsHeaderError> {
        let member = |name| tensor.member(name).ok_or(GdsHeaderError::Fields);
        let (Json::Text(element), Json::Number(code)) = (member("dtype")?, member("fmt")?) else {
            return Err(GdsHeaderError::Fields);
        };
        let numbers = |name| member(name)?.numbers().ok_or(GdsHeaderError::Fields);
        let shape: Option<Vec<u64>> =
            numbers("shape")?.into_iter().map(|n| n.try_into().ok()).collect();
        // LMCache looks at the first two and ignores others.
        let [start, end, ..] = numbers("data_offsets")?[..] else {
            return Err(GdsHeaderError::Fields);
        };
        let difference = end.checked_sub(start).ok_or(GdsHeaderError::Fields)?;
        let Json::Map(metadata) = member("__metadata__")? else {
            return Err(GdsHeaderError::Fields);
        };
        // Metadata of other kinds has no meaning here, and is no reason to lose the chunk.
        let texts = metadata.iter().filter_map(|(name, value)| match value {
            Json::Text(text) => Some((name.clone(), text.clone())),
            _ => None,
        });
        let mut header = GdsHeader {
            element: GdsElement::from_name(element).ok_or(GdsHeaderError::Element)?,
            shape: shape.ok_or(GdsHeaderError::Fields)?,
            format: u64::try_from(*code)
                .ok()
                .and_then(MemoryFormat::from_code)
                .ok_or(GdsHeaderError::Format)?,
            metadata: texts.collect(),
            contradiction: None,
        };
        let bytes = header.payload_bytes().ok_or(GdsHeaderError::Size)?;
        // Kept for the caller to judge: LMCache itself reads such a file, and goes by the shape.
        header.contradiction = (i64::try_from(bytes) != Ok(difference)).then_some(difference);
        Ok(header)
    }
}

/// The tensor of a model's full chunk in LMCache's form, where no header gives it.
///
/// ```
/// use kvtier_key::{ChunkShape, DType, GdsElement};
///
/// // Keys and values, layers, tokens, elements.
/// let shape: ChunkShape = "2x32x256x1024".parse()?;
/// assert_eq!(shape.to_string().parse::<ChunkShape>()?, shape);
/// let bytes = 2 * 32 * 256 * 1024 * 2;
/// let header = shape.header(GdsElement::from_dtype(DType::BFloat16).unwrap(), bytes);
/// assert_eq!(header.and_then(|header| header.payload_bytes()), Some(bytes));
/// # Ok::<(), kvtier_key::InvalidKey>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkShape {
    /// How many elements there are along each axis, for example \[2, layers, tokens, elements of
    /// all heads\].
    pub axes: Vec<u64>,
    /// What the axes mean.
    pub format: MemoryFormat,
    /// The type of the elements; `None`: the type in the key.
    pub dtype: Option<DType>,
}

impl ChunkShape {
    /// A shape whose elements have the type in each chunk's key.
    pub fn new(axes: impl Into<Vec<u64>>, format: MemoryFormat) -> Self {
        ChunkShape { axes: axes.into(), format, dtype: None }
    }

    /// The same with elements of this type, whatever type the key names.
    pub fn with_dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// The header of a chunk of `bytes` bytes; `None` where it has not whole tokens.
    pub fn header(&self, element: GdsElement, bytes: u64) -> Option<GdsHeader> {
        GdsHeader::new(element, self.axes.clone(), self.format).with_payload_bytes(bytes)
    }
}

impl From<[u64; 4]> for ChunkShape {
    /// As [`Geometry::shape`](crate::Geometry::shape) gives it: one plane of latents, or two of
    /// keys and values.
    fn from(axes: [u64; 4]) -> Self {
        let format = if axes[0] == 1 { MemoryFormat::KvMla } else { MemoryFormat::Kv2Ltd };
        ChunkShape::new(axes, format)
    }
}

impl FromStr for ChunkShape {
    type Err = InvalidKey;

    /// Reads `2x32x256x1024`: keys and values, layers, tokens, elements; with 1 in front, latents.
    /// Another format follows a blank, as in `256x2x1024 KV_T2D`.
    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let wrong = || {
            let what = format!(
                "{text:?} is no shape; write as many numbers above 0 as the tensor has axes, such as 2x32x256x1024 (keys and values, \
                 layers, tokens, elements)"
            );
            InvalidKey::new(what)
        };
        let (axes, format) =
            text.split_once(' ').map_or((text, None), |(axes, format)| (axes, Some(format)));
        let axes: Option<Vec<u64>> =
            axes.split('x').map(|n| n.parse().ok().filter(|n| *n > 0)).collect();
        let axes = axes.ok_or_else(wrong)?;
        let shape = match (format, <[u64; 4]>::try_from(axes.as_slice())) {
            (Some(format), _) => ChunkShape::new(axes, format.parse()?),
            // Only the two usual formats are recognised by their first axis; all others must be
            // named.
            (None, Ok(four @ [1 | 2, ..])) => four.into(),
            (None, _) => return Err(wrong()),
        };
        // With the widest element of eight bytes, so that no element type overflows later.
        let bytes = shape.axes.iter().try_fold(8_u64, |bytes, n| bytes.checked_mul(*n));
        bytes.map(|_| shape).ok_or_else(wrong)
    }
}

impl fmt::Display for ChunkShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<String> = self.axes.iter().map(u64::to_string).collect();
        write!(f, "{} {}", axes.join("x"), self.format)?;
        self.dtype.map_or(Ok(()), |dtype| write!(f, " {dtype}"))
    }
}
