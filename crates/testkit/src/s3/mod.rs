//! An S3 server in memory, for tests: it checks every signature by its own means, speaks S3
//! Express, and fails as a script says.
//!
//! Threads and blocking sockets only, so that what is tested is not what tests it.

mod aws_chunked;
mod calendar;
mod connection;
mod create_bucket;
mod dispatch;
mod express;
mod fault;
mod hanging;
#[cfg(feature = "http2")]
mod http2;
mod link;
mod multipart;
mod object_store;
mod operations;
mod server;
mod sigv4;
mod upload_request;
mod wire;
#[cfg(feature = "http2")]
mod written;
mod xml;

pub use fault::{Elsewhere, Fault, Foreign, Rule};
#[cfg(feature = "http2")]
pub use http2::{ca_pem, server_pem};
pub use server::{SeenRequest, Server, Setup, StalledRequest};
