//! The suite of `faults.rs` over HTTP/2 and TLS.

#[path = "faults.rs"]
mod suite;
