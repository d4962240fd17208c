//! Checks interleavings with shuttle: one load of a key reads below, a remove removes a chunk from
//! every tier, and no op waits forever.

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::key::{ChunkHash, KeyId, KvRank, ObjectKey};
use kvtier_core::{
    Caps, Class, Cursor, Digest, Done, Error, Hold, HoldId, Key, KeyPage, Listener, Load, Loaded,
    LookedUp, MissReason, Mode, Namespace, Observe, Presence, Removed, Save, Saved, Status, Ticket,
    Tier, Usage, View, ticket,
};
use kvtier_mem::{Arena, ArenaConfig};
use shuttle::sync::Mutex;
use shuttle::thread;

use super::*;

/// A tier of one chunk whose answers come from another thread.
#[derive(Debug)]
struct Slow {
    caps: Caps,
    chunk: Arc<Mutex<Option<View>>>,
    /// How many came so far.
    loads: Arc<Mutex<usize>>,
}

impl Slow {
    fn new(chunk: Option<View>) -> Arc<Self> {
        Arc::new(Slow {
            caps: Caps::new("slow", 8, 1 << 20),
            chunk: Arc::new(Mutex::new(chunk)),
            loads: Arc::default(),
        })
    }

    fn has_it(&self) -> bool {
        self.chunk.lock().unwrap().is_some()
    }
}

/// Answers from a thread of its own.
fn later<T: kvtier_core::Dropped + Send + 'static>(
    answer: impl FnOnce() -> T + Send + 'static,
) -> Ticket<T> {
    let (completer, ticket) = ticket();
    thread::spawn(move || completer.complete(answer()));
    ticket
}

impl Tier for Slow {
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
        Ticket::ready(Ok(LookedUp::new(vec![Presence::Miss; keys.len()], None)))
    }

    fn load(&self, _: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
        let chunk = Arc::clone(&self.chunk);
        let loads = Arc::clone(&self.loads);
        later(move || {
            *loads.lock().unwrap() += ops.len();
            let one = |mut op: Load| {
                let found = chunk.lock().unwrap().clone();
                let result = match found {
                    Some(view) => {
                        op.into[0].write_at(0, view.as_ref()).unwrap();
                        Loaded::Hit { len: view.len() as u64 }
                    }
                    None => Loaded::Miss(MissReason::Absent),
                };
                Done { op, result: Ok(result) }
            };
            ops.into_iter().map(one).collect()
        })
    }

    fn save(&self, _: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>> {
        let chunk = Arc::clone(&self.chunk);
        later(move || {
            let one = |op: Save| {
                // A copy: the memory is the caller's again.
                let copy = copy_of(&op.from[0]);
                *chunk.lock().unwrap() = Some(copy);
                Done { op, result: Ok(Saved::Stored) }
            };
            ops.into_iter().map(one).collect()
        })
    }

    fn remove(&self, _: &Ctx, keys: Arc<[Key]>) -> Ticket<Result<Removed, Error>> {
        let chunk = Arc::clone(&self.chunk);
        later(move || {
            let mut counts = Removed::default();
            match chunk.lock().unwrap().take() {
                Some(_) => counts.removed = keys.len(),
                None => counts.absent = keys.len(),
            }
            Ok(counts)
        })
    }

    fn release(&self, _: HoldId) {}

    fn release_keys(&self, _: HoldId, _: &[Digest]) {}

    fn ready(&self, _: &Ctx) -> Ticket<Result<(), Error>> {
        Ticket::ready(Ok(()))
    }

    fn peek(&self, _: &Key) -> Option<View> {
        self.chunk.lock().unwrap().clone()
    }

    fn close(&self) -> Ticket<Result<(), Error>> {
        Ticket::ready(Ok(()))
    }
}

impl Observe for Slow {
    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn keys(&self, _: Cursor, _: usize) -> KeyPage {
        KeyPage::default()
    }

    fn listen(&self, _: Arc<dyn Listener>) {}

    fn status(&self) -> Status {
        Status::new(true, vec![], vec![])
    }
}

fn key() -> Key {
    let ns = Arc::new(Namespace::new("tests", Digest::derive("layout", b"tests")));
    Key::new(
        ns,
        KeyId::Object(ObjectKey::new("model", KvRank(0), 0, ChunkHash::new(&[1]), "").unwrap()),
    )
}

fn arena() -> Arena {
    Arena::new(ArenaConfig::heap(64 << 10)).unwrap()
}

fn copy_of(view: &View) -> View {
    view_of(view.as_ref())
}

fn view_of(bytes: &[u8]) -> View {
    let mut lease = arena().lease(bytes.len()).unwrap();
    lease.write_at(0, bytes).unwrap();
    lease.freeze()
}

fn ctx() -> Ctx {
    Ctx::within(Duration::from_secs(100_000)).with_class(Class::Prefetch)
}

fn check(test: fn()) {
    let iterations = if std::env::var_os("KVTIER_NIGHTLY").is_some() { 20_000 } else { 500 };
    shuttle::check_random(test, iterations);
    shuttle::check_pct(test, iterations, 3);
}

fn load(stack: &Stack) -> bool {
    let op = Load { key: key(), into: vec![arena().lease(7).unwrap()] };
    let done = stack.load(&ctx(), vec![op]).wait().remove(0);
    let is_hit = matches!(done.result.unwrap(), Loaded::Hit { .. });
    assert!(!is_hit || done.op.into[0].as_host().unwrap() == b"a chunk");
    is_hit
}

#[test]
fn of_several_loads_of_a_key_one_goes_below_and_all_are_served() {
    check(|| {
        let top = Slow::new(None);
        let low = Slow::new(Some(view_of(b"a chunk")));
        let stack = Arc::new(Stack::new("s", vec![top.clone(), low.clone()]).unwrap());
        let loads: Vec<_> = (0..3)
            .map(|_| {
                let stack = Arc::clone(&stack);
                thread::spawn(move || assert!(load(&stack)))
            })
            .collect();
        loads.into_iter().for_each(|load| load.join().unwrap());
        assert_eq!(*low.loads.lock().unwrap(), 1);
        assert!(top.has_it());
    });
}

#[test]
fn what_is_removed_stays_away_whatever_loads_are_under_way() {
    check(|| {
        let top = Slow::new(None);
        let low = Slow::new(Some(view_of(b"a chunk")));
        let stack = Arc::new(Stack::new("s", vec![top.clone(), low.clone()]).unwrap());
        let loads: Vec<_> = (0..2)
            .map(|_| {
                let stack = Arc::clone(&stack);
                thread::spawn(move || _ = load(&stack))
            })
            .collect();
        let removed = stack.remove(&ctx(), [key()].into()).wait().unwrap();
        assert_eq!(removed.removed, 1);
        loads.into_iter().for_each(|load| load.join().unwrap());
        assert!(!top.has_it() && !low.has_it(), "it came back");
    });
}

#[test]
fn what_is_written_behind_is_removed_too_and_waited_for_at_the_end() {
    check(|| {
        let top = Slow::new(None);
        let low = Slow::new(None);
        let back = TierRule::new().with_write(Write::Back);
        let stack =
            Stack::open(StackConfig::new("s").with(top.clone()).with_rule(low.clone(), back))
                .unwrap();
        let op = Save { key: key(), from: vec![view_of(b"a chunk")] };
        assert_eq!(stack.save(&ctx(), vec![op]).wait().remove(0).result.unwrap(), Saved::Stored);
        stack.remove(&ctx(), [key()].into()).wait().unwrap();
        assert!(!top.has_it() && !low.has_it(), "it came after its remove");
        let op = Save { key: key(), from: vec![view_of(b"a chunk")] };
        drop(stack.save(&ctx(), vec![op]).wait());
        stack.close().wait().unwrap();
        assert!(low.has_it());
    });
}
