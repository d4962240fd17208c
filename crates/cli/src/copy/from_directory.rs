//! Chunks out of a directory, by its files.

use std::io::ErrorKind as Io;

use anyhow::{Context, Result};
use kvtier::codec::TierEncoding;
use kvtier::file::inspect::{ChunkName, Directory, Source as KeySource, StoredChunk};

use super::chunk::{ChunkIdentity, ChunkRead, Location, SourceChunk};
use super::decode::decode;
use super::report::Tally;
use super::unverified::UnverifiedChoice;

/// The chunks whose file contains their key.
pub fn chunks(
    mut chunks: Vec<ChunkName>,
    from: &Directory,
    trust: &UnverifiedChoice,
    tally: &mut Tally,
) -> Result<Vec<SourceChunk>> {
    // A copy that is repeated goes through the chunks in the same order.
    chunks.sort_unstable();
    let mut found = Vec::with_capacity(chunks.len());
    for chunk in chunks {
        let mut add = |identity: ChunkIdentity, len: u64, proven: bool| {
            found.push(SourceChunk {
                label: chunk.label(),
                at: Location::File(chunk.clone()),
                identity,
                len,
                proven,
            });
        };
        match from.key_of(&chunk, &trust.namespace) {
            Ok(KeySource::Key(key)) => add(key.into(), chunk.len, true),
            Ok(KeySource::Unverified(key)) => match trust.payload(chunk.len) {
                Some(len) => add(key.into(), len, false),
                None => tally.leave_behind(),
            },
            // The name does not give the key. The footer still proves the bytes, so an archive can
            // hold them.
            Ok(KeySource::UnknownKey(why)) => match from.footer(&chunk) {
                Ok(Ok((facts, canonical))) => {
                    add(
                        ChunkIdentity::of(&facts, Some(canonical), &why.to_string()),
                        chunk.len,
                        true,
                    );
                }
                _ => tally.unsupported(why),
            },
            Ok(_) => tally.damaged += 1,
            // Evicted since the listing, as happens in a directory that is in use.
            Err(e) if e.kind() == Io::NotFound => tally.gone += 1,
            Err(e) => {
                return Err(e)
                    .with_context(|| format!("cannot read the file of {}", chunk.label()));
            }
        }
    }
    Ok(found)
}

/// Reads a file whole, checks it and decodes it.
pub fn read(dir: &Directory, encoding: &TierEncoding, named: &ChunkName) -> Result<ChunkRead> {
    match dir.read_stored(named) {
        Ok(Ok(StoredChunk { bytes, facts: Some(facts), .. })) => {
            Ok(decode(encoding, &facts, bytes))
        }
        Ok(Ok(StoredChunk { bytes, .. })) => Ok(ChunkRead::Payload(bytes, false)),
        Ok(Err(_)) => Ok(ChunkRead::Damaged),
        Err(e) if e.kind() == Io::NotFound => Ok(ChunkRead::Gone),
        Err(e) => Err(e).with_context(|| format!("cannot read the file of {}", named.label())),
    }
}
