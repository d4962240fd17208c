//! The suite of `operations.rs` over HTTP/2 and TLS.

#[path = "operations.rs"]
mod suite;
