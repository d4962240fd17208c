//! The names below the root, and what they say without a look at each.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

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
    /// How many names each directory has, where it has any.
    inside: HashMap<OsString, u64>,
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
        let above = || path.parent().unwrap_or(Path::new("")).as_os_str();
        match (before, entry) {
            (None, Some(_)) => *self.inside.entry(above().to_owned()).or_default() += 1,
            (Some(_), None) => self.one_less_in(above()),
            _ => {}
        }
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

    fn one_less_in(&mut self, dir: &OsStr) {
        if let Some(names) = self.inside.get_mut(dir) {
            *names -= 1;
            if *names == 0 {
                self.inside.remove(dir);
            }
        }
    }

    /// Whether this is a directory without names.
    pub fn is_empty_dir(&self, path: &Path) -> bool {
        self.get(path) == Some(Entry::Dir) && !self.inside.contains_key(path.as_os_str())
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
