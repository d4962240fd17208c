//! The operations on a bucket and its objects.

mod bucket;
mod bucket_settings;
mod concurrent;
mod delete;
mod get;
mod get_check;
mod head;
mod list;
mod list_cycles;
mod multipart;
mod put;
mod put_get_bytes;
mod ranges;
pub mod refusable_question;
mod why_head_refused;

#[cfg(any(fuzzing, clippy))]
pub use bucket_settings::fuzz_settings;
pub use bucket_settings::{Lifecycle, Rule, Setting, Settings};
pub use concurrent::try_for_each_concurrent;
pub use delete::DeleteError;
pub use get::Get;
pub use head::Object;
pub use list::{Entry, List, Page, Upload, Uploads};
pub use list_cycles::Listings;
pub use multipart::Multipart;
pub use put::{Put, Stored};
pub use why_head_refused::LastProbe;

use crate::error::{Error, ErrorKind};

/// Whether the object, and not the bucket, does not exist. That is a result rather than an error.
fn is_missing(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound && error.code() != Some("NoSuchBucket")
}

/// What a GET makes of a head.
#[cfg(any(fuzzing, clippy))]
pub fn fuzz_check(head: &crate::http::ResponseHead) {
    let mut memory = [0; 100];
    for (start, exact) in [(None, true), (None, false), (Some(5), true)] {
        let mut progress = get_check::GetProgress {
            start,
            exact,
            etag: None,
            total: None,
            sum: None,
            is_whole: false,
        };
        let mut land = crate::http::BodyBuffer::new(&mut memory);
        drop(progress.check(head, &mut land, true));
    }
}

/// What the operations make of a body.
#[cfg(any(fuzzing, clippy))]
pub fn fuzz_answers(body: &[u8]) {
    drop((
        list::page(body),
        list::uploads(body),
        delete::refusals(body),
        multipart::completed(body),
    ));
    let head = crate::http::ResponseHead::parse(b"HTTP/1.1 200 OK\r\n\r\n", false)
        .ok()
        .flatten()
        .expect("a head")
        .0;
    drop((
        multipart::created(&head, body),
        crate::response_check::stored(&head, body),
        crate::response_check::deleted(&head, body),
    ));
}
