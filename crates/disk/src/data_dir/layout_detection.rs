//! Detects a directory's layout, and whether chunks may be encoded, from its files, where the manifest is missing or damaged.

use std::fs;
use std::io::{self, ErrorKind as Io};
use std::os::unix::fs::FileExt;
use std::path::Path;

use kvtier_key::{Digest, Facts};

use super::internal_files;
use super::scratch::is_scratch;
use crate::chunk_file_name;
use crate::direct_io::PAGE;
use crate::layout::Layout;
use crate::{footer, kind_of};

/// The most files whose footers are read. One intact footer is enough.
const LOOKS_MAX: usize = 64;

/// The layout of the files in a directory; `None` where no file shows one. Where names fit several
/// foreign layouts, the `wanted` one is preferred.
pub fn layout_of(root: &Path, wanted: Layout) -> io::Result<Option<Layout>> {
    if has_chunk(root)? {
        return Ok(Some(Layout::Kvtier));
    }
    let mut found = None;
    for layout in std::iter::once(wanted).chain(Layout::ALL).filter(|layout| layout.is_foreign()) {
        if found.is_none() && has_name_of(root, "", layout)? {
            found = Some(layout);
        }
    }
    Ok(found)
}

/// Whether a directory without a manifest is kvtier's: it holds only `.kvtier` and shards, and one
/// shard has a chunk with an intact footer. Without any chunk it is where a damaged manifest was
/// [renamed](super::repair): the process that did so was killed before it wrote a new one.
pub fn is_ours(root: &Path) -> io::Result<bool> {
    for entry in kvtier_os::read_dir(root)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_shard =
            name.to_str().and_then(chunk_file_name::parse_shard).is_some() && entry.path().is_dir();
        if !is_shard && name != ".kvtier" && name != "lost+found" && !is_scratch(&name) {
            return Ok(false);
        }
    }
    let had_manifest = fs::symlink_metadata(root.join(".kvtier/manifest.damaged")).is_ok();
    Ok(has_chunk(root)? || (had_manifest && layout_of(root, Layout::Kvtier)?.is_none()))
}

/// Whether a file in the shards is a chunk by its name and its footer.
fn has_chunk(root: &Path) -> io::Result<bool> {
    let mut looks = 0;
    for shard in 0..=255 {
        let entries = match kvtier_os::read_dir(chunk_file_name::shard(root, shard)) {
            Err(e) if matches!(e.kind(), Io::NotFound | Io::NotADirectory) => continue,
            other => other?,
        };
        for entry in entries.flatten() {
            let named = entry.file_name().to_str().and_then(chunk_file_name::parse);
            let Some((digest, len)) = named.filter(|(digest, _)| digest.as_bytes()[0] == shard)
            else {
                continue;
            };
            if has_footer(&entry.path(), &digest, len).unwrap_or(false) {
                return Ok(true);
            }
            looks += 1;
            if looks == LOOKS_MAX {
                return Ok(false);
            }
        }
    }
    Ok(false)
}

/// Whether a file ends with the footer of this chunk, encoded or not.
fn has_footer(path: &Path, digest: &Digest, len: u64) -> io::Result<bool> {
    let file = internal_files::open_to_read(path)?;
    let bytes = file.metadata()?.len();
    let mut page = [0; PAGE as usize];
    file.read_exact_at(&mut page, bytes.checked_sub(PAGE).ok_or(Io::UnexpectedEof)?)?;
    let is_of = |facts: &Facts| {
        facts.key == *digest && facts.raw_len == len && footer::file_len_of(facts) == bytes
    };
    Ok(footer::decode(&page).is_ok_and(|(facts, _)| is_of(&facts)))
}

/// Whether the length of a file in the shards shows that it may be encoded, for a manifest that is
/// written anew.
pub fn has_other_lengths(root: &Path) -> io::Result<bool> {
    for shard in 0..=255 {
        let entries = match kvtier_os::read_dir(chunk_file_name::shard(root, shard)) {
            Err(e) if matches!(e.kind(), Io::NotFound | Io::NotADirectory) => {
                continue;
            }
            other => other?,
        };
        for entry in entries.flatten() {
            let named = entry.file_name().to_str().and_then(chunk_file_name::parse);
            let Some((_, len)) = named else { continue };
            let is_other =
                |meta: fs::Metadata| meta.is_file() && meta.len() != chunk_file_name::file_len(len);
            if entry.metadata().is_ok_and(is_other) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Whether a file has a name of this layout.
fn has_name_of(root: &Path, dir: &str, layout: Layout) -> io::Result<bool> {
    let entries = match kvtier_os::read_dir(root.join(dir)) {
        Err(e) if !dir.is_empty() && kind_of(&e) != kvtier_core::ErrorKind::Denied => {
            return Ok(false);
        }
        other => other?,
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let path = if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") };
        let fits = if layout.has_files_in(dir, name) {
            has_name_of(root, &path, layout)?
        } else {
            layout.key_of(&path).is_some()
        };
        if fits {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::super::internal_files::make_dirs;
    use super::*;

    /// Refused for ever: damaged manifest, no chunk, and killed between the two steps of the repair.
    #[test]
    fn an_empty_directory_whose_damaged_manifest_was_renamed_is_ours() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        make_dirs(&root.join(".kvtier")).unwrap();
        fs::create_dir(root.join("ff")).unwrap();
        assert!(!is_ours(root).unwrap());
        fs::write(root.join(".kvtier/manifest.damaged"), "?").unwrap();
        assert!(is_ours(root).unwrap());
        drop(super::super::DataDir::open(root, None).unwrap());
        assert!(root.join(".kvtier/manifest").exists());
        fs::remove_file(root.join(".kvtier/manifest")).unwrap();
        fs::write(root.join("other"), "").unwrap();
        assert!(!is_ours(root).unwrap(), "another program's file");
    }
}
