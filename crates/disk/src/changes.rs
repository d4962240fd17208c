//! The change log that all processes over one directory share: `.kvtier/changes`.
//!
//! A name holds the chunk's length, so a process cannot ask the file system for a chunk whose length it has never met. Therefore each
//! process appends to one file what it has published and what it has deleted, after it did so, and reads what the others appended before
//! it answers that a chunk is absent. That is one `stat` for a whole lookup, however many keys it has, and no request per key.
//!
//! - A batch is a journal frame with its own checksum, appended with one `write` (`O_APPEND`), so that writers do not mix.
//! - When the file is long, a writer renames it to `changes.old` and the next append makes a new one. A writer looks after each append
//!   whether the file still has its name, and appends again if not: a reader reads the old file to its end before it goes on with the new.
//! - A reader that finds a file whose predecessor it did not read, or a batch that stays torn, has missed something: the directory is
//!   listed then.
//! - A record is only a hint. What it says is compared with the file system before the index takes it over.
//!
//! On a network mount an append would cost a round trip for each save, and other hosts see it late. There appends are collected and
//! written under the file's lock, and read, once in a tick.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind as Io, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kvtier_index::End;
use kvtier_index::journal::{self as format, Record};

use crate::history::unix_ms;
use crate::home::{DOOR_WAIT_MAX, lock_within};

/// A longer file is followed by a new one.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// How much is read at a time; more than the longest batch has.
const READ_BYTES: u64 = 2 << 20;
/// The most records that wait because they could not be appended. When there are more, the others list the directory instead.
const PENDING_MAX: usize = 4096;
/// A batch that is torn for so long is not being written any more.
const TORN_AFTER: Duration = Duration::from_secs(1);
/// How often an append is tried again because the file lost its name meanwhile.
const TRIES_MAX: u32 = 4;

/// The change log of one directory, as one tier uses it.
#[derive(Debug)]
pub struct ChangeLog {
    path: PathBuf,
    previous: PathBuf,
    /// Locks and file attributes are an affair of this machine alone.
    is_local: bool,
    writer: Mutex<Writer>,
    reader: Mutex<Reader>,
}

#[derive(Debug, Default)]
struct Writer {
    /// The file, and its inode.
    file: Option<(File, u64)>,
    pending: Vec<Record>,
    /// Records were dropped, or a batch was cut off: the file is replaced, so that readers see that they missed something.
    is_broken: bool,
}

#[derive(Debug, Default)]
struct Reader {
    /// The file that is being read, and its inode. Kept open, so that the inode is not used again.
    file: Option<(File, u64)>,
    read_to: u64,
    /// Where a torn batch was seen, and when first.
    torn: Option<(u64, Instant)>,
}

/// What reading the log came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// How many records were applied.
    pub records: usize,
    /// Something was missed: only a listing of the directory tells what.
    pub missed: bool,
    /// There is more than was to be read; nothing was.
    pub is_more: bool,
}

impl ChangeLog {
    /// The log below `.kvtier`, read from its present end on.
    pub fn open(own: &Path, is_local: bool) -> Self {
        let path = own.join("changes");
        let mut reader = Reader::default();
        if let Ok(file) = File::open(&path)
            && let Ok(meta) = file.metadata()
        {
            reader = Reader { file: Some((file, meta.ino())), read_to: meta.len(), torn: None };
        }
        let previous = own.join("changes.old");
        ChangeLog { path, previous, is_local, writer: Mutex::default(), reader: Mutex::new(reader) }
    }

    /// Whether what another process appended is seen at once.
    pub fn is_prompt(&self) -> bool {
        self.is_local
    }

    /// Appends what this process has just done. What cannot be appended now is with the next [`flush`](Self::flush).
    pub fn append(&self, record: Record) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if writer.pending.len() < PENDING_MAX {
            writer.pending.push(record);
        } else {
            writer.is_broken = true;
        }
        if self.is_local {
            // `flush` reports a failure.
            let _ = self.write(&mut writer);
        }
    }

    /// Appends what waits.
    ///
    /// # Errors
    /// The medium's; what waits stays.
    pub fn flush(&self) -> io::Result<()> {
        self.write(&mut self.writer.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls `apply` with what others appended since the last call, and this process too if others did. Callers wait for one another, so that each returns
    /// when everything appended before its call was applied. Where more than `bytes_max` bytes are new, nothing is read.
    ///
    /// # Errors
    /// The medium's; what was not read is read by the next call.
    pub fn follow(&self, bytes_max: u64, mut apply: impl FnMut(&Record)) -> io::Result<Followed> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let mut followed = Followed::default();
        let Some((inode, len)) = self.current()? else { return Ok(followed) };
        let is_same = reader.file.as_ref().is_some_and(|(_, ours)| *ours == inode);
        let backlog = match &reader.file {
            // Of a file that was given up, nobody knows how much is left.
            Some(_) if !is_same => FILE_BYTES_MAX,
            _ => len.saturating_sub(reader.read_to),
        };
        if backlog > bytes_max {
            followed.is_more = true;
            return Ok(followed);
        }
        if !is_same {
            if reader.file.is_some() {
                reader.drain(u64::MAX, &mut followed, &mut apply)?;
            }
            let before = reader.file.as_ref().map(|(_, inode)| *inode);
            followed.missed |= inode_of(&self.previous)? != before;
            let Some(file) = found(File::open(&self.path))? else { return Ok(followed) };
            let inode = file.metadata()?.ino();
            *reader = Reader { file: Some((file, inode)), ..Reader::default() };
            reader.drain(u64::MAX, &mut followed, &mut apply)?;
        } else if len > reader.read_to {
            reader.drain(len, &mut followed, &mut apply)?;
        } else if len < reader.read_to {
            // Nobody cuts it short but somebody from outside.
            (reader.read_to, followed.missed) = (len, true);
        }
        Ok(followed)
    }

    /// Inode and length of the file that has the name now. Where other hosts write, opening it asks the server.
    fn current(&self) -> io::Result<Option<(u64, u64)>> {
        let meta = if self.is_local {
            fs::metadata(&self.path)
        } else {
            File::open(&self.path).and_then(|file| file.metadata())
        };
        Ok(found(meta)?.map(|meta| (meta.ino(), meta.len())))
    }

    fn write(&self, writer: &mut Writer) -> io::Result<()> {
        for _ in 0..TRIES_MAX {
            if writer.is_broken {
                self.replace(writer)?;
            }
            if writer.pending.is_empty() {
                return Ok(());
            }
            let (file, ours) = match writer.file.take() {
                Some(file) => file,
                None => {
                    let file = OpenOptions::new().append(true).create(true).open(&self.path)?;
                    let inode = file.metadata()?.ino();
                    (file, inode)
                }
            };
            let bytes = self.append_to(&file, writer)?;
            // Without its name, the file may have been read to its end already: once more, into its successor.
            let there = found(fs::metadata(&self.path))?.filter(|there| there.ino() == ours);
            let Some(there) = there else { continue };
            writer.pending.clear();
            self.pass_over_own(ours, bytes, there.len());
            if there.len() > FILE_BYTES_MAX {
                return self.rotate(&file, ours);
            }
            writer.file = Some((file, ours));
            return Ok(());
        }
        Ok(())
    }

    /// Answers the bytes appended.
    fn append_to(&self, mut file: &File, writer: &mut Writer) -> io::Result<u64> {
        let mut bytes = Vec::new();
        format::encode(unix_ms(), &writer.pending, &mut bytes);
        if !self.is_local {
            lock_within(file, DOOR_WAIT_MAX)?;
        }
        let written = file.write(&bytes);
        if !self.is_local {
            file.unlock()?;
        }
        match written {
            Ok(n) if n < bytes.len() => {
                writer.is_broken = true;
                Err(io::Error::new(Io::WriteZero, "the file system took a part of a batch only"))
            }
            other => other.map(|n| n as u64),
        }
    }

    /// What this process appended itself it need not read, if nobody else appended between.
    fn pass_over_own(&self, inode: u64, bytes: u64, len: u64) {
        let Ok(mut reader) = self.reader.try_lock() else { return };
        if reader.file.as_ref().is_some_and(|(_, ours)| *ours == inode) && reader.read_to + bytes == len {
            reader.read_to = len;
        }
    }

    /// Begins a new file, and keeps this one for those who have not read it to its end. Somebody else may do so at this moment.
    fn rotate(&self, file: &File, inode: u64) -> io::Result<()> {
        if file.try_lock().is_err() {
            return Ok(());
        }
        let named = inode_of(&self.path)?;
        let renamed = if named == Some(inode) { fs::rename(&self.path, &self.previous) } else { Ok(()) };
        // Unlocked, not only closed: a child that this process forked has the file open too.
        file.unlock()?;
        renamed
    }

    /// Removes both files: whoever read them finds a file whose predecessor it does not know.
    fn replace(&self, writer: &mut Writer) -> io::Result<()> {
        writer.file = None;
        for path in [&self.previous, &self.path] {
            found(fs::remove_file(path))?;
        }
        // An empty file would do, but there must be one: without it readers stay with the old.
        OpenOptions::new().append(true).create(true).open(&self.path)?;
        writer.is_broken = false;
        Ok(())
    }
}

impl Reader {
    /// Reads up to `end`, or to the end of the file.
    fn drain(&mut self, end: u64, followed: &mut Followed, apply: &mut impl FnMut(&Record)) -> io::Result<()> {
        let Some((file, _)) = &self.file else { return Ok(()) };
        let mut buffer = Vec::new();
        while self.read_to < end {
            buffer.resize(end.saturating_sub(self.read_to).min(READ_BYTES) as usize, 0);
            let read = file.read_at(&mut buffer, self.read_to)?;
            if read == 0 {
                return Ok(());
            }
            let mut batches = format::decode(&buffer[..read]);
            for batch in batches.by_ref() {
                batch.records.iter().for_each(&mut *apply);
                followed.records += batch.records.len();
            }
            let at = match batches.end() {
                Some(End::Torn { at } | End::Version { at, .. }) => at,
                _ => read,
            } as u64;
            self.read_to += at;
            if at > 0 {
                self.torn = None;
                continue;
            }
            // Being written at this moment, or cut off for ever.
            match self.torn {
                Some((torn, since)) if torn == self.read_to && since.elapsed() > TORN_AFTER => {
                    self.read_to += read as u64;
                    self.torn = None;
                    followed.missed = true;
                }
                Some((torn, _)) if torn == self.read_to => return Ok(()),
                _ => {
                    self.torn = Some((self.read_to, Instant::now()));
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

fn inode_of(path: &Path) -> io::Result<Option<u64>> {
    Ok(found(fs::metadata(path))?.map(|meta| meta.ino()))
}

/// `None` where there is nothing.
fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(e) if e.kind() == Io::NotFound => Ok(None),
        other => other.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use kvtier_index::Chunk;
    use kvtier_key::Digest;

    use super::*;

    fn record(n: u64) -> Record {
        Record::Insert(Chunk::new(Digest::of("test", &n.to_le_bytes()), n + 1, 8192))
    }

    /// All records that are new, and whether something was missed.
    fn read(log: &ChangeLog) -> (Vec<Record>, bool) {
        let mut records = Vec::new();
        let followed = log.follow(u64::MAX, |record| records.push(*record)).unwrap();
        assert_eq!((followed.records, followed.is_more), (records.len(), false));
        (records, followed.missed)
    }

    #[test]
    fn what_one_appends_the_other_reads_once() {
        for is_local in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let logs = [(); 2].map(|()| ChangeLog::open(dir.path(), is_local));
            logs[0].append(record(1));
            logs[1].append(Record::Remove(Digest::of("test", b"x")));
            logs.iter().for_each(|log| log.flush().unwrap());
            logs[1].append(record(2));
            logs[1].flush().unwrap();
            for log in &logs {
                assert!(log.follow(100, |_| panic!("it is more")).unwrap().is_more);
                let (records, missed) = read(log);
                assert!(records.len() == 3 && records.contains(&record(1)) && !missed, "{records:?}");
                assert!(!log.follow(0, |_| panic!("it was read")).unwrap().is_more);
            }
            logs[0].append(record(3));
            logs[0].flush().unwrap();
            assert_eq!(logs.each_ref().map(|log| read(log).0), [vec![], vec![record(3)]], "its own it knows");
            let late = ChangeLog::open(dir.path(), is_local);
            assert_eq!(read(&late).0, [], "what was there before is listed");
        }
    }

    #[test]
    fn nothing_is_missed_when_a_long_file_is_followed_by_another() {
        let dir = tempfile::tempdir().unwrap();
        let (writer, other, reader) =
            (ChangeLog::open(dir.path(), true), ChangeLog::open(dir.path(), true), ChangeLog::open(dir.path(), true));
        let (mut read_back, mut written, mut files) = (Vec::new(), Vec::new(), Vec::new());
        let mut n = 0;
        while files.len() < 3 {
            for log in [&writer, &other] {
                log.append(record(n));
                written.push(record(n));
                n += 1;
            }
            let inode = inode_of(&dir.path().join("changes")).unwrap();
            if inode.is_some() && files.last() != Some(&inode) {
                files.push(inode);
            }
            if n % 1000 == 0 {
                let (records, missed) = read(&reader);
                assert!(!missed);
                read_back.extend(records);
            }
        }
        read_back.extend(read(&reader).0);
        // A record may be there twice; none may be lost.
        read_back.dedup();
        assert_eq!(read_back.len(), written.len());
        assert_eq!(read_back, written);
        assert!(dir.path().join("changes").metadata().unwrap().len() <= FILE_BYTES_MAX + 4096);
    }

    #[test]
    fn who_missed_a_whole_file_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (writer, reader) = (ChangeLog::open(dir.path(), true), ChangeLog::open(dir.path(), true));
        writer.append(record(0));
        assert_eq!(read(&reader), (vec![record(0)], false));
        for n in 1..3 {
            let file = File::open(dir.path().join("changes")).unwrap();
            writer.rotate(&file, file.metadata().unwrap().ino()).unwrap();
            writer.append(record(n));
        }
        // The writer had the first file open still, and writes such a record again.
        assert_eq!(read(&reader), (vec![record(1), record(2)], true));
        assert_eq!(read(&reader), (vec![], false));
        writer.writer.lock().unwrap().is_broken = true;
        writer.append(record(3));
        assert_eq!(read(&reader), (vec![record(3)], true));
        fs::remove_dir_all(dir.path()).unwrap();
        writer.append(record(4));
        assert_eq!((writer.flush().unwrap_err().kind(), read(&reader)), (Io::NotFound, (vec![], false)));
        fs::create_dir(dir.path()).unwrap();
        writer.flush().unwrap();
        let (mut records, missed) = read(&reader);
        records.dedup();
        assert_eq!((records, missed), (vec![record(4)], true));
    }

    #[test]
    fn a_batch_that_stays_torn_is_passed_over_and_said_to_be_missed() {
        let dir = tempfile::tempdir().unwrap();
        let (writer, reader) = (ChangeLog::open(dir.path(), true), ChangeLog::open(dir.path(), true));
        writer.append(record(0));
        let mut file = OpenOptions::new().append(true).open(dir.path().join("changes")).unwrap();
        file.write_all(b"KVTJ and no more").unwrap();
        assert_eq!(read(&reader), (vec![record(0)], false), "it may be being written");
        let late = Instant::now() + Duration::from_secs(120);
        while !read(&reader).1 {
            assert!(Instant::now() < late, "nobody says that it is missed");
            std::thread::sleep(Duration::from_millis(10));
        }
        writer.append(record(1));
        assert_eq!(read(&reader), (vec![record(1)], false));
    }
}
