//! What is durable, and what a crash keeps of the rest.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use fastrand::Rng;

use super::names::{Entry, Names};
use super::{FileState, Journal, MediumState};

/// The unit in which bytes reach the device.
const BLOCK: usize = 4096;

/// How many files without names are kept open until they are forgotten together.
pub(super) const UNNAMED_MAX: usize = 32;

/// From this number on the device writes back changes of names by itself, which a crash could undo else: each
/// such file costs a descriptor.
pub(super) const WRITTEN_BACK_AT: usize = 128;

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
    pub(super) fn synced(&mut self, number: u64) {
        // What is not known is elsewhere.
        let Some(file) = self.files.get_mut(&number) else { return };
        file.sync();
        match self.journal {
            Journal::Ordered => self.sync_names(),
            Journal::None => self.sync_attribute(number),
        }
    }

    /// Without a journal a sync of a directory makes its own names durable, and no others.
    pub(super) fn synced_dir(&mut self, dir: &Path) {
        match self.journal {
            Journal::Ordered => self.sync_names(),
            Journal::None => self.sync_names_in(dir),
        }
    }

    fn sync_names_in(&mut self, dir: &Path) {
        let mut later = Vec::with_capacity(self.changes.len());
        for change in std::mem::take(&mut self.changes) {
            let Change::Names(names) = change else {
                later.push(change);
                continue;
            };
            let is_inside = |(path, _): &(PathBuf, Option<Entry>)| is_in(path, dir);
            // What a directory has moves with it.
            let moves_dir =
                names.len() > 1 && names.iter().any(|(_, entry)| *entry == Some(Entry::Dir));
            let inside = names.iter().filter(|change| is_inside(change)).count();
            let (inside, others) = match inside {
                // These are most.
                0 => (Vec::new(), names),
                some if some == names.len() || moves_dir => (names, Vec::new()),
                _ => names.into_iter().partition(is_inside),
            };
            apply(&mut self.durable_names, &inside);
            if !others.is_empty() {
                later.push(Change::Names(others));
            }
        }
        self.changes = later;
        if self.has_unnamed(WRITTEN_BACK_AT) {
            self.write_back();
        }
    }

    /// The device has written the older half of the changes by itself.
    fn write_back(&mut self) {
        let newer = self.changes.split_off(self.changes.len() / 2);
        let older = std::mem::replace(&mut self.changes, newer);
        older.iter().for_each(|change| match change {
            Change::Names(names) => apply(&mut self.durable_names, names),
            Change::Attribute(number, value) => {
                self.durable_attributes.insert(*number, value.clone());
            }
        });
        self.forget_unnamed();
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
        if self.has_unnamed(UNNAMED_MAX) {
            self.forget_unnamed();
        }
    }

    fn has_unnamed(&self, more_than: usize) -> bool {
        self.files.len() > self.names.len() + more_than
    }

    /// No crash brings these files back.
    fn forget_unnamed(&mut self) {
        let changed = self.changes.iter().filter_map(|change| match change {
            Change::Names(names) => Some(names.iter().filter_map(|(_, entry)| *entry)),
            Change::Attribute(..) => None,
        });
        let changed: HashSet<Entry> = changed.flatten().collect();
        self.files.retain(|number, _| {
            self.names.has_file(*number)
                || self.durable_names.has_file(*number)
                || changed.contains(&Entry::File(*number))
        });
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

/// Whether a directory has this name itself. Both are spelled plainly: to take paths apart costs more.
fn is_in(path: &Path, dir: &Path) -> bool {
    let (path, dir) = (path.as_os_str().as_bytes(), dir.as_os_str().as_bytes());
    let name = match dir {
        [] => Some(path),
        _ => path.strip_prefix(dir).and_then(|rest| rest.strip_prefix(b"/")),
    };
    name.is_some_and(|name| !name.is_empty() && !name.contains(&b'/'))
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
