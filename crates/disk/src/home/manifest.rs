//! The file `.kvtier/manifest`: whose directory it is, in which form, and what its users agreed on. Written anew as a whole, under the door's
//! lock.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind as Io, Read};
use std::path::Path;

use kvtier_core::{Error, ErrorKind};

use super::kind_of;
use super::scratch::is_scratch;
use crate::layout::Layout;

const HEAD: &str = "kvtier directory\nformat: 1\n";
/// The longest manifest that is read, in bytes.
const BYTES_MAX: u64 = 8 << 20;

/// What a manifest says beyond its head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Whose files the directory holds.
    pub layout: Layout,
    /// The cap of the last who opened the directory.
    pub capacity_bytes: Option<u64>,
    /// The caps of those who have the directory open, by the names of their corners; the dead are found out when somebody opens it.
    pub open: BTreeMap<String, u64>,
    /// What the chunks look like: `chunk ...` and `namespace ...` lines by what is before their colon.
    pub agreed: BTreeMap<String, String>,
}

impl Manifest {
    /// Reads the manifest of the directory `root`; `Invalid` where there is none, or one that this build does not understand.
    pub fn read(root: &Path) -> Result<Self, Error> {
        let path = root.join(".kvtier/manifest");
        match read_small(&path) {
            Ok(text) => Self::parse(&text).ok_or_else(|| {
                let what = format!(
                    "{} is a kvtier directory of another kind: it says {text:?}, this build wants {HEAD:?}; use another directory",
                    root.display()
                );
                Error::new(ErrorKind::Invalid, what)
            }),
            Err(e) if e.kind() == Io::NotFound => {
                let what =
                    format!("{} is not a kvtier directory: it has no .kvtier/manifest; check the path", root.display());
                Err(Error::new(ErrorKind::Invalid, what))
            }
            Err(e) => Err(Error::new(kind_of(&e), format!("cannot read {}", path.display())).with_source(e)),
        }
    }

    /// Writes it in one step. The door is locked.
    pub fn write(&self, own: &Path) -> io::Result<()> {
        let draft = own.join("manifest.new");
        fs::write(&draft, self.text())?;
        fs::rename(&draft, own.join("manifest"))
    }

    fn text(&self) -> String {
        let capacity = self.capacity_bytes.map(|bytes| format!("capacity: {bytes}\n"));
        let agreed: String = self.agreed.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
        let open: String = self.open.iter().map(|(name, bytes)| format!("open {name}: {bytes}\n")).collect();
        format!("{HEAD}layout: {}\n{}{open}{agreed}", self.layout, capacity.unwrap_or_default())
    }

    /// A line that we do not know is another build's, which may mean anything by it.
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.strip_prefix(HEAD)?.lines();
        let layout = lines.next()?.strip_prefix("layout: ")?.parse().ok()?;
        let mut manifest = Manifest { layout, ..Manifest::default() };
        for line in lines {
            match line.split_once(": ")? {
                ("capacity", bytes) => manifest.capacity_bytes = Some(bytes.parse().ok()?),
                (name, bytes) if name.starts_with("open ") => {
                    manifest.open.insert(name["open ".len()..].to_owned(), bytes.parse().ok()?);
                }
                (name, value) if name.starts_with("chunk ") => {
                    manifest.agreed.insert(name.to_owned(), value.to_owned());
                }
                (name, value) if name.starts_with("namespace ") => {
                    let (name, value) = with_layout(name, value)?;
                    manifest.agreed.insert(name, value.to_owned());
                }
                _ => return None,
            }
        }
        Some(manifest)
    }
}

/// A `namespace` line's name with the layout in it; the first builds put that before the value.
fn with_layout<'a>(name: &str, value: &'a str) -> Option<(String, &'a str)> {
    if name.split(' ').count() > 2 {
        return Some((name.to_owned(), value));
    }
    let (layout, value) = value.split_once(' ')?;
    Some((format!("{name} {layout}"), value))
}

/// Spells a name so that it is one word of a line.
pub fn escape(name: &str) -> String {
    let mut word = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '%' | ' ' | ':' | '\n' | '\r' => word.push_str(&format!("%{:02X}", u32::from(c))),
            _ => word.push(c),
        }
    }
    word
}

/// Refuses a directory that holds anything and no manifest of ours: it is somebody else's.
pub fn refuse_foreign(root: &Path, own: &Path) -> Result<(), Error> {
    let path = own.join("manifest");
    match fs::symlink_metadata(&path) {
        Ok(_) => return Ok(()),
        Err(e) if e.kind() == Io::NotFound || e.kind() == Io::NotADirectory => {}
        Err(e) => return Err(Error::new(kind_of(&e), format!("cannot use {}", path.display())).with_source(e)),
    }
    let fail = |e: io::Error| Error::new(kind_of(&e), format!("cannot list {}", root.display())).with_source(e);
    // A first start that was killed before its manifest leaves `.kvtier` alone behind, or with it empty shards.
    for entry in fs::read_dir(root).map_err(fail)?.flatten() {
        let name = entry.file_name();
        // Another process may be making the directory at this moment: then the manifest comes before all else.
        let ours = name == ".kvtier" || name == "lost+found" || is_scratch(&name);
        if !ours && !path.exists() {
            let what = format!(
                "{} is not empty and not a kvtier directory (it holds {name:?}); choose an empty directory",
                root.display()
            );
            return Err(Error::new(ErrorKind::Invalid, what));
        }
    }
    Ok(())
}

/// Writes the manifest where there is none, else checks that it says what this build understands. The door is locked.
pub fn agree(root: &Path, own: &Path, layout: Layout) -> Result<(), Error> {
    let path = own.join("manifest");
    if fs::exists(&path).unwrap_or(true) {
        return refuse_layout(root, Manifest::read(root)?.layout, layout);
    }
    let fail = |e: io::Error| Error::new(kind_of(&e), format!("cannot write {}", path.display())).with_source(e);
    Manifest { layout, ..Manifest::default() }.write(own).map_err(fail)
}

/// Refuses a directory whose layout is another than the one it is to be opened with.
pub fn refuse_layout(root: &Path, there: Layout, layout: Layout) -> Result<(), Error> {
    if there == layout {
        return Ok(());
    }
    let what = format!("{} has layout {there}, this opens it as {layout}; say layout: {there}", root.display());
    Err(Error::new(ErrorKind::Invalid, what))
}

fn read_small(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "kvtier directory\nformat: 1\nlayout: kvtier\n";

    #[test]
    fn a_namespace_line_of_the_first_builds_is_read() {
        let old = Manifest::parse(&format!("{OURS}namespace t: 0a 0=8192 whole\n"));
        let new = Manifest::parse(&format!("{OURS}namespace t 0a: 0=8192 whole\n"));
        assert!(old.is_some() && old == new, "{old:?} {new:?}");
    }

    #[test]
    fn a_manifest_comes_back_and_what_is_not_understood_is_refused() {
        for (capacity_bytes, layout) in [None, Some(1), Some(u64::MAX)].into_iter().cycle().zip(Layout::ALL) {
            let agreed = [(format!("chunk {}", escape("a b:\n%")), "any whole".to_owned())].into();
            let open = [("host.7.1.0".to_owned(), 9)].into();
            let manifest = Manifest { layout, capacity_bytes, open, agreed };
            assert_eq!(Manifest::parse(&manifest.text()), Some(manifest));
        }
        for bad in [
            "",
            "kvtier",
            &HEAD[..20],
            &format!("{OURS}colour: red\n"),
            &format!("{OURS}capacity: lots\n"),
            &OURS.replace("kvtier\n", "x\n"),
        ] {
            assert_eq!(Manifest::parse(bad), None, "{bad}");
        }
    }
}
