//! Inspects a directory from outside, with or without open tiers. Reading registers no process and
//! changes nothing; only [`Directory::remove`], [`Directory::quarantine`], [`Writer`] and
//! [`Upgrade::run`] do. A directory of an earlier format is read like any other; the first three
//! refuse it.

use std::fs::{self};
use std::io::{self, ErrorKind as Io};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use kvtier_codec::TierEncoding;
use kvtier_core::Error;
use kvtier_index::journal::Record;
use kvtier_key::{ChunkShape, Digest, Facts};

use crate::chunk_file_name::{self, file_len};
use crate::data_dir;
use crate::data_dir::{FileId, Manifest, REGISTRATION_WAIT_MAX, kind_of, quarantine};
pub use crate::data_dir::{Scratch, Upgrade};
pub use crate::file_system_probe::Medium;
use crate::layout::Layout;
use crate::ledger::Ledger;
use ledger_updates::Accounting;

mod check_file;
mod chunk_file;
mod encode_again;
mod export;
mod foreign_files;
mod import;
mod ledger_updates;
mod stored_form;
mod summary;

use check_file::{PIECE, check_and_decode, read_and_check, read_footer, regular};

pub use check_file::{Damage, Verified};
pub use chunk_file::ChunkFile;
pub use encode_again::encode_again;
pub use export::{Source, StoredChunk};
pub use import::{NewChunk, Writer};
pub use kvtier_codec::{Undecoded, UndecodedCause};
pub use kvtier_index::{LastUse, LastUses, TenantId};
pub use stored_form::StoredForm;
pub(crate) use stored_form::is_in_clear;
pub use summary::{ChunkTotals, Summary};

/// How often a file that changes while it is read is read again.
const LOOKS_MAX: usize = 8;

/// A kvtier directory.
///
/// ```no_run
/// # use kvtier_disk::inspect::Directory;
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let dir = Directory::open("/mnt/nvme/kv")?;
/// for chunk in dir.chunks()? {
///     if let Err(damage) = dir.verify(&chunk)? {
///         println!("{}: {damage:?}", chunk.label());
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Directory {
    root: PathBuf,
    layout: Layout,
    capacity_bytes: Option<u64>,
    /// Chunks may be encoded, so that names do not show the lengths of files.
    has_encoded: bool,
    quarantine_bytes_max: u64,
    accounting: Arc<Mutex<Option<Arc<Accounting>>>>,
}

/// A chunk by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct ChunkName {
    /// The key's digest; zeros in a foreign layout, whose names contain the key but not the
    /// namespace.
    pub digest: Digest,
    /// The file's name in a foreign layout.
    pub name: Option<Arc<str>>,
    /// Payload length in bytes.
    pub len: u64,
}

impl ChunkName {
    /// What to call it: the digest, or in a foreign layout the file's name.
    pub fn label(&self) -> String {
        self.name.as_deref().map_or_else(|| self.digest.to_hex(), str::to_owned)
    }
}

/// The bytes that the ledger of the directory `root` counts: stored, in quarantine, and reserved for
/// saves. `None` where it is missing or damaged: then the processes of the directory recount.
///
/// # Errors
/// What the file system answers.
pub fn ledger_bytes(root: &Path) -> io::Result<Option<u64>> {
    Ledger::peek(&root.join(".kvtier"))
}

impl Directory {
    /// Opens the directory for inspection.
    ///
    /// # Errors
    /// `Invalid` for a directory that is not kvtier's.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, Error> {
        let root = root.into();
        let Manifest { layout, capacity_bytes, has_encoded, .. } =
            Manifest::read(&root, Layout::Kvtier)?;
        Ok(Directory { has_encoded, ..Directory::new(root, layout, capacity_bytes) })
    }

    /// Opens a directory of a foreign layout that need not have a manifest. `Invalid` where a
    /// manifest says another layout.
    pub fn open_as(root: impl Into<PathBuf>, layout: Layout) -> Result<Self, Error> {
        let root = root.into();
        if !layout.is_foreign() || root.join(".kvtier/manifest").exists() {
            let it = Directory::open(root)?;
            if it.layout == layout {
                return Ok(it);
            }
            let what = format!("{} has layout {}, not {layout}", it.root.display(), it.layout);
            return Err(Error::new(kvtier_core::ErrorKind::Invalid, what));
        }
        let fail = |e: io::Error| {
            Error::new(kind_of(&e), format!("cannot list {}", root.display())).with_source(e)
        };
        drop(kvtier_os::read_dir(&root).map_err(fail)?);
        Ok(Directory::new(root, layout, None))
    }

    /// The foreign layout of a directory without a manifest: that of the first file name that fits
    /// one.
    pub fn detect_layout(root: &Path) -> io::Result<Option<Layout>> {
        foreign_files::detect_layout(root)
    }

    /// The shape of a chunk in a directory of a layout with headers; `None` where no chunk states one,
    /// and for a missing directory. The chunk may be shorter than a full one.
    pub fn find_shape(root: &Path, layout: Layout) -> io::Result<Option<ChunkShape>> {
        if layout.has_headers() { foreign_files::find_shape(root, layout) } else { Ok(None) }
    }

    fn new(root: PathBuf, layout: Layout, capacity_bytes: Option<u64>) -> Self {
        let quarantine_bytes_max = quarantine::bytes_max(capacity_bytes.unwrap_or(u64::MAX));
        let accounting = Arc::default();
        Directory {
            root,
            layout,
            capacity_bytes,
            has_encoded: false,
            quarantine_bytes_max,
            accounting,
        }
    }

    /// The layout of the files.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The cap of the process that opened the directory last, where one is noted.
    pub fn capacity_bytes(&self) -> Option<u64> {
        self.capacity_bytes
    }

    /// The chunks by name, in no order; nothing is opened.
    pub fn chunks(&self) -> io::Result<Vec<ChunkName>> {
        let mut all = Vec::new();
        self.walk(|_, _, named| all.extend(named))?;
        Ok(all)
    }

    /// Reads a chunk's footer: its facts, and its key in canonical form.
    pub fn footer(&self, chunk: &ChunkName) -> io::Result<Result<(Facts, Vec<u8>), Damage>> {
        let Ok(file) = regular(&self.path(chunk))? else { return Ok(Err(Damage::Kind)) };
        read_footer(&file, chunk)
    }

    /// Reads a chunk's whole file and checks all that a load checks, except for the key. A file is
    /// damaged if the same file shows the same damage twice: an open tier may delete it or write over
    /// it meanwhile. `NotFound` when that happened. What is encoded is decoded where that needs no key.
    pub fn verify(&self, chunk: &ChunkName) -> io::Result<Result<(), Damage>> {
        Ok(self.verify_by(chunk, &TierEncoding::default())?.map(drop))
    }

    /// The same with what `encoding` decodes. Answers how far the chunk was verified.
    pub fn verify_by(
        &self,
        chunk: &ChunkName,
        encoding: &TierEncoding,
    ) -> io::Result<Result<Verified, Damage>> {
        self.examine(chunk, encoding).map(|(_, found)| found)
    }

    fn examine(
        &self,
        chunk: &ChunkName,
        encoding: &TierEncoding,
    ) -> io::Result<(FileId, Result<Verified, Damage>)> {
        let mut before = None;
        for _ in 0..LOOKS_MAX {
            let (file, found) = self.read_whole(chunk, encoding)?;
            let still = FileId::of(&fs::symlink_metadata(self.path(chunk))?) == file;
            let damage = match &found {
                Ok(_) | Err(Damage::Unverified) => return Ok((file, found)),
                Err(damage) => *damage,
            };
            if still && before == Some((file, damage)) {
                return Ok((file, found));
            }
            before = Some((file, damage));
        }
        Err(io::Error::new(Io::NotFound, "another file again and again"))
    }

    /// The file that has the chunk's name now, and its damage.
    fn read_whole(
        &self,
        chunk: &ChunkName,
        encoding: &TierEncoding,
    ) -> io::Result<(FileId, Result<Verified, Damage>)> {
        let mut file = match regular(&self.path(chunk))? {
            Ok(file) => file,
            Err(other) => return Ok((other, Err(Damage::Kind))),
        };
        let meta = file.metadata()?;
        let found = if self.layout.is_foreign() {
            foreign_files::check(&mut file, &self.path(chunk), self.layout, chunk, &mut |_| {})
                .map(|found| found.map(|()| Verified::Raw))
        } else {
            check_and_decode(&mut file, chunk, encoding)
        };
        match found {
            Err(e) if e.kind() == Io::UnexpectedEof => Ok((FileId::of(&meta), Err(Damage::Length))),
            found => found.map(|found| (FileId::of(&meta), found)),
        }
    }

    /// Deletes a chunk's file; `false` when it did not exist. Open tiers read that in the change log;
    /// those of a foreign layout find out at their next load. [Finish](Self::finish) after the last
    /// call.
    ///
    /// # Errors
    /// Those of the file system; the chunk is still stored then.
    pub fn remove(&self, chunk: &ChunkName) -> io::Result<bool> {
        // Before the file goes: the generation of the ledger must be that from before the unlink.
        let accounting = self.accounting()?;
        let since = accounting.as_ref().and_then(|accounting| accounting.generation());
        let counted = self.file_len(chunk);
        foreign_files::remove_sidecar(self.layout, &self.path(chunk))?;
        match kvtier_os::remove_file(self.path(chunk)) {
            Err(e) if e.kind() == Io::NotFound => return Ok(false),
            other => other?,
        }
        if let Some(accounting) = accounting {
            accounting.release(counted, since);
            accounting.append(Record::Remove(chunk.digest));
        }
        Ok(true)
    }

    /// Writes into the ledger and the change log what could not be written with the changes. Tiers
    /// that have the directory open find a removed chunk missing when they load it, also where
    /// this fails.
    ///
    /// # Errors
    /// The medium's, with the file that could not be written. What was removed is removed.
    pub fn finish(&self) -> io::Result<()> {
        let accounting = self.accounting.lock().unwrap_or_else(PoisonError::into_inner);
        accounting.as_ref().map_or(Ok(()), |accounting| accounting.finish())
    }

    /// Moves a damaged chunk's file into quarantine, as a load does; where the quarantine is full, the
    /// file is deleted. `false` when the file is missing or no longer damaged.
    /// [Finish](Self::finish) after the last call.
    pub fn quarantine(&self, chunk: &ChunkName) -> io::Result<bool> {
        self.quarantine_by(chunk, &TierEncoding::default())
    }

    /// The same for a chunk that is damaged as far as `encoding` decodes it. One whose key is missing
    /// or another one stays.
    pub fn quarantine_by(&self, chunk: &ChunkName, encoding: &TierEncoding) -> io::Result<bool> {
        let path = self.path(chunk);
        let own = self.own();
        let seen = match self.examine(chunk, encoding) {
            Ok((_, Ok(_) | Err(Damage::Unverified))) => return Ok(false),
            Ok((seen, Err(_))) => seen,
            Err(e) if e.kind() == Io::NotFound => return Ok(false),
            Err(e) => return Err(e),
        };
        self.make_own()?;
        // The file moves through a staging directory: if this process is killed, the next start
        // removes it and its bytes.
        let staging = data_dir::register(&own)?;
        let accounting = self.accounting()?;
        let since = accounting.as_ref().and_then(|accounting| accounting.generation());
        let counted = self.file_len(chunk);
        let taken = staging.path().join(path.file_name().unwrap_or_default());
        match kvtier_os::rename(&path, &taken) {
            Err(e) if e.kind() == Io::NotFound => return Ok(false),
            other => other?,
        }
        let release =
            |bytes| accounting.iter().for_each(|accounting| accounting.release(bytes, since));
        // The rename took what had the name, which need not be the file that was checked.
        if FileId::of(&fs::symlink_metadata(&taken)?) != seen {
            // A tier saved the chunk again between check and rename: the file is moved back, or
            // deleted where a newer one exists.
            if !quarantine::move_to_free(&taken, &path) {
                kvtier_os::remove_file(&taken)?;
                release(counted);
            }
            return Ok(false);
        }
        foreign_files::remove_sidecar(self.layout, &path)?;
        let kept = quarantine::keep(&own, &taken, self.quarantine_bytes_max)?;
        release(counted.saturating_sub(kept));
        if let Some(accounting) = &accounting {
            accounting.add(kept.saturating_sub(counted));
            accounting.append(Record::Remove(chunk.digest));
        }
        Ok(true)
    }

    /// Creates `.kvtier` for the quarantine, where no tier ever opened the directory.
    fn make_own(&self) -> io::Result<()> {
        let own = self.own();
        if own.join("manifest").exists() {
            return Ok(());
        }
        data_dir::internal_files::make_dirs(&own)?;
        let _registration = data_dir::lock_registration_within(&own, REGISTRATION_WAIT_MAX)?;
        data_dir::manifest::agree(&self.root, &own, self.layout).map(drop).map_err(io::Error::other)
    }

    /// Calls `each` with every entry of every shard; with metadata only where the name is no chunk's.
    fn walk(
        &self,
        mut each: impl FnMut(&Path, Option<fs::Metadata>, Option<ChunkName>),
    ) -> io::Result<()> {
        if self.layout.is_foreign() {
            return foreign_files::walk(&self.root, self.layout, each);
        }
        for shard in 0..=255 {
            let entries = match kvtier_os::read_dir(chunk_file_name::shard(&self.root, shard)) {
                Err(e) if e.kind() == Io::NotFound => continue,
                other => other?,
            };
            for entry in entries {
                let entry = entry?;
                let named = entry.file_name().to_str().and_then(chunk_file_name::parse);
                let named = named.filter(|(digest, _)| digest.as_bytes()[0] == shard);
                let named = named.map(|(digest, len)| ChunkName { digest, name: None, len });
                let meta = if named.is_none() { entry.metadata().ok() } else { None };
                each(&entry.path(), meta, named);
            }
        }
        Ok(())
    }

    fn path(&self, chunk: &ChunkName) -> PathBuf {
        match &chunk.name {
            Some(name) => self.root.join(&**name),
            None => chunk_file_name::path(&self.root, &chunk.digest, chunk.len),
        }
    }

    /// The bytes of a chunk's file, as they count below the cap.
    pub fn file_len(&self, chunk: &ChunkName) -> u64 {
        if self.layout.is_foreign() {
            chunk.len + self.layout.extra_bytes()
        } else {
            self.own_len(chunk)
        }
    }

    /// What the ledger counts for a file of layout `kvtier`: its own length where chunks may be
    /// encoded, else that of its name.
    fn own_len(&self, chunk: &ChunkName) -> u64 {
        let by_name = file_len(chunk.len);
        if !self.has_encoded {
            return by_name;
        }
        let there = fs::symlink_metadata(self.path(chunk)).ok().filter(fs::Metadata::is_file);
        there.map_or(by_name, |file| file.len())
    }

    /// The ledger and the change log; `None` where no tier ever opened the directory.
    fn accounting(&self) -> io::Result<Option<Arc<Accounting>>> {
        let own = self.own();
        let mut kept = self.accounting.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.as_ref().is_none_or(|kept| !kept.is_current()) {
            *kept = if own.exists() {
                Some(Accounting::open(&own, self.layout.is_foreign())?.into())
            } else {
                None
            };
        }
        Ok(kept.clone())
    }

    fn own(&self) -> PathBuf {
        self.root.join(".kvtier")
    }
}
