//! Lists directories. A simulation answers the names in their order: that of a file system differs from one to
//! the next.

use std::ffi::CStr;
use std::fs::{self, DirEntry, ReadDir};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use nix::dir::{Dir, Entry, OwningIter};
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use crate::call::{Call, Name};
use crate::observe::observed;

/// Lists a directory.
#[inline]
pub fn read_dir<P: AsRef<Path>>(
    path: P,
) -> io::Result<impl Iterator<Item = io::Result<DirEntry>> + use<P>> {
    let path = path.as_ref();
    observed(Call::Look(path.into()), || fs::read_dir(path)).map(in_order)
}

#[cfg(not(feature = "simulate"))]
#[inline(always)]
fn in_order(listed: ReadDir) -> ReadDir {
    listed
}

#[cfg(feature = "simulate")]
fn in_order(listed: ReadDir) -> Box<dyn Iterator<Item = io::Result<DirEntry>>> {
    if crate::simulated::current().is_none() {
        return Box::new(listed);
    }
    let mut all: Vec<_> = listed.collect();
    all.sort_by_cached_key(|entry| entry.as_ref().ok().map(DirEntry::file_name));
    Box::new(all.into_iter())
}

/// A name in a directory.
#[derive(Debug)]
pub struct ListedName(Inner);

#[derive(Debug)]
enum Inner {
    Found(Entry),
    /// A simulation says so without a look.
    #[cfg(feature = "simulate")]
    Known(crate::simulated::KnownName),
}

impl ListedName {
    /// The name.
    #[inline]
    pub fn file_name(&self) -> &CStr {
        match &self.0 {
            Inner::Found(entry) => entry.file_name(),
            #[cfg(feature = "simulate")]
            Inner::Known(known) => &known.name,
        }
    }

    /// The inode of what has the name.
    #[inline]
    pub fn ino(&self) -> u64 {
        match &self.0 {
            Inner::Found(entry) => entry.ino(),
            #[cfg(feature = "simulate")]
            Inner::Known(known) => known.inode,
        }
    }
}

/// Lists a directory, perhaps with `.` and `..`. It is open until the iterator is dropped.
#[inline]
pub fn list_dir_at<D: AsFd>(
    dir: D,
    path: &str,
    flags: OFlag,
) -> nix::Result<impl Iterator<Item = nix::Result<ListedName>> + use<D>> {
    let name = Name { dir: Some(dir.as_fd()), path: Path::new(path) };
    observed(Call::Look(name), || match known(name) {
        Some(listing) => Ok(listing),
        None => {
            Dir::openat(&dir, path, flags, Mode::empty()).map(|dir| Listing::Found(dir.into_iter()))
        }
    })
}

enum Listing {
    Found(OwningIter),
    #[cfg(feature = "simulate")]
    Known(std::vec::IntoIter<crate::simulated::KnownName>),
}

/// The names that a simulation has of this directory without a look.
#[cfg(not(feature = "simulate"))]
#[inline(always)]
fn known(_: Name<'_>) -> Option<Listing> {
    None
}

#[cfg(feature = "simulate")]
fn known(name: Name<'_>) -> Option<Listing> {
    let names = crate::simulated::current()?.names_in(name)?;
    Some(Listing::Known(names.into_iter()))
}

impl Iterator for Listing {
    type Item = nix::Result<ListedName>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Listing::Found(entries) => {
                Some(entries.next()?.map(|entry| ListedName(Inner::Found(entry))))
            }
            #[cfg(feature = "simulate")]
            Listing::Known(names) => Some(Ok(ListedName(Inner::Known(names.next()?)))),
        }
    }
}
