//! What the tests of the tier share: servers and clients as the client's own tests make them, and
//! tiers over them.
#![allow(dead_code)]

#[path = "../../../s3/tests/support/mod.rs"]
mod client;
pub mod encoded;
pub mod pace;
pub mod tier;

#[allow(unused_imports, reason = "not every test program uses all of it")]
pub use client::*;
