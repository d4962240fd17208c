use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock};

use kvtier_core::{Error, ErrorKind};
use kvtier_key::{Digest, Key, Namespace};

use super::shapes::Shapes;
use super::{Layout, Verify};
use crate::DiskConfig;

/// What a directory of a foreign layout needs beside the index: its names tell keys but neither
/// namespace nor length.
#[derive(Debug)]
pub struct Foreign {
    pub layout: Layout,
    pub verify: Verify,
    /// Whose chunks these are: told at the start, else that of the first key. A name has no place
    /// for it, but for the salt.
    namespace: OnceLock<Arc<Namespace>>,
    /// File names by key, for what is done to files that no op names: eviction, the sweep.
    names: RwLock<HashMap<Digest, Arc<str>>>,
    /// Chunks that were found since a sweep counted last: another program may have written them,
    /// and then the ledger does not count them.
    uncounted: Mutex<HashSet<Digest>>,
    /// Sizes of all files are known.
    swept: AtomicBool,
    /// The cap is above what lies there, or was before, or may delete.
    agreed: AtomicBool,
    /// Whether a cap may delete what lay there before.
    pub shrink: bool,
    /// A save found the file system without extended attributes; it is said once.
    without_facts: AtomicBool,
    /// What chunks look like, where files say it.
    pub(super) shapes: Shapes,
    /// Rung when the sweep has something to do.
    pub bell: (Mutex<SweepRequest>, Condvar),
    /// One sweep at a time.
    pub sweeping: Mutex<()>,
}

/// What the sweep is called for.
#[derive(Clone, Copy, Debug, Default)]
pub struct SweepRequest {
    pub now: bool,
    pub stop: bool,
}

impl Foreign {
    pub fn new(config: &DiskConfig) -> Self {
        Foreign {
            layout: config.layout,
            verify: config.verify,
            shrink: config.shrink,
            namespace: config.namespace.clone().map_or_else(OnceLock::new, OnceLock::from),
            names: RwLock::default(),
            uncounted: Mutex::default(),
            swept: AtomicBool::new(false),
            agreed: AtomicBool::new(false),
            without_facts: AtomicBool::new(false),
            shapes: Shapes::new(config.chunk_shape.clone()),
            bell: Default::default(),
            sweeping: Mutex::default(),
        }
    }

    /// Why ops on this key can never succeed here: it has no name in this layout, or it is of
    /// another namespace than the rest. The first key decides which namespace that is, if
    /// nobody did.
    pub fn refusal(&self, key: &Key) -> Option<Error> {
        let refused = |kind, what: String| Some(Error::new(kind, what).with_key(*key.digest()));
        if let Err(e) = self.layout.file_name(key.id()) {
            return refused(
                ErrorKind::Unsupported,
                format!("layout {} has no name for the key: {e}", self.layout),
            );
        }
        let mut first = false;
        let ours = self.namespace.get_or_init(|| {
            first = true;
            Arc::clone(key.namespace())
        });
        if first {
            self.request_sweep(|request| request.now = true);
        }
        if ours.for_key(key.id()).digest() == key.namespace().digest() {
            return None;
        }
        let what = format!(
            "files of layout {} do not say owner_of they are, so that one tier has chunks of one namespace: this one has those of layout {}, the \
             key is of layout {}{}; use another directory",
            self.layout,
            ours.layout(),
            key.namespace().layout(),
            if ours.tenant() == key.namespace().tenant() { "" } else { " and of another tenant" }
        );
        refused(ErrorKind::Invalid, what)
    }

    /// Whose chunks these are, once that is known.
    pub fn namespace(&self) -> Option<&Arc<Namespace>> {
        self.namespace.get()
    }

    /// Remembers the key's file name.
    pub fn learn(&self, key: &Key) {
        let known =
            self.names.read().unwrap_or_else(PoisonError::into_inner).contains_key(key.digest());
        if !known && let Ok(name) = self.layout.file_name(key.id()) {
            self.learn_as(*key.digest(), &name);
        }
    }

    /// Remembers the name of a file that was listed.
    pub fn learn_as(&self, digest: Digest, name: &str) {
        self.names
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(digest)
            .or_insert_with(|| name.into());
    }

    /// The name of a chunk that was listed or asked for.
    pub fn name(&self, digest: &Digest) -> Option<Arc<str>> {
        self.names.read().unwrap_or_else(PoisonError::into_inner).get(digest).cloned()
    }

    /// The key of a listed name. `None` when it is none of this layout, or as long as it is unknown
    /// whose chunks these are.
    pub fn key_of(&self, name: &str) -> Option<Key> {
        let id = self.layout.key_of(name)?;
        Some(Key::new(self.namespace()?.for_key(&id), id))
    }

    /// The keys whose names are remembered.
    pub fn learned(&self) -> Vec<Digest> {
        self.names.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    /// Forgets the name of a chunk that is gone.
    pub fn unlearn(&self, digest: &Digest) {
        self.names.write().unwrap_or_else(PoisonError::into_inner).remove(digest);
    }

    /// A chunk was found that the index did not have.
    pub fn note_uncounted(&self, digest: &Digest) {
        self.uncounted.lock().unwrap_or_else(PoisonError::into_inner).insert(*digest);
    }

    /// Whether the ledger may not count a chunk whose file is about to go.
    pub fn is_uncounted(&self, digest: &Digest) -> bool {
        self.uncounted.lock().unwrap_or_else(PoisonError::into_inner).remove(digest)
    }

    /// All that was found until now is about to be counted.
    pub fn forget_uncounted(&self) {
        self.uncounted.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Whether eviction may choose: the sizes are known, and what is over the cap may go.
    pub fn may_evict(&self) -> bool {
        self.is_swept() && self.agreed.load(Ordering::Acquire)
    }

    pub fn set_agreed(&self) {
        self.agreed.store(true, Ordering::Release);
    }

    /// Whether the sizes of all files are known, so that there is a usage to speak of.
    pub fn is_swept(&self) -> bool {
        self.swept.load(Ordering::Acquire)
    }

    pub fn set_swept(&self) {
        self.swept.store(true, Ordering::Release);
    }

    /// A save's facts could not be kept. Answers whether that is news.
    pub fn is_without_facts(&self) -> bool {
        !self.without_facts.swap(true, Ordering::AcqRel)
    }

    /// Whether saves found the file system unable to keep facts.
    pub fn keeps_no_facts(&self) -> bool {
        self.without_facts.load(Ordering::Acquire)
    }

    /// What an operator should know.
    pub fn describe(&self) -> String {
        let known = match (self.is_swept(), self.may_evict()) {
            (false, _) => "; usage unknown and no eviction until all files were looked at",
            (_, false) => {
                "; it holds more than the cap, and nothing is evicted unless shrink allows it"
            }
            _ => "",
        };
        let facts = if self.keeps_no_facts() {
            "; the file system keeps no facts: loads are unverified"
        } else {
            ""
        };
        let shape = if self.layout.has_headers() {
            format!("; {}", self.shapes.describe())
        } else {
            String::new()
        };
        format!("layout {}{known}{facts}{shape}", self.layout)
    }

    /// Rings the bell.
    pub fn request_sweep(&self, what: impl Fn(&mut SweepRequest)) {
        what(&mut self.bell.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.bell.1.notify_all();
    }
}
