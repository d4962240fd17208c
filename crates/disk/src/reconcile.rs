//! Compares the whole index with a listing of the directory, where records of the
//! [change log](crate::change_log) are missing. Then reads the log again from where it was when the
//! listing began.

use std::io;

use kvtier_core::Event;
use kvtier_index::Chunk;

use crate::data_dir::Listed;
use crate::mover::Mover;
use crate::shared::Shared;

/// How many files are entered while the index is locked.
const ENTERED_AT_ONCE: usize = 4096;
/// How many entries are compared with a listing while the index is locked.
const COMPARED_AT_ONCE: usize = 4096;

impl<M: Mover> Shared<M> {
    /// Brings the index and the ledger into agreement with the directory. `false` where that
    /// failed, or was done a moment ago.
    pub fn relist(&self) -> bool {
        self.space.relist_throttle.run(&self.clock, || {
            let listed = self.reconcile();
            self.check_ledger();
            listed
        })
    }

    /// The last that a save tries which is shed otherwise: compares the ledger with the directory. In a
    /// foreign layout the process may have evicted all of its index, while others have saved: there it
    /// scans again, however long the last scan took.
    pub fn check_before_shed(&self) {
        match self.data_dir.foreign() {
            Some(_) => {
                self.space.relist_throttle.run_needed(&self.clock, || self.reconcile());
            }
            None => self.check_ledger(),
        }
    }

    /// Compares the index with a listing of the directory: enters new files and drops missing ones.
    /// Returns whether that succeeded; only then are missed records settled.
    pub fn reconcile(&self) -> bool {
        let missed = self.changes.missed();
        if let Some(foreign) = self.data_dir.foreign() {
            let is_scanned = self.reported("sweep the directory", self.scan_foreign(foreign));
            if is_scanned {
                self.changes.settle(missed);
            }
            return is_scanned;
        }
        // Like `missed` above, read before the listing begins: what changes during it is read
        // again, and what is missed during it is not settled.
        let position = self.changes.position();
        let mut listed = Vec::new();
        if !self.reported("list the directory", self.data_dir.list(|chunk| listed.push(chunk))) {
            return false;
        }
        // For the binary search below.
        listed.sort_unstable_by_key(|chunk| (chunk.digest, chunk.len));
        let looked = self.apply_listing(&listed);
        self.drop_unlisted(&listed);
        // Chunks that changed during the listing may be entered or dropped wrongly: their records
        // are read again.
        self.changes.rewind(position);
        self.follow_changes();
        self.reported("look at listed files", looked);
        self.changes.settle(missed);
        self.listeners.notify();
        true
    }

    /// Enters files that the index lacks, also those that cannot be looked at: the listing has their names.
    ///
    /// # Errors
    /// That of the first look that failed.
    pub fn apply_listing(&self, listed: &[Listed]) -> io::Result<()> {
        let mut to_compare = Vec::new();
        for some in listed.chunks(ENTERED_AT_ONCE) {
            let index = self.index();
            for Listed { digest, len, bytes, .. } in some.iter().copied() {
                let chunk = Chunk::new(digest, len, bytes);
                match index.known(&digest) {
                    _ if index.is_suspect(&digest) => to_compare.push(chunk),
                    _ if index.is_evicting(&digest) => {}
                    // Published a moment ago, or by another program: then the ledger does not count
                    // it. Or evicted since the listing: its file is looked for.
                    None => {
                        self.space.ledger_validity.suspect();
                        to_compare.push(chunk);
                    }
                    Some(known) if (known.chunk.len, known.chunk.bytes) != (len, bytes) => {
                        to_compare.push(chunk);
                    }
                    Some(_) => {}
                }
            }
        }
        let mut looked = Ok(());
        for chunk in to_compare {
            if let Err(e) = self.follow_insert(chunk) {
                self.enter_listed(chunk);
                looked = looked.and(Err(e));
            }
        }
        looked
    }

    /// Enters a chunk by its name alone. A load of it says what is wrong with its file.
    fn enter_listed(&self, chunk: Chunk) {
        let _one = self.name(&chunk.digest);
        let mut index = self.index();
        let Chunk { digest, len, .. } = chunk;
        if index.is_known(&digest) || index.is_suspect(&digest) || index.is_evicting(&digest) {
            return;
        }
        let _ = index.insert(chunk);
        self.listeners.push(Event::Stored { key: digest, len });
    }

    /// Drops entries of the index whose files are missing.
    fn drop_unlisted(&self, listed: &[Listed]) {
        let mut next = Some(kvtier_index::SlotCursor::default());
        while let Some(cursor) = next {
            let page = self.index().keys_page(cursor, COMPARED_AT_ONCE);
            let is_unlisted = |chunk: &&Chunk| {
                let named = (chunk.digest, chunk.len);
                listed.binary_search_by_key(&named, |listed| (listed.digest, listed.len)).is_err()
            };
            let gone = page.chunks.iter().filter(is_unlisted);
            gone.for_each(|chunk| self.forget_missing(&chunk.digest, chunk.len));
            next = page.next;
        }
    }

    fn reported(&self, what: &str, done: std::io::Result<()>) -> bool {
        done.map_err(|e| self.fault(format!("cannot {what}: {e}"))).is_ok()
    }
}
