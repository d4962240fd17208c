//! A call, as a simulated process sees it.

use std::os::fd::BorrowedFd;
use std::path::Path;

/// A call that is about to be made, or that was made and succeeded. Paths relative to an open
/// directory come with that directory.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Call<'a> {
    /// A file is opened, and perhaps created.
    Open(Name<'a>),
    /// A directory is created.
    CreateDir(Name<'a>),
    /// A file gets a second name.
    Link(Name<'a>, Name<'a>),
    /// A name becomes another, or replaces it.
    Rename(Name<'a>, Name<'a>),
    /// Two names are exchanged.
    Exchange(Name<'a>, Name<'a>),
    /// A name of a file or an empty directory is removed.
    Remove(Name<'a>),
    /// A directory is removed with all that it has.
    RemoveTree(Name<'a>),
    /// A name is looked up, or a directory is listed.
    Look(Name<'a>),
    /// Bytes are written to an open file. After it these are the bytes that were written.
    Write(Write<'a>),
    /// The length of an open file is set.
    SetLen(BorrowedFd<'a>),
    /// Space is allocated for an open file.
    Allocate(BorrowedFd<'a>, u64),
    /// The attribute of an open file is written.
    SetAttribute(BorrowedFd<'a>, &'a [u8]),
    /// The bytes of a file, or the names in a directory, are synced.
    Sync(BorrowedFd<'a>),
    /// The whole file system is synced.
    SyncAll,
    /// An open file is locked, unless that would have to wait.
    Lock(BorrowedFd<'a>),
}

/// Bytes that are written to an open file.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// The file.
    pub file: BorrowedFd<'a>,
    /// From where on; `None` where the file stands, or at its end.
    pub at: Option<u64>,
    /// What is written.
    pub bytes: &'a [u8],
}

/// A path, which may be relative to an open directory.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    /// The directory; `None` for a path of the process.
    pub dir: Option<BorrowedFd<'a>>,
    /// The path.
    pub path: &'a Path,
}

impl<'a> From<&'a Path> for Name<'a> {
    fn from(path: &'a Path) -> Self {
        Name { dir: None, path }
    }
}
