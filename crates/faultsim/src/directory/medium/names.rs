//! The names below the root, and what they say without a look at each.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kvtier_os::simulated::KnownName;

/// What has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    Dir,
    File(u64),
}

/// The names, by path below the root. To compare paths costs more than to hash them, and their order is rarely
/// asked for.
#[derive(Clone, Debug, Default)]
pub struct Names {
    entries: HashMap<OsString, Entry>,
    /// The names in each directory that has any.
    inside: HashMap<OsString, BTreeMap<OsString, Entry>>,
    /// The numbers of all files that have a name.
    files: BTreeMap<u64, NamesOfFile>,
}

/// How many names a file has.
#[derive(Clone, Copy, Debug, Default)]
struct NamesOfFile {
    all: u64,
    /// Those that count for the cap.
    counted: u64,
}

impl Names {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn get(&self, path: &Path) -> Option<Entry> {
        self.entries.get(path.as_os_str()).copied()
    }

    pub fn has(&self, path: &Path) -> bool {
        self.entries.contains_key(path.as_os_str())
    }

    /// Gives a name to what it belongs to from now on; `None` for nothing.
    pub fn set(&mut self, path: &Path, entry: Option<Entry>) {
        let before = match entry {
            Some(entry) => self.entries.insert(path.as_os_str().to_owned(), entry),
            None => self.entries.remove(path.as_os_str()),
        };
        self.set_in_dir(path, entry);
        let counted = u64::from(is_counted(path));
        if let Some(Entry::File(number)) = before
            && let Some(names) = self.files.get_mut(&number)
        {
            names.all -= 1;
            names.counted -= counted;
            if names.all == 0 {
                self.files.remove(&number);
            }
        }
        if let Some(Entry::File(number)) = entry {
            let names = self.files.entry(number).or_default();
            names.all += 1;
            names.counted += counted;
        }
    }

    fn set_in_dir(&mut self, path: &Path, entry: Option<Entry>) {
        let (dir, name) = taken_apart(path);
        match (entry, self.inside.get_mut(dir)) {
            (Some(entry), Some(names)) => drop(names.insert(name.to_owned(), entry)),
            (Some(entry), None) => {
                let names = BTreeMap::from([(name.to_owned(), entry)]);
                self.inside.insert(dir.to_owned(), names);
            }
            (None, Some(names)) => {
                names.remove(name);
                if names.is_empty() {
                    self.inside.remove(dir);
                }
            }
            (None, None) => {}
        }
    }

    /// The names in a directory, in their order; `None` where there is none.
    pub fn names_in(&self, dir: &Path) -> Option<Vec<KnownName>> {
        if !dir.as_os_str().is_empty() && self.get(dir) != Some(Entry::Dir) {
            return None;
        }
        let inside = self.inside.get(dir.as_os_str()).into_iter().flatten();
        let known = inside.map(|(name, entry)| {
            let inode = if let Entry::File(number) = entry { *number } else { 0 };
            CString::new(name.as_bytes()).ok().map(|name| KnownName { name, inode })
        });
        known.collect()
    }

    /// Whether a file of this number has a name.
    pub fn has_file(&self, number: u64) -> bool {
        self.files.contains_key(&number)
    }

    /// The numbers of files, and how many names each has: those that count for the cap, or all.
    pub fn numbers(&self, only_counted: bool) -> impl Iterator<Item = (u64, u64)> {
        self.files.iter().map(move |(number, names)| {
            (*number, if only_counted { names.counted } else { names.all })
        })
    }

    /// All names, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, Entry)> {
        self.entries.iter().map(|(path, entry)| (Path::new(path), *entry))
    }

    /// The names for which this holds, in order: each directory before what it has.
    pub fn sorted(&self, holds: impl Fn(&Path, Entry) -> bool) -> Vec<(PathBuf, Entry)> {
        let chosen = self.iter().filter(|(path, entry)| holds(path, *entry));
        let mut chosen: Vec<_> = chosen.map(|(path, entry)| (path.to_owned(), entry)).collect();
        chosen.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        chosen
    }
}

/// The directory of a path and its name there.
fn taken_apart(path: &Path) -> (&OsStr, &OsStr) {
    let path = path.as_os_str().as_bytes();
    let (dir, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&path[..0], path),
    };
    (OsStr::from_bytes(dir), OsStr::from_bytes(name))
}

/// Whether a file counts for the cap. Unfinished files whose names claim nothing are bookkeeping, or count
/// with the chunk beside which they will be.
fn is_counted(path: &Path) -> bool {
    let path = path.as_os_str().as_bytes();
    let Some(own) = path.strip_prefix(b".kvtier/") else {
        return path != b"config.json" && !path.ends_with(b"/config.json");
    };
    let claims = !own.ends_with(b"/alive") && !own.ends_with(b"-0");
    let is_staged = own.starts_with(b"tmp/") && claims;
    is_staged || own.starts_with(b"quarantine/")
}
