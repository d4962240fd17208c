use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{
    Ctx, Digest, Done, Hold, Key, Load, Loaded, LookedUp, Mode, Namespace, Presence, Removed, Save,
    Saved, Tier,
};
use kvtier_key::{ChunkHash, KeyId, KvRank, ObjectKey};
use kvtier_mem::{Arena, ArenaConfig, Lease, View};

use crate::Content;

/// A fresh, empty tier and the memory to use it with.
pub struct Fixture {
    /// The tier.
    pub tier: Arc<dyn Tier>,
    /// Memory it can reach, at least 32 MiB.
    pub arena: Arena,
    /// The tier's cap in bytes, where the suite is to test eviction; at least 1 MiB, best not much
    /// more than 16.
    pub capacity: Option<u64>,
    /// The keys are those of LMCache's in-process mode: the tier has no names for others.
    pub engine_keys: bool,
    /// The keys are those of vLLM's `fs` tier: the tier has names for no others.
    pub vllm_keys: bool,
    /// The tier has chunks of one namespace, that of the first key, and calls keys of others
    /// invalid.
    pub one_namespace: bool,
    /// How to reach the arena's memory, if the CPU does not.
    pub reach: Option<Arc<dyn Reach>>,
    /// Whatever must live as long as the tier, such as its directory. Dropped last.
    pub keep: Option<Box<dyn Any + Send + Sync>>,
}

/// How the suite reaches memory that the CPU does not.
pub trait Reach: Send + Sync + 'static {
    /// Writes `bytes` to the beginning of a lease.
    fn write(&self, into: &mut Lease, bytes: &[u8]);

    /// The bytes of a lease that count as filled.
    fn read(&self, from: &Lease) -> Vec<u8>;
}

impl Fixture {
    /// A fixture of this tier, with heap memory and without tests of eviction.
    pub fn new(tier: impl Tier) -> Self {
        let arena = Arena::new(ArenaConfig::heap(64 << 20)).expect("memory for the suite");
        Fixture {
            tier: Arc::new(tier),
            arena,
            capacity: None,
            engine_keys: false,
            vllm_keys: false,
            one_namespace: false,
            reach: None,
            keep: None,
        }
    }

    /// The same with tests of eviction: the tier was opened with this cap in bytes.
    pub fn with_capacity(mut self, bytes: u64) -> Self {
        self.capacity = Some(bytes);
        self
    }

    /// The same for a tier whose keys are those of LMCache's in-process mode.
    pub fn with_engine_keys(mut self) -> Self {
        self.engine_keys = true;
        self
    }

    /// The same for a tier whose keys are those of vLLM's `fs` tier.
    pub fn with_vllm_keys(mut self) -> Self {
        self.vllm_keys = true;
        self
    }

    /// The same for a tier that has chunks of one namespace.
    pub fn with_one_namespace(mut self) -> Self {
        self.one_namespace = true;
        self
    }

    /// The same with something that must outlive the tier.
    pub fn with_keep(mut self, keep: impl Any + Send + Sync) -> Self {
        self.keep = Some(Box::new(keep));
        self
    }

    /// The same with other memory.
    pub fn with_arena(mut self, arena: Arena) -> Self {
        self.arena = arena;
        self
    }

    /// The same with memory that the CPU does not reach.
    pub fn with_far_arena(mut self, arena: Arena, reach: impl Reach) -> Self {
        self.reach = Some(Arc::new(reach));
        self.with_arena(arena)
    }

    /// Writes `bytes` to the beginning of a lease, and no more counts as filled.
    pub fn write(&self, into: &mut Lease, bytes: &[u8]) {
        match &self.reach {
            Some(reach) => reach.write(into, bytes),
            None => into.as_host_mut().expect("host memory")[..bytes.len()].copy_from_slice(bytes),
        }
        into.assume_filled(bytes.len());
    }

    /// The bytes of a lease that count as filled.
    pub fn read(&self, from: &Lease) -> Vec<u8> {
        match &self.reach {
            Some(reach) => reach.read(from),
            None => from.as_host().expect("host memory").to_vec(),
        }
    }

    /// An ordinary context: demand, with more time than a healthy tier on a busy machine needs.
    pub fn ctx(&self) -> Ctx {
        // Far longer than any op needs, so that a slow machine changes no answer.
        Ctx::within(Duration::from_secs(600))
    }

    /// Key number `n` of a namespace of `tenant` without chunk sizes.
    pub fn key_of(&self, tenant: &str, n: u64) -> Key {
        self.key_within(Namespace::new(tenant, Digest::default()), n)
    }

    /// Key number `n`.
    pub fn key(&self, n: u64) -> Key {
        self.key_of("suite", n)
    }

    /// Keys by number.
    pub fn keys(&self, numbers: impl IntoIterator<Item = u64>) -> Arc<[Key]> {
        numbers.into_iter().map(|n| self.key(n)).collect()
    }

    /// Key number `n` of a namespace, of the mode that the tier has names for.
    pub fn key_within(&self, ns: Namespace, n: u64) -> Key {
        if self.vllm_keys {
            let hash = Digest::derive("kvtier testkit chunk", &n.to_le_bytes());
            let hash = ChunkHash::new(hash.as_bytes());
            let id = ObjectKey::new("org_model_0123456789ab", KvRank(0), 0, hash, "");
            return Key::new(Arc::new(ns), id.expect("a valid key").into());
        }
        if !self.engine_keys {
            return Fixture::key_in(ns, n);
        }
        let number = Digest::derive("kvtier testkit chunk", &n.to_le_bytes()).to_hex();
        // Of bytes: where a layout wants whole elements, every length is one of those.
        let text = format!("org/model@1@0@{}@uint8", number[..16].trim_start_matches('0'));
        Key::new(Arc::new(ns), KeyId::from_engine_text(&text).expect("a valid key"))
    }

    /// Key number `n` of a namespace, of LMCache's multi-process mode.
    pub fn key_in(ns: Namespace, n: u64) -> Key {
        let hash =
            ChunkHash::new(Digest::derive("kvtier testkit chunk", &n.to_le_bytes()).as_bytes());
        let id = ObjectKey::new("org/model", KvRank::pack(1, 0, 1, 0), 0, hash, "")
            .expect("a valid key");
        Key::new(Arc::new(ns), id.into())
    }

    /// A lease of `len` bytes.
    pub fn lease(&self, len: usize) -> Lease {
        self.arena.lease(len).expect("the suite's arena has space")
    }

    /// The bytes `from..from + len` of the chunk `key`, frozen.
    pub fn view(&self, key: &Key, from: u64, len: usize) -> View {
        let mut lease = self.lease(len);
        let mut bytes = vec![0; len];
        Content::of(key).write(from, &mut bytes);
        self.write(&mut lease, &bytes);
        lease.freeze()
    }

    /// The op that saves the chunk `key` of `len` bytes.
    pub fn save_op(&self, key: &Key, len: usize) -> Save {
        Save { key: key.clone(), from: vec![self.view(key, 0, len)] }
    }

    /// The op that loads the chunk `key` into one lease of `len` bytes.
    pub fn load_op(&self, key: &Key, len: usize) -> Load {
        Load { key: key.clone(), into: vec![self.lease(len)] }
    }

    /// Saves one op.
    pub fn save_with(&self, op: Save) -> Done<Save, Saved> {
        only(self.tier.save(&self.ctx(), vec![op]).wait())
    }

    /// Loads one op.
    pub fn load_with(&self, op: Load) -> Done<Load, Loaded> {
        only(self.tier.load(&self.ctx(), vec![op]).wait())
    }

    /// Saves the chunk `key` of `len` bytes.
    pub fn save(&self, key: &Key, len: usize) -> Saved {
        self.save_with(self.save_op(key, len)).result.expect("a save")
    }

    /// Saves chunks that must be taken.
    pub fn store(&self, keys: &[Key], len: usize) {
        keys.iter().for_each(|key| assert_eq!(self.save(key, len), Saved::Stored));
    }

    /// Loads the chunk `key` into `len` bytes and proves every byte of a hit.
    pub fn load(&self, key: &Key, len: usize) -> Loaded {
        let done = self.load_with(self.load_op(key, len));
        let loaded = done.result.expect("a load");
        if let Loaded::Hit { len } = loaded {
            self.verify(key, &done.op.into, len);
        }
        loaded
    }

    /// Looks keys up without a hold.
    pub fn lookup(&self, keys: &Arc<[Key]>, mode: Mode) -> Vec<Presence> {
        self.tier
            .lookup(&self.ctx(), Arc::clone(keys), mode, Hold::None)
            .wait()
            .expect("a lookup")
            .found
    }

    /// Looks keys up and holds the hits.
    pub fn hold(&self, keys: &Arc<[Key]>, time: Duration) -> LookedUp {
        self.tier
            .lookup(&self.ctx(), Arc::clone(keys), Mode::Each, Hold::For(time))
            .wait()
            .expect("a lookup")
    }

    /// Removes keys.
    pub fn remove(&self, keys: &Arc<[Key]>) -> Removed {
        self.tier.remove(&self.ctx(), Arc::clone(keys)).wait().expect("a remove")
    }

    /// Proves that the leases hold the first `len` bytes of the chunk `key` and not one more.
    pub fn verify(&self, key: &Key, leases: &[Lease], len: u64) {
        let mut at = 0;
        for lease in leases {
            let bytes = self.read(lease);
            assert_eq!(
                // A tier must mark exactly what it wrote. More would let a caller read old bytes.
                bytes.len() as u64,
                (len - at).min(lease.len() as u64),
                "the initialised length of a lease"
            );
            assert_eq!(Content::of(key).check(at, &bytes), Ok(()), "a wrong byte in {key:?}");
            at += bytes.len() as u64;
        }
        assert_eq!(at, len, "the leases hold the whole chunk");
    }

    /// Asks `done` again and again until it says yes; fails after ten minutes, which no
    /// machine needs.
    pub fn eventually(&self, what: &str, done: impl Fn() -> bool) {
        let end = std::time::Instant::now() + Duration::from_secs(600);
        while !done() {
            // A bound for the case that it never happens. It is no measure of speed.
            assert!(std::time::Instant::now() < end, "{what}: not within ten minutes");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The answer of a batch of one.
pub(crate) fn only<T>(mut answers: Vec<T>) -> T {
    assert_eq!(answers.len(), 1, "one answer an op");
    answers.pop().expect("one answer an op")
}

impl fmt::Debug for Fixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fixture({:?})", self.tier)
    }
}
