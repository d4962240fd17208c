//! Second files whose chunk is missing or empty. A chunk's file gets its name before its sidecar and loses it
//! after, so they are rare: a crash of the machine leaves them, where the file system does not keep the order of
//! names, and so does a process that is killed while a peer evicts the chunk that it saves.

use std::fs::{self, Metadata};
use std::io;
use std::path::Path;
use std::time::Duration;

use super::Foreign;
use crate::mover::Mover;
use crate::shared::Shared;

/// How old such a file is before it is deleted: another program may be about to write its chunk.
const AGE_MIN: Duration = Duration::from_secs(10);

impl Foreign {
    /// The metadata of the file of this name below `root`, if it is a sidecar whose chunk is missing
    /// or empty.
    pub fn lone_sidecar(&self, root: &Path, name: &str) -> Option<Metadata> {
        let chunk = self.layout.chunk_of_sidecar(name)?;
        let is_lone = match fs::symlink_metadata(root.join(chunk)) {
            Ok(chunk) => chunk.is_file() && chunk.len() == 0,
            Err(e) => e.kind() == io::ErrorKind::NotFound,
        };
        let meta = || fs::symlink_metadata(root.join(name)).ok();
        is_lone.then(meta).flatten().filter(Metadata::is_file)
    }
}

impl<M: Mover> Shared<M> {
    /// Deletes the file of this name if it is a sidecar that lost its chunk long ago. The caller
    /// recounts.
    pub fn delete_if_lone_sidecar(&self, foreign: &Foreign, name: &str) {
        let root = self.data_dir.root();
        let Some(meta) = foreign.lone_sidecar(root, name) else { return };
        // A time in the future is old, too: the clock went back since.
        let age = meta.modified().ok().map(|at| match self.clock.wall().duration_since(at) {
            Ok(age) => age,
            Err(e) => e.duration(),
        });
        if self.data_dir.is_read_only() || age.is_none_or(|age| age < AGE_MIN) {
            return;
        }
        // A peer may give the chunk its file at this moment: then it is one without a sidecar,
        // until it is saved again.
        if let Err(e) = kvtier_os::remove_file(root.join(name))
            && e.kind() != io::ErrorKind::NotFound
        {
            self.failed(&format!("cannot delete {name}, which has no chunk"), &e);
        }
    }
}
