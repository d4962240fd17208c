//! Reading chunks out of a directory, to bring them elsewhere.

use std::io::{self, ErrorKind as Io};
use std::sync::Arc;

use kvtier_key::{InvalidKey, Key, KeyId, Namespace};

use super::{ChunkName, Damage, Directory, foreign, read_and_check, read_footer, regular};
use crate::name::file_len;

/// Whose a chunk is, as far as its file tells.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Source {
    /// This key's.
    Key(Key),
    /// This key's, by the file's name alone: there are no facts to prove its bytes by.
    Unverified(Key),
    /// A key that cannot be told from the file: why.
    UnknownKey(InvalidKey),
    /// The file is damaged.
    Damaged(Damage),
}

impl Directory {
    /// Says whose a chunk is, by its footer, or its name and facts; nothing else is read. A chunk
    /// without facts is taken for one of the namespace `unverified`.
    pub fn key_of(&self, chunk: &ChunkName, unverified: &Arc<Namespace>) -> io::Result<Source> {
        let Ok(file) = regular(&self.path(chunk))? else {
            return Ok(Source::Damaged(Damage::Kind));
        };
        if self.layout().is_foreign() {
            let facts = match foreign::facts(&file)? {
                Ok(facts) => facts,
                Err(damage) => return Ok(Source::Damaged(damage)),
            };
            return Ok(
                match (facts, chunk.name.as_deref().and_then(|name| self.layout().key_of(name))) {
                    (Some(facts), _) => foreign::key_of(self.layout(), chunk, &facts)
                        .map_or_else(Source::Damaged, Source::Key),
                    (None, Some(id)) => Source::Unverified(Key::new(Arc::clone(unverified), id)),
                    (None, None) => Source::Damaged(Damage::Swapped),
                },
            );
        }
        if file.metadata()?.len() != file_len(chunk.len) {
            return Ok(Source::Damaged(Damage::Length));
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

    /// Reads a chunk's payload and checks every byte; [`Damage::Unverified`] is not an error here,
    /// and said in the answer's second half.
    pub fn read(&self, chunk: &ChunkName) -> io::Result<Result<(Vec<u8>, bool), Damage>> {
        let Ok(mut file) = regular(&self.path(chunk))? else { return Ok(Err(Damage::Kind)) };
        let mut payload = Vec::with_capacity(chunk.len as usize);
        let mut each = |piece: &[u8]| payload.extend_from_slice(piece);
        let found = if self.layout().is_foreign() {
            foreign::check((&mut file, &self.path(chunk)), self.layout(), chunk, &mut each)
        } else if file.metadata()?.len() == file_len(chunk.len) {
            read_and_check(&mut file, chunk, &mut each)
        } else {
            return Ok(Err(Damage::Length));
        };
        match found {
            Err(e) if e.kind() == Io::UnexpectedEof => Ok(Err(Damage::Length)),
            Err(e) => Err(e),
            Ok(Ok(())) => Ok(Ok((payload, true))),
            Ok(Err(Damage::Unverified)) => Ok(Ok((payload, false))),
            Ok(Err(damage)) => Ok(Err(damage)),
        }
    }
}
