//! What other processes publish and delete, taken over from the [change log](crate::changes) into
//! the index.

use kvtier_core::Event;
use kvtier_index::Chunk;
use kvtier_index::journal::Record;
use kvtier_key::Digest;

use crate::mover::Mover;
use crate::name;
use crate::shared::Shared;

/// The most bytes of records that a lookup reads on its caller's thread; more are read on a thread
/// of the tier.
const INLINE_BYTES_MAX: u64 = 64 << 10;
/// How many files the index takes in before other users of the index get it.
const ENTERED_AT_ONCE: usize = 4096;
/// How many entries of the index are compared with a listing before other users of the index get
/// it.
const COMPARED_AT_ONCE: usize = 4096;

impl<M: Mover> Shared<M> {
    /// Whether a chunk of another process can be found by its name alone: then a lookup asks for
    /// each name. Otherwise the change log says which chunks there are.
    pub fn asks_names(&self) -> bool {
        self.data_dir.foreign().is_some() || !self.changes.is_prompt()
    }

    /// The same as [`follow_changes`](Self::follow_changes) on a caller's thread. Answers whether
    /// the index has all that the directory has; where much is new, nothing is read.
    pub fn follow_few_changes(&self) -> bool {
        !self.asks_names() && self.follow_up_to(INLINE_BYTES_MAX).is_complete
    }

    /// Appends to the change log that a chunk was published or deleted. In a layout of another
    /// program, which has no such log, names are asked for.
    pub fn append_change(&self, record: Record) {
        if self.data_dir.foreign().is_none() {
            self.changes.append(record);
        }
    }

    /// Takes over what others published and deleted until now. No chunk's [name](Shared::name) is
    /// held.
    pub fn follow_changes(&self) -> FollowOutcome {
        self.follow_up_to(u64::MAX)
    }

    fn follow_up_to(&self, bytes_max: u64) -> FollowOutcome {
        if self.data_dir.foreign().is_some() {
            return FollowOutcome::default();
        }
        let followed = self.changes.follow(bytes_max, |record| self.follow(record));
        let begins_to_fail = self.changes.begins_to_fail(followed.is_err());
        match followed {
            Ok(followed) => {
                if followed.records > 0 {
                    self.listeners.notify();
                }
                let is_complete = !followed.is_more && !self.changes.has_missed();
                FollowOutcome { records: followed.records, is_complete }
            }
            Err(e) => {
                // Each lookup tries again: once is enough for the log.
                if begins_to_fail {
                    self.fault(format!(
                        "cannot read what other processes changed: {e}; the directory is listed instead"
                    ));
                }
                FollowOutcome::default()
            }
        }
    }

    fn follow(&self, record: &Record) {
        match record {
            Record::Insert(chunk) => self.follow_insert(*chunk),
            Record::Remove(digest) => {
                self.ledger_check.explained(digest);
                let known = self.index().known(digest).map(|entry| entry.chunk.len);
                known.into_iter().for_each(|len| self.removed_by_another(digest, len));
            }
            _ => {}
        }
    }

    /// A chunk that another process says it published: taken in if its file is there.
    fn follow_insert(&self, mut chunk: Chunk) {
        let Chunk { digest, len, .. } = chunk;
        let known_len = |digest: &Digest| self.index().known(digest).map(|entry| entry.chunk.len);
        let is_suspect = self.index().is_suspect(&digest);
        if (known_len(&digest) == Some(len) && !is_suspect) || len == 0 || len > name::LEN_MAX {
            return;
        }
        let one = self.name(&digest);
        let Ok(Some(file)) = self.data_dir.find(&digest, len) else { return };
        self.clear_corrupt_if_replaced(&digest, file);
        if known_len(&digest).is_some_and(|known| known != len) {
            drop(one);
            return self.resolve_duplicate(&digest, len);
        }
        let mut index = self.index();
        if index.is_known(&digest) || index.is_suspect(&digest) {
            return;
        }
        chunk.bytes = name::file_len(len);
        let _ = index.insert(chunk);
        self.listeners.push(Event::Stored { key: digest, len });
        drop(index);
        self.learn_length(len);
    }

    /// Brings the index into agreement with a listing of the directory: takes in what it does not
    /// have and drops what is not there. Answers whether that succeeded; only then a miss of
    /// the change log is settled.
    pub fn reconcile(&self) -> bool {
        let missed = self.changes.missed();
        if let Some(foreign) = self.data_dir.foreign() {
            let is_swept = self.reported("sweep the directory", self.sweep(foreign));
            if is_swept {
                self.changes.settle(missed);
            }
            return is_swept;
        }
        let position = self.changes.position();
        let mut listed = Vec::new();
        if !self.reported(
            "list the directory",
            self.data_dir.list(|digest, len| listed.push((digest, len))),
        ) {
            return false;
        }
        listed.sort_unstable();
        self.apply_listing(&listed);
        self.drop_unlisted(&listed);
        // What changed while the directory was listed may be taken in or dropped wrongly: its
        // records are read again.
        self.changes.rewind(position);
        self.follow_changes();
        self.changes.settle(missed);
        self.listeners.notify();
        true
    }

    /// Takes in files that the index does not have.
    fn apply_listing(&self, listed: &[(Digest, u64)]) {
        let mut to_compare = Vec::new();
        for some in listed.chunks(ENTERED_AT_ONCE) {
            let mut index = self.index();
            for (digest, len) in some.iter().copied() {
                match index.known(&digest) {
                    _ if index.is_suspect(&digest) => to_compare.push((digest, len)),
                    _ if index.is_evicting(&digest) => {}
                    None => {
                        // Published a moment ago, or put there by another program: then the ledger
                        // does not count it.
                        self.ledger_check.suspect();
                        let _ = index.insert(Chunk::new(digest, len, name::file_len(len)));
                        self.listeners.push(Event::Stored { key: digest, len });
                    }
                    Some(known) if known.chunk.len != len => to_compare.push((digest, len)),
                    Some(_) => {}
                }
            }
        }
        for (digest, len) in to_compare {
            self.follow_insert(Chunk::new(digest, len, name::file_len(len)));
        }
    }

    /// Drops entries of the index whose files are not there any more.
    fn drop_unlisted(&self, listed: &[(Digest, u64)]) {
        let mut next = Some(kvtier_index::SlotCursor::default());
        while let Some(cursor) = next {
            let page = self.index().keys_page(cursor, COMPARED_AT_ONCE);
            let gone = page
                .chunks
                .iter()
                .filter(|chunk| listed.binary_search(&(chunk.digest, chunk.len)).is_err());
            gone.for_each(|chunk| self.forget_missing(&chunk.digest, chunk.len));
            next = page.next;
        }
    }

    fn reported(&self, what: &str, done: std::io::Result<()>) -> bool {
        done.map_err(|e| self.fault(format!("cannot {what}: {e}"))).is_ok()
    }
}

/// What following the change log came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowOutcome {
    /// How many records there were.
    pub records: usize,
    /// The index has all that the directory has.
    pub is_complete: bool,
}
