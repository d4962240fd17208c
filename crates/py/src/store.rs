//! The tiers as Python sees them: keys by their names, holds by their keys.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvtier::config::Opened;
use kvtier::core::{Class, Ctx, Digest, HoldId, Key, Namespace, Tier};
use kvtier::key::{KeyId, ObjectKey};
use kvtier::metrics::Server;

use crate::holds::{Holds, LetGo};
use crate::loan::{Busy, Clock};
use crate::name::Name;
use crate::shape::Shapes;

/// At most this many salts' namespaces are remembered; beyond, they are made anew each time.
const NAMESPACES_MAX: usize = 4096;
/// So many characters of why an object is no key are told.
const WHY_MAX: usize = 256;

/// Which keys a store takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spelling {
    /// Those of LMCache's multi-process mode: `model@rank@group@hash[@salt]`.
    Mp,
    /// Those of its in-process mode: `model@world@worker@hash@dtype...`.
    Engine,
}

/// How a store behaves.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a batch may take.
    pub timeout: Duration,
    /// How long the end of a batch waits at most for memory that a medium keeps.
    pub home: Duration,
    /// How long a lookup keeps what it found from eviction, at most.
    pub hold: Duration,
    /// Whether the load of a key ends its hold; otherwise only a release does.
    pub load_releases: bool,
    /// Which keys it takes.
    pub spelling: Spelling,
    /// Whether chunks may be shorter than the first of their kind.
    pub partial: bool,
    /// Whether saves must say what shape their chunks have.
    pub shapes: Shapes,
    /// Bytes of a full chunk of object group 0, where the caller knows them; else they are learned
    /// from saves.
    pub chunk_bytes: Option<u64>,
}

/// Open tiers.
#[derive(Debug)]
pub struct Store {
    /// Serves the tiers' metrics, where that was asked for, until the store is closed.
    server: Mutex<Option<Server>>,
    pub opened: Opened,
    pub settings: Settings,
    /// The memory that loads write into.
    pub busy: Arc<Busy>,
    /// Ends waits for memory that a medium keeps.
    pub clock: Clock,
    namespaces: Mutex<HashMap<String, Arc<Namespace>>>,
    holds: Mutex<Holds>,
}

/// A key as LMCache spells it, or why it is none.
pub type Named = Result<Key, String>;

impl Store {
    /// Over these tiers.
    pub fn new(opened: Opened, settings: Settings, server: Option<Server>) -> Self {
        Store {
            server: Mutex::new(server),
            opened,
            settings,
            busy: Arc::default(),
            clock: Clock::default(),
            namespaces: Mutex::default(),
            holds: Mutex::new(Holds::lasting(settings.hold)),
        }
    }

    /// Where its metrics are served; `None` where they are not.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.server().as_ref().map(Server::address)
    }

    /// Serves no metrics any more.
    pub fn stop_metrics(&self) {
        let server = self.server().take();
        drop(server);
    }

    fn server(&self) -> MutexGuard<'_, Option<Server>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All tiers as one.
    pub fn tier(&self) -> &dyn Tier {
        &*self.opened.top
    }

    /// The key of this name.
    fn key(&self, name: Name) -> Named {
        let none = |e| format!("a key is none of LMCache's: {e}");
        match (self.settings.spelling, name) {
            (Spelling::Mp, Name::Text(text)) => {
                Ok(self.of_object(ObjectKey::from_native_name(&text).map_err(none)?))
            }
            (Spelling::Mp, Name::Object(id)) => {
                // Not all of it, which is long, and whose salt is nobody's business.
                id.validate().map_err(|e| {
                    format!("a key of the model {:?} is none of LMCache's: {e}", id.model)
                })?;
                Ok(self.of_object(id))
            }
            (Spelling::Engine, Name::Text(text)) => {
                Ok(Key::new(self.namespace(""), KeyId::from_engine_text(&text).map_err(none)?))
            }
            (Spelling::Engine, Name::Object(_)) => {
                Err("keys of LMCache's in-process mode are texts".to_owned())
            }
            (_, Name::None(why)) => {
                let why: String = why.chars().take(WHY_MAX).collect();
                Err(format!("a key is none of LMCache's: {why}"))
            }
        }
    }

    fn of_object(&self, id: ObjectKey) -> Key {
        Key::new(self.namespace(&id.salt), KeyId::Object(id))
    }

    /// The keys of these names.
    pub fn keys(&self, names: Vec<Name>) -> Vec<Named> {
        names.into_iter().map(|name| self.key(name)).collect()
    }

    /// A salt is a tenant. Chunks of a model, rank and group have one length: the declared one, or
    /// that of the first save.
    pub fn namespace_of(salt: &str, settings: &Settings) -> Namespace {
        let layout: &[u8] = match settings.spelling {
            Spelling::Mp => b"lmcache-mp",
            Spelling::Engine => b"lmcache",
        };
        let ns = Namespace::new(salt, Digest::derive("kvtier layout", layout))
            .with_partial(settings.partial);
        match settings.chunk_bytes {
            Some(bytes) => ns.with_chunk_bytes(0, bytes),
            None => ns,
        }
    }

    fn namespace(&self, salt: &str) -> Arc<Namespace> {
        let mut known = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = known.get(salt) {
            return Arc::clone(there);
        }
        let made = Arc::new(Store::namespace_of(salt, &self.settings));
        if known.len() < NAMESPACES_MAX {
            known.insert(salt.to_owned(), Arc::clone(&made));
        }
        made
    }

    /// What a batch of this class may take.
    pub fn ctx(&self, class: Class) -> Ctx {
        Ctx::within(self.settings.timeout).with_class(class)
    }

    /// A lookup holds these from now on.
    pub fn hold(&self, hold: HoldId, keys: Vec<Digest>) {
        self.holds().add(hold, keys, Instant::now());
    }

    /// Ends one hold of each key; unknown ones are fine.
    pub fn release<'k>(&self, keys: impl IntoIterator<Item = &'k Digest>) {
        let let_go = self.holds().let_go(keys, Instant::now());
        for LetGo { hold, keys, is_all } in let_go {
            match is_all {
                true => self.tier().release(hold),
                false => self.tier().release_keys(hold, &keys),
            }
        }
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
