use std::fs::{self, File};
use std::io::{self, ErrorKind as Io, Read};
use std::path::Path;

use kvtier_core::{Error, ErrorKind};

use super::kind_of;

const MANIFEST: &str = "kvtier directory\nformat: 1\nlayout: kvtier\n";

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
        if name != ".kvtier" && name != "lost+found" && !path.exists() {
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
pub fn agree(root: &Path, own: &Path) -> Result<(), Error> {
    let path = own.join("manifest");
    if fs::exists(&path).unwrap_or(true) {
        return check(root, &path);
    }
    let draft = own.join("manifest.new");
    let fail = |e: io::Error| Error::new(kind_of(&e), format!("cannot write {}", path.display())).with_source(e);
    fs::write(&draft, MANIFEST).and_then(|()| fs::rename(&draft, &path)).map_err(fail)
}

/// Checks that the manifest `path` of the directory `root` says what this build understands.
pub fn check(root: &Path, path: &Path) -> Result<(), Error> {
    match read_small(path) {
        Ok(text) if text == MANIFEST => Ok(()),
        Ok(text) => {
            let what = format!(
                "{} is a kvtier directory of another kind: it says {text:?}, this build wants {MANIFEST:?}; use another directory",
                root.display()
            );
            Err(Error::new(ErrorKind::Invalid, what))
        }
        Err(e) if e.kind() == Io::NotFound => {
            let what =
                format!("{} is not a kvtier directory: it has no .kvtier/manifest; check the path", root.display());
            Err(Error::new(ErrorKind::Invalid, what))
        }
        Err(e) => Err(Error::new(kind_of(&e), format!("cannot read {}", path.display())).with_source(e)),
    }
}

fn read_small(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(4096).read_to_string(&mut text)?;
    Ok(text)
}
