//! Counts the bytes in a directory while peers change it.

use std::collections::{HashMap, HashSet};
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind as Io};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use kvtier_key::Digest;

use super::listing::Listed;
use super::{DataDir, liveness, staging};
use crate::chunk_file_name;

/// The most passes over the directory.
const PASSES_MAX: usize = 8;

/// The result of a count.
#[derive(Debug, Default)]
pub struct ByteCount {
    /// Bytes of unfinished files, of files with names, and of the quarantine.
    pub bytes: u64,
    /// The chunks seen by name; empty in a foreign layout.
    pub chunks: Vec<CountedChunk>,
}

/// A chunk as a count saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CountedChunk {
    pub digest: Digest,
    /// Payload length by the name.
    pub len: u64,
    /// What was counted for its file.
    pub bytes: u64,
}

/// Files by their inodes: a renamed file is the same file, and is counted once.
#[derive(Debug, Default)]
pub struct SeenFiles {
    inodes: HashSet<u64>,
    /// How many more names each file has than one, where it has several.
    more_names: HashMap<u64, u64>,
    /// How many names each file has in this pass.
    in_this_pass: HashMap<u64, u64>,
    bytes: u64,
}

/// A name of a file, as a pass found it.
#[derive(Clone, Copy, Debug)]
struct Name {
    inode: u64,
    /// What the ledger counts for it.
    bytes: u64,
}

impl SeenFiles {
    fn begin_pass(&mut self) {
        self.in_this_pass.clear();
    }

    /// Counts a file, unless its inode was seen before.
    pub fn file(&mut self, inode: u64, bytes: u64) {
        if self.inodes.insert(inode) {
            self.bytes += bytes;
        }
    }

    /// Counts a file by one of its names. A crash of the machine may leave a file under its old and
    /// its new name: each is counted, since each is released when it is deleted. A file that moved
    /// during the pass shows under two names too, and has one.
    fn name(&mut self, name: Name, has_several_names: impl FnOnce() -> bool) {
        self.file(name.inode, name.bytes);
        let names = self.in_this_pass.entry(name.inode).or_default();
        if *names == 0 || has_several_names() {
            *names += 1;
        }
        let more = *names - 1;
        if more == 0 {
            return;
        }
        let known = self.more_names.entry(name.inode).or_default();
        if more > *known {
            *known = more;
            self.bytes += name.bytes;
        }
    }
}

impl DataDir {
    /// Counts the bytes of all files once; a file that is renamed meanwhile may be missed.
    pub fn count_once(&self) -> io::Result<u64> {
        self.until_measured(|| {
            let mut seen = SeenFiles::default();
            self.pass(&mut seen, &mut ByteCount::default())?;
            Ok(seen.bytes)
        })
    }

    /// Counts the bytes of all files, and misses none. The caller holds the ledger's lock, and no
    /// thread of this process moves files.
    pub fn count(&self) -> io::Result<ByteCount> {
        self.until_measured(|| {
            let mut counted = ByteCount::default();
            counted.bytes = count(|| self.peers(), |seen| self.pass(seen, &mut counted))?;
            Ok(counted)
        })
    }

    /// Counts, and counts again if a peer began to encode meanwhile: then names do not show the
    /// lengths of files any more.
    fn until_measured<T>(&self, count: impl Fn() -> io::Result<T>) -> io::Result<T> {
        let was_measured = self.look_for_encoded();
        let counted = count()?;
        if was_measured || !self.look_for_encoded() { Ok(counted) } else { count() }
    }

    fn peers(&self) -> io::Result<Peers> {
        let tmp = self.own().join("tmp");
        // Each process makes a directory in there when it comes, and removes it when it goes.
        // The time is read before the names: a process that comes in between changes one of them.
        let meta = fs::metadata(&tmp)?;
        let any = liveness::live_names(&tmp)?.len() > usize::from(self.has_staging_dir());
        Ok(Peers { any, last_change: (meta.mtime(), meta.mtime_nsec()) })
    }

    /// Unfinished files first: one that is published meanwhile is seen before it moves.
    fn pass(&self, seen: &mut SeenFiles, counted: &mut ByteCount) -> io::Result<()> {
        seen.begin_pass();
        drafts(&self.own().join("tmp"), &mut |bytes, meta| {
            seen.name(Name { inode: meta.ino(), bytes }, || has_several_names(meta));
        })?;
        match self.foreign() {
            None => self.list(|listed| {
                let Listed { digest, len, bytes, inode } = listed;
                seen.name(Name { inode, bytes }, || self.has_several_names(&listed));
                counted.chunks.push(CountedChunk { digest, len, bytes });
            })?,
            Some(foreign) => self.foreign_names(|name| {
                let at = || fs::symlink_metadata(self.root().join(name)).ok();
                // Whatever namespace it has: that may be unknown yet.
                if foreign.layout.key_of(name).is_none() {
                    let lone = foreign.lone_sidecar(self.root(), name);
                    lone.into_iter().for_each(|meta| seen.file(meta.ino(), meta.len()));
                // Deleted meanwhile, or not a file.
                } else if let Some(meta) = at().filter(|meta| meta.is_file() && meta.len() > 0) {
                    let bytes = foreign.layout.counted_bytes(meta.len());
                    seen.name(Name { inode: meta.ino(), bytes }, || has_several_names(&meta));
                }
                Ok(())
            })?,
        }
        each_file(&self.own().join("quarantine"), &mut |_, meta| {
            seen.name(Name { inode: meta.ino(), bytes: meta.len() }, || has_several_names(meta));
        })
    }
}

impl DataDir {
    fn has_several_names(&self, listed: &Listed) -> bool {
        let path = chunk_file_name::path(self.root(), &listed.digest, listed.len);
        fs::symlink_metadata(path).is_ok_and(|meta| has_several_names(&meta))
    }
}

fn has_several_names(meta: &Metadata) -> bool {
    meta.nlink() > 1
}

/// The other processes that have the directory open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peers {
    /// Whether there are any.
    pub any: bool,
    /// When one came or went last.
    pub last_change: (i64, i64),
}

/// Counts the bytes of all files that `pass` finds. Other processes may rename what is counted: a
/// file that moved behind the reader is found by the next pass. One pass is enough only if no other
/// process had the directory open at any time of it, so `peers` is asked before and after it.
pub fn count(
    mut peers: impl FnMut() -> io::Result<Peers>,
    mut pass: impl FnMut(&mut SeenFiles) -> io::Result<()>,
) -> io::Result<u64> {
    let mut seen = SeenFiles::default();
    // A process that comes and goes during the pass leaves another time.
    let at_first = peers()?;
    for number in 0..PASSES_MAX {
        // `seen` is kept over all passes, so each adds only what the ones before it missed.
        let before = seen.bytes;
        pass(&mut seen)?;
        let was_alone = !at_first.any && number == 0 && peers()? == at_first;
        if was_alone || (number > 0 && seen.bytes == before) {
            break;
        }
    }
    Ok(seen.bytes)
}

/// Calls `each` for the unfinished files in all staging directories: with the bytes that they have or
/// state, whichever is more, and their metadata.
pub fn drafts(tmp: &Path, each: &mut dyn FnMut(u64, &Metadata)) -> io::Result<()> {
    for staging in liveness::staging_dirs(tmp)? {
        each_file(&staging.path(), &mut |name, meta| {
            if name != "alive" {
                // A file that is not allocated yet has a claim all the same, which its name states.
                each(meta.len().max(staging::claimed_by(name).unwrap_or(0)), meta);
            }
        })?;
    }
    Ok(())
}

/// Calls `each` with name and metadata of each file in a directory, if it exists.
fn each_file(dir: &Path, each: &mut dyn FnMut(&str, &Metadata)) -> io::Result<()> {
    let entries = match kvtier_os::read_dir(dir) {
        Err(e) if e.kind() == Io::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        match entry.metadata() {
            Ok(meta) => each(&entry.file_name().to_string_lossy(), &meta),
            Err(e) if e.kind() == Io::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crash of the machine may leave a file under its old and its new name, and each name is
    /// released when it is deleted.
    #[test]
    fn a_file_with_the_names_of_two_chunks_is_counted_twice() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path(), None).unwrap();
        let path = |n: u8| chunk_file_name::path(dir.path(), &Digest([n; 32]), 5000);
        fs::write(path(1), vec![0; 12_288]).unwrap();
        assert_eq!(data_dir.count().unwrap().bytes, 12_288);
        let several = || has_several_names(&fs::metadata(path(1)).unwrap());
        assert!(!several());
        fs::hard_link(path(1), path(2)).unwrap();
        assert!(several());
        assert_eq!(data_dir.count().unwrap().bytes, 2 * 12_288);
        assert_eq!(data_dir.count_once().unwrap(), 2 * 12_288);
        // Each pass finds both again.
        let mut seen = SeenFiles::default();
        for _ in 0..2 {
            seen.begin_pass();
            [1, 2].into_iter().for_each(|_| seen.name(Name { inode: 1, bytes: 10 }, || true));
        }
        assert_eq!(seen.bytes, 20);
        seen.name(Name { inode: 2, bytes: 10 }, || false);
        seen.name(Name { inode: 2, bytes: 10 }, || false);
        assert_eq!(seen.bytes, 30, "one that moved during the pass");
        // One of them may be an unfinished file by now, or in quarantine.
        let (draft, _) = data_dir.create(12_288).unwrap();
        let at = draft.staging.path().join(&draft.name);
        fs::rename(path(1), &at).unwrap();
        assert_eq!(data_dir.count().unwrap().bytes, 2 * 12_288);
        fs::rename(at, data_dir.own().join("quarantine/a file")).unwrap();
        assert_eq!(data_dir.count().unwrap().bytes, 2 * 12_288);
    }

    #[test]
    fn a_file_that_the_first_pass_missed_is_counted_by_the_next_beside_peers() {
        let count = |any, passes: [&[u64]; 3]| {
            let mut passes = passes.into_iter();
            let peers = || Ok(Peers { any, last_change: (0, 0) });
            let bytes = count(peers, |seen| {
                let files = passes.next().unwrap();
                files.iter().for_each(|inode| seen.file(*inode, 10));
                Ok(())
            });
            (bytes.unwrap(), passes.len())
        };
        assert_eq!(count(true, [&[], &[1], &[1]]), (10, 0));
        assert_eq!(count(true, [&[], &[], &[1]]), (0, 1), "two passes agree");
        assert_eq!(count(false, [&[], &[1], &[1]]), (0, 2), "alone, one is enough");
    }

    /// A process that is killed between making a file and writing the total for it leaves a claim that
    /// was not granted. So a total may be above the cap, which the bytes are not.
    #[test]
    fn an_empty_file_of_a_dead_process_is_counted_as_its_name_states_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path(), None).unwrap();
        let ours = data_dir.staging().unwrap().name().to_owned();
        let host = ours.split('.').next().unwrap();
        let dead = dir.path().join(format!(".kvtier/tmp/{host}.4000000.1.0"));
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join("alive"), "").unwrap();
        fs::write(dead.join(staging::draft_name(0, 12_288)), "").unwrap();
        assert_eq!(data_dir.count().unwrap().bytes, 12_288);
        let removed = data_dir.remove_stale(|| ()).unwrap();
        assert_eq!((removed.dirs, removed.bytes), (1, 0));
        assert_eq!(data_dir.count().unwrap().bytes, 0);
    }

    #[test]
    fn another_process_is_a_peer_until_it_goes_and_oneself_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path(), None).unwrap();
        assert!(!data_dir.peers().unwrap().any);
        let other = DataDir::open(dir.path(), None).unwrap();
        assert!(data_dir.peers().unwrap().any);
        drop(other);
        assert!(!data_dir.peers().unwrap().any);
    }

    #[test]
    fn files_of_a_foreign_layout_are_counted_before_the_namespace_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let layout = crate::Layout::LmcacheGds;
        let mut config = crate::DiskConfig::new(dir.path(), 1 << 20);
        config.layout = layout;
        let foreign = crate::layout::Foreign::new(&config);
        let data_dir = DataDir::open(dir.path(), Some(foreign)).unwrap();
        let put = |name: &str, bytes: usize| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![0; bytes]).unwrap();
        };
        let file = |n: u64| format!("18/85/m%401%400%401a2b{n:012x}%40half.kvcache.safetensors");
        put(&file(1), 9000);
        put(&format!("{}.metadata", file(1)), 4096);
        assert_eq!(data_dir.count().unwrap().bytes, 9000 + 4096);
        // What a crash of the machine may leave: a chunk without its second file, which is counted
        // as one with it, and second files whose chunk is gone or empty.
        put(&file(2), 5000);
        put(&format!("{}.metadata", file(3)), 4096);
        put(&file(4), 0);
        put(&format!("{}.metadata", file(4)), 100);
        put("18/85/other.metadata", 7);
        // And one under two names.
        put(&file(5), 3000);
        fs::hard_link(dir.path().join(file(5)), dir.path().join(file(6))).unwrap();
        let all = 9000 + 4096 + 5000 + 4096 + 4096 + 100 + 2 * (3000 + 4096);
        assert_eq!(data_dir.count().unwrap().bytes, all);
        assert_eq!(data_dir.count_once().unwrap(), all);
    }

    #[test]
    fn what_is_empty_or_no_file_is_not_counted_until_it_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = crate::DiskConfig::new(dir.path(), 1 << 20);
        config.layout = crate::Layout::LmcacheMp;
        let foreign = crate::layout::Foreign::new(&config);
        let data_dir = DataDir::open(dir.path(), Some(foreign)).unwrap();
        let path = |n: u8| dir.path().join(format!("org-SEP-m@0x02010201@0@0001020{n}.data"));
        fs::write(path(1), [7; 1000]).unwrap();
        std::os::unix::fs::symlink("no chunk", path(2)).unwrap();
        fs::write(path(3), "").unwrap();
        let mut seen = SeenFiles::default();
        let mut pass = || {
            data_dir.pass(&mut seen, &mut ByteCount::default()).unwrap();
            seen.bytes
        };
        let one = data_dir.foreign().unwrap().layout.counted_bytes(1000);
        assert_eq!(pass(), one);
        fs::write(path(3), [7; 1000]).unwrap();
        assert_eq!(pass(), 2 * one, "it was empty in the first pass");
    }

    /// One that moved during the pass has one, and one that is gone has none.
    #[test]
    fn the_names_of_a_file_are_those_that_it_has_after_the_listing() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path(), None).unwrap();
        let path = |n: u8| chunk_file_name::path(dir.path(), &Digest([n; 32]), 5000);
        fs::write(path(1), vec![0; 12_288]).unwrap();
        let mut listed = Vec::new();
        data_dir.list(|found| listed.push(found)).unwrap();
        let has_several = || data_dir.has_several_names(&listed[0]);
        assert!(!has_several());
        fs::hard_link(path(1), path(2)).unwrap();
        assert!(has_several());
        fs::remove_file(path(1)).unwrap();
        assert!(!has_several());
    }

    #[test]
    fn what_was_counted_by_names_is_counted_again_once_a_peer_began_to_encode() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = DataDir::open(dir.path(), None).unwrap();
        let peer = DataDir::open(dir.path(), None).unwrap();
        let times = |begins| {
            let times = std::cell::Cell::new(0);
            let counted = data_dir.until_measured(|| {
                times.set(times.get() + 1);
                if begins {
                    peer.begin_to_encode(std::time::Duration::from_secs(60)).unwrap();
                }
                Ok(times.get())
            });
            (counted.unwrap(), times.get())
        };
        assert_eq!(times(false), (1, 1));
        assert_eq!(times(true), (2, 2));
        assert_eq!(times(true), (1, 1), "it was measured");
    }

    #[test]
    fn what_goes_during_a_listing_is_left_out_and_what_is_no_directory_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        each_file(&dir.path().join("absent"), &mut |_, _| panic!("it has none")).unwrap();
        [1, 2, 3].into_iter().for_each(|n| fs::write(dir.path().join(n.to_string()), "").unwrap());
        let of_a_file = each_file(&dir.path().join("1"), &mut |_, _| panic!("it has none"));
        assert_eq!(of_a_file.unwrap_err().kind(), Io::NotADirectory);
        let mut seen = 0;
        let gone = each_file(dir.path(), &mut |_, _| {
            seen += 1;
            [1, 2, 3].into_iter().for_each(|n| {
                let _ = fs::remove_file(dir.path().join(n.to_string()));
            });
        });
        gone.unwrap();
        assert_eq!(seen, 1);
    }
}
