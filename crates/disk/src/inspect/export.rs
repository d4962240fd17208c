//! Reads chunks from a directory, to copy them elsewhere.

use std::io::{self, ErrorKind as Io};
use std::sync::Arc;

use kvtier_codec::TierEncoding;
use kvtier_key::{Facts, InvalidKey, Key, KeyId, Namespace};

use super::{ChunkName, Damage, Directory, foreign_files, read_and_check, read_footer, regular};

/// The key of a chunk, as far as its file states it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Source {
    /// This key.
    Key(Key),
    /// This key, by the file's name alone: there are no facts to verify the bytes.
    Unverified(Key),
    /// The file does not state the key: why.
    UnknownKey(InvalidKey),
    /// The file is damaged.
    Damaged(Damage),
}

/// A chunk's bytes as they are stored, all of them checked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoredChunk {
    /// Its facts, with codec and key where it is encoded; `None` where nothing verifies the bytes.
    pub facts: Option<Facts>,
    /// The stored bytes.
    pub bytes: Vec<u8>,
}

impl Directory {
    /// Reads a chunk's key from its footer, or from its name and facts. A chunk without facts is treated
    /// as one of the namespace `unverified`.
    pub fn key_of(&self, chunk: &ChunkName, unverified: &Arc<Namespace>) -> io::Result<Source> {
        let Ok(file) = regular(&self.path(chunk))? else {
            return Ok(Source::Damaged(Damage::Kind));
        };
        if self.layout().is_foreign() {
            let facts = match foreign_files::facts(&file)? {
                Ok(facts) => facts,
                Err(damage) => return Ok(Source::Damaged(damage)),
            };
            return Ok(
                match (facts, chunk.name.as_deref().and_then(|name| self.layout().key_of(name))) {
                    (Some(facts), _) => foreign_files::key_of(self.layout(), chunk, &facts)
                        .map_or_else(Source::Damaged, Source::Key),
                    (None, Some(id)) => Source::Unverified(Key::new(Arc::clone(unverified), id)),
                    (None, None) => Source::Damaged(Damage::Swapped),
                },
            );
        }
        Ok(match read_footer(&file, chunk)? {
            Err(damage) => Source::Damaged(damage),
            Ok((facts, _)) if facts.key != chunk.digest => Source::Damaged(Damage::Swapped),
            Ok((facts, name)) => match KeyId::from_canonical(&name) {
                Ok(id) => Source::Key(Key::new(Arc::new(Namespace::known_by(facts.namespace)), id)),
                Err(why) => Source::UnknownKey(why),
            },
        })
    }

    /// Reads a chunk's payload and checks every byte, and decodes it where that needs no key. Also
    /// returns whether the bytes were verified: [`Damage::Unverified`] is no error here.
    pub fn read(&self, chunk: &ChunkName) -> io::Result<Result<(Vec<u8>, bool), Damage>> {
        self.read_by(chunk, &TierEncoding::default())
    }

    /// The same with what `encoding` decodes. A chunk that it does not decode is
    /// [`Damage::NotDecoded`].
    pub fn read_by(
        &self,
        chunk: &ChunkName,
        encoding: &TierEncoding,
    ) -> io::Result<Result<(Vec<u8>, bool), Damage>> {
        Ok(match self.read_stored(chunk)? {
            Ok(StoredChunk { bytes, facts: Some(facts) }) if !facts.is_plain() => {
                let raw = encoding.decode_whole(&facts, &bytes).map_err(|_| Damage::Bytes);
                raw.and_then(|raw| raw.map_err(|_| Damage::NotDecoded)).map(|raw| (raw, true))
            }
            Ok(StoredChunk { bytes, facts }) => Ok((bytes, facts.is_some())),
            Err(damage) => Err(damage),
        })
    }

    /// Reads a chunk's bytes as they are stored and checks every one; encoded chunks stay encoded.
    pub fn read_stored(&self, chunk: &ChunkName) -> io::Result<Result<StoredChunk, Damage>> {
        let Ok(mut file) = regular(&self.path(chunk))? else { return Ok(Err(Damage::Kind)) };
        let mut bytes = Vec::with_capacity(chunk.len.min(file.metadata()?.len()) as usize);
        let mut each = |piece: &[u8]| bytes.extend_from_slice(piece);
        let found = if self.layout().is_foreign() {
            let facts = foreign_files::facts(&file)?.ok().flatten();
            foreign_files::check(&mut file, &self.path(chunk), self.layout(), chunk, &mut each)
                .map(|found| found.map(|()| facts))
        } else {
            read_and_check(&mut file, chunk, &mut each).map(|found| found.map(Some))
        };
        match found {
            Err(e) if e.kind() == Io::UnexpectedEof => Ok(Err(Damage::Length)),
            Err(e) => Err(e),
            Ok(Ok(facts)) => Ok(Ok(StoredChunk { facts, bytes })),
            Ok(Err(Damage::Unverified)) => Ok(Ok(StoredChunk { facts: None, bytes })),
            Ok(Err(damage)) => Ok(Err(damage)),
        }
    }
}
