//! Lists the keys of the chunks on a medium.

use std::fmt;

use kvtier_core::{Error, ErrorKind};
use kvtier_key::{KeyId, ObjectKey};

use super::TierSpec;

#[cfg(feature = "s3")]
mod bucket;
#[cfg(feature = "file")]
mod directory;

/// The next chunk of a medium: its key, if the medium has it, and its length in bytes. The outer
/// `None` is the end.
type NextChunk = Result<Option<Option<(KeyId, u64)>>, Error>;

/// A medium that is read chunk by chunk.
trait KeySource: fmt::Debug + Send {
    fn next_chunk(&mut self) -> NextChunk;
}

/// The keys of a medium, read page by page.
#[derive(Debug)]
pub struct KeyListing(Box<dyn KeySource>);

impl KeyListing {
    /// Of this tier.
    pub(super) fn of(tier: Option<&TierSpec>) -> Result<Self, Error> {
        match tier {
            #[cfg(feature = "file")]
            Some(TierSpec::File(spec)) => KeyListing::of_directory(spec),
            #[cfg(feature = "gds")]
            Some(TierSpec::Gds(spec)) => KeyListing::of_directory(&spec.file),
            _ => Err(unsupported("host memory has only digests of keys; put a file tier below it")),
        }
    }

    #[cfg(feature = "file")]
    fn of_directory(spec: &super::FileSpec) -> Result<Self, Error> {
        Ok(KeyListing(Box::new(directory::DirectoryKeys::new(spec)?)))
    }

    /// Of the objects of a bucket, which are listed as they are read.
    #[cfg(feature = "s3")]
    pub(super) fn of_bucket(tier: &std::sync::Arc<kvtier_s3_tier::S3Tier>) -> Result<Self, Error> {
        match tier.names_encode_keys() {
            true => Ok(KeyListing(Box::new(bucket::BucketKeys::new(tier)))),
            false => Err(unsupported(
                "layout kvtier of a bucket has only digests of keys; use layout lmcache-mp, or a file tier",
            )),
        }
    }

    /// The next keys, in LMCache's spelling, with the lengths of their chunks in bytes: at most `max`,
    /// none at the end. Chunks deleted meanwhile are skipped, and in layout `kvtier` those with a
    /// salt, because the medium has only a digest of it.
    pub fn page(&mut self, max: usize) -> Result<Vec<(String, u64)>, Error> {
        let mut page = Vec::new();
        while page.len() < max {
            match self.0.next_chunk()? {
                // A key that no name can spell is left out: the caller could do nothing with it.
                Some(Some((id, len))) => page.extend(spelled(&id).map(|name| (name, len))),
                Some(None) => {}
                None => break,
            }
        }
        Ok(page)
    }
}

fn spelled(id: &KeyId) -> Option<String> {
    match id {
        KeyId::Object(key) => ObjectKey::native_name(key).ok(),
        KeyId::Engine(key) => Some(key.text()),
        KeyId::Layer(key) => Some(key.text()),
        _ => None,
    }
}

fn unsupported(what: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, what)
}
