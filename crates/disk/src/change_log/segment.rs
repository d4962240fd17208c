//! One file of the change log, by its number.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind as Io};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::data_dir::lock_registration_within;

use crate::data_dir::internal_files;

/// How often a segment that was listed and is not there is looked for again. Others may be deleting
/// at the same time.
const TRIES_MAX: u32 = 100;
/// How long an append waits for the registration lock where there is no segment. After that its records wait for
/// the next append.
const FIRST_WAIT_MAX: Duration = Duration::from_millis(100);
/// Names of segments are this and the number in decimal digits.
const PREFIX: &str = "changes.";

/// An open segment. The file stays open while it is in use, so that its inode is not reused.
#[derive(Debug)]
pub struct Segment {
    pub number: u64,
    pub file: File,
    inode: u64,
}

/// What the file system says of a segment.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Its length in bytes.
    pub len: u64,
    /// It still has its name.
    pub is_linked: bool,
}

impl Segment {
    fn new(number: u64, file: File) -> io::Result<Self> {
        let inode = file.metadata()?.ino();
        Ok(Segment { number, file, inode })
    }

    /// Opens the segment of this number for reading; `None` where there is none.
    pub fn open(own: &Path, number: u64) -> io::Result<Option<Self>> {
        found(internal_files::open_to_read(&path(own, number)))?
            .map(|file| Segment::new(number, file))
            .transpose()
    }

    /// Opens the segment of this number for appending; `None` where there is none.
    fn open_to_append(own: &Path, number: u64) -> io::Result<Option<Self>> {
        let file = internal_files::open(&path(own, number), OpenOptions::new().append(true));
        found(file)?.map(|file| Segment::new(number, file)).transpose()
    }

    /// Opens the newest segment for appending; where there is none, makes one with the number
    /// `first`.
    ///
    /// # Errors
    /// `WouldBlock` where there is none and another process registers; else those of the file system.
    pub fn newest_to_append(own: &Path, first: u64) -> io::Result<Self> {
        for _ in 0..TRIES_MAX {
            let Some(number) = numbers(own)?.last().copied() else {
                let _registration = lock_registration_within(own, FIRST_WAIT_MAX)?;
                create_first(own, first)?;
                continue;
            };
            // Another process may have deleted it meanwhile.
            if let Some(segment) = Segment::open_to_append(own, number)? {
                return Ok(segment);
            }
        }
        Err(unopenable(own))
    }

    /// Opens the newest segment for reading; `None` where there is none.
    pub fn newest(own: &Path) -> io::Result<Option<Self>> {
        for _ in 0..TRIES_MAX {
            let Some(number) = numbers(own)?.last().copied() else { return Ok(None) };
            if let Some(segment) = Segment::open(own, number)? {
                return Ok(Some(segment));
            }
        }
        Err(unopenable(own))
    }

    /// Opens the oldest segment from which all numbers up to the newest are there, for reading;
    /// `None` where there is none.
    pub fn oldest(own: &Path) -> io::Result<Option<Self>> {
        for _ in 0..TRIES_MAX {
            let numbers = numbers(own)?;
            let before_gap = last_before_gap(&numbers);
            let Some(number) = numbers.into_iter().find(|number| Some(*number) > before_gap) else {
                return Ok(None);
            };
            if let Some(segment) = Segment::open(own, number)? {
                return Ok(Some(segment));
            }
        }
        Err(unopenable(own))
    }

    /// Length and name. Where other hosts write (`is_local` is false), the file is opened again by
    /// its name, because that asks the server.
    pub fn extent(&self, own: &Path, is_local: bool) -> io::Result<Extent> {
        if is_local {
            let meta = self.file.metadata()?;
            return Ok(Extent { len: meta.len(), is_linked: meta.nlink() > 0 });
        }
        let named = Segment::open(own, self.number)?.filter(|named| named.inode == self.inode);
        match named {
            Some(named) => Ok(Extent { len: named.file.metadata()?.len(), is_linked: true }),
            None => Ok(Extent { len: self.file.metadata()?.len(), is_linked: false }),
        }
    }

    /// Whether a segment with the next number exists.
    pub fn has_successor(&self, own: &Path) -> io::Result<bool> {
        Ok(found(fs::metadata(path(own, self.number + 1)))?.is_some())
    }
}

/// Creates the first segment where there is none. The caller holds the registration lock: two first
/// segments would make two logs, and a reader of one would miss the records of the other.
pub fn create_first(own: &Path, number: u64) -> io::Result<()> {
    if numbers(own)?.is_empty() { create(own, number) } else { Ok(()) }
}

/// Makes a segment, unless it exists. In one step: several processes that do so at a time go on
/// with the same file.
pub fn create(own: &Path, number: u64) -> io::Result<()> {
    match internal_files::open(&path(own, number), OpenOptions::new().append(true).create_new(true))
    {
        Err(e) if e.kind() == Io::AlreadyExists => Ok(()),
        other => other.map(drop),
    }
}

/// Deletes the segments up to this number, the oldest first. Stops at the first that cannot be
/// deleted, so that those that are left have no gap in their numbers.
pub fn delete_up_to(own: &Path, last: u64) -> io::Result<()> {
    for number in numbers(own)?.into_iter().filter(|number| *number <= last) {
        found(kvtier_os::remove_file(path(own, number)))?;
    }
    Ok(())
}

/// The last number after which one is missing, in ascending numbers.
pub fn last_before_gap(numbers: &[u64]) -> Option<u64> {
    numbers.windows(2).rev().find(|pair| pair[0] + 1 != pair[1]).map(|pair| pair[0])
}

/// The numbers of all segments, ascending.
pub fn numbers(own: &Path) -> io::Result<Vec<u64>> {
    let Some(entries) = found(kvtier_os::read_dir(own))? else { return Ok(Vec::new()) };
    let mut numbers = Vec::new();
    for entry in entries {
        numbers.extend(entry?.file_name().to_str().and_then(number));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// The number of the segment with this file name. Only a name that [`path`] makes is one, and one
/// that has a successor.
fn number(name: &str) -> Option<u64> {
    let number: u64 = name.strip_prefix(PREFIX)?.parse().ok()?;
    (number < u64::MAX && name == format!("{PREFIX}{number}")).then_some(number)
}

/// A name is listed again and again, but there is no file: a link to nothing, perhaps.
fn unopenable(own: &Path) -> io::Error {
    let what = format!("a file {PREFIX}<number> in {} cannot be opened: remove it", own.display());
    io::Error::new(Io::ResourceBusy, what)
}

/// Where a segment is.
pub fn path(own: &Path, number: u64) -> PathBuf {
    own.join(format!("{PREFIX}{number}"))
}

/// `None` where there is nothing.
fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(e) if e.kind() == Io::NotFound => Ok(None),
        other => other.map(Some),
    }
}
