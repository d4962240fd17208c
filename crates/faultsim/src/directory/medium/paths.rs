//! The paths below the root that a call names.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kvtier_os::simulated::{Call, Name};
use nix::sys::stat::fstat;

/// Where open directories are. To ask the system for each call costs more than the call.
#[derive(Debug, Default)]
pub struct OpenDirs {
    /// By device and number: the paths below the root; `None` for another one.
    known: HashMap<(u64, u64), Option<PathBuf>>,
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
        match call {
            Call::Open(name) | Call::CreateDir(name) | Call::Remove(name) => {
                Paths::One(self.below(root, name))
            }
            Call::RemoveTree(name) | Call::Look(name) => Paths::One(self.below(root, name)),
            Call::Link(from, to) | Call::Rename(from, to) | Call::Exchange(from, to) => {
                Paths::Two(self.below(root, from), self.below(root, to))
            }
            _ => Paths::None,
        }
    }

    /// Directories may have moved or gone.
    pub fn forget(&mut self) {
        self.known.clear();
    }

    /// The path of a name below the root.
    pub fn below(&mut self, root: &Path, name: Name<'_>) -> Option<PathBuf> {
        let path = match name.dir {
            None => name.path.strip_prefix(root).ok()?.to_owned(),
            Some(dir) => self.at(root, dir)?.join(name.path),
        };
        Some(if is_plain(&path) { path } else { path.components().collect() })
    }

    /// The path of an open directory below the root.
    pub fn at(&mut self, root: &Path, dir: BorrowedFd<'_>) -> Option<&Path> {
        let stat = fstat(dir).ok()?;
        let known = match self.known.entry((stat.st_dev, stat.st_ino)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let whole = fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())).ok()?;
                new.insert(whole.strip_prefix(root).ok().map(Path::to_owned))
            }
        };
        known.as_deref()
    }
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
