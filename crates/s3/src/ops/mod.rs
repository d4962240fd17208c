//! What can be asked of a bucket.

mod bucket;
mod delete;
mod get;
mod head;
mod join;
mod landing;
mod list;
mod multipart;
mod put;
mod ranges;

pub use delete::Refused;
pub use get::Get;
pub use head::Object;
pub use list::{Entry, List, Page, Upload, Uploads};
pub use put::{Put, Stored};

use crate::error::Error;

/// Whether an error says that the object, and not the bucket, is missing: an answer rather than an error.
fn is_missing(error: &Error) -> bool {
    error.status() == Some(404) && error.code() != Some("NoSuchBucket")
}
