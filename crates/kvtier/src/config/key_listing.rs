//! The keys of the chunks that lie on a medium.

use std::fmt;

use kvtier_core::{Error, ErrorKind};
use kvtier_key::{KeyId, ObjectKey};

use super::TierSpec;

#[cfg(feature = "s3")]
mod bucket;
#[cfg(feature = "file")]
mod directory;

/// The next chunk of a medium: its key, if that can be told, and its length in bytes. Nothing at
/// the end.
type NextChunk = Result<Option<Option<(KeyId, u64)>>, Error>;

/// A medium that is read chunk by chunk.
trait KeySource: fmt::Debug + Send {
    fn next_chunk(&mut self) -> NextChunk;
}

/// The keys that a medium has, to be read page by page.
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
            _ => Err(unsupported(
                "host memory knows its keys by digests alone; put a tier of files below it",
            )),
        }
    }

    #[cfg(feature = "file")]
    fn of_directory(spec: &super::FileSpec) -> Result<Self, Error> {
        Ok(KeyListing(Box::new(directory::DirectoryKeys::new(spec)?)))
    }

    /// Of the objects of a bucket, which are listed as they are read.
    #[cfg(feature = "s3")]
    pub(super) fn of_bucket(tier: &std::sync::Arc<kvtier_s3_tier::S3Tier>) -> Result<Self, Error> {
        match tier.spells_keys() {
            true => Ok(KeyListing(Box::new(bucket::BucketKeys::new(tier)))),
            false => Err(unsupported(
                "in its own layout a bucket has its keys' digests alone; list keys of layout lmcache-mp, or of a tier of files",
            )),
        }
    }

    /// The next keys, as LMCache spells them, with the lengths of their chunks in bytes: as many as
    /// are left, at most `max`. Chunks that went meanwhile are left out, and in our own layout
    /// those with a salt, of which the medium has but a digest.
    pub fn page(&mut self, max: usize) -> Result<Vec<(String, u64)>, Error> {
        let mut page = Vec::new();
        while page.len() < max {
            match self.0.next_chunk()? {
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
