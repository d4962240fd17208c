//! An S3 client for caches: whole objects of 64 KiB to 64 MiB straight into and out of registered memory.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod creds;
pub mod encode;
mod error;
pub mod sign;
pub mod time;

pub use creds::Credentials;
pub use error::{Error, ErrorKind, Result};
