//! The suite of `moves.rs` over HTTP/2.

#[path = "moves.rs"]
mod suite;
