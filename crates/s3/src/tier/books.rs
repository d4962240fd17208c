use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Key, OTHER_TENANTS};
use kvtier_index::{Chunk, Entry, Index, Inserted, Quotas, TenantId};
use kvtier_key::Digest;

use super::truth::Watch;
use crate::time::Instant;

/// The most keys remembered as absent.
const ABSENT_MAX: usize = 1 << 16;
/// The most versions of corrupt objects remembered.
const CORRUPT_MAX: usize = 1 << 12;
/// The most tenants whose names are remembered.
const TENANTS_MAX: usize = 1 << 16;
/// So many of them must have nothing before it is looked which these are: each look at all is paid for by as many new names.
const TENANTS_IDLE: usize = TENANTS_MAX / 16;
/// Tenants beyond those are counted together.
const OTHERS: TenantId = TenantId(u32::MAX);
/// What was seen is noted in steps of this many milliseconds.
const SEEN_STEP_MS: u64 = 16;

/// What is known of the bucket.
#[derive(Debug)]
pub struct Books {
    pub index: Index,
    pub seen: Seen,
    absent: HashMap<Digest, Instant>,
    /// Versions of objects that failed their checks.
    corrupt: HashMap<Digest, Box<str>>,
    /// Names that do not follow from the digest.
    names: HashMap<Digest, Arc<str>>,
    tenants: HashMap<TenantId, String>,
    /// Those of them who were met here, and whose names are to be written.
    met: BTreeSet<TenantId>,
    /// How much single tenants may have, and every other, in bytes.
    limits: (HashMap<TenantId, u64>, Option<u64>),
    /// What changed while a listing runs, whose pages may be older.
    pub watch: Watch,
    /// Whether the whole bucket was listed once.
    pub listed: bool,
    fresh_hit_max: Duration,
    fresh_miss_max: Duration,
}

/// When the chunk in each slot was last seen, in steps of the tier's clock; 0 for one to be asked for.
#[derive(Debug, Default)]
pub struct Seen(Vec<u32>);

impl Seen {
    /// When the slot's chunk was last seen, in milliseconds of the tier's clock; 0 if that is unknown.
    pub fn ms(&self, slot: u32) -> u64 {
        self.0.get(slot as usize).map_or(0, |seen| u64::from(*seen) * SEEN_STEP_MS)
    }

    /// The slot's chunk was seen then.
    pub fn note(&mut self, slot: u32, now_ms: u64) {
        let slot = slot as usize;
        if self.0.len() <= slot {
            self.0.resize(slot + 1, 0);
        }
        self.0[slot] = (now_ms / SEEN_STEP_MS).max(1) as u32;
    }

    fn doubt(&mut self, slot: u32) {
        if let Some(seen) = self.0.get_mut(slot as usize) {
            *seen = 0;
        }
    }
}

impl Books {
    /// Books of a bucket about which nothing is known. What was seen counts for so long.
    pub fn new(index: Index, (fresh_hit_max, fresh_miss_max): (Duration, Duration)) -> Self {
        Books {
            index,
            seen: Seen::default(),
            absent: HashMap::new(),
            corrupt: HashMap::new(),
            names: HashMap::new(),
            tenants: HashMap::new(),
            met: BTreeSet::new(),
            limits: Default::default(),
            watch: Watch::default(),
            listed: false,
            fresh_hit_max,
            fresh_miss_max,
        }
    }

    /// What is known of a key without asking: `Some(None)` that it is not there.
    pub fn known(&self, digest: &Digest, now_ms: u64) -> Option<Option<u64>> {
        if let Some(entry) = self.index.get(digest) {
            let seen_ms = self.seen.ms(entry.slot);
            let age_ms = now_ms.saturating_sub(seen_ms);
            // What is held stays; but what is in doubt has to be seen first.
            let fresh = seen_ms > 0 && (entry.held || u128::from(age_ms) < self.fresh_hit_max.as_millis());
            return fresh.then_some(Some(entry.chunk.len));
        }
        if self.index.is_leaving(digest) || self.is_hidden(digest) {
            return Some(None);
        }
        self.absent.get(digest).filter(|at| at.elapsed() < self.fresh_miss_max).map(|_| None)
    }

    /// Whether it lies there and is a miss all the same: what belongs to it is not all there.
    pub fn is_hidden(&self, digest: &Digest) -> bool {
        self.index.slot(digest).is_some() && !self.index.is_suspect(digest) && self.index.get(digest).is_none()
    }

    /// Enters a chunk that somebody tells of: whether it is there is still to be seen.
    pub fn hear_of(&mut self, chunk: Chunk) -> Inserted {
        let inserted = self.index.insert(chunk);
        // The slot may have been another chunk's.
        if let Inserted::New(slot) = inserted {
            self.seen.doubt(slot);
        }
        inserted
    }

    /// The chunk's entry in the index: its tenant included, and its place in its chain as lookups told it.
    pub fn chunk(&mut self, key: &Key, len: u64) -> Chunk {
        let (tenant, place) = (self.tenant(key.namespace().tenant()), self.index.place_of(key));
        Chunk::new(*key.digest(), len, len).with_tenant(tenant).with_place(place)
    }

    /// The number of a tenant.
    pub fn tenant(&mut self, name: &str) -> TenantId {
        if name.is_empty() {
            return TenantId(0);
        }
        let digest = Digest::of("kvtier tenant", name.as_bytes());
        let [a, b, c, d, ..] = *digest.as_bytes();
        let mut id = TenantId(u32::from_le_bytes([a, b, c, d]).clamp(1, OTHERS.0 - 1));
        // Of two names with one number the second takes the next. Nodes that met them in another order count these two otherwise.
        while let Some(known) = self.tenants.get(&id) {
            if known == name {
                // Whoever has nothing for long loses the name in the bucket.
                if self.index.tenant_usage(id).entries == 0 {
                    self.meet(id);
                }
                return id;
            }
            id = TenantId(id.0 % (OTHERS.0 - 1) + 1);
        }
        if !self.note_tenant(id, name) {
            return OTHERS;
        }
        self.meet(id);
        id
    }

    /// The name of a tenant is to be written.
    pub fn meet(&mut self, id: TenantId) {
        self.met.insert(id);
    }

    /// At most so many tenants whose names are to be written and who have something in the bucket.
    pub fn take_met(&mut self, count: usize) -> Vec<(TenantId, String)> {
        let (index, names) = (&self.index, &self.tenants);
        self.met.retain(|id| names.contains_key(id));
        let due = self.met.extract_if(.., |id| index.tenant_usage(*id).entries > 0);
        due.take(count).filter_map(|id| Some((id, names.get(&id)?.clone()))).collect()
    }

    /// At most so many tenants that have something in the bucket and no name, of those that are wanted.
    pub fn nameless(&self, is_wanted: impl Fn(TenantId) -> bool, count: usize) -> Vec<TenantId> {
        let is_one =
            |id: &TenantId| !matches!(*id, TenantId(0) | OTHERS) && !self.tenants.contains_key(id) && is_wanted(*id);
        self.index.tenants().map(|(id, _)| id).filter(is_one).take(count).collect()
    }

    /// Limits what tenants may have.
    pub fn limit(&mut self, quotas: &Quotas) {
        self.index.share_fairly(quotas.fair);
        self.limit_one(OTHER_TENANTS, quotas.others);
        quotas.of.iter().for_each(|(name, bytes)| self.limit_one(name, Some(*bytes)));
    }

    /// Limits what one tenant may have, or all others.
    pub fn limit_one(&mut self, name: &str, bytes: Option<u64>) {
        if name == OTHER_TENANTS {
            self.limits.1 = bytes;
            return self.index.set_quota_of_others(bytes);
        }
        let tenant = self.tenant(name);
        match bytes {
            Some(bytes) => self.limits.0.insert(tenant, bytes),
            None => self.limits.0.remove(&tenant),
        };
        self.index.set_quota(tenant, bytes);
    }

    /// How much a tenant may have, in bytes. Whose chunks nobody knows is none of the others.
    pub fn limit_of(&self, tenant: TenantId) -> Option<u64> {
        self.limits.0.get(&tenant).copied().or(self.limits.1.filter(|_| tenant != TenantId(0)))
    }

    /// The tenants that have something in the bucket and whose names are known, those with the most bytes first.
    pub fn tenants(&self) -> impl Iterator<Item = (TenantId, String)> + '_ {
        let bytes = |id: &TenantId| self.index.tenant_usage(*id).bytes;
        let known = self.index.tenants().map(|(id, _)| id).filter(|id| self.tenants.contains_key(id));
        let mut known: Vec<TenantId> = known.collect();
        known.sort_unstable_by_key(|id| (std::cmp::Reverse(bytes(id)), id.0));
        known.into_iter().map(move |id| (id, self.tenant_name(id)))
    }

    /// Remembers what a tenant is called; `false` when there are too many that have something in the bucket.
    pub fn note_tenant(&mut self, id: TenantId, name: &str) -> bool {
        if self.tenants.contains_key(&id) {
            return true;
        }
        if self.tenants.len() >= TENANTS_MAX {
            self.forget_idle_tenants();
        }
        let noted = self.tenants.len() < TENANTS_MAX;
        if noted {
            self.tenants.insert(id, name.to_owned());
        }
        noted
    }

    /// Forgets who has neither a chunk nor a limit, if these are many.
    fn forget_idle_tenants(&mut self) {
        let busy = self.index.tenants().len() + self.limits.0.len();
        if self.tenants.len().saturating_sub(busy) >= TENANTS_IDLE {
            let (index, limits) = (&self.index, &self.limits.0);
            self.tenants.retain(|id, _| index.tenant_usage(*id).entries > 0 || limits.contains_key(id));
        }
    }

    pub fn tenant_name(&self, id: TenantId) -> String {
        match self.tenants.get(&id) {
            Some(name) => name.clone(),
            None if id == TenantId(0) => String::new(),
            None => "(others)".to_owned(),
        }
    }

    /// The chunk was seen just now.
    pub fn confirm(&mut self, digest: &Digest, now_ms: u64) {
        self.changed(*digest);
        self.absent.remove(digest);
        // One that its set hides too.
        if let Some(slot) = self.index.slot(digest) {
            self.seen.note(slot, now_ms);
        }
    }

    /// Nobody knows what became of a request that changes the key: the next to ask asks the bucket.
    pub fn doubt(&mut self, digest: &Digest) {
        self.changed(*digest);
        self.absent.remove(digest);
        if let Some(slot) = self.index.slot(digest) {
            self.seen.doubt(slot);
        }
    }

    /// The bucket has no such object.
    pub fn note_absent(&mut self, digest: Digest) {
        self.note_absent_at(digest, Instant::now());
    }

    /// The bucket had no such object then.
    pub fn note_absent_at(&mut self, digest: Digest, at: Instant) {
        if self.absent.len() >= ABSENT_MAX {
            self.absent.clear();
        }
        self.absent.insert(digest, at);
        self.names.remove(&digest);
        self.corrupt.remove(&digest);
        self.index.acquit(&digest);
    }

    /// A victim is not remembered any more, though it is there.
    pub fn let_go(&mut self, digest: &Digest) {
        self.index.evicted(digest);
        self.names.remove(digest);
    }

    /// The bucket has it no more: nothing of it stays but, of a suspect, the suspicion.
    pub fn forget(&mut self, digest: &Digest) -> Option<Entry> {
        self.names.remove(digest);
        self.index.forget(digest)
    }

    /// Remembers a name that the digest does not tell.
    pub fn note_name(&mut self, digest: &Digest, name: &str) {
        if self.index.is_known(digest) && self.names.get(digest).is_none_or(|known| **known != *name) {
            self.names.insert(*digest, name.into());
        }
    }

    /// The name under which the key was found, where the digest does not tell it.
    pub fn name(&self, digest: &Digest) -> Option<Arc<str>> {
        self.names.get(digest).cloned()
    }

    /// The key's object, of that version, failed its checks: a miss until it is another.
    pub fn note_corrupt(&mut self, digest: &Digest, etag: Option<&str>) {
        self.doubt(digest);
        self.index.suspect(digest);
        if self.corrupt.len() >= CORRUPT_MAX {
            self.corrupt.clear();
        }
        self.corrupt.insert(*digest, etag.unwrap_or_default().into());
    }

    /// Whether the object of this version is the one that failed its checks, as far as can be told.
    pub fn is_corrupt(&self, digest: &Digest, etag: Option<&str>) -> bool {
        let known = self.corrupt.get(digest).filter(|known| !known.is_empty());
        self.index.is_suspect(digest) && (etag.is_none() || known.is_none_or(|known| Some(&**known) == etag))
    }

    /// What lies there now was written since.
    pub fn acquit(&mut self, digest: &Digest) {
        self.corrupt.remove(digest);
        self.index.acquit(digest);
    }

    /// How long ago the bucket was found to have no such object, or it was deleted here.
    pub fn absent_for(&self, digest: &Digest) -> Option<Duration> {
        self.absent.get(digest).map(Instant::elapsed)
    }

    /// The key changed: a listing that is under way may tell of it as it was before.
    pub fn changed(&mut self, digest: Digest) {
        self.watch.note(digest);
    }

    /// Whether the whole bucket was listed once.
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    /// How many names are remembered.
    #[cfg(test)]
    pub fn names_len(&self) -> usize {
        self.names.len()
    }
}

#[cfg(test)]
mod tests {
    use kvtier_evict::PolicyKind;
    use kvtier_index::IndexConfig;

    use super::*;

    fn books() -> Books {
        let index = Index::new(IndexConfig::new(u64::MAX), PolicyKind::Lru.build()).unwrap();
        Books::new(index, (Duration::from_secs(60), Duration::from_secs(1)))
    }

    fn chunk(n: u32) -> Chunk {
        Chunk::new(Digest::of("test", &n.to_le_bytes()), 10, 10)
    }

    #[test]
    fn what_others_tell_of_is_in_doubt_whatever_had_its_slot_before() {
        let (mut books, a, b) = (books(), chunk(1), chunk(2));
        let Inserted::New(slot) = books.hear_of(a) else { panic!("new") };
        books.confirm(&a.digest, 1000);
        assert_eq!(books.known(&a.digest, 1000), Some(Some(10)));
        books.forget(&a.digest).unwrap();
        assert_eq!(books.hear_of(b), Inserted::New(slot), "the slot is reused");
        assert_eq!(books.known(&b.digest, 1000), None, "nobody saw it");
    }

    #[test]
    fn what_is_held_is_believed_however_old_but_not_when_in_doubt() {
        let (mut books, a) = (books(), chunk(1));
        let _ = books.hear_of(a);
        books.index.hold(&[a.digest], u64::MAX).unwrap();
        assert_eq!(books.known(&a.digest, 500), None, "heard of, and held");
        books.confirm(&a.digest, 500);
        assert_eq!(books.known(&a.digest, 10_000_000), Some(Some(10)));
        books.doubt(&a.digest);
        assert_eq!(books.known(&a.digest, 500), None);
    }

    #[test]
    fn who_believes_nothing_asks_in_the_same_moment_too() {
        let index = Index::new(IndexConfig::new(u64::MAX), PolicyKind::Lru.build()).unwrap();
        let (mut books, a) = (Books::new(index, (Duration::ZERO, Duration::ZERO)), chunk(1));
        let _ = books.hear_of(a);
        for now_ms in [0, 1, SEEN_STEP_MS, 10 * SEEN_STEP_MS] {
            books.confirm(&a.digest, now_ms);
            assert_eq!(books.known(&a.digest, now_ms), None, "at {now_ms} ms");
        }
    }

    #[test]
    fn names_go_with_their_chunks() {
        let (mut books, a) = (books(), chunk(1));
        books.note_name(&a.digest, "nobody's");
        assert_eq!(books.names_len(), 0);
        let _ = books.hear_of(a);
        books.note_name(&a.digest, "m@1");
        books.forget(&a.digest).unwrap();
        assert_eq!(books.names_len(), 0);
    }

    #[test]
    fn tenants_with_one_number_are_told_apart_and_there_are_not_too_many() {
        let mut books = books();
        let number = |name: &str| {
            let [a, b, c, d, ..] = *Digest::of("kvtier tenant", name.as_bytes()).as_bytes();
            u32::from_le_bytes([a, b, c, d])
        };
        let mut met: HashMap<u32, String> = HashMap::new();
        let (one, other) = (0..)
            .find_map(|n| {
                let name = format!("t{n}");
                met.insert(number(&name), name.clone()).map(|one| (one, name))
            })
            .unwrap();
        let (a, b) = (books.tenant(&one), books.tenant(&other));
        assert_ne!(a, b);
        assert_eq!((books.tenant(&one), books.tenant(&other)), (a, b));
        assert_eq!((books.tenant_name(a), books.tenant_name(b)), (one, other));
        for n in 0..TENANTS_MAX as u32 + 10 {
            let tenant = books.tenant(&format!("tenant {n}"));
            let _ = books.hear_of(chunk(n).with_tenant(tenant));
        }
        assert_eq!(books.tenants.len(), TENANTS_MAX);
        assert_eq!(
            books.tenant_name(books.index.get(&chunk(TENANTS_MAX as u32 + 9).digest).unwrap().chunk.tenant),
            "(others)"
        );
        let mut forgotten = 0;
        while books.tenant(&format!("more {forgotten}")) == OTHERS {
            books.forget(&chunk(forgotten).digest).unwrap();
            forgotten += 1;
        }
        // The first two have nothing either.
        let room = TENANTS_MAX - books.tenants.len() + 1;
        assert!(forgotten as usize <= TENANTS_IDLE + 1 && room >= TENANTS_IDLE, "{forgotten}, {room}: they go at once");
        books.limit_one("limited", Some(1));
        (0..10).for_each(|n| assert!(books.forget(&chunk(forgotten + n).digest).is_some()));
        (0..room).for_each(|n| _ = books.tenant(&format!("idle {n}")));
        assert!(books.tenants.len() < TENANTS_MAX && books.tenants.values().any(|name| name == "limited"));
    }

    #[test]
    fn the_tenants_that_are_noted_have_something_and_the_largest_come_first() {
        let mut books = books();
        let [_, small, large, _] = ["none", "small", "large", "gone"].map(|name| books.tenant(name));
        for n in 0..3 {
            let _ = books.hear_of(chunk(n).with_tenant(if n == 0 { small } else { large }));
        }
        // One whose name nobody told.
        let _ = books.hear_of(chunk(9).with_tenant(TenantId(7)));
        let noted: Vec<(TenantId, String)> = books.tenants().collect();
        assert_eq!(noted, [(large, "large".to_owned()), (small, "small".to_owned())]);
    }
}
