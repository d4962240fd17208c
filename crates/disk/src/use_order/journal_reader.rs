use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind as Io, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use kvtier_index::ReadEnd;
use kvtier_index::journal::{self as format, Record, RecordBatch};

use crate::data_dir::internal_files;

/// The most bytes of one journal that are read at a time: more than a journal has.
const BYTES_MAX: u64 = 64 << 20;

/// Reads the journals of all processes, each from where it stopped.
#[derive(Debug)]
pub struct Reader {
    dir: PathBuf,
    /// The snapshot's time. Older batches are in the snapshot, except those whose writer saw it: its
    /// clock may have been ahead. 0 once all journals were read, since later batches are in no
    /// snapshot.
    from_ms: u64,
    read: BTreeMap<String, ReadProgress>,
    /// Journals with a torn end that were reported.
    torn: BTreeSet<String>,
    /// Journals that could not be read at the last try, and were reported. Only their batches after
    /// this point are still of use: the order of use has newer ones.
    unreadable: BTreeMap<String, Since>,
    /// What could not be read, since it was last taken.
    damage: Vec<String>,
}

/// How far a journal was read.
#[derive(Clone, Copy, Debug, Default)]
struct ReadProgress {
    /// It was intact up to here.
    to: u64,
    /// Its length then.
    len: u64,
    /// Its process had begun the next journal, and does not write to this one any more.
    is_complete: bool,
    /// The rest could not be read for a temporary reason: the journal is kept for another try.
    is_awaited: bool,
}

/// A point in the order of use.
#[derive(Clone, Copy, Debug, Default)]
struct Since {
    at_ms: u64,
    /// The mark of the snapshot that was taken then, if one was.
    mark: Option<u32>,
}

impl Since {
    fn is_before(&self, batch: &RecordBatch) -> bool {
        batch.at_ms > self.at_ms || (batch.follows != 0 && Some(batch.follows) == self.mark)
    }
}

impl Reader {
    /// Reads what is not in the snapshot that was taken at `from_ms`.
    pub fn new(own: &Path, from_ms: u64) -> Self {
        let read = BTreeMap::new();
        let torn = BTreeSet::new();
        let unreadable = BTreeMap::new();
        let damage = Vec::new();
        Reader { dir: own.join("journal"), from_ms, read, torn, unreadable, damage }
    }

    /// The records written since the last call, in order of time, except those of the process `but`,
    /// which has its own.
    pub fn read(&mut self, but: Option<&str>) -> io::Result<Vec<Record>> {
        Ok(self.batches(but)?.into_iter().flat_map(|batch| batch.records).collect())
    }

    /// The same, in the batches that were written together, each with its time. A journal that
    /// cannot be read costs what it has, and is tried again.
    pub fn batches(&mut self, but: Option<&str>) -> io::Result<Vec<RecordBatch>> {
        let mut batches = Vec::new();
        // Sorted by owner and number, which is the order of writing for each process.
        let names = names(&self.dir)?;
        self.read.retain(|name, _| names.contains(name));
        self.torn.retain(|name| names.contains(name));
        self.unreadable.retain(|name, _| names.contains(name));
        let mut failed = BTreeSet::new();
        // The batches of one process stay in the order of writing, even if its clock was set back.
        // The key by which batches are sorted: those that follow the snapshot come after the
        // others, and then the time decides.
        let mut last = (String::new(), (false, 0));
        for (n, name) in names.iter().enumerate() {
            if last.0 != owner(name) {
                last = (owner(name).to_owned(), (false, 0));
            }
            if but.is_some_and(|but| owner(name) == but) {
                continue;
            }
            // Checked before it is read: then nothing follows what is read.
            let is_complete = names.get(n + 1).is_some_and(|next| owner(next) == owner(name));
            let read = self.read_one(name);
            match read.or_else(|e| {
                if internal_files::is_unreadable(&e) { self.read_one(name) } else { Err(e) }
            }) {
                Ok(more) => {
                    self.unreadable.remove(name);
                    batches.extend(more.into_iter().map(|batch| {
                        last.1 = last.1.max((self.follows(&batch), batch.at_ms));
                        (last.1, batch)
                    }));
                    self.read.entry(name.clone()).or_default().is_complete = is_complete;
                }
                Err(e) if e.kind() == Io::NotFound => {}
                Err(e) => {
                    self.note_unreadable(name, &e);
                    failed.insert(name);
                }
            }
        }
        // Their batches until now would be entered after newer ones.
        let newest = batches.iter().map(|(_, batch)| batch.at_ms).max().unwrap_or(0);
        for (_, since) in self.unreadable.iter_mut().filter(|(name, _)| failed.contains(name)) {
            since.at_ms = since.at_ms.max(newest).max(self.from_ms);
        }
        self.from_ms = 0;
        batches.sort_by_key(|(order, _)| *order);
        Ok(batches.into_iter().map(|(_, batch)| batch).collect())
    }

    /// Whether the batch's writer had seen the snapshot.
    fn follows(&self, batch: &RecordBatch) -> bool {
        batch.follows != 0 && batch.follows == format::snapshot_mark(self.from_ms)
    }

    /// The new batches of one journal, as far as it is intact.
    fn read_one(&mut self, name: &str) -> io::Result<Vec<RecordBatch>> {
        let mut file = internal_files::open_to_read(&self.dir.join(name))?;
        let mut bytes = Vec::new();
        // Journals only grow: what was read before is not read again.
        let from = self.read.get(name).map_or(0, |read| read.to);
        file.seek(SeekFrom::Start(from))?;
        file.take(BYTES_MAX).read_to_end(&mut bytes)?;
        let mut journal = format::decode(&bytes);
        let is_new = |batch: &RecordBatch| match self.unreadable.get(name) {
            Some(since) => since.is_before(batch),
            None => batch.at_ms > self.from_ms || self.follows(batch),
        };
        let batches = journal.by_ref().filter(is_new).collect();
        let read = match journal.end() {
            Some(ReadEnd::Torn { at } | ReadEnd::Version { at, .. }) => {
                if self.torn.insert(name.to_owned()) {
                    let left = bytes.len() - at;
                    self.damage.push(format!(
                        "{left} bytes at the end of the journal {name} are not whole: its process was killed while it wrote, or they are damaged"
                    ));
                }
                at
            }
            _ => bytes.len(),
        };
        let to = from + read as u64;
        let len = from + bytes.len() as u64;
        self.read.insert(name.to_owned(), ReadProgress { to, len, ..ReadProgress::default() });
        Ok(batches)
    }

    /// Notes a journal that cannot be read: it counts as unread only as far as it grows. One that no
    /// try can read is deleted when its process is dead.
    fn note_unreadable(&mut self, name: &str, e: &io::Error) {
        if !self.unreadable.contains_key(name) {
            self.unreadable.insert(name.to_owned(), Since::default());
            self.damage.push(format!("the journal {name} cannot be read: {e}"));
        }
        let read = self.read.entry(name.to_owned()).or_default();
        read.len = fs::symlink_metadata(self.dir.join(name)).map_or(read.len, |meta| meta.len());
        read.is_complete = false;
        read.is_awaited = !(internal_files::is_unreadable(e) || internal_files::is_not_a_file(e));
    }

    /// Notes a snapshot, taken at `at_ms`, of all that was read until now. Of a journal that could not
    /// be read, only later batches are of use.
    pub fn merged(&mut self, at_ms: u64) {
        let since = Since { at_ms, mark: Some(format::snapshot_mark(at_ms)) };
        self.unreadable.values_mut().for_each(|known| *known = since);
    }

    /// Takes the damage found since the last call.
    pub fn take_damage(&mut self) -> Vec<String> {
        std::mem::take(&mut self.damage)
    }

    /// Bytes that were written since they were read last; not those of the process `but`.
    pub fn unread_bytes(&self, but: &str) -> io::Result<u64> {
        let names = names(&self.dir)?.into_iter().filter(|name| owner(name) != but);
        let unread = names.map(|name| {
            // It may be gone by now.
            let len = fs::symlink_metadata(self.dir.join(&name)).map_or(0, |meta| meta.len());
            len.saturating_sub(self.read.get(&name).map_or(0, |read| read.len))
        });
        Ok(unread.sum())
    }

    /// Deletes journals that a new snapshot made obsolete: those of dead processes, those that were
    /// complete when they were read, and those of the process `own` before the number `before`.
    pub fn forget(&mut self, living: &BTreeSet<String>, own: &str, before: u64) -> io::Result<()> {
        let mut done = Ok(());
        for name in names(&self.dir)? {
            let is_old = owner(&name) == own && number(&name).is_none_or(|number| number < before);
            let is_over = |read: &ReadProgress| {
                !read.is_awaited && (read.is_complete || !living.contains(owner(&name)))
            };
            if is_old || self.read.get(&name).is_some_and(is_over) {
                match kvtier_os::remove_file(self.dir.join(&name)) {
                    // A process deletes its oldest file itself where no snapshot is written.
                    Err(e) if e.kind() == Io::NotFound => {}
                    // The others are deleted all the same.
                    other => done = done.and(other),
                }
            }
        }
        done
    }

    /// How many journals of other processes were read.
    pub fn others(&self) -> usize {
        self.read.len()
    }
}

/// The names of all journals: those of one process in the order in which it wrote them.
pub fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match kvtier_os::read_dir(dir) {
        // A read-only directory may have no journals, or something else in their place.
        Err(e) if matches!(e.kind(), Io::NotFound | Io::NotADirectory) => return Ok(Vec::new()),
        other => other?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort_unstable_by(|a, b| (owner(a), number(a)).cmp(&(owner(b), number(b))));
    Ok(names)
}

/// The staging directory of the journal's process.
fn owner(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(owner, _)| owner)
}

fn number(name: &str) -> Option<u64> {
    name.rsplit_once('.')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use kvtier_key::Digest;

    use super::*;

    #[test]
    fn a_journal_that_cannot_be_read_is_reported_once_and_not_waited_for() {
        let own = tempfile::tempdir().unwrap();
        let journal = own.path().join("journal");
        fs::create_dir(&journal).unwrap();
        // It cannot be opened, and has a length.
        std::os::unix::fs::symlink(
            "a name that is the length of the link",
            journal.join("a.1.0.0.1"),
        )
        .unwrap();
        let mut reader = Reader::new(own.path(), 0);
        assert!(reader.unread_bytes("b.1.0.0").unwrap() > 0);
        for reports in [1, 0, 0] {
            assert!(reader.read(None).unwrap().is_empty());
            assert_eq!(
                (reader.unread_bytes("b.1.0.0").unwrap(), reader.take_damage().len()),
                (0, reports)
            );
        }
        let exists = || journal.join("a.1.0.0.1").is_symlink();
        reader.forget(&["a.1.0.0".to_owned()].into(), "b.1.0.0", 1).unwrap();
        assert!(exists(), "its process lives");
        reader.note_unreadable("a.1.0.0.1", &io::Error::from_raw_os_error(nix::libc::ESTALE));
        reader.forget(&BTreeSet::new(), "b.1.0.0", 1).unwrap();
        assert!(exists(), "another try may read it");
        reader.read(None).unwrap();
        reader.forget(&BTreeSet::new(), "b.1.0.0", 1).unwrap();
        assert!(!exists());
        // One that can be read again is read.
        fs::write(journal.join("c.1.0.0.1"), "").unwrap();
        reader.note_unreadable("c.1.0.0.1", &io::Error::from_raw_os_error(nix::libc::EIO));
        let mut bytes = Vec::new();
        format::encode_after(0, 1, &[Record::Touch(Digest([1; 32]))], &mut bytes);
        fs::write(journal.join("c.1.0.0.1"), bytes).unwrap();
        assert!(reader.unread_bytes("b.1.0.0").unwrap() > 0);
        assert_eq!(reader.read(None).unwrap().len(), 1);
    }

    #[test]
    fn what_was_read_is_not_unread_even_where_its_end_is_torn() {
        let own = tempfile::tempdir().unwrap();
        let journal = own.path().join("journal");
        fs::create_dir(&journal).unwrap();
        let mut bytes = Vec::new();
        format::encode_after(0, 1, &[Record::Touch(Digest([1; 32]))], &mut bytes);
        let len = bytes.len();
        fs::write(journal.join("a.1.0.0.1"), &bytes).unwrap();
        bytes.extend_from_within(..len - 1);
        fs::write(journal.join("c.1.0.0.1"), &bytes).unwrap();
        let mut reader = Reader::new(own.path(), 0);
        let unread = |reader: &Reader| reader.unread_bytes("b.1.0.0").unwrap();
        assert_eq!(unread(&reader), (3 * len - 1) as u64);
        assert_eq!(reader.read(None).unwrap().len(), 2);
        assert_eq!(unread(&reader), 0);
        bytes.extend_from_slice(&[0; 5]);
        fs::write(journal.join("c.1.0.0.1"), &bytes).unwrap();
        assert_eq!(unread(&reader), 5);
    }

    #[test]
    fn the_earlier_journals_of_one_who_lives_are_deleted() {
        let own = tempfile::tempdir().unwrap();
        let journal = own.path().join("journal");
        fs::create_dir(&journal).unwrap();
        for name in ["a.1.0.0.1", "b.1.0.0.1", "b.1.0.0.2", "b.1.0.0.10", "b.1.0.0.11"] {
            fs::write(journal.join(name), "").unwrap();
        }
        let living = ["a.1.0.0", "b.1.0.0"].map(str::to_owned).into();
        Reader::new(own.path(), 0).forget(&living, "b.1.0.0", 10).unwrap();
        assert_eq!(names(&journal).unwrap(), ["a.1.0.0.1", "b.1.0.0.10", "b.1.0.0.11"]);
    }

    #[test]
    fn a_journal_read_late_does_not_undo_newer_uses() {
        let own = tempfile::tempdir().unwrap();
        let journal = own.path().join("journal");
        fs::create_dir(&journal).unwrap();
        let touch = |n: u8| Record::Touch(Digest([n; 32]));
        let add = |name: &str, batches: &[(u64, u64, u8)]| {
            let mut bytes = fs::read(journal.join(name)).unwrap_or_default();
            for (snapshot_ms, at_ms, n) in batches {
                let follows =
                    if *snapshot_ms == 0 { 0 } else { format::snapshot_mark(*snapshot_ms) };
                format::encode_after(follows, *at_ms, &[touch(*n)], &mut bytes);
            }
            fs::write(journal.join(name), bytes).unwrap();
        };
        let hide = |name: &str| {
            fs::rename(journal.join(name), own.path().join(name)).unwrap();
            std::os::unix::fs::symlink("nowhere", journal.join(name)).unwrap();
        };
        let show = |name: &str| fs::rename(own.path().join(name), journal.join(name)).unwrap();
        // Before the snapshot, since it, and since the newest that is known.
        add("a.1.0.0.1", &[(0, 400, 1), (0, 600, 2), (0, 800, 3)]);
        hide("a.1.0.0.1");
        add("b.1.0.0.1", &[(0, 700, 4)]);
        let mut reader = Reader::new(own.path(), 500);
        assert_eq!(reader.read(None).unwrap(), [touch(4)]);
        show("a.1.0.0.1");
        assert_eq!(reader.read(None).unwrap(), [touch(3)]);
        // A snapshot is taken while one cannot be read, by a clock that is ahead of the writer's.
        add("a.1.0.0.1", &[(0, 900, 5)]);
        hide("a.1.0.0.1");
        assert!(reader.read(None).unwrap().is_empty());
        reader.merged(1000);
        show("a.1.0.0.1");
        add("a.1.0.0.1", &[(0, 990, 6), (1000, 995, 7), (1000, 1005, 8)]);
        assert_eq!(reader.read(None).unwrap(), [touch(7), touch(8)]);
        // From then on it is read as any other.
        add("a.1.0.0.1", &[(0, 980, 9)]);
        assert_eq!(reader.read(None).unwrap(), [touch(9)]);
        assert_eq!(reader.others(), 2);
    }

    #[test]
    fn what_follows_a_snapshot_is_read_whatever_the_clocks_said() {
        let own = tempfile::tempdir().unwrap();
        fs::create_dir(own.path().join("journal")).unwrap();
        let touch = |n: u8| Record::Touch(Digest([n; 32]));
        let write = |name: &str, batches: &[(u64, u64, u8)]| {
            let mut bytes = Vec::new();
            for (snapshot_ms, at_ms, n) in batches {
                format::encode_after(
                    format::snapshot_mark(*snapshot_ms),
                    *at_ms,
                    &[touch(*n)],
                    &mut bytes,
                );
            }
            fs::write(own.path().join("journal").join(name), bytes).unwrap();
        };
        // The snapshot's clock was ahead by a day, and was set right after a batch that follows it.
        let now = 1_790_000_000_000;
        let ahead = 1_790_086_400_000;
        write("a.1.0.0.9", &[(0, now - 9, 1), (ahead, ahead + 5, 2)]);
        write("a.1.0.0.10", &[(ahead, now + 5, 3)]);
        // Of another process: one that it wrote before, and one after.
        write("b.1.0.0.1", &[(7, now + 1, 4), (ahead, now + 3, 5)]);
        let mut reader = Reader::new(own.path(), ahead);
        assert_eq!(reader.read(None).unwrap(), [touch(5), touch(2), touch(3)]);
        assert_eq!(Reader::new(own.path(), 0).read(None).unwrap().len(), 5);
        // What is written from now on is in no snapshot, and comes once.
        write("c.1.0.0.1", &[(now, now + 9, 6)]);
        assert_eq!(
            (reader.read(None).unwrap(), reader.read(None).unwrap()),
            (vec![touch(6)], vec![])
        );
    }

    #[test]
    fn a_batch_is_of_use_if_it_is_newer_or_follows_the_snapshot() {
        let is_before = |since_ms, mark, at_ms, follows| {
            let mut bytes = Vec::new();
            format::encode_after(follows, at_ms, &[Record::Touch(Digest([1; 32]))], &mut bytes);
            let batch = format::decode(&bytes).next().unwrap();
            Since { at_ms: since_ms, mark }.is_before(&batch)
        };
        assert_eq!([9, 10, 11].map(|at_ms| is_before(10, None, at_ms, 0)), [false, false, true]);
        assert_eq!(
            [6, 7, 8].map(|follows| is_before(10, Some(7), 1, follows)),
            [false, true, false]
        );
        assert!(!is_before(10, None, 1, 7));
        assert!(!is_before(10, Some(0), 1, 0), "it follows none");
        assert!(is_before(10, Some(7), 11, 8));
    }

    #[test]
    fn of_one_who_lives_only_complete_journals_are_over() {
        let own = tempfile::tempdir().unwrap();
        let journal = own.path().join("journal");
        fs::create_dir(&journal).unwrap();
        let touch = |n: u8| Record::Touch(Digest([n; 32]));
        let files = ["a.1.0.0.1", "c.1.0.0.1", "c.1.0.0.2", "d.1.0.0.1"];
        for (name, n) in files.iter().zip(1..) {
            let mut bytes = Vec::new();
            format::encode_after(0, u64::from(n), &[touch(n)], &mut bytes);
            fs::write(journal.join(name), bytes).unwrap();
        }
        let mut reader = Reader::new(own.path(), 0);
        let read = reader.read(Some("a.1.0.0")).unwrap();
        assert_eq!(read, [touch(2), touch(3), touch(4)], "all but its own");
        assert_eq!(reader.others(), 3);
        let living = ["a.1.0.0", "c.1.0.0"].map(str::to_owned).into();
        reader.forget(&living, "a.1.0.0", 1).unwrap();
        assert_eq!(names(&journal).unwrap(), ["a.1.0.0.1", "c.1.0.0.2"]);
    }

    #[test]
    fn a_batch_whose_end_was_not_yet_written_is_read_when_it_is() {
        let own = tempfile::tempdir().unwrap();
        let path = own.path().join("journal/c.1.0.0.1");
        fs::create_dir(path.parent().unwrap()).unwrap();
        let touch = |n: u8| Record::Touch(Digest([n; 32]));
        let mut bytes = Vec::new();
        for n in [1, 2] {
            format::encode_after(0, u64::from(n), &[touch(n)], &mut bytes);
        }
        let mut reader = Reader::new(own.path(), 0);
        fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        assert_eq!(reader.read(None).unwrap(), [touch(1)]);
        let damage = reader.take_damage();
        let left = bytes.len() / 2 - 3;
        assert!(damage.len() == 1 && damage[0].starts_with(&format!("{left} bytes")), "{damage:?}");
        fs::write(&path, &bytes).unwrap();
        assert_eq!(reader.read(None).unwrap(), [touch(2)]);
        assert!(reader.take_damage().is_empty());
    }

    #[test]
    fn a_directory_without_journals_has_none_and_one_that_cannot_be_read_is_an_error() {
        let own = tempfile::tempdir().unwrap();
        fs::write(own.path().join("journal"), "").unwrap();
        for dir in ["journal", "absent"] {
            assert!(names(&own.path().join(dir)).unwrap().is_empty(), "{dir}");
        }
        assert!(names(&own.path().join("x".repeat(300))).is_err());
    }
}
