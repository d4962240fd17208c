use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use kvtier_core::{Error, ErrorKind};
use kvtier_key::{Digest, Key, KeyId, Namespace, VllmRunConfig};

use super::scan_requests::ScanRequests;
use super::tensor_shapes::TensorShapes;
use super::{Layout, Verify};
use crate::DiskConfig;

/// The state of a foreign layout beside the index: file names contain keys, but neither namespaces nor
/// lengths.
#[derive(Debug)]
pub struct Foreign {
    pub layout: Layout,
    pub verify: Verify,
    /// The namespace of all chunks: the configured one, else that of the first key. File names contain
    /// only its salt.
    namespace: OnceLock<Arc<Namespace>>,
    /// File names by key, for eviction and the scan, which have only digests.
    names: RwLock<HashMap<Digest, Arc<str>>>,
    /// Chunks that were found since the last scan: another program may have written them, and then
    /// the ledger does not count them.
    uncounted: Mutex<HashSet<Digest>>,
    /// The sizes of all files are known.
    is_scanned: AtomicBool,
    /// The ledger counts them.
    is_counted: AtomicBool,
    /// The cap was agreed on: it is above the stored bytes, or may delete chunks.
    agreed: AtomicBool,
    /// It was refused: it would delete chunks.
    is_cap_refused: AtomicBool,
    /// The medium failed when it was to be agreed on.
    has_agreement_failed: AtomicBool,
    /// Whether a cap may delete chunks that were stored before.
    pub shrink: bool,
    /// A save found a file system without extended attributes; reported once.
    without_facts: AtomicBool,
    /// The shapes of chunks, where files state them.
    pub(super) shapes: TensorShapes,
    /// The configuration of the vLLM engine whose chunks these are, if only they are served.
    run_config: Option<Arc<VllmRunConfig>>,
    /// Requests to the thread that scans the directory.
    pub(super) scan_requests: ScanRequests,
    /// One scan at a time.
    pub(super) one_scan: Mutex<()>,
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
            is_scanned: AtomicBool::new(false),
            is_counted: AtomicBool::new(false),
            agreed: AtomicBool::new(false),
            is_cap_refused: AtomicBool::new(false),
            has_agreement_failed: AtomicBool::new(false),
            without_facts: AtomicBool::new(false),
            shapes: TensorShapes::new(config.chunk_shape.clone()),
            run_config: config.vllm_run_config.clone(),
            scan_requests: ScanRequests::default(),
            one_scan: Mutex::default(),
        }
    }

    /// Why operations on this key can never succeed: the layout has no name for it, or its namespace
    /// is not the directory's. Without a configured namespace, the first key decides.
    pub fn refusal(&self, key: &Key) -> Option<Error> {
        let refused = |kind, what: String| Some(Error::new(kind, what).with_key(*key.digest()));
        if let Err(e) = self.layout.file_name(key.id()) {
            return refused(
                ErrorKind::Unsupported,
                format!("layout {} has no name for the key: {e}", self.layout),
            );
        }
        if let Some(base) = self.run_base()
            && !matches!(key.id(), KeyId::Object(id) if *id.model == *base)
        {
            let what = format!(
                "this tier has chunks of the vLLM configuration {base}, and the key is of another one; use its base as the model, or \
                 another vllm_run_config"
            );
            return refused(ErrorKind::Invalid, what);
        }
        let mut first = false;
        // The first key decides for this process: from now on listed names can be turned into keys.
        let ours = self.namespace.get_or_init(|| {
            first = true;
            Arc::clone(key.namespace())
        });
        // Files that were skipped for want of a namespace are looked at now.
        if first {
            self.request_scan();
        }
        // A namespace with salts as tenants has one namespace for each salt, so the key's own salt
        // is applied first.
        if ours.for_key(key.id()).digest() == key.namespace().digest() {
            return None;
        }
        let what = format!(
            "files of layout {} do not state their namespace, so a tier has chunks of one namespace: this one has those of layout {}, the \
             key is of layout {}{}; use another directory",
            self.layout,
            ours.layout(),
            key.namespace().layout(),
            if ours.tenant() == key.namespace().tenant() { "" } else { " and of another tenant" }
        );
        refused(ErrorKind::Invalid, what)
    }

    /// The base of the names, where the tier has chunks of one vLLM configuration.
    pub fn run_base(&self) -> Option<&str> {
        self.run_config.as_deref().map(VllmRunConfig::base)
    }

    /// The namespace of the chunks, once it is known.
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

    /// The key of a listed name. `None` for a name of another layout, and while the namespace is
    /// unknown.
    pub fn key_of(&self, name: &str) -> Option<Key> {
        let id = self.layout.key_of(name)?;
        Some(Key::new(self.namespace()?.for_key(&id), id))
    }

    /// The keys whose names are remembered, in order: the calls for them are the same in each simulation.
    pub fn learned(&self) -> Vec<Digest> {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        let mut learned: Vec<Digest> = names.keys().copied().collect();
        drop(names);
        learned.sort_unstable();
        learned
    }

    /// Forgets the name of a missing chunk.
    pub fn unlearn(&self, digest: &Digest) {
        self.names.write().unwrap_or_else(PoisonError::into_inner).remove(digest);
    }

    /// Notes a chunk that the index lacked, or whose file grew.
    pub fn note_uncounted(&self, digest: &Digest) {
        self.uncounted.lock().unwrap_or_else(PoisonError::into_inner).insert(*digest);
    }

    /// Whether the ledger may not count a chunk's file as it is now. Before the first scan of a directory
    /// that can be written to that may be so of all.
    pub fn is_uncounted(&self, digest: &Digest) -> bool {
        let noted = || self.uncounted.lock().unwrap_or_else(PoisonError::into_inner);
        !self.is_counted.load(Ordering::Acquire) || noted().contains(digest)
    }

    /// Forgets that of one chunk, whose file is gone.
    pub fn forget_gone(&self, digest: &Digest) {
        self.uncounted.lock().unwrap_or_else(PoisonError::into_inner).remove(digest);
    }

    /// Takes all notes: a recount follows.
    pub fn take_uncounted(&self) -> HashSet<Digest> {
        std::mem::take(&mut *self.uncounted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes these again: the recount failed.
    pub fn note_all_uncounted(&self, all: HashSet<Digest>) {
        self.uncounted.lock().unwrap_or_else(PoisonError::into_inner).extend(all);
    }

    /// Whether eviction is allowed: sizes are known, and chunks above the cap may be deleted.
    pub fn may_evict(&self) -> bool {
        self.is_scanned() && self.agreed.load(Ordering::Acquire)
    }

    /// Notes whether the directory has this tier's cap now. Answers whether that is news.
    pub fn note_agreement<T>(&self, agreed: &Result<T, Error>) -> bool {
        let is_refused = agreed.as_ref().is_err_and(|e| e.kind() == ErrorKind::Invalid);
        let has_failed = agreed.is_err() && !is_refused;
        self.agreed.fetch_or(agreed.is_ok(), Ordering::AcqRel);
        let was_refused = self.is_cap_refused.swap(is_refused, Ordering::AcqRel);
        let had_failed = self.has_agreement_failed.swap(has_failed, Ordering::AcqRel);
        (was_refused, had_failed) != (is_refused, has_failed)
    }

    /// Whether the medium failed when the cap was to be agreed on: it is tried again soon. A cap that was
    /// refused is tried again with the next scan.
    pub fn must_agree(&self) -> bool {
        self.has_agreement_failed.load(Ordering::Acquire) && !self.agreed.load(Ordering::Acquire)
    }

    /// Whether the sizes of all files are known, and with them the usage.
    pub fn is_scanned(&self) -> bool {
        self.is_scanned.load(Ordering::Acquire)
    }

    pub fn set_scanned(&self) {
        self.is_scanned.store(true, Ordering::Release);
    }

    /// Notes that the ledger counts all files.
    pub fn set_counted(&self) {
        self.is_counted.store(true, Ordering::Release);
    }

    /// Notes that a save's facts could not be kept. Returns whether this is the first time.
    pub fn is_without_facts(&self) -> bool {
        !self.without_facts.swap(true, Ordering::AcqRel)
    }

    /// Whether saves found the file system unable to keep facts.
    pub fn keeps_no_facts(&self) -> bool {
        self.without_facts.load(Ordering::Acquire)
    }

    /// A summary for the operator.
    pub fn describe(&self) -> String {
        let known = if !self.is_scanned() {
            "; usage unknown and no eviction until all files were checked"
        } else if self.must_agree() {
            "; no eviction until the cap can be written into the manifest"
        } else if self.is_cap_refused.load(Ordering::Acquire) {
            "; it holds more than the cap, and nothing is evicted unless shrink allows it"
        } else {
            ""
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

    /// Makes the thread scan the directory now.
    pub fn request_scan(&self) {
        self.scan_requests.change(|request| request.now = true);
    }
}
