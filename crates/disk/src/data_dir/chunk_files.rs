//! Operations on chunk files, each with as few system calls as possible.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind as Io};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvtier_key::Digest;
use kvtier_os::{fstatat, openat, renameat, unlinkat};
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, Mode, SFlag};
use nix::unistd::UnlinkatFlags;

use super::staging::draft_name;
use super::{DataDir, StagingDir};
use crate::chunk_file_name;
use crate::direct_io::open_direct;

/// An unfinished file in this process's staging directory.
#[derive(Clone, Debug)]
pub struct Draft {
    pub(super) staging: Arc<StagingDir>,
    pub(super) name: String,
}

impl Draft {
    /// Its path.
    pub fn path(&self) -> PathBuf {
        self.staging.path().join(&self.name)
    }
}

/// Identifies a file and its last change, since a name may mean another file later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    inode: u64,
    written: (i64, i64),
    /// Its length; `None` for what is no regular file.
    bytes: Option<u64>,
}

/// The payload length and the bytes of a chunk's remaining file, and the bytes of the deleted one.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    pub len: u64,
    pub bytes: u64,
    pub gone_bytes: u64,
}

impl FileId {
    /// Of an open file.
    pub fn of(meta: &Metadata) -> Self {
        let bytes = meta.is_file().then_some(meta.len());
        FileId { inode: meta.ino(), written: (meta.mtime(), meta.mtime_nsec()), bytes }
    }

    /// The file's length in bytes; `None` for what is no regular file.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// The file's inode.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Whether it was written last before this Unix time in seconds.
    pub fn was_written_before(&self, unix_s: u64) -> bool {
        self.written.0 < unix_s.cast_signed()
    }

    fn of_stat(stat: &FileStat) -> Self {
        let is_file = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG;
        FileId {
            inode: stat.st_ino,
            written: (stat.st_mtime, stat.st_mtime_nsec),
            bytes: is_file.then(|| stat.st_size.max(0).cast_unsigned()),
        }
    }
}

impl DataDir {
    /// Opens a chunk's file for direct reads.
    pub fn open_chunk(&self, digest: &Digest, len: u64) -> io::Result<File> {
        self.open_at(&self.at(digest, len)?)
    }

    /// Bytes of a chunk's file before its payload.
    pub fn head_bytes(&self) -> u64 {
        self.foreign().map_or(0, |foreign| foreign.layout.head_bytes())
    }

    /// Opens a file of the directory for direct reads.
    pub fn open_at(&self, path: &str) -> io::Result<File> {
        open_direct(OFlag::O_RDONLY | OFlag::O_NOFOLLOW, |flags| {
            openat(self.dir(), path, flags, Mode::empty())
        })
    }

    /// The next unfinished file, for which `bytes` are claimed in the ledger.
    fn draft(&self, bytes: u64) -> io::Result<Draft> {
        let staging = self.staging()?;
        Ok(Draft { name: draft_name(staging.number(), bytes), staging })
    }

    /// Creates an empty unfinished file for direct writes. Its name states the `bytes` that are
    /// claimed for it. The caller holds the ledger's lock.
    pub fn create(&self, bytes: u64) -> io::Result<(Draft, File)> {
        let draft = self.draft(bytes)?;
        let made = open_direct(OFlag::O_WRONLY | OFlag::O_CREAT, |flags| {
            openat(draft.staging.dir(), draft.name.as_str(), flags, Mode::from_bits_truncate(0o644))
        });
        made.map(|file| (draft, file))
    }

    /// Allocates `len` bytes for an unfinished file, after the ledger granted them.
    pub fn allocate(&self, file: &File, len: u64) -> io::Result<()> {
        // Without allocation, direct writes that extend a file run one after the other.
        // File systems without it (`EOPNOTSUPP`) write all the same, slower.
        match kvtier_os::fallocate(file, len.cast_signed()) {
            Err(e @ (nix::Error::ENOSPC | nix::Error::EDQUOT | nix::Error::EIO)) => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// Whether the file system accepts writes, tested with a small file. Only the error of a
    /// read-only file system means no.
    pub fn accepts_writes(&self) -> bool {
        let tried = self.create_small(b"?", false).and_then(|probe| self.unlink_draft(&probe));
        !tried.is_err_and(|e| self.has_staging_dir() && e.kind() == Io::ReadOnlyFilesystem)
    }

    /// Creates an unfinished file that holds these few bytes; with `durable`, it is synced.
    pub fn create_small(&self, bytes: &[u8], durable: bool) -> io::Result<Draft> {
        let draft = self.small_draft()?;
        match self.write_small(&draft, bytes, durable) {
            Ok(()) => Ok(draft),
            Err(e) => {
                self.discard(draft, 0);
                Err(e)
            }
        }
    }

    /// The next unfinished file for which nothing is claimed by its name.
    pub fn small_draft(&self) -> io::Result<Draft> {
        self.draft(0)
    }

    /// Creates such a file with these few bytes; with `durable`, it is synced.
    pub fn write_small(&self, draft: &Draft, bytes: &[u8], durable: bool) -> io::Result<()> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let made = openat(
            draft.staging.dir(),
            draft.name.as_str(),
            flags,
            Mode::from_bits_truncate(0o644),
        );
        made.map(File::from).map_err(io::Error::from).and_then(|mut file| {
            kvtier_os::write_all(&mut file, bytes)?;
            if durable { kvtier_os::sync_data(&file) } else { Ok(()) }
        })
    }

    /// The name of a chunk's sidecar, in a layout with headers.
    pub(super) fn sidecar(&self, digest: &Digest) -> io::Result<Option<String>> {
        let Some(foreign) = self.foreign().filter(|foreign| foreign.layout.has_headers()) else {
            return Ok(None);
        };
        Ok(foreign.layout.sidecar(&self.at(digest, 0)?))
    }

    /// Renames a chunk's file of `bytes` to an unfinished one, to write over it: its blocks are
    /// allocated. `None` when the chunk has no such file.
    pub fn recycle(&self, digest: &Digest, len: u64, bytes: u64) -> io::Result<Option<Draft>> {
        // Programs that read a foreign layout do not verify bytes that are written over meanwhile.
        if self.foreign().is_some() {
            return Ok(None);
        }
        // Before it is an unfinished file that states these bytes: a crash of the machine, or another
        // program, may have cut it, and a peer that measures files counts what is left. A crash may
        // also have left it under another chunk's name, whose bytes it holds then.
        match self.stat(digest, len)? {
            Some(stat) if stat.st_nlink == 1 && FileId::of_stat(&stat).bytes == Some(bytes) => {
                self.take(digest, len, bytes)
            }
            _ => Ok(None),
        }
    }

    /// Renames a chunk's file to an unfinished one that states `bytes`. `None` when the chunk has no
    /// such file.
    fn take(&self, digest: &Digest, len: u64, bytes: u64) -> io::Result<Option<Draft>> {
        let draft = self.draft(bytes)?;
        match renameat(
            self.dir(),
            chunk_file_name::relative(digest, len).as_str(),
            draft.staging.dir(),
            draft.name.as_str(),
        ) {
            Ok(()) => Ok(Some(draft)),
            Err(nix::Error::ENOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Opens an unfinished file for direct writes; `None` when its length is not `len`.
    pub fn reopen(&self, draft: &Draft, len: u64) -> io::Result<Option<File>> {
        let file = open_direct(OFlag::O_WRONLY | OFlag::O_NOFOLLOW, |flags| {
            openat(draft.staging.dir(), draft.name.as_str(), flags, Mode::empty())
        })?;
        Ok((file.metadata()?.len() == len).then_some(file))
    }

    /// Syncs the whole file system to the device.
    pub fn sync_file_system(&self) -> io::Result<()> {
        Ok(kvtier_os::syncfs(self.dir())?)
    }

    /// Deletes an unfinished file.
    pub fn unlink_draft(&self, draft: &Draft) -> io::Result<()> {
        Ok(unlinkat(draft.staging.dir(), draft.name.as_str(), UnlinkatFlags::NoRemoveDir)?)
    }

    /// The bytes of an unfinished file.
    pub fn draft_bytes(&self, draft: &Draft) -> io::Result<u64> {
        let flags = nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW;
        Ok(fstatat(draft.staging.dir(), draft.name.as_str(), flags)?.st_size.max(0).cast_unsigned())
    }

    /// Deletes a chunk's file. Returns the bytes to release for the deleted file, by its payload's
    /// length in a foreign layout; `None` when there was none.
    pub fn delete(&self, digest: &Digest, len: u64) -> io::Result<Option<u64>> {
        if self.foreign().is_some() {
            return Ok(self.unlink(digest, len)?.then(|| self.file_len(len)));
        }
        if self.may_have_encoded() {
            return self.delete_measured(digest, len);
        }
        let Some(there) = self.find(digest, len)? else { return Ok(None) };
        if there.bytes != Some(self.file_len(len)) && self.look_for_encoded() {
            return self.delete_measured(digest, len);
        }
        Ok(self.unlink(digest, len)?.then(|| self.released(len, there.bytes)))
    }

    /// Deletes a chunk's file and measures it. A peer may replace the file at any moment, so it is
    /// measured after it lost its name.
    fn delete_measured(&self, digest: &Digest, len: u64) -> io::Result<Option<u64>> {
        let Some(there) = self.find(digest, len)? else { return Ok(None) };
        if there.bytes.is_some()
            && let Ok(Some(taken)) = self.take(digest, len, 0)
        {
            let bytes = self.draft_bytes(&taken).ok().or(there.bytes).unwrap_or(0);
            return Ok(Some(self.discard(taken, bytes)));
        }
        // A directory has the name, or the staging directory was deleted.
        Ok(self.unlink(digest, len)?.then(|| self.released(len, there.bytes)))
    }

    /// Deletes the name of a chunk's file. `false` when there was none.
    fn unlink(&self, digest: &Digest, len: u64) -> io::Result<bool> {
        let Some(at) = found_only(self.at(digest, len))? else { return Ok(false) };
        // First: LMCache must not find a chunk that is being deleted, and no listing finds a sidecar
        // without a chunk.
        self.delete_sidecar(digest)?;
        match unlinkat(self.dir(), at.as_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) => {
                // A peer may have saved the chunk in between: its sidecar came after the delete of
                // the first, and its file is the one that is gone now.
                // Where it cannot be deleted, all stays counted until a scan.
                self.delete_lone_sidecar(digest)?;
                Ok(true)
            }
            Err(e) if is_nothing(e) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Deletes a chunk's sidecar, if it exists.
    pub fn delete_sidecar(&self, digest: &Digest) -> io::Result<()> {
        let Some(beside) = self.sidecar(digest)? else { return Ok(()) };
        match unlinkat(self.dir(), beside.as_str(), UnlinkatFlags::NoRemoveDir) {
            Err(e) if e != nix::Error::ENOENT => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// The file that a chunk's name means now; `None` for none.
    pub fn find(&self, digest: &Digest, len: u64) -> io::Result<Option<FileId>> {
        Ok(self.stat(digest, len)?.map(|stat| FileId::of_stat(&stat)))
    }

    /// The bytes of a chunk's files on the medium, sidecar included; `None` for none, and for an empty
    /// file, which a count leaves out.
    pub fn bytes_on_disk(&self, digest: &Digest, len: u64) -> io::Result<Option<u64>> {
        Ok(self
            .stat(digest, len)?
            .map(|stat| stat.st_size.max(0).cast_unsigned())
            .filter(|bytes| *bytes > 0)
            .map(|bytes| bytes + self.head_bytes()))
    }

    fn stat(&self, digest: &Digest, len: u64) -> io::Result<Option<FileStat>> {
        let Some(at) = found_only(self.at(digest, len))? else { return Ok(None) };
        match fstatat(self.dir(), at.as_str(), nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(e) if is_nothing(e) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// The bytes of all files of a chunk whose payload has `len` bytes.
    pub fn file_len(&self, len: u64) -> u64 {
        self.foreign().map_or_else(
            || chunk_file_name::file_len(len),
            |foreign| len + foreign.layout.extra_bytes(),
        )
    }

    /// The bytes that the ledger counts for a `file` under a name that states a payload of `len`
    /// bytes: its own length where chunks may be encoded, else that of its name.
    pub fn counted_bytes(&self, len: u64, file: &FileId) -> u64 {
        self.counted(len, file.bytes)
    }

    /// The same for a file of `measured` bytes. One of another length than its name states shows that
    /// a peer may have begun to encode since this process looked.
    pub fn counted(&self, len: u64, measured: Option<u64>) -> u64 {
        let by_name = self.file_len(len);
        let is_counted = |bytes: &u64| *bytes == by_name || self.look_for_encoded();
        measured.filter(is_counted).unwrap_or(by_name)
    }

    /// The bytes to release for a file of `measured` bytes that had a name for a payload of `len`
    /// bytes. Never more than the ledger counts for it, whether the last recount went by names or by
    /// lengths: a peer may have noted that chunks may be encoded, and counted anew, since this process
    /// looked. Where the ledger may count more, it is [compared](Self::is_count_uncertain) soon.
    pub fn released(&self, len: u64, measured: Option<u64>) -> u64 {
        let by_name = self.file_len(len);
        if self.foreign().is_some() || measured == Some(by_name) {
            return by_name;
        }
        match measured {
            Some(measured) if self.look_for_encoded() => measured,
            _ => {
                self.is_count_uncertain.store(true, Ordering::Relaxed);
                measured.unwrap_or(0).min(by_name)
            }
        }
    }

    /// Whether the ledger may count more than there is since this was asked last, because a file had
    /// another length than its name states.
    pub fn is_count_uncertain(&self) -> bool {
        self.is_count_uncertain.swap(false, Ordering::Relaxed)
    }

    /// The length in bytes of the file that holds a payload of `len` bytes.
    pub fn data_len(&self, len: u64) -> u64 {
        if self.foreign.is_some() {
            self.head_bytes() + len
        } else {
            chunk_file_name::file_len(len)
        }
    }

    /// The path of a chunk's file relative to the root.
    ///
    /// # Errors
    /// `NotFound` in a foreign layout for a key whose name was neither listed nor learned.
    pub fn at(&self, digest: &Digest, len: u64) -> io::Result<String> {
        match self.foreign() {
            None => Ok(chunk_file_name::relative(digest, len)),
            Some(foreign) => Ok(foreign.name(digest).ok_or(Io::NotFound)?.as_ref().to_owned()),
        }
    }

    /// The directory of a chunk's file.
    pub(super) fn folder(&self, digest: &Digest) -> PathBuf {
        match self.foreign() {
            None => chunk_file_name::shard(&self.root, digest.as_bytes()[0]),
            Some(foreign) => {
                let name = foreign.name(digest).unwrap_or_default();
                self.root.join(name.rsplit_once('/').map_or("", |(dirs, _)| dirs))
            }
        }
    }

    /// Deletes the older of a chunk's files of two lengths, which two processes saved concurrently.
    /// Where both are gone, returns `known`; a load then finds that it is missing.
    pub fn keep_newer(&self, digest: &Digest, known: u64, other: u64) -> io::Result<Kept> {
        let found = |len| Ok::<_, io::Error>((len, self.find(digest, len)?));
        let (known, other) = (found(known)?, found(other)?);
        let written = |file: &Option<FileId>| file.map(|file| file.written);
        // By the time of the last write, which is the same for both processes: each keeps the
        // same file, so the chunk is not deleted under both of its lengths.
        // A missing file has no time, and loses.
        let (stays, goes) =
            if written(&other.1) > written(&known.1) { (other, known) } else { (known, other) };
        let gone = if self.is_read_only() { None } else { self.delete(digest, goes.0)? };
        let (len, file) = stays;
        let bytes = file.map_or_else(|| self.file_len(len), |file| self.counted_bytes(len, &file));
        Ok(Kept { len, bytes, gone_bytes: gone.unwrap_or(0) })
    }
}

fn found_only<T>(there: io::Result<T>) -> io::Result<Option<T>> {
    match there {
        Err(e) if e.kind() == Io::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// Whether the error of a call for a name means that nothing has it, also because a file or a link to
/// itself has the place of its directory.
fn is_nothing(e: nix::Error) -> bool {
    matches!(e, nix::Error::ENOENT | nix::Error::ENOTDIR | nix::Error::ELOOP)
}

/// Whether the error means a full device.
pub fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), Io::StorageFull | Io::QuotaExceeded)
}
