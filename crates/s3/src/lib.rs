//! An S3 client for caches. It moves whole objects of 64 KiB to 64 MiB straight into and out of
//! registered memory, with no copy but the kernel's, and it recovers within seconds after any
//! fault.
//!
//! A [`Client`] serves one bucket. Name it by a [`BucketAddress`], resolve that to an [`Endpoint`],
//! add credentials, and adjust the [`Config`] where its defaults do not fit:
//!
//! ```no_run
//! # async fn example(lease: &mut kvtier_mem::Lease) -> kvtier_s3::Result<()> {
//! use kvtier_s3::{Client, Config, Credentials, Get, BucketAddress};
//!
//! let endpoint = BucketAddress::new("s3://kv-cache").region("eu-central-1").resolve()?;
//! let client = Client::new(Config::new(endpoint, Credentials::new("AKIA...", "...")));
//! match client.get("3f/3fa9c1", lease, &Get::default()).await? {
//!     Some(object) => println!("{} bytes landed", object.len()),
//!     None => println!("a miss"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What is signed
//! Requests are signed with SigV4. The body of a PUT is covered by its checksum header
//! ([`Config::checksum`]), which is signed, and by TLS; its SHA-256 is signed only if
//! [`Config::sign_bodies`] says so or the store insists. Over plain HTTP anyone on the
//! path can read everything, and change a body that has no checksum.
//!
//! # Deadlines and dropped futures
//! Every operation ends by its deadline, which covers queueing, connecting, retries and the last
//! byte. Dropping its future closes the connection at once. The caller's memory is borrowed only
//! for that time: nothing writes into it afterwards.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod attempt;
mod checksum;
mod client;
mod config;
mod counters;
pub mod creds;
mod endpoint;
mod error;
mod features;
mod head_writer;
mod hedge;
mod http;
mod local_clock;
mod op_state;
mod ops;
mod percent_encode;
pub mod probe;
mod region;
mod request;
mod request_log;
mod response_check;
mod retry;
mod sign;
#[cfg(feature = "simulate")]
pub mod simulated_machine;
mod store_clock;
mod time_formats;
mod xml;

pub use checksum::Checksum;
pub use client::{Client, FullLimit, InFlightMax};
pub use config::{Config, Hedge, Http2};
pub use counters::Counts;
pub use creds::Credentials;
pub use endpoint::{BucketAddress, Conditional, Endpoint, Provider, Style};
pub use error::{Error, ErrorKind, Result};
pub use features::{CONDITIONAL_PUTS_RECHECK, FeatureSupport};
pub use http::{
    BodyBuffer, BodyFraming, BodyObserver, Resolve, Resolved, ResponseHead, RootCerts,
    StaticResolver, SystemResolver,
};
pub use ops::{
    DeleteError, Entry, Get, List, Multipart, Object, Page, Put, Stored, Upload, Uploads,
    try_for_each_concurrent,
};

/// The parsers of server input, for the fuzzers: no input makes them panic.
#[cfg(any(fuzzing, clippy))]
pub mod fuzzing {
    use crate::http::{BodyBuffer, BodySink, ResponseHead};

    /// A response's head; what parses takes part in what a GET checks.
    pub fn head(bytes: &[u8]) {
        for bodiless in [false, true] {
            if let Ok(Some((head, len))) = ResponseHead::parse(bytes, bodiless) {
                assert!(len <= bytes.len());
                head.header("content-range");
                crate::ops::fuzz_check(&head);
            }
        }
    }

    /// Every answer in XML.
    pub fn xml(bytes: &[u8]) {
        crate::xml::ErrorDocument::of(bytes);
        crate::ops::fuzz_answers(bytes);
        crate::ops::fuzz_settings(bytes);
        crate::creds::signing_credentials::fuzz_session(bytes);
    }

    /// An endpoint as a person writes it; what resolves goes into a `host` header, and so does
    /// where a store may send us.
    pub fn endpoint(text: &str) {
        let at_aws = crate::BucketAddress::new("s3://b").region("r").resolve();
        if let Some((place, region)) =
            at_aws.ok().and_then(|place| Some((place.clone(), place.region_at(text)?)))
        {
            assert!(
                place
                    .in_region(&region)
                    .is_none_or(|place| place.target().host.ends_with(".amazonaws.com")),
                "{region}"
            );
        }
        let place = crate::BucketAddress::new(text).region("r");
        for place in [place.clone(), place.bucket("b")] {
            if let Ok(endpoint) = place.resolve() {
                let host = endpoint.target().authority;
                assert!(
                    host.bytes()
                        .all(|byte| byte.is_ascii_graphic() && byte != b'/' && byte != b'@'),
                    "{host}"
                );
            }
        }
    }

    /// Records of TLS by a script: nothing lands that was not sent, whatever is done to them on the
    /// way.
    #[cfg(feature = "tls-direct")]
    pub fn tls_records(script: &[u8]) {
        crate::http::fuzz_records(script);
    }

    /// A body in pieces into memory of some length.
    pub fn sink(bytes: &[u8], space: usize) {
        let mut memory = vec![0x5A; space + 8];
        let (mine, guard) = memory.split_at_mut(space);
        let mut buffer = BodyBuffer::new(mine);
        for piece in bytes.chunks(7) {
            if BodySink::Buffer(&mut buffer).copy(piece).is_err() {
                break;
            }
        }
        assert!(
            buffer.filled() == bytes.len().min(space) && guard.iter().all(|byte| *byte == 0x5A)
        );
    }
}
