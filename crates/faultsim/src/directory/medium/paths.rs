//! The paths below the root that a call names.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use kvtier_os::simulated::{Call, Name};
use nix::sys::stat::{FileStat, fstat};

/// Where open directories are. To ask the system for each call costs more than the call.
#[derive(Debug, Default)]
pub struct OpenDirs {
    /// By device and number: the paths below the root; `None` for another one.
    known: HashMap<(u64, u64), Option<PathBuf>>,
    /// The directory of the last look. A listing looks into 256 of its directories.
    looked_in: Option<(RawFd, (u64, u64))>,
}

/// The names of a call, below the root; `None` for another one.
#[derive(Debug)]
pub enum Paths {
    None,
    One(Option<PathBuf>),
    Two(Option<PathBuf>, Option<PathBuf>),
    /// Which file of the run it is.
    File(Option<u64>),
}

impl OpenDirs {
    /// The names of a call.
    pub fn paths(&mut self, root: &Path, call: Call<'_>) -> Paths {
        let paths = match call {
            Call::Open(name) | Call::CreateDir(name) | Call::Remove(name) => {
                Paths::One(self.below(root, name))
            }
            Call::RemoveTree(name) | Call::Look(name) => Paths::One(self.below(root, name)),
            Call::Link(from, to) | Call::Rename(from, to) | Call::Exchange(from, to) => {
                Paths::Two(self.below(root, from), self.below(root, to))
            }
            _ => Paths::None,
        };
        if !matches!(call, Call::Look(_)) {
            self.forget_looked_in();
        }
        paths
    }

    /// Directories may have moved or gone.
    pub fn forget(&mut self) {
        self.known.clear();
    }

    /// Another call than a look is made: later another directory may have the number of this open file. Between
    /// looks alone none has: who opens a directory anew closes the former one afterwards.
    pub fn forget_looked_in(&mut self) {
        self.looked_in = None;
    }

    /// The path of a name below the root.
    pub fn below(&mut self, root: &Path, name: Name<'_>) -> Option<PathBuf> {
        let path = match name.dir {
            None => name.path.strip_prefix(root).ok()?.to_owned(),
            Some(dir) => self.at(root, dir)?.join(name.path),
        };
        let parts = || path.components().filter(|part| *part != Component::CurDir);
        Some(if is_plain(&path) { path } else { parts().collect() })
    }

    /// The path of an open directory below the root.
    fn at(&mut self, root: &Path, dir: BorrowedFd<'_>) -> Option<&Path> {
        let id = match self.looked_in {
            Some((number, id)) if number == dir.as_raw_fd() => id,
            _ => id_of(&fstat(dir).ok()?),
        };
        self.looked_in = Some((dir.as_raw_fd(), id));
        self.path_of(root, dir, id)
    }

    /// The same where it was asked which it is.
    pub fn opened_at(
        &mut self,
        root: &Path,
        dir: BorrowedFd<'_>,
        stat: &FileStat,
    ) -> Option<&Path> {
        self.path_of(root, dir, id_of(stat))
    }

    fn path_of(&mut self, root: &Path, dir: BorrowedFd<'_>, id: (u64, u64)) -> Option<&Path> {
        let known = match self.known.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let whole = fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())).ok()?;
                new.insert(whole.strip_prefix(root).ok().map(Path::to_owned))
            }
        };
        known.as_deref()
    }
}

/// The device and the number of a directory.
fn id_of(dir: &FileStat) -> (u64, u64) {
    (dir.st_dev, dir.st_ino)
}

/// Whether a path is spelled as every path is that means the same.
fn is_plain(path: &Path) -> bool {
    let mut parts = path.as_os_str().as_bytes().split(|byte| *byte == b'/');
    parts.all(|part| !part.is_empty() && part != b".")
}

impl std::fmt::Display for Paths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Paths::None | Paths::File(None) => Ok(()),
            Paths::File(Some(place)) => write!(f, "#{place}"),
            Paths::One(path) => write!(f, "{}", text(path.as_deref())),
            Paths::Two(from, to) => {
                write!(f, "{} to {}", text(from.as_deref()), text(to.as_deref()))
            }
        }
    }
}

fn text(path: Option<&Path>) -> impl std::fmt::Display {
    path.unwrap_or(Path::new("")).display()
}
