//! Lists the directory: chunks by their names, without opening a file.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::sync_channel;

use kvtier_key::Digest;
use kvtier_os::list_dir_at;
use nix::fcntl::OFlag;

use super::DataDir;
use crate::chunk_file_name;
use crate::layout::Layout;

/// Threads that list the shards concurrently.
const LISTERS: usize = 4;

/// A chunk's file as its directory lists it.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    pub digest: Digest,
    /// Payload length by the name.
    pub len: u64,
    /// The bytes that the ledger counts for it.
    pub bytes: u64,
    pub inode: u64,
}

impl DataDir {
    /// All file names of a foreign layout, relative to the root, in no order. Names that are not UTF-8
    /// are left out.
    pub fn foreign_names(&self, mut each: impl FnMut(&str) -> io::Result<()>) -> io::Result<()> {
        let layout = self.foreign().map_or(Layout::Kvtier, |foreign| foreign.layout);
        self.names_below("", layout, &mut each)
    }

    /// Whether a foreign layout has a file of a chunk, of whatever namespace: a sidecar that lost its
    /// chunk is counted too. Lists names up to the first.
    pub fn has_foreign_files(&self) -> io::Result<bool> {
        let Some(foreign) = self.foreign() else { return Ok(false) };
        let layout = foreign.layout;
        let mut is_found = false;
        let listed = self.foreign_names(|name| {
            is_found = layout.key_of(name).is_some() || layout.chunk_of_sidecar(name).is_some();
            // Any error ends the listing.
            if is_found { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
        });
        if is_found { Ok(true) } else { listed.map(|()| false) }
    }

    /// The names in a directory and in those below it where the layout has files.
    fn names_below(
        &self,
        dir: &str,
        layout: Layout,
        each: &mut dyn FnMut(&str) -> io::Result<()>,
    ) -> io::Result<()> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let path = if dir.is_empty() { "." } else { dir };
        let listed = match list_dir_at(self.dir(), path, flags) {
            // Not a directory, or deleted meanwhile.
            Err(nix::Error::ENOENT | nix::Error::ENOTDIR | nix::Error::ELOOP)
                if !dir.is_empty() =>
            {
                return Ok(());
            }
            other => other?,
        };
        let mut below = Vec::new();
        // Closed before those below are opened.
        for entry in listed {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let path = if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") };
            if layout.has_files_in(dir, name) { below.push(path) } else { each(&path)? }
        }
        below.iter().try_for_each(|dir| self.names_below(dir, layout, each))
    }

    /// All chunks of layout `kvtier` by name, in no order, without opening a file. Several threads
    /// read directories, because the medium is slow for one; `each` is called on this thread.
    /// Files are measured only where chunks may be encoded.
    pub fn list(&self, mut each: impl FnMut(Listed)) -> io::Result<()> {
        self.look_for_encoded();
        // A simulated process has one thread.
        if kvtier_os::is_simulated() {
            return (0..=255).try_for_each(|shard| {
                self.list_shard(shard)?.into_iter().for_each(&mut each);
                Ok(())
            });
        }
        let (send, shards) = sync_channel(LISTERS);
        let next = AtomicU16::new(0);
        std::thread::scope(|scope| {
            // Each thread takes the next shard when it is done with one, so a slow shard delays
            // only one of them.
            for _ in 0..LISTERS {
                let send = send.clone();
                let next = &next;
                scope.spawn(move || {
                    // The counter is wider than a byte, so that it passes 255 and ends the threads.
                    let shard = || u8::try_from(next.fetch_add(1, Ordering::Relaxed)).ok();
                    while let Some(shard) = shard() {
                        if send.send(self.list_shard(shard)).is_err() {
                            return;
                        }
                    }
                });
            }
            // The channel ends with the last thread, which ends the loop below.
            drop(send);
            for shard in shards {
                shard?.into_iter().for_each(&mut each);
            }
            Ok(())
        })
    }

    /// The files of these chunks in layout `kvtier`, of any length.
    pub fn files_of(&self, digests: &[Digest]) -> io::Result<Vec<(Digest, u64)>> {
        let shards: BTreeSet<u8> = digests.iter().map(|digest| digest.as_bytes()[0]).collect();
        let wanted: HashSet<&Digest> = digests.iter().collect();
        let mut found = Vec::new();
        for shard in shards {
            let files = match self.list_shard(shard) {
                // A file has the place of the shard, and no chunk is in there.
                Err(e) if e.kind() == io::ErrorKind::NotADirectory => Vec::new(),
                other => other?,
            };
            found.extend(
                files
                    .into_iter()
                    .filter(|file| wanted.contains(&file.digest))
                    .map(|file| (file.digest, file.len)),
            );
        }
        Ok(found)
    }

    /// Sets the bytes of listed files to their own lengths. Those that are gone are left out.
    fn measure(&self, listed: &mut Vec<Listed>) -> io::Result<()> {
        let mut failed = None;
        listed.retain_mut(|chunk| match self.find(&chunk.digest, chunk.len) {
            Ok(Some(file)) => {
                chunk.bytes = self.counted_bytes(chunk.len, &file);
                chunk.inode = file.inode();
                true
            }
            Ok(None) => false,
            Err(e) => {
                failed.get_or_insert(e);
                true
            }
        });
        failed.map_or(Ok(()), Err)
    }

    fn list_shard(&self, shard: u8) -> io::Result<Vec<Listed>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let listed =
            match list_dir_at(self.dir(), chunk_file_name::shard_name(shard).as_str(), flags) {
                // Deleted, or a link to itself.
                Err(nix::Error::ENOENT | nix::Error::ELOOP) => return Ok(Vec::new()),
                other => other?,
            };
        let mut found = Vec::new();
        for entry in listed {
            let entry = entry?;
            let chunk = entry.file_name().to_str().ok().and_then(chunk_file_name::parse);
            // A file in another shard than its name demands would never be found by that name.
            let chunk = chunk.filter(|(digest, _)| digest.as_bytes()[0] == shard);
            let Some((digest, len)) = chunk else { continue };
            let bytes = self.file_len(len);
            found.push(Listed { digest, len, bytes, inode: entry.ino() });
        }
        if self.may_have_encoded() {
            self.measure(&mut found)?;
        }
        Ok(found)
    }
}
