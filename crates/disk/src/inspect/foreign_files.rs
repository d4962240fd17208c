//! Inspects directories of foreign layouts.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use kvtier_key::{ChunkShape, Digest, Facts, GdsHeader, Key, Namespace, PieceSums};

use super::{ChunkName, Damage, PIECE};
use crate::layout::Layout;
use crate::layout::headers::{self, ParsedHeader};
use crate::layout::xattr_facts::Known;

/// The most chunks whose headers are read to find a shape.
const LOOKS_MAX: u32 = 1000;

/// Every entry of the directories that the layout has files in: with its metadata only where its
/// name is no chunk's.
pub fn walk(
    root: &Path,
    layout: Layout,
    mut each: impl FnMut(&Path, Option<fs::Metadata>, Option<ChunkName>),
) -> io::Result<()> {
    entries(root, "", &[layout], &mut |path, name, meta| {
        let chunk =
            name.filter(|name| meta.is_file() && meta.len() > 0 && layout.key_of(name).is_some());
        match chunk {
            Some(name) => {
                let len = meta.len().saturating_sub(layout.head_bytes());
                each(
                    path,
                    None,
                    Some(ChunkName { digest: Digest::default(), name: Some(name.into()), len }),
                );
            }
            None if name.is_some_and(|name| name == ".kvtier" || layout.is_config_dir(name)) => {}
            None if is_beside_a_chunk(path, layout, name) => {}
            None => each(path, Some(meta), None),
        }
        Ok(())
    })
}

/// The layout of the first name that is any's.
pub fn detect_layout(root: &Path) -> io::Result<Option<Layout>> {
    let mut found = None;
    entries(root, "", &Layout::ALL, &mut |_, name, _| {
        let layout_of = |name| Layout::ALL.into_iter().find(|layout| layout.key_of(name).is_some());
        found = found.or_else(|| name.and_then(layout_of));
        // No error, but the end of the walk.
        if found.is_some() { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
    })
    .or_else(|e| if found.is_some() { Ok(()) } else { Err(e) })?;
    Ok(found)
}

/// The shape of the first chunk whose header can be read, of at most [`LOOKS_MAX`] that are looked
/// at.
pub fn find_shape(root: &Path, layout: Layout) -> io::Result<Option<ChunkShape>> {
    let mut found = None;
    let mut looks = 0;
    let walked = entries(root, "", &[layout], &mut |path, name, _| {
        if name.is_some_and(|name| layout.key_of(name).is_some()) {
            looks += 1;
            let beside = headers::read_sidecar(path)?;
            found = beside
                .and_then(|beside| GdsHeader::decode(&beside).ok())
                .filter(GdsHeader::is_current);
        }
        // No error, but the end of the walk.
        if found.is_some() || looks == LOOKS_MAX {
            Err(io::ErrorKind::Other.into())
        } else {
            Ok(())
        }
    });
    match walked {
        Err(e) if found.is_none() && looks < LOOKS_MAX && e.kind() != io::ErrorKind::NotFound => {
            Err(e)
        }
        _ => Ok(found.map(|header| ChunkShape::new(header.shape, header.format))),
    }
}

/// Called with an entry: its path, the path relative to the root if it is UTF-8, and its metadata.
type Each<'a> = &'a mut dyn FnMut(&Path, Option<&str>, fs::Metadata) -> io::Result<()>;

/// Every entry of a directory, and of those below it where one of the layouts has files.
fn entries(root: &Path, dir: &str, layouts: &[Layout], each: Each<'_>) -> io::Result<()> {
    for entry in kvtier_os::read_dir(root.join(dir))? {
        let entry = entry?;
        // Deleted meanwhile.
        let Ok(meta) = entry.metadata() else { continue };
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            each(&entry.path(), None, meta)?;
            continue;
        };
        let path = if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") };
        if meta.is_dir() && layouts.iter().any(|layout| layout.has_files_in(dir, name)) {
            match entries(root, &path, layouts, each) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        } else {
            each(&entry.path(), Some(&path), meta)?;
        }
    }
    Ok(())
}

/// Whether the file is the sidecar of an existing chunk.
fn is_beside_a_chunk(path: &Path, layout: Layout, name: Option<&str>) -> bool {
    let chunk = |text: &str| Some(text.strip_suffix(".metadata")?.to_owned());
    let ours = name
        .and_then(chunk)
        .is_some_and(|name| layout.sidecar(&name).is_some() && layout.key_of(&name).is_some());
    ours && path.to_str().and_then(chunk).is_some_and(|chunk| Path::new(&chunk).exists())
}

/// Deletes a chunk's sidecar, if it exists.
pub fn remove_sidecar(layout: Layout, path: &Path) -> io::Result<()> {
    if !layout.has_headers() {
        return Ok(());
    }
    match kvtier_os::remove_file(headers::sidecar_of(path)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// The key of a chunk's file, from its name and the namespace in its facts. `Swapped` if the facts are
/// another key's.
pub fn key_of(layout: Layout, chunk: &ChunkName, facts: &Facts) -> Result<Key, Damage> {
    let id = chunk.name.as_deref().and_then(|name| layout.key_of(name)).ok_or(Damage::Swapped)?;
    let key = Key::new(Arc::new(Namespace::known_by(facts.namespace)), id);
    if facts.key == *key.digest() { Ok(key) } else { Err(Damage::Swapped) }
}

/// The facts of a file; `None` for none.
pub fn facts(file: &File) -> io::Result<Result<Option<Facts>, Damage>> {
    Ok(match Known::of(file)? {
        Known::Unverified => Ok(None),
        Known::Junk => Err(Damage::Footer),
        Known::Facts(facts) => Ok(Some(*facts)),
    })
}

/// Reads the whole file at `path` and checks it against its facts and headers. Passes each piece of
/// the payload to `each`.
pub fn check(
    file: &mut File,
    path: &Path,
    layout: Layout,
    chunk: &ChunkName,
    each: &mut dyn FnMut(&[u8]),
) -> io::Result<Result<(), Damage>> {
    let facts = match facts(file)? {
        Ok(facts) => facts,
        Err(damage) => return Ok(Err(damage)),
    };
    // With facts the length must be theirs. Without, it must be the one that was listed, and below
    // that of the headers.
    let mut len = file.metadata()?.len().saturating_sub(layout.head_bytes());
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
    if layout.has_headers() {
        match headers::parse(file, path, len + layout.head_bytes())? {
            ParsedHeader::Invalid => return Ok(Err(Damage::Header)),
            ParsedHeader::Payload(stated) if facts.is_none() => len = stated,
            _ => {}
        }
        file.seek(SeekFrom::Start(layout.head_bytes()))?;
    }
    let mut sums = PieceSums::new(len);
    let mut at = 0;
    let mut piece = vec![0; PIECE];
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
