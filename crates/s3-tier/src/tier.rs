//! The tier: the traits of `kvtier-core` over the state, the operations and the background work.

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{
    Admission, Caps, Ctx, Cursor, Digest, Done, Error, ErrorKind, GateLimits, Hint, Hold, HoldId,
    Key, KeyInfo, KeyPage, Listener, Load, Loaded, LookedUp, Mode, Observe, Presence, Removed,
    Reply, Save, Saved, ShedReason, Slot, Status, TenantUsage, Ticket, Tier, Usage,
};
use kvtier_evict::{Policy, PolicyKind};
use kvtier_index::{ChainPlace, Index, IndexConfig, SlotCursor};
use kvtier_mem::{Arena, ArenaConfig, BackingKind};
use kvtier_s3::Client;
use tokio::time::Instant;

use crate::TierConfig;
use crate::background::{self, conditional_puts};
use crate::ops::admission_order::SaveOrders;
use crate::ops::save_batch::{SaveBatch, eviction_hint};
use crate::ops::{encode, evict, load, lookup, remove, save};
use crate::state::catalog::best_len;
use crate::state::counters::add;
use crate::state::machine::{Executor, timekeeper};
use crate::state::shared::{Shared, SharedParts};

/// The time limit of the last writes to the bucket: some requests in sequence, of which the last
/// lets the next node evict at once and not after a term.
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);

/// A tier in a bucket.
#[derive(Debug)]
pub struct S3Tier {
    pub(crate) shared: Arc<Shared>,
    admission: Admission,
    bounce_bytes: u64,
    executor: Option<Executor>,
}

impl S3Tier {
    /// Opens the tier. Only background work sends requests before the first operation.
    pub fn open(mut config: TierConfig) -> Result<Self, Error> {
        config.check()?;
        let failed = |what: &'static str| {
            move |e: std::io::Error| Error::new(ErrorKind::Io, what).with_source(e)
        };
        let executor =
            Executor::start(&config).map_err(failed("cannot start the S3 tier's threads"))?;
        let timers = timekeeper(&config).map_err(failed("cannot start a thread"))?;
        let index = Index::new(limits(&config), policy(&config));
        let index = index
            .map_err(|e| Error::new(ErrorKind::Invalid, "capacity out of range").with_source(e))?;
        let mut bounce = ArenaConfig::heap(config.bounce_bytes.max(1));
        // Pages are allocated when they are touched: most tiers never need them.
        bounce.kind = BackingKind::Mapped;
        let bounce = Arena::new(bounce);
        let bounce = bounce.map_err(|e| {
            Error::new(ErrorKind::Full, "no memory for the tier's buffers").with_source(e)
        });
        let caps = Caps::new(config.name.as_str(), config.ops_max, config.inflight_bytes_max);
        let limits = GateLimits::new(config.ops_max, config.inflight_bytes_max);
        let admission = Admission::new(Arc::clone(&caps.name), limits, timers);
        let gate = admission.gate().clone();
        let spare = kvtier_s3::Config::new(
            config.client.endpoint.clone(),
            kvtier_s3::Credentials::new("", ""),
        );
        let mut client = std::mem::replace(&mut config.client, spare);
        client.checksum = save::checksum_for_facts(client.checksum);
        let shared = Arc::new(Shared::new(
            &config,
            Client::new(client),
            SharedParts { caps, index, gate, bounce: bounce? },
        ));
        shared.catalog().set_quotas(&config.quotas);
        match config.compat.filter(|_| config.capacity_bytes.is_some()) {
            Some(compat) => executor.spawn(evict::evict_by_the_second(Arc::clone(&shared), compat)),
            None => executor.spawn(evict::evict_ahead(Arc::clone(&shared))),
        };
        executor.spawn(conditional_puts::probe(Arc::clone(&shared)));
        background::start(&shared, &executor);
        Ok(S3Tier {
            shared,
            admission,
            bounce_bytes: config.bounce_bytes as u64,
            executor: Some(executor),
        })
    }

    /// The client of the tier: its counters, its clock, its limits.
    pub fn client(&self) -> &Client {
        &self.shared.client
    }

    /// Checks that the bucket exists.
    ///
    /// # Errors
    /// `Invalid` if it does not exist: until it does, saves and loads fail, and the status reports
    /// it. Other errors are those of the request.
    pub fn check(&self, ctx: &Ctx) -> Ticket<Result<(), Error>> {
        let shared = Arc::clone(&self.shared);
        let deadline = ctx.deadline.into();
        let work = async move { shared.check(deadline).await };
        self.ask("check", ctx, work, |answer, checked| {
            answer.complete(checked);
        })
    }

    fn spawn(&self, job: impl Future<Output = ()> + Send + 'static) {
        if let Some(executor) = &self.executor {
            executor.spawn(job);
        }
    }

    /// Runs a request about keys and passes its result to `reply`. Work past its deadline continues
    /// to its end, because victims must be settled.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        op: &'static str,
        ctx: &Ctx,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
        reply: impl FnOnce(Reply<T>, Result<T, Error>) + Send + 'static,
    ) -> Ticket<Result<T, Error>> {
        let (answer, ticket) = self.admission.begin(op, ctx.deadline);
        if let Some(answer) = answer {
            self.spawn(async move {
                if answer.is_over() {
                    return answer.give_up();
                }
                let result = work.await;
                reply(answer, result);
            });
        }
        ticket
    }
}

/// The index's limits: what is above the reject mark is above its capacity.
fn limits(config: &TierConfig) -> IndexConfig {
    let Some(capacity) = config.capacity_bytes else { return IndexConfig::new(u64::MAX) };
    if config.compat.is_some() {
        return IndexConfig::new(capacity).with_high_mark(1.0);
    }
    let mark = config.reject_mark;
    let bytes = if mark == 1.0 { capacity } else { ((capacity as f64 * mark) as u64).max(1) };
    IndexConfig::new(bytes)
        .with_high_mark((config.high_mark / mark).min(1.0))
        .with_batch_max((config.batch_max / mark).min(1.0))
}

/// The eviction policy. Without a cap it only selects which keys are forgotten, so it must select
/// some.
fn policy(config: &TierConfig) -> Box<dyn Policy> {
    match config.policy {
        PolicyKind::Noop if config.capacity_bytes.is_none() => PolicyKind::Lru.build(),
        policy if config.compat.is_some() => policy.build_compat(),
        policy => policy.build(),
    }
}

impl Tier for S3Tier {
    fn caps(&self) -> &Caps {
        &self.shared.caps
    }

    fn lookup(
        &self,
        ctx: &Ctx,
        keys: Arc<[Key]>,
        mode: Mode,
        hold: Hold,
    ) -> Ticket<Result<LookedUp, Error>> {
        if let Some(closed) = self.admission.closed("lookup") {
            return Ticket::ready(Err(closed));
        }
        if keys.len() > 1 {
            self.shared.catalog().index.learn_order(&keys);
        }
        self.shared.catalog().note_tenants(&keys);
        let ticket = match lookup::from_memory(&self.shared, &keys, mode, hold) {
            Some(answer) => Ticket::ready(answer),
            None => {
                let shared = Arc::clone(&self.shared);
                let work = Arc::clone(&self.shared);
                let work = lookup::lookup(work, keys, mode, hold, ctx.deadline.into());
                self.ask("lookup", ctx, work, move |answer, found| {
                    answer.complete_or_release(found, |hold| shared.release(hold));
                })
            }
        };
        ticket.release_if_dropped(hold, &self.shared, Shared::release)
    }

    fn lookup_in_memory(&self, keys: &[Key]) -> Vec<Presence> {
        if self.shared.gate.is_closed() {
            return vec![Presence::Unknown; keys.len()];
        }
        lookup::without_asking(&self.shared, keys)
    }

    fn touch(&self, keys: &[Digest], hint: &Hint) {
        self.shared.used(keys, &eviction_hint(hint));
    }

    fn load(&self, ctx: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
        let (slots, ticket) = self.admission.batch(ctx.deadline, &ops);
        // The whole batch, and before the results: the head of a chain must stay longer than its
        // tail.
        let chain: Vec<_> = ops.iter().map(|op| *op.key.digest()).collect();
        self.shared.used(&chain, &eviction_hint(&ctx.hint));
        for (op, slot) in ops.into_iter().zip(slots) {
            let refusal = load::refusal(&op);
            let admitted = self.admission.admit(op, slot, refusal, Loaded::Throttled);
            if let Some((op, slot)) = admitted {
                self.spawn(load::load(Arc::clone(&self.shared), op, slot, ctx.class));
            }
        }
        ticket
    }

    fn save(&self, ctx: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>> {
        let (slots, ticket) = self.admission.batch(ctx.deadline, &ops);
        let set = ctx.atomic_set_of(&ops);
        let keys = || ops.iter().map(|op| &op.key);
        let saves =
            SaveBatch::begin(&self.shared, keys(), set.as_deref(), eviction_hint(&ctx.hint));
        let Ok(saves) = saves else {
            add(&self.shared.counters.shed, ops.len() as u64);
            let shed = |(op, slot): (Save, Slot<_, _>)| {
                slot.finish(op, Ok(Saved::Shed(ShedReason::IncompleteSets)))
            };
            ops.into_iter().zip(slots).for_each(shed);
            return ticket;
        };
        let first = ctx.chain.map(|chain| ChainPlace::after(chain.parent.as_ref(), chain.depth));
        let pending = saves.add_pending(first, keys());
        drop(saves);
        let orders = SaveOrders::for_batch(ops.len());
        let begun = Instant::now();
        for (((op, slot), pending), orders) in ops.into_iter().zip(slots).zip(pending).zip(orders) {
            let refusal = save::refusal(&op, self.bounce_bytes)
                .or_else(|| encode::refusal(&self.shared.encoding, &op));
            let throttled = Saved::Shed(ShedReason::Throttled);
            if let Some((op, slot)) = self.admission.admit(op, slot, refusal, throttled) {
                let queued = save::QueuedSave { op, slot, pending, orders, begun };
                self.spawn(save::save(Arc::clone(&self.shared), queued));
            }
        }
        ticket
    }

    fn remove(&self, ctx: &Ctx, keys: Arc<[Key]>) -> Ticket<Result<Removed, Error>> {
        let work = remove::remove(Arc::clone(&self.shared), keys, ctx.deadline.into());
        self.ask("remove", ctx, work, |answer, removed| {
            answer.complete(removed);
        })
    }

    fn release(&self, hold: HoldId) {
        self.shared.release(hold);
    }

    fn release_keys(&self, hold: HoldId, keys: &[Digest]) {
        self.shared.catalog().index.release_keys(kvtier_index::IndexHoldId::from_u64(hold.0), keys);
    }

    fn ready(&self, ctx: &Ctx) -> Ticket<Result<(), Error>> {
        self.admission.ready(ctx.deadline)
    }

    fn atomic_set_of(&self, key: &Key) -> Option<Arc<[Digest]>> {
        self.shared.catalog().index.set_of(key.digest())
    }

    /// `false` without a cap, where nothing is counted, and with LMCache's eviction, which has no
    /// tenants.
    fn set_quota(&self, tenant: &str, bytes: Option<u64>) -> bool {
        let may = self.shared.capacity_bytes.is_some() && !self.shared.compat;
        if may {
            self.shared.catalog().set_quota(tenant, bytes);
            self.shared.eviction_queue.notify();
        }
        may
    }

    fn close(&self) -> Ticket<Result<(), Error>> {
        let drained = self.shared.gate.close();
        let shared = Arc::clone(&self.shared);
        let (answer, ticket) = kvtier_core::ticket();
        self.spawn(async move {
            let result = drained.await;
            background::shutdown(&shared, SHUTDOWN_MAX).await;
            answer.complete(result);
        });
        ticket
    }
}

impl Observe for S3Tier {
    fn usage(&self) -> Usage {
        let catalog = self.shared.catalog();
        let all = catalog.index.usage();
        // Without a cap the writes of others are not counted.
        let used = self.shared.capacity_bytes.map(|_| all.used);
        let tenants = catalog.index.tenants().map(|(id, totals)| {
            TenantUsage::new(catalog.tenant_name(id), totals.bytes, totals.entries)
        });
        Usage::new(used, self.shared.capacity_bytes, all.entries).with_tenants(tenants)
    }

    fn keys(&self, from: Cursor, max: usize) -> KeyPage {
        let catalog = self.shared.catalog();
        let page = catalog.index.keys_page(SlotCursor::from_u32(from.slot()), max);
        let good = page.chunks.iter().filter(|chunk| !catalog.index.is_suspect(&chunk.digest));
        let keys = good.map(|chunk| KeyInfo { key: chunk.digest, len: best_len(chunk) });
        KeyPage::from_slots(keys, page.next.map(SlotCursor::as_u32))
    }

    fn listen(&self, listener: Arc<dyn Listener>) {
        self.shared.listeners.add(listener);
    }

    fn status(&self) -> Status {
        let mut reasons = Vec::new();
        let missing = self.shared.client.is_bucket_missing();
        reasons.extend(missing.then(|| self.shared.missing_bucket()));
        match (self.shared.catalog().is_listed, self.shared.names.can_parse()) {
            (true, _) => {}
            (false, true) => {
                reasons.push("the bucket is still being listed: usage is not complete".to_owned())
            }
            (false, false) => {
                reasons.push(
                    "usage is not known before the first key says whose chunks these are"
                        .to_owned(),
                );
            }
        }
        reasons.extend(self.shared.node.reasons(self.shared.now_ms()));
        reasons.extend(self.shared.client.outages());
        reasons.extend(self.shared.last_fault().map(|fault| format!("last fault: {fault}")));
        let mut counters = self.shared.counters.all();
        let gate = self.shared.gate.stats();
        counters.extend([("throttled", gate.throttled), ("stranded", gate.stranded_total)]);
        let sent = self.shared.client.counts();
        // Retries are charged like any.
        counters.extend([
            ("retries", sent.retries),
            ("requests_put", sent.requests_put),
            ("requests_list", sent.requests_list),
            ("requests_get", sent.requests_get),
            ("requests_head", sent.requests_head),
            ("requests_delete", sent.requests_delete),
        ]);
        Status::new(!self.shared.gate.is_closed() && !missing, reasons, counters)
    }
}

impl Drop for S3Tier {
    /// Ends operations: memory is returned, and waiters receive `Closed`. If none is in flight, the
    /// last writes of `close` are sent.
    fn drop(&mut self) {
        let idle = self.shared.gate.close().is_done();
        if let Some(executor) = self.executor.take() {
            executor.stop(idle.then(|| background::shutdown(&self.shared, SHUTDOWN_MAX)));
        }
    }
}
