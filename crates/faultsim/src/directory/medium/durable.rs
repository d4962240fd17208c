//! What is durable, and what a crash keeps of the rest.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use fastrand::Rng;

use super::names::{Entry, Names};
use super::{FileState, Journal, MediumState};

/// The unit in which bytes reach the device.
const BLOCK: usize = 4096;

/// How many files without names are kept open until they are forgotten together.
pub(super) const UNNAMED_MAX: usize = 32;

/// A change beside the bytes of files, in one step.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// Of one or more names.
    Names(Vec<(PathBuf, Option<Entry>)>),
    /// Of the attribute of a file.
    Attribute(u64, Vec<u8>),
}

/// What a crash keeps beside the bytes of files.
pub(super) struct Kept {
    pub(super) names: Names,
    pub(super) attributes: BTreeMap<u64, Vec<u8>>,
}

impl MediumState {
    pub(super) fn synced(&mut self, file: BorrowedFd<'_>) {
        let Some(number) = Self::number(file) else { return };
        // What is not known is elsewhere.
        let Some(file) = self.files.get_mut(&number) else { return };
        file.sync();
        match self.journal {
            Journal::Ordered => self.sync_names(),
            Journal::None => self.sync_attribute(number),
        }
    }

    pub(super) fn sync_names(&mut self) {
        for change in std::mem::take(&mut self.changes) {
            match change {
                Change::Names(names) => apply(&mut self.durable_names, &names),
                // Without a journal, an attribute is synced with its file.
                Change::Attribute(..) if self.journal == Journal::None => self.changes.push(change),
                Change::Attribute(number, value) => {
                    self.durable_attributes.insert(number, value);
                }
            }
        }
        // Not at once: each costs a descriptor, and to look at all names costs time.
        if self.files.len() > self.names.len() + UNNAMED_MAX {
            self.forget_unnamed();
        }
    }

    /// No crash brings these files back.
    fn forget_unnamed(&mut self) {
        self.files.retain(|number, _| self.names.has_file(*number));
    }

    fn sync_attribute(&mut self, number: u64) {
        self.changes.retain(|change| !matches!(change, Change::Attribute(of, _) if *of == number));
        if let Some(value) = self.attributes.get(&number) {
            self.durable_attributes.insert(number, value.clone());
        }
    }

    pub(super) fn sync_all(&mut self) {
        self.sync_names();
        self.changes.clear();
        self.durable_attributes = self.attributes.clone();
        self.files.values_mut().for_each(FileState::sync);
    }

    /// The names and attributes after a crash.
    pub(super) fn kept(&self, rng: &mut Rng) -> Kept {
        let (names, attributes) = (self.durable_names.clone(), self.durable_attributes.clone());
        let mut kept = Kept { names, attributes };
        match self.journal {
            Journal::Ordered => {
                let first = rng.usize(..=self.changes.len());
                self.changes[..first].iter().for_each(|change| kept.apply(change));
            }
            Journal::None => {
                let chosen = self.changes.iter().filter(|_| rng.bool());
                chosen.for_each(|change| kept.apply(change));
            }
        }
        kept
    }

    /// The bytes of a file after a crash.
    pub(super) fn kept_bytes(&self, number: u64, rng: &mut Rng) -> io::Result<Vec<u8>> {
        let Some(file) = self.files.get(&number) else { return Ok(Vec::new()) };
        let durable = file.durable.clone().unwrap_or_default();
        if !file.is_dirty {
            return Ok(durable);
        }
        let now = file.bytes()?;
        Ok(match rng.u64(..4) {
            0 => durable,
            1 => now,
            // The length arrived before the bytes.
            2 => mixed(&durable, &now, now.len(), rng),
            _ => {
                let len = rng.usize(..=now.len());
                mixed(&durable, &now, len, rng)
            }
        })
    }
}

impl Kept {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Names(names) => apply(&mut self.names, names),
            Change::Attribute(number, value) => {
                self.attributes.insert(*number, value.clone());
            }
        }
    }
}

pub(super) fn apply(names: &mut Names, change: &[(PathBuf, Option<Entry>)]) {
    change.iter().for_each(|(path, entry)| names.set(path, *entry));
}

/// A file of this length, whose blocks are old or new.
fn mixed(old: &[u8], new: &[u8], len: usize, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (n, block) in bytes.chunks_mut(BLOCK).enumerate() {
        let from = if rng.bool() { old } else { new };
        let from = from.get(n * BLOCK..).unwrap_or_default();
        let known = from.len().min(block.len());
        block[..known].copy_from_slice(&from[..known]);
    }
    bytes
}
