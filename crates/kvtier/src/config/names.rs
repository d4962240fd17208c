//! The keys of the chunks that lie on a medium.

use kvtier_core::{Error, ErrorKind};
use kvtier_key::{KeyId, ObjectKey};

use super::TierSpec;

/// The keys that a medium has at one moment, to be read page by page.
#[derive(Debug)]
pub struct Names {
    #[cfg(feature = "file")]
    directory: kvtier_file::inspect::Directory,
    #[cfg(feature = "file")]
    chunks: std::vec::IntoIter<kvtier_file::inspect::Named>,
}

impl Names {
    /// Of this tier.
    pub(super) fn of(tier: Option<&TierSpec>) -> Result<Self, Error> {
        match tier {
            #[cfg(feature = "file")]
            Some(TierSpec::File(spec)) => Names::of_directory(spec),
            #[cfg(feature = "gds")]
            Some(TierSpec::Gds(spec)) => Names::of_directory(&spec.file),
            #[cfg(feature = "s3")]
            Some(TierSpec::S3(_)) => Err(unsupported("keys of a bucket are listed by `kvtier ls`")),
            _ => Err(unsupported("host memory knows its keys by digests alone; put a tier of files below it")),
        }
    }

    #[cfg(feature = "file")]
    fn of_directory(spec: &super::FileSpec) -> Result<Self, Error> {
        use kvtier_file::inspect::Directory;
        let directory = Directory::open_as(&spec.path, spec.layout.unwrap_or_default())?;
        let chunks = directory
            .chunks()
            .map_err(|e| Error::new(ErrorKind::Io, format!("cannot list {}", spec.path.display())).with_source(e))?;
        Ok(Names { directory, chunks: chunks.into_iter() })
    }

    /// The next keys, as LMCache spells them, with the lengths of their chunks in bytes: as many as are left, at most `max`. Chunks that went
    /// meanwhile are left out, and in our own layout those with a salt, of which the medium has but a digest.
    pub fn page(&mut self, max: usize) -> Result<Vec<(String, u64)>, Error> {
        let mut page = Vec::new();
        while page.len() < max {
            match self.following()? {
                Some(Some((id, len))) => page.extend(spelled(&id).map(|name| (name, len))),
                Some(None) => {}
                None => break,
            }
        }
        Ok(page)
    }

    /// The key of the next chunk, if it can be told.
    #[cfg(feature = "file")]
    fn following(&mut self) -> Result<Option<Option<(KeyId, u64)>>, Error> {
        let Some(chunk) = self.chunks.next() else { return Ok(None) };
        if let Some(name) = &chunk.name {
            return Ok(Some(self.directory.layout().key_of(name).map(|id| (id, chunk.len))));
        }
        let footer = match self.directory.footer(&chunk) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Some(None)),
            Err(e) => return Err(Error::new(ErrorKind::Io, "cannot read a chunk's footer").with_source(e)),
            Ok(footer) => footer.ok(),
        };
        let id = footer.and_then(|(_, canonical)| KeyId::from_canonical(&canonical).ok());
        Ok(Some(id.map(|id| (id, chunk.len))))
    }

    #[cfg(not(feature = "file"))]
    fn following(&mut self) -> Result<Option<Option<(KeyId, u64)>>, Error> {
        Ok(None)
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
