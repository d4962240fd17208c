//! Which process merges journals and writes snapshots: the one that has `.kvtier/evictor` locked.
//!
//! A child that a process forks shares its lock, and keeps it when the process is killed. Therefore
//! the file names the process that locked it. Where that certainly runs no more, the next process
//! puts a new file in the place of the locked one. All of this happens under the registration lock
//! and with the file that has the name at that moment, so that two processes never lead over two
//! files, and none reads the name of the leader before. A leader whose file was deleted resigns.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::data_dir::{DataDir, Process, internal_files, open_rw};

/// The most bytes of the file that are read.
const BYTES_MAX: u64 = 4096;

/// This process's claim to lead.
#[derive(Debug)]
pub struct Leadership {
    path: PathBuf,
    /// The file as it was when it was opened last.
    file: File,
    leads: bool,
}

impl Leadership {
    /// Opens the file in `.kvtier`, without a try to lead.
    pub fn open(own: &Path) -> io::Result<Self> {
        #[cfg(test)]
        fail_if_requested()?;
        let path = own.join("evictor");
        let file = open_rw(&path)?;
        Ok(Leadership { path, file, leads: false })
    }

    /// Tries to lead, unless another process does. Returns whether this process leads.
    pub fn lead(&mut self, data_dir: &DataDir) -> io::Result<bool> {
        if !self.has_name() {
            // Peers lock the file that has the name. The lock of another file proves nothing: a
            // child of the previous leader may keep it.
            self.resign();
            self.file = open_rw(&self.path)?;
        }
        if self.leads || !self.may_be_free() {
            return Ok(self.leads);
        }
        data_dir.with_registration_lock(|| self.take(data_dir))?;
        Ok(self.leads)
    }

    /// Whether a try may succeed: most of the time another process leads.
    fn may_be_free(&self) -> bool {
        // A look without the registration lock, which all processes of the directory share.
        let is_free = kvtier_os::try_lock(&self.file).is_ok();
        if is_free {
            let _ = self.file.unlock();
        }
        is_free || is_leader_gone(&self.path)
    }

    /// Whether the open file still has its name.
    fn has_name(&self) -> bool {
        let found = fs::symlink_metadata(&self.path);
        found.is_ok_and(|found| self.file.metadata().is_ok_and(|ours| ours.ino() == found.ino()))
    }

    /// Unlocked, not only closed: a child that this process forked has the file open too.
    fn resign(&mut self) {
        self.leads = false;
        let _ = self.file.unlock();
    }

    /// Takes the file's lock if it is free, or a new file's. The registration lock is held.
    fn take(&mut self, data_dir: &DataDir) -> io::Result<()> {
        // Opened again under the registration lock: the name may mean a new file since the look.
        self.file = open_rw(&self.path)?;
        self.leads = lock_and_write(&mut self.file, write_name)?;
        if !self.leads && is_leader_gone(&self.path) {
            self.file = self.replace(data_dir)?;
            self.leads = true;
        }
        Ok(())
    }

    /// A new file, locked and written to before it has the name.
    fn replace(&self, data_dir: &DataDir) -> io::Result<File> {
        let draft = data_dir.small_draft()?;
        let mut file = internal_files::open(
            &draft.path(),
            OpenOptions::new().read(true).write(true).create_new(true),
        )?;
        let done = kvtier_os::try_lock(&file).map_err(io::Error::from);
        let done = done.and_then(|()| write_name(&mut file));
        let named = done.and_then(|()| kvtier_os::rename(draft.path(), &self.path));
        named.map(|()| file).inspect_err(|_| _ = data_dir.discard(draft, 0))
    }
}

#[cfg(test)]
thread_local! {
    /// Whether this thread's next open fails.
    pub static FAILS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

#[cfg(test)]
fn fail_if_requested() -> io::Result<()> {
    if FAILS.take() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        self.resign();
    }
}

/// Locks the file and writes this process's name, before peers read that of the previous leader.
/// Returns `false` where another process has the lock. A file without a name stays unlocked: its
/// lock would keep peers from leading, and they could not find out whether its owner is gone.
fn lock_and_write(
    file: &mut File,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<bool> {
    if kvtier_os::try_lock(file).is_err() {
        return Ok(false);
    }
    if let Err(e) = write(file) {
        let _ = file.unlock();
        return Err(e);
    }
    Ok(true)
}

fn write_name(file: &mut File) -> io::Result<()> {
    kvtier_os::set_len(file, 0)?;
    file.seek(SeekFrom::Start(0))?;
    // Where there is no `/proc`, the lock alone decides.
    let name = Process::this().map(|process| format!("{}\n", process.text()));
    kvtier_os::write_all(file, name.unwrap_or_default().as_bytes())
}

/// Whether the process that locked the file certainly runs no more.
fn is_leader_gone(path: &Path) -> bool {
    let bytes = internal_files::read(path, BYTES_MAX).unwrap_or_default();
    String::from_utf8(bytes)
        .ok()
        .and_then(|text| text.lines().find_map(Process::parse))
        .is_some_and(|process| process.is_gone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A lock that another process holds, and the process that the file names.
    fn locked_by(own: &Path, process: &Process) -> File {
        let mut file = open_rw(&own.join("evictor")).unwrap();
        file.lock().unwrap();
        file.set_len(0).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.write_all(process.text().as_bytes()).unwrap();
        file
    }

    fn gone() -> Process {
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        Process { pid: ended.id(), ..Process::this().unwrap() }
    }

    #[test]
    fn one_leads_and_the_next_when_it_goes() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path(), None).unwrap();
        let [mut a, mut b] = [(); 2].map(|()| Leadership::open(&data_dir.own()).unwrap());
        assert!(
            a.lead(&data_dir).unwrap() && !b.lead(&data_dir).unwrap() && a.lead(&data_dir).unwrap()
        );
        drop(a);
        assert!(b.lead(&data_dir).unwrap());
    }

    #[test]
    fn a_leader_that_is_gone_is_followed_though_its_lock_is_kept_and_by_one_only() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path(), None).unwrap();
        let own = data_dir.own();
        let [mut a, mut b] = [(); 2].map(|()| Leadership::open(&own).unwrap());
        let ours = Process::this().unwrap();
        let elsewhere = Process { boot: "another machine".into(), ..gone() };
        for lives in [ours.clone(), elsewhere] {
            let kept = locked_by(&own, &lives);
            assert!(!a.lead(&data_dir).unwrap(), "{lives:?}");
            kept.unlock().unwrap();
        }
        let kept = locked_by(&own, &gone());
        assert!(a.lead(&data_dir).unwrap() && !b.lead(&data_dir).unwrap());
        // The child of the one before lives on, with the file that had the name.
        drop(a);
        assert!(b.lead(&data_dir).unwrap());
        let mut c = Leadership::open(&own).unwrap();
        kept.unlock().unwrap();
        assert!(!c.lead(&data_dir).unwrap() && b.lead(&data_dir).unwrap());
        let files = fs::read_dir(data_dir.staging().unwrap().path()).unwrap().count();
        assert_eq!(files, 1, "only `alive` is left");
    }

    #[test]
    fn a_process_that_cannot_write_its_name_leaves_the_file_unlocked() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path(), None).unwrap();
        let mut file = open_rw(&data_dir.own().join("evictor")).unwrap();
        let full = lock_and_write(&mut file, |_| Err(io::ErrorKind::StorageFull.into()));
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
        let mut other = Leadership::open(&data_dir.own()).unwrap();
        assert!(other.lead(&data_dir).unwrap());
        assert!(!lock_and_write(&mut file, write_name).unwrap());
    }

    #[test]
    fn one_leads_in_the_end_when_the_file_is_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path(), None).unwrap();
        let [mut a, mut b] = [(); 2].map(|()| Leadership::open(&data_dir.own()).unwrap());
        assert!(a.lead(&data_dir).unwrap());
        fs::remove_file(data_dir.own().join("evictor")).unwrap();
        assert!(b.lead(&data_dir).unwrap());
        assert!(!a.lead(&data_dir).unwrap() && b.lead(&data_dir).unwrap());
    }

    #[test]
    fn the_name_of_the_leader_before_is_not_taken_for_that_of_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path(), None).unwrap();
        locked_by(&data_dir.own(), &gone()).unlock().unwrap();
        let [mut a, mut b] = [(); 2].map(|()| Leadership::open(&data_dir.own()).unwrap());
        assert!(a.lead(&data_dir).unwrap() && !b.lead(&data_dir).unwrap());
    }
}
