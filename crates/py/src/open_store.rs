//! Open tiers as Python uses them: resolves key names, and holds by key.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvtier::config::{LmcacheMode, OpenTiers};
use kvtier::core::{Class, Ctx, Digest, HoldId, Key, Namespace, Tier};
use kvtier::key::{KeyId, ObjectKey};
use kvtier::metrics::MetricsServer;

use crate::borrow::{LoadTargets, ReturnTimer};
use crate::holds::{Holds, ReleasedKeys};
use crate::key_name::KeyName;
use crate::shape::ShapeSource;

/// The most namespaces that are cached; those of further salts are created for each batch.
const NAMESPACES_MAX: usize = 4096;
/// The most characters of the reason why an object is no key.
const REASON_CHARS_MAX: usize = 256;

/// The settings of a store.
#[derive(Clone, Copy, Debug)]
pub struct StoreSettings {
    /// The deadline of a batch, from its submission.
    pub timeout: Duration,
    /// The longest that a batch waits for buffers that a medium still uses.
    pub return_timeout: Duration,
    /// The longest that a lookup protects the chunks that it found from eviction.
    pub hold: Duration,
    /// Whether the load of a key ends its hold; otherwise only a release does.
    pub load_releases: bool,
    /// The mode that defines its keys.
    pub mode: LmcacheMode,
    /// Whether chunks may be shorter than the first of their kind.
    pub partial: bool,
    /// Whether a save must state the shape of its chunks.
    pub shapes: ShapeSource,
    /// Bytes of a full chunk of object group 0; `None`: the first save decides.
    pub chunk_bytes: Option<u64>,
}

/// Open tiers.
#[derive(Debug)]
pub struct Store {
    /// The metrics server, if configured, until the store is closed.
    server: Mutex<Option<MetricsServer>>,
    pub opened: OpenTiers,
    pub settings: StoreSettings,
    /// The memory into which loads write.
    pub load_targets: Arc<LoadTargets>,
    /// Limits the wait for buffers that a medium still uses.
    pub return_timer: ReturnTimer,
    namespaces: Mutex<HashMap<String, Arc<Namespace>>>,
    holds: Mutex<Holds>,
}

/// A valid key, or the reason why its name is invalid.
pub type ParsedKey = Result<Key, String>;

impl Store {
    /// A store over open tiers.
    pub fn new(opened: OpenTiers, settings: StoreSettings, server: Option<MetricsServer>) -> Self {
        Store {
            server: Mutex::new(server),
            opened,
            settings,
            load_targets: Arc::default(),
            return_timer: ReturnTimer::default(),
            namespaces: Mutex::default(),
            holds: Mutex::new(Holds::new(settings.hold)),
        }
    }

    /// The address of the metrics server; `None` without one.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.server().as_ref().map(MetricsServer::address)
    }

    /// Stops the metrics server.
    pub fn stop_metrics(&self) {
        let server = self.server().take();
        drop(server);
    }

    fn server(&self) -> MutexGuard<'_, Option<MetricsServer>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All tiers as one tier.
    pub fn tier(&self) -> &dyn Tier {
        &*self.opened.top
    }

    fn parse_key(&self, name: KeyName) -> ParsedKey {
        let invalid = |e| format!("a key is none of LMCache's: {e}");
        match (self.settings.mode, name) {
            (LmcacheMode::MultiProcess, KeyName::Text(text)) => {
                Ok(self.object_key(ObjectKey::from_native_name(&text).map_err(invalid)?))
            }
            (LmcacheMode::MultiProcess, KeyName::Object(id)) => {
                // The text names the model only: the key is long, and its salt may be a secret.
                id.validate().map_err(|e| {
                    format!("a key of the model {:?} is none of LMCache's: {e}", id.model)
                })?;
                Ok(self.object_key(id))
            }
            (LmcacheMode::InProcess, KeyName::Text(text)) => {
                Ok(Key::new(self.namespace(""), KeyId::from_engine_text(&text).map_err(invalid)?))
            }
            (LmcacheMode::InProcess, KeyName::Object(_)) => {
                Err("keys of LMCache's in-process mode are texts".to_owned())
            }
            (_, KeyName::Invalid(reason)) => {
                let reason: String = reason.chars().take(REASON_CHARS_MAX).collect();
                Err(format!("a key is none of LMCache's: {reason}"))
            }
        }
    }

    fn object_key(&self, id: ObjectKey) -> Key {
        Key::new(self.namespace(&id.salt), KeyId::Object(id))
    }

    /// Parses and validates the names of a batch.
    pub fn parse_keys(&self, names: Vec<KeyName>) -> Vec<ParsedKey> {
        names.into_iter().map(|name| self.parse_key(name)).collect()
    }

    /// The namespace of a salt, which is a tenant. Chunks of a model, rank and group have one length:
    /// the configured one, or that of the first save.
    pub fn namespace_of(salt: &str, settings: &StoreSettings) -> Namespace {
        let layout: &[u8] = match settings.mode {
            LmcacheMode::MultiProcess => b"lmcache-mp",
            LmcacheMode::InProcess => b"lmcache",
        };
        let ns = Namespace::new(salt, Digest::derive("kvtier layout", layout))
            .with_partial(settings.partial);
        match settings.chunk_bytes {
            Some(bytes) => ns.with_chunk_bytes(0, bytes),
            None => ns,
        }
    }

    fn namespace(&self, salt: &str) -> Arc<Namespace> {
        let mut cache = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = cache.get(salt) {
            return Arc::clone(cached);
        }
        let namespace = Arc::new(Store::namespace_of(salt, &self.settings));
        if cache.len() < NAMESPACES_MAX {
            cache.insert(salt.to_owned(), Arc::clone(&namespace));
        }
        namespace
    }

    /// The context of a batch: deadline and priority.
    pub fn ctx(&self, class: Class) -> Ctx {
        Ctx::within(self.settings.timeout).with_class(class)
    }

    /// Adds the hold of a lookup.
    pub fn hold(&self, hold: HoldId, keys: Vec<Digest>) {
        self.holds().add(hold, keys, Instant::now());
    }

    /// Ends one hold of each key; unknown ones are fine.
    pub fn release<'k>(&self, keys: impl IntoIterator<Item = &'k Digest>) {
        let released = self.holds().release(keys, Instant::now());
        for ReleasedKeys { hold, keys, is_whole_hold } in released {
            match is_whole_hold {
                true => self.tier().release(hold),
                false => self.tier().release_keys(hold, &keys),
            }
        }
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
