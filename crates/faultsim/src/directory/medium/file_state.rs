//! What is known of a file beside its names.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use nix::sys::stat::fstat;

use super::times::{is_of_host, set_time};
use crate::world::World;

/// A file of the medium.
#[derive(Debug)]
pub struct FileState {
    /// The how manieth it is of the run: the same in each run, other than its number.
    pub place: u64,
    /// Keeps the file readable after its last name is gone, and its number unused.
    pub open: File,
    pub durable: Option<Vec<u8>>,
    pub is_dirty: bool,
    /// How often its bytes may have changed.
    pub changes: u64,
    /// Its length, where nothing changed it since that was asked.
    len: Cell<Option<u64>>,
}

impl FileState {
    /// A file of which nothing is durable.
    pub fn new(place: u64, open: File) -> Self {
        FileState { place, open, durable: None, is_dirty: true, changes: 0, len: Cell::new(None) }
    }

    /// An open may have cut it: then its time is that of the host.
    pub fn opened(&mut self, world: &World) {
        self.changes();
        let Ok(now) = fstat(&self.open) else { return };
        self.len.set(Some(now.st_size.cast_unsigned()));
        if is_of_host(now.st_mtime) {
            self.is_dirty = true;
            set_time(self.open.as_fd(), world);
        }
    }

    /// Its bytes may be others from now on.
    pub fn changes(&mut self) {
        self.changes += 1;
        self.len.set(None);
    }

    /// Its bytes are others, and it has this length.
    pub fn changed_to(&mut self, len: u64) {
        self.changes += 1;
        self.len.set(Some(len));
    }

    pub fn len(&self) -> u64 {
        let ask = || self.open.metadata().map_or(0, |meta| meta.len());
        let len = self.len.get().unwrap_or_else(ask);
        self.len.set(Some(len));
        len
    }

    pub fn bytes(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.open.metadata()?.len() as usize];
        self.open.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    pub fn sync(&mut self) {
        if self.is_dirty
            && let Ok(bytes) = self.bytes()
        {
            self.durable = Some(bytes);
            self.is_dirty = false;
        }
    }
}
