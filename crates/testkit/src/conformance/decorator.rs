use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kvtier_core::{
    Caps, Ctx, Cursor, Digest, Done, Error, Hint, Hold, HoldId, Key, KeyPage, Listener, Load,
    Loaded, LookedUp, MissReason, Mode, Observe, Presence, Removed, Save, Saved, Spill, Spilled,
    Status, Ticket, Tier, Usage, View,
};

use crate::ModelTier;
use crate::conformance::Fixture;

/// Proves that a tier around a tier passes everything on, the calls that have an answer by default
/// too. An author of a new call to [`Tier`](kvtier_core::Tier) or [`Observe`](kvtier_core::Observe)
/// adds it here, and no decorator can miss it.
///
/// # Panics
///
/// When a call does not arrive in the tier inside.
pub fn passes_everything_on(around: impl FnOnce(Arc<dyn Tier>) -> Arc<dyn Tier>) {
    let model = ModelTier::open(crate::ModelConfig::default())
        .expect("the model tier needs nothing but a thread");
    let f = Fixture::new(model);
    let inner =
        Arc::new(Recorder { caps: Caps::new("recorder", 8, 1 << 20), calls: Mutex::default() });
    let tier = around(inner.clone());
    let ctx = Ctx::within(Duration::from_secs(600));
    let key = f.key(1);
    let keys: Arc<[Key]> = [key.clone()].into();
    assert_eq!(tier.caps().name, inner.caps.name, "caps is not passed on");
    drop(tier.lookup(&ctx, Arc::clone(&keys), Mode::Each, Hold::None).wait());
    let found = tier.lookup_in_memory(&keys);
    assert_eq!(found, [Presence::Miss], "the answer to lookup_in_memory is not passed on");
    tier.touch(&[*key.digest()], &Hint::default());
    drop(tier.load(&ctx, vec![f.load_op(&key, 1)]).wait());
    drop(tier.save(&ctx, vec![f.save_op(&key, 1)]).wait());
    drop(tier.remove(&ctx, keys).wait());
    tier.release(HoldId(1));
    tier.release_keys(HoldId(1), &[*key.digest()]);
    drop(tier.ready(&ctx).wait());
    drop(tier.peek(&key));
    assert!(tier.spill_to(Arc::new(Nowhere)), "the answer to spill_to is not passed on");
    assert!(tier.atomic_set_of(&key).is_some(), "the answer to atomic_set_of is not passed on");
    assert!(tier.set_quota("t", Some(1)), "the answer to set_quota is not passed on");
    drop((tier.usage(), tier.keys(Cursor::default(), 1), tier.status()));
    tier.listen(Arc::new(Nowhere));
    drop(tier.close().wait());
    let expected = [
        "lookup",
        "lookup_in_memory",
        "touch",
        "load",
        "save",
        "remove",
        "release",
        "release_keys",
        "ready",
        "peek",
        "spill_to",
        "atomic_set_of",
        "set_quota",
        "usage",
        "keys",
        "status",
        "listen",
        "close",
    ];
    // In order and complete: a decorator may neither leave out a call nor make one of its own.
    assert_eq!(*inner.calls(), expected);
}

#[derive(Debug)]
struct Nowhere;

impl Spill for Nowhere {
    fn take(&self, _: Vec<Spilled>) {}
}

impl Listener for Nowhere {
    fn on_events(&self, _: &[kvtier_core::Event]) {}
}

/// Has nothing, and notes what it is asked.
#[derive(Debug)]
struct Recorder {
    caps: Caps,
    calls: Mutex<Vec<&'static str>>,
}

impl Recorder {
    fn calls(&self) -> std::sync::MutexGuard<'_, Vec<&'static str>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, call: &'static str) {
        self.calls().push(call);
    }
}

impl Tier for Recorder {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn lookup(
        &self,
        _: &Ctx,
        keys: Arc<[Key]>,
        _: Mode,
        _: Hold,
    ) -> Ticket<Result<LookedUp, Error>> {
        self.note("lookup");
        Ticket::ready(Ok(LookedUp::new(vec![Presence::Miss; keys.len()], None)))
    }

    fn lookup_in_memory(&self, keys: &[Key]) -> Vec<Presence> {
        self.note("lookup_in_memory");
        vec![Presence::Miss; keys.len()]
    }

    fn touch(&self, _: &[Digest], _: &Hint) {
        self.note("touch");
    }

    fn load(&self, _: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
        self.note("load");
        let miss = |op| Done { op, result: Ok(Loaded::Miss(MissReason::Absent)) };
        Ticket::ready(ops.into_iter().map(miss).collect())
    }

    fn save(&self, _: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>> {
        self.note("save");
        Ticket::ready(ops.into_iter().map(|op| Done { op, result: Ok(Saved::Stored) }).collect())
    }

    fn remove(&self, _: &Ctx, _: Arc<[Key]>) -> Ticket<Result<Removed, Error>> {
        self.note("remove");
        Ticket::ready(Ok(Removed::default()))
    }

    fn release(&self, _: HoldId) {
        self.note("release");
    }

    fn release_keys(&self, _: HoldId, _: &[Digest]) {
        self.note("release_keys");
    }

    fn ready(&self, _: &Ctx) -> Ticket<Result<(), Error>> {
        self.note("ready");
        Ticket::ready(Ok(()))
    }

    fn peek(&self, _: &Key) -> Option<View> {
        self.note("peek");
        None
    }

    fn spill_to(&self, _: Arc<dyn Spill>) -> bool {
        self.note("spill_to");
        true
    }

    fn atomic_set_of(&self, key: &Key) -> Option<Arc<[Digest]>> {
        self.note("atomic_set_of");
        Some([*key.digest()].into())
    }

    fn set_quota(&self, tenant: &str, bytes: Option<u64>) -> bool {
        self.note("set_quota");
        (tenant, bytes) == ("t", Some(1))
    }

    fn close(&self) -> Ticket<Result<(), Error>> {
        self.note("close");
        Ticket::ready(Ok(()))
    }
}

impl Observe for Recorder {
    fn usage(&self) -> Usage {
        self.note("usage");
        Usage::default()
    }

    fn keys(&self, _: Cursor, _: usize) -> KeyPage {
        self.note("keys");
        KeyPage::default()
    }

    fn listen(&self, _: Arc<dyn Listener>) {
        self.note("listen");
    }

    fn status(&self) -> Status {
        self.note("status");
        Status::new(true, vec![], vec![])
    }
}
