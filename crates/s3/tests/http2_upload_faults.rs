//! The suite of `upload_faults.rs` over HTTP/2 and TLS.

#[path = "upload_faults.rs"]
mod suite;
