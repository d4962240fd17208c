//! HTTP/2, where it is asked for and offered: a few connections to the server, each shared by
//! several requests.
//!
//! The bytes of a body come in frames, which the library reads into memory of its own; each is
//! copied once into the caller's memory and only then may the server send more. An
//! upload's bytes are copied on their way out. Both are counted.

mod connection;
mod connections;
mod send_buffers;
mod stream;

pub use connections::{Http2Connections, Pick};
pub use stream::{Http2Stream, StreamEnd};
