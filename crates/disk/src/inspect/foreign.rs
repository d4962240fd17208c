//! Directories of foreign layouts, looked at from outside.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use kvtier_key::{Digest, Facts, Key, Namespace, PieceSums};

use super::{Damage, Named, PIECE};
use crate::layout::Layout;
use crate::layout::facts::Known;

/// Every entry of the root that is a file: with its metadata only where its name is no chunk's.
pub fn walk(
    root: &Path,
    layout: Layout,
    mut each: impl FnMut(&Path, Option<fs::Metadata>, Option<Named>),
) -> io::Result<()> {
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        // What goes while we look is not there.
        let Ok(meta) = entry.metadata() else { continue };
        let name = entry.file_name();
        let ours = name.to_str().filter(|name| meta.is_file() && meta.len() > 0 && layout.key_of(name).is_some());
        match ours {
            Some(name) => each(
                &entry.path(),
                None,
                Some(Named { digest: Digest::default(), name: Some(name.into()), len: meta.len() }),
            ),
            None if name != ".kvtier" => each(&entry.path(), Some(meta), None),
            None => {}
        }
    }
    Ok(())
}

/// The key of a chunk's file: its name says which, its facts in which namespace. `Swapped` if these are another key's.
pub fn key_of(layout: Layout, chunk: &Named, facts: &Facts) -> Result<Key, Damage> {
    let id = chunk.name.as_deref().and_then(|name| layout.key_of(name)).ok_or(Damage::Swapped)?;
    let key = Key::new(Arc::new(Namespace::known_by(facts.namespace)), id);
    if facts.key == *key.digest() { Ok(key) } else { Err(Damage::Swapped) }
}

/// The facts beside a file; `None` for none.
pub fn facts(file: &File) -> io::Result<Result<Option<Facts>, Damage>> {
    Ok(match Known::of(file)? {
        Known::Unverified => Ok(None),
        Known::Junk => Err(Damage::Footer),
        Known::Facts(facts) => Ok(Some(*facts)),
    })
}

/// Reads a file whole and checks all that its facts tell; each piece is shown to `each`.
pub fn check(
    file: &mut File,
    layout: Layout,
    chunk: &Named,
    each: &mut dyn FnMut(&[u8]),
) -> io::Result<Result<(), Damage>> {
    let facts = match facts(file)? {
        Ok(facts) => facts,
        Err(damage) => return Ok(Err(damage)),
    };
    let len = file.metadata()?.len();
    if let Some(facts) = &facts {
        if let Err(damage) = key_of(layout, chunk, facts) {
            return Ok(Err(damage));
        }
        if facts.raw_len != len {
            return Ok(Err(Damage::Length));
        }
    } else if len != chunk.len {
        return Ok(Err(Damage::Length));
    }
    let (mut sums, mut at, mut piece) = (PieceSums::new(len), 0, vec![0; PIECE]);
    while at < len {
        let n = (len - at).min(PIECE as u64) as usize;
        file.read_exact(&mut piece[..n])?;
        sums.piece(at, &piece[..n]);
        each(&piece[..n]);
        at += n as u64;
    }
    Ok(match facts {
        None => Err(Damage::Unverified),
        Some(facts) if sums.finish().is_some_and(|found| found == facts.sums) => Ok(()),
        Some(_) => Err(Damage::Bytes),
    })
}
