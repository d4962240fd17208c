//! Inspects a directory from outside, with or without open tiers. Reading registers no process and
//! changes nothing; only [`Directory::remove`], [`Directory::quarantine`], [`Writer`] and
//! [`Upgrade::run`] do. A directory of an earlier format is read like any other; the first three
//! refuse it.

use std::fs::{self, File};
use std::io::{self, ErrorKind as Io, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use kvtier_core::Error;
use kvtier_index::journal::Record;
use kvtier_key::{ChunkShape, Digest, Facts, Key, PieceSums};

use crate::data_dir::{FileId, Manifest, REGISTRATION_WAIT_MAX, kind_of, live_names, quarantine};
pub use crate::data_dir::{Scratch, Upgrade};
pub use crate::file_system_probe::Medium;
use crate::layout::Layout;
use crate::ledger::Ledger;
use crate::name::{self, PAGE, file_len};
use crate::{data_dir, footer};
use ledger_updates::Accounting;

mod chunk_file;
mod foreign;
mod ledger_updates;
mod read;
mod write;

pub use chunk_file::ChunkFile;
pub use kvtier_index::{LastUse, LastUses, TenantId};
pub use read::Source;
pub use write::{NewChunk, Writer};

/// How many bytes of a file are read at a time.
const PIECE: usize = 1 << 20;
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

/// What is wrong with a chunk's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// Its length differs from its name.
    Length,
    /// Its footer cannot be read.
    Footer,
    /// Its footer belongs to another chunk.
    Swapped,
    /// The bytes do not match their checksums, or the padding is not zero.
    Bytes,
    /// It is not a regular file.
    Kind,
    /// Its headers differ from each other or from the file, or are missing.
    Header,
    /// No visible damage: another program wrote the file, without facts to check it by.
    Unverified,
}

/// The contents of a directory, counted.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Summary {
    /// The layout of the files.
    pub layout: Layout,
    /// Chunks.
    pub chunks: u64,
    /// Bytes of their files, by their names.
    pub bytes: u64,
    /// Bytes of payload.
    pub payload_bytes: u64,
    /// The ledger's total of stored and reserved bytes; `None` where it is missing or damaged.
    pub ledger_bytes: Option<u64>,
    /// Files in the shards that are no chunks: name and length.
    pub unknown: Vec<(PathBuf, u64)>,
    /// Files that failed a check: name and length.
    pub quarantine: Vec<(String, u64)>,
    /// Bytes of these files.
    pub quarantine_bytes: u64,
    /// The cap of the process that opened the directory last; `None` where none is noted.
    pub capacity_bytes: Option<u64>,
    /// Unfinished files.
    pub unfinished: u64,
    /// Processes that have the directory open, as host.pid.start.n.
    pub living: Vec<String>,
    /// Processes that ended without removing their staging directories; the next start does.
    pub dead: Vec<String>,
    /// Whether a snapshot of the order of use is there.
    pub snapshot: bool,
}

impl Directory {
    /// Opens the directory for inspection.
    ///
    /// # Errors
    /// `Invalid` for a directory that is not kvtier's.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, Error> {
        let root = root.into();
        let Manifest { layout, capacity_bytes, .. } = Manifest::read(&root, Layout::Kvtier)?;
        Ok(Directory::new(root, layout, capacity_bytes))
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
        fs::read_dir(&root).map_err(fail)?;
        Ok(Directory::new(root, layout, None))
    }

    /// The foreign layout of a directory without a manifest: that of the first file name that fits
    /// one.
    pub fn detect_layout(root: &Path) -> io::Result<Option<Layout>> {
        foreign::detect_layout(root)
    }

    /// The shape of a chunk in a directory of a layout with headers; `None` where no chunk states one,
    /// and for a missing directory. The chunk may be shorter than a full one.
    pub fn find_shape(root: &Path, layout: Layout) -> io::Result<Option<ChunkShape>> {
        if layout.has_headers() { foreign::find_shape(root, layout) } else { Ok(None) }
    }

    fn new(root: PathBuf, layout: Layout, capacity_bytes: Option<u64>) -> Self {
        let quarantine_bytes_max = quarantine::bytes_max(capacity_bytes.unwrap_or(u64::MAX));
        Directory { root, layout, capacity_bytes, quarantine_bytes_max, accounting: Arc::default() }
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
        if file.metadata()?.len() != file_len(chunk.len) {
            return Ok(Err(Damage::Length));
        }
        read_footer(&file, chunk)
    }

    /// Reads a chunk's whole file and checks all that a load checks, except for the key. A file is
    /// damaged if the same file shows the same damage twice: an open tier may delete it or write over
    /// it meanwhile. `NotFound` when that happened.
    pub fn verify(&self, chunk: &ChunkName) -> io::Result<Result<(), Damage>> {
        self.examine(chunk).map(|(_, found)| found)
    }

    fn examine(&self, chunk: &ChunkName) -> io::Result<(FileId, Result<(), Damage>)> {
        let mut before = None;
        for _ in 0..LOOKS_MAX {
            let (file, found) = self.read_whole(chunk)?;
            let still = FileId::of(&fs::symlink_metadata(self.path(chunk))?) == file;
            if matches!(found, Ok(()) | Err(Damage::Unverified))
                || (still && before == Some((file, found)))
            {
                return Ok((file, found));
            }
            before = Some((file, found));
        }
        Err(io::Error::new(Io::NotFound, "another file again and again"))
    }

    /// The file that has the chunk's name now, and its damage.
    fn read_whole(&self, chunk: &ChunkName) -> io::Result<(FileId, Result<(), Damage>)> {
        let mut file = match regular(&self.path(chunk))? {
            Ok(file) => file,
            Err(other) => return Ok((other, Err(Damage::Kind))),
        };
        let meta = file.metadata()?;
        let found = if self.layout.is_foreign() {
            foreign::check(&mut file, &self.path(chunk), self.layout, chunk, &mut |_| {})
        } else if meta.len() == file_len(chunk.len) {
            read_and_check(&mut file, chunk, &mut |_| {})
        } else {
            Ok(Err(Damage::Length))
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
        let accounting = self.accounting()?;
        let since = accounting.as_ref().and_then(|accounting| accounting.generation());
        foreign::remove_sidecar(self.layout, &self.path(chunk))?;
        match fs::remove_file(self.path(chunk)) {
            Err(e) if e.kind() == Io::NotFound => return Ok(false),
            other => other?,
        }
        if let Some(accounting) = accounting {
            accounting.release(self.file_len(chunk), since);
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
        let path = self.path(chunk);
        let own = self.own();
        let seen = match self.examine(chunk) {
            Ok((_, Ok(()) | Err(Damage::Unverified))) => return Ok(false),
            Ok((seen, Err(_))) => seen,
            Err(e) if e.kind() == Io::NotFound => return Ok(false),
            Err(e) => return Err(e),
        };
        self.make_own()?;
        let staging = data_dir::register(&own)?;
        let accounting = self.accounting()?;
        let since = accounting.as_ref().and_then(|accounting| accounting.generation());
        let taken = staging.path().join(path.file_name().unwrap_or_default());
        match fs::rename(&path, &taken) {
            Err(e) if e.kind() == Io::NotFound => return Ok(false),
            other => other?,
        }
        let release =
            |bytes| accounting.iter().for_each(|accounting| accounting.release(bytes, since));
        let counted = self.file_len(chunk);
        if FileId::of(&fs::symlink_metadata(&taken)?) != seen {
            // A tier saved the chunk again between check and rename: the file is moved back, or
            // deleted where a newer one exists.
            if !quarantine::move_to_free(&taken, &path) {
                fs::remove_file(&taken)?;
                release(counted);
            }
            return Ok(false);
        }
        foreign::remove_sidecar(self.layout, &path)?;
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

    /// Counts everything.
    pub fn summary(&self) -> io::Result<Summary> {
        let mut sum = Summary::default();
        self.walk(|path, meta, named| match named {
            Some(chunk) => {
                sum.chunks += 1;
                sum.bytes += self.file_len(&chunk);
                sum.payload_bytes += chunk.len;
            }
            None => sum.unknown.push((path.to_owned(), meta.map_or(0, |m| m.len()))),
        })?;
        sum.layout = self.layout;
        if !self.own().exists() {
            return Ok(sum);
        }
        let tmp = self.own().join("tmp");
        let alive = live_names(&tmp)?;
        for staging in fs::read_dir(&tmp)? {
            let staging = staging?;
            let name = staging.file_name().to_string_lossy().into_owned();
            let drafts = fs::read_dir(staging.path()).into_iter().flatten().flatten();
            sum.unfinished += drafts.filter(|file| file.file_name() != "alive").count() as u64;
            if alive.contains(&name) { sum.living.push(name) } else { sum.dead.push(name) }
        }
        for kept in quarantine::list(&self.own())? {
            sum.quarantine_bytes += kept.bytes;
            sum.quarantine.push((
                kept.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                kept.bytes,
            ));
        }
        sum.capacity_bytes = self.capacity_bytes;
        sum.ledger_bytes = Ledger::peek(&self.own())?;
        sum.snapshot = self.own().join("snapshot").exists();
        Ok(sum)
    }

    /// All bytes that a ledger counts.
    fn count(&self) -> io::Result<u64> {
        let mut bytes = quarantine::list(&self.own())?.iter().map(|kept| kept.bytes).sum();
        data_dir::usage_scan::drafts(&self.own().join("tmp"), &mut |_, claimed| bytes += claimed)?;
        self.walk(|_, _, named| bytes += named.map_or(0, |chunk| self.file_len(&chunk)))?;
        Ok(bytes)
    }

    /// Calls `each` with every entry of every shard; with metadata only where the name is no chunk's.
    fn walk(
        &self,
        mut each: impl FnMut(&Path, Option<fs::Metadata>, Option<ChunkName>),
    ) -> io::Result<()> {
        if self.layout.is_foreign() {
            return foreign::walk(&self.root, self.layout, each);
        }
        for shard in 0..=255 {
            let entries = match fs::read_dir(name::shard(&self.root, shard)) {
                Err(e) if e.kind() == Io::NotFound => continue,
                other => other?,
            };
            for entry in entries {
                let entry = entry?;
                let named = entry.file_name().to_str().and_then(name::parse);
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
            None => name::path(&self.root, &chunk.digest, chunk.len),
        }
    }

    fn file_len(&self, chunk: &ChunkName) -> u64 {
        if self.layout.is_foreign() {
            chunk.len + self.layout.extra_bytes()
        } else {
            file_len(chunk.len)
        }
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

/// Opens a regular file, without waiting for the other end of a pipe. Returns the id of anything
/// else.
fn regular(path: &Path) -> io::Result<Result<File, FileId>> {
    use std::os::unix::fs::OpenOptionsExt;
    let there = fs::symlink_metadata(path)?;
    if !there.is_file() {
        return Ok(Err(FileId::of(&there)));
    }
    // Another file may have got the name since.
    let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOFOLLOW;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    Ok(if meta.is_file() { Ok(file) } else { Err(FileId::of(&meta)) })
}

type Footer = (Facts, Vec<u8>);

fn read_footer(file: &File, chunk: &ChunkName) -> io::Result<Result<Footer, Damage>> {
    let mut page = [0; PAGE as usize];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut page, file_len(chunk.len) - PAGE)?;
    let Ok((facts, key)) = footer::decode(&page) else { return Ok(Err(Damage::Footer)) };
    // The checksum of the facts does not cover the key's canonical form, whose digest does: else
    // its bytes would be taken for another key's.
    if !key.is_empty() && Key::digest_of(&facts.namespace, key) != facts.key {
        return Ok(Err(Damage::Footer));
    }
    Ok(Ok((facts, key.to_vec())))
}

/// Checks a file that has the right length.
fn read_and_check(
    file: &mut File,
    chunk: &ChunkName,
    each: &mut dyn FnMut(&[u8]),
) -> io::Result<Result<(), Damage>> {
    let facts = match read_footer(file, chunk)? {
        Ok((facts, _)) => facts,
        Err(damage) => return Ok(Err(damage)),
    };
    if facts.key != chunk.digest || facts.raw_len != chunk.len {
        return Ok(Err(Damage::Swapped));
    }
    let mut sums = PieceSums::new(chunk.len);
    let mut at = 0;
    let mut piece = vec![0; PIECE];
    while at < chunk.len {
        let n = (chunk.len - at).min(PIECE as u64) as usize;
        file.read_exact(&mut piece[..n])?;
        sums.piece(at, &piece[..n]);
        each(&piece[..n]);
        at += n as u64;
    }
    let padding = (file_len(chunk.len) - PAGE - chunk.len) as usize;
    file.read_exact(&mut piece[..padding])?;
    let right = sums.finish().is_some_and(|found| found == facts.sums)
        && piece[..padding].iter().all(|b| *b == 0);
    Ok(if right { Ok(()) } else { Err(Damage::Bytes) })
}
