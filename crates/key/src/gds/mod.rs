//! The files of LMCache's GDS backend: their header, and the form of the tensor after it.

mod header;
mod memory_format;

pub use header::{ChunkShape, GDS_HEADER_BYTES, GdsElement, GdsHeader, GdsHeaderError};
pub use memory_format::MemoryFormat;
