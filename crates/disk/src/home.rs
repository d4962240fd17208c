use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind as Io, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use kvtier_core::{Error, ErrorKind};
use kvtier_key::Digest;

use crate::name;

const MANIFEST: &str = "kvtier directory\nformat: 1\nlayout: kvtier\n";
const QUARANTINE_MAX: usize = 64;

/// A tier's directory on disk: its manifest, its 256 shards, this process's own corner for unfinished files, and the quarantine.
#[derive(Debug)]
pub struct Home {
    root: PathBuf,
    corner: PathBuf,
    /// Held locked while we live, so that others can tell our unfinished files from a dead process's.
    _alive: File,
    next: AtomicU64,
}

impl Home {
    /// Opens or creates the directory, clears what dead processes left unfinished, and registers this process.
    pub fn open(root: &Path) -> Result<Self, Error> {
        let at = |what: &str, path: &Path| {
            let what = format!("cannot {what} {}; check the path, its permissions and free space", path.display());
            move |e: io::Error| Error::new(kind_of(&e), what).with_source(e)
        };
        fs::create_dir_all(root).map_err(at("create", root))?;
        let own = root.join(".kvtier");
        check_manifest(root, &own)?;
        for dir in ["tmp", "quarantine"] {
            fs::create_dir_all(own.join(dir)).map_err(at("create", &own.join(dir)))?;
        }
        for shard in 0..=255 {
            let shard = name::shard(root, shard);
            fs::create_dir(&shard).or_else(exists_is_fine).map_err(at("create", &shard))?;
        }
        // One process at a time registers or clears, so that nobody takes a corner being made for an abandoned one.
        let door = open_rw(&own.join("door")).map_err(at("open", &own.join("door")))?;
        door.lock().map_err(at("lock", &own.join("door")))?;
        clear_dead(&own.join("tmp")).map_err(at("clear", &own.join("tmp")))?;
        let (corner, alive) = settle(&own.join("tmp")).map_err(at("write to", &own.join("tmp")))?;
        Ok(Home { root: root.to_owned(), corner, _alive: alive, next: AtomicU64::new(0) })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A path nobody has used, in the same file system.
    pub fn unfinished(&self) -> PathBuf {
        self.corner.join(self.next.fetch_add(1, Ordering::Relaxed).to_string())
    }

    pub fn chunk(&self, digest: &Digest, len: u64) -> PathBuf {
        name::path(&self.root, digest, len)
    }

    /// Moves a file that fails its checks out of the way; when the quarantine is full, deletes it.
    pub fn set_aside(&self, path: &Path) -> io::Result<()> {
        let quarantine = self.root.join(".kvtier/quarantine");
        let full = fs::read_dir(&quarantine)?.take(QUARANTINE_MAX).count() == QUARANTINE_MAX;
        match path.file_name() {
            Some(name) if !full => fs::rename(path, quarantine.join(name)),
            _ => fs::remove_file(path),
        }
    }

    /// All chunks by name, in no order: nothing is opened and nothing is asked of any file.
    pub fn list(&self, mut each: impl FnMut(Digest, u64)) -> io::Result<()> {
        for shard in 0..=255 {
            for entry in fs::read_dir(name::shard(&self.root, shard))? {
                if let Some((digest, len)) = entry?.file_name().to_str().and_then(name::parse)
                    && digest.as_bytes()[0] == shard
                {
                    each(digest, len);
                }
            }
        }
        Ok(())
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.corner);
    }
}

/// The kind of error a failed system call is to the caller.
pub fn kind_of(e: &io::Error) -> ErrorKind {
    match e.kind() {
        Io::PermissionDenied | Io::ReadOnlyFilesystem => ErrorKind::Denied,
        Io::StorageFull | Io::QuotaExceeded => ErrorKind::Full,
        Io::NotADirectory | Io::InvalidInput | Io::InvalidFilename => ErrorKind::Invalid,
        _ => ErrorKind::Io,
    }
}

fn exists_is_fine(e: io::Error) -> io::Result<()> {
    if e.kind() == Io::AlreadyExists { Ok(()) } else { Err(e) }
}

fn open_rw(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// Refuses a directory that is somebody else's; marks an empty one as ours.
fn check_manifest(root: &Path, own: &Path) -> Result<(), Error> {
    let path = own.join("manifest");
    let fail = |e: io::Error| Error::new(kind_of(&e), format!("cannot use {}", path.display())).with_source(e);
    match read_small(&path) {
        Ok(text) if text == MANIFEST => return Ok(()),
        Ok(text) => {
            let what = format!(
                "{} is a kvtier directory of another kind: it says {text:?}, this build wants {MANIFEST:?}; use another directory",
                root.display()
            );
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        Err(e) if e.kind() == Io::NotFound => {}
        Err(e) => return Err(fail(e)),
    }
    // A first start that was killed before its manifest leaves `.kvtier` alone behind.
    let foreign = fs::read_dir(root)
        .map_err(fail)?
        .flatten()
        .find(|e| e.file_name() != ".kvtier" && e.file_name() != "lost+found");
    if let Some(foreign) = foreign {
        let what = format!(
            "{} is not empty and not a kvtier directory (it holds {:?}); choose an empty directory",
            root.display(),
            foreign.file_name()
        );
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    fs::create_dir(own).or_else(exists_is_fine).map_err(fail)?;
    let draft = own.join(format!("manifest.{}", std::process::id()));
    fs::write(&draft, MANIFEST).and_then(|()| fs::rename(&draft, &path)).map_err(fail)
}

fn read_small(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(4096).read_to_string(&mut text)?;
    Ok(text)
}

/// Removes the corners of processes that are no more: nobody holds their lock.
fn clear_dead(tmp: &Path) -> io::Result<()> {
    for corner in fs::read_dir(tmp)? {
        let corner = corner?.path();
        let dead = match OpenOptions::new().write(true).open(corner.join("alive")) {
            Ok(file) => file.try_lock().is_ok(),
            Err(e) => e.kind() == Io::NotFound,
        };
        if dead {
            fs::remove_dir_all(&corner)?;
        }
    }
    Ok(())
}

/// Makes this process's corner and locks it.
fn settle(tmp: &Path) -> io::Result<(PathBuf, File)> {
    let host = nix::unistd::gethostname()?;
    for n in 0..u32::MAX {
        let corner = tmp.join(format!("{}.{}.{n}", host.to_string_lossy(), std::process::id()));
        match fs::create_dir(&corner) {
            Err(e) if e.kind() == Io::AlreadyExists => continue,
            other => other?,
        }
        let mut alive = open_rw(&corner.join("alive"))?;
        alive.lock()?;
        alive.write_all(b"locked while its process lives\n")?;
        return Ok((corner, alive));
    }
    Err(io::Error::other("no free name"))
}
