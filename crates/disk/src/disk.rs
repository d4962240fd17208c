mod start;

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use kvtier_core::{
    Batch, Caps, Ctx, Cursor, Digest, Done, Error, ErrorKind, Gate, GateLimits, Hint, Hold, HoldId,
    Key, KeyInfo, KeyPage, Listener, Load, Loaded, LookedUp, Mode, OTHER_TENANTS, Observe, Op,
    Presence, Removed, Reply, Save, Saved, ShedReason, Slot, Status, TenantUsage, Ticket, Tier,
    Timekeeper, Usage,
};
use kvtier_index::{ChainPlace, Index, IndexConfig, Quotas};
use kvtier_mem::{Arena, ArenaConfig};

use crate::batch::{SaveBatch, eviction_hint};
use crate::counters::add;
use crate::data_dir::DataDir;
use crate::layout::{Foreign, Sweeper};
use crate::maintenance::{Maintenance, MaintenanceTasks};
use crate::mover::Mover;
use crate::name::PAGE;
use crate::pool::{Lane, Pool};
use crate::shared::Shared;
use crate::syncer::Syncer;
use crate::workers::Workers;
use crate::{DiskConfig, load, lookup, save};
use start::{
    foreign_of, free_min, list_known, measure_cap, open_dir_state, refuse_reserve,
    refuse_without_facts,
};

/// A tier in a directory, over a [`Mover`].
#[derive(Debug)]
pub struct Disk<M: Mover> {
    shared: Arc<Shared<M>>,
    workers: Workers,
    maintenance: Maintenance,
    sweeper: Option<Sweeper<M>>,
}

impl<M: Mover> Disk<M> {
    /// Opens the directory: registers this process, removes what dead processes left, lists the
    /// chunks, restores their order of use, and evicts until they fit below the cap.
    ///
    /// # Errors
    /// `Invalid` for a configuration that cannot be used, or that peers have otherwise; `Denied`,
    /// `Full` and `Io` for failures of the file system.
    pub fn open(mut config: DiskConfig, mover: M) -> Result<Self, Error> {
        config.check()?;
        let data_dir = DataDir::open(&config.path, foreign_of(&config))?;
        measure_cap(&mut config)?;
        refuse_reserve(&config)?;
        refuse_without_facts(&data_dir)?;
        let failed = |what: &'static str| {
            move |e: std::io::Error| Error::new(ErrorKind::Io, what).with_source(e)
        };
        let memory = |bytes| {
            Arena::new(ArenaConfig::huge(bytes)).map_err(|e| {
                Error::new(ErrorKind::Full, "no memory for the tier's own buffers").with_source(e)
            })
        };
        let index_config = IndexConfig::new(config.capacity_bytes).with_high_mark(1.0);
        let policy = if config.compat.is_some() {
            config.policy.build_compat()
        } else {
            config.policy.build()
        };
        let index = Index::new(index_config, policy);
        let mut index = index
            .map_err(|e| Error::new(ErrorKind::Invalid, "capacity out of range").with_source(e))?;
        let (dir_state, reader) = open_dir_state(data_dir, &config, &mut index)?;
        let gate = Gate::new(GateLimits::new(config.ops_max, config.inflight_bytes_max));
        let mut caps = Caps::new(config.name.as_str(), config.ops_max, config.inflight_bytes_max);
        caps.align = PAGE as usize;
        caps.bounce = config.bounce_bytes > 0;
        let clock = Timekeeper::start_on(config.clock.clone(), &config.name)
            .map_err(failed("cannot start a thread"))?;
        // Twice: an operation past its deadline may hold its pair while the next one is admitted.
        let tails = memory(2 * config.ops_max as usize * 2 * PAGE as usize)?;
        let bounce = memory(config.bounce_bytes)?;
        let (quotas, compat) = (config.quotas.clone(), config.compat);
        let shared =
            Arc::new(Shared::new(caps, &config, mover, dir_state, (index, gate, tails, bounce)));
        shared.limit(&quotas);
        shared.index().set_compat(compat);
        let listed = list_known(&shared)?;
        shared.evict_to_cap();
        let pool =
            Pool::start(&config.name, config.threads).map_err(failed("cannot start a thread"))?;
        let theirs = Arc::clone(&shared);
        let syncer = Syncer::start(&config.name, move || theirs.data_dir.sync_all());
        let syncer = syncer.map_err(failed("cannot start a thread"))?;
        let workers =
            Workers { pool: Arc::new(pool), syncer: Arc::new(syncer), clock: Arc::new(clock) };
        let sweeper =
            shared.data_dir.foreign().map(|_| Sweeper::start(&shared, config.sweep_every, listed));
        let sweeper = sweeper.transpose().map_err(failed("cannot start a thread"))?;
        let free_min_bytes = config.free_min_bytes.map_or_else(|| free_min(&config.path), Ok);
        let tasks = free_min_bytes
            .and_then(|free| MaintenanceTasks::new(&shared, reader, config.flush_every, free));
        let maintenance =
            tasks.and_then(Maintenance::start).map_err(failed("cannot keep the directory"))?;
        Ok(Disk { shared, workers, maintenance, sweeper })
    }

    /// The mover.
    pub fn mover(&self) -> &M {
        &self.shared.mover
    }

    /// Why no operation on this key can succeed in a foreign layout.
    fn refusal(&self, key: &Key, op: &'static str) -> Option<Error> {
        let refused = self.shared.data_dir.foreign()?.refusal(key)?;
        Some(refused.with_op(op).with_tier(self.shared.caps.name.clone()))
    }

    /// Releases the hold of a lookup if its answer is never taken.
    fn or_release(
        &self,
        ticket: Ticket<Result<LookedUp, Error>>,
        hold: Hold,
    ) -> Ticket<Result<LookedUp, Error>> {
        if hold == Hold::None {
            return ticket;
        }
        let shared = Arc::downgrade(&self.shared);
        ticket.undo_if_dropped(move |answer| {
            if let (Ok(LookedUp { hold: Some(id), .. }), Some(shared)) = (answer, shared.upgrade())
            {
                shared.index().release(kvtier_index::HoldId::from_u64(id.0));
            }
        })
    }

    /// Admits an operation, or answers it at once.
    fn admit<O: Op, T: Send + 'static>(
        &self,
        op: O,
        slot: Slot<O, T>,
        refusal: Option<Error>,
        throttled: T,
    ) -> Option<(O, Slot<O, T>)> {
        if let Some(error) = refusal {
            slot.finish(op, Err(error.with_tier(self.shared.caps.name.clone())));
            return None;
        }
        match self.shared.gate.enter(op.bytes()) {
            Ok(pass) => {
                slot.attach(pass);
                return Some((op, slot));
            }
            Err(ErrorKind::Throttled) => slot.finish(op, Ok(throttled)),
            Err(kind) => {
                slot.finish(
                    op,
                    Err(Error::new(kind, "the tier is closed")
                        .with_tier(self.shared.caps.name.clone())),
                )
            }
        }
        None
    }
}

impl<M: Mover> Shared<M> {
    /// Sets the quotas of tenants.
    fn limit(&self, quotas: &Quotas) {
        self.index().set_fair_sharing(quotas.fair);
        self.index().set_quota_of_others(quotas.others);
        quotas.by_tenant.iter().for_each(|(name, bytes)| self.limit_one(name, Some(*bytes)));
    }

    /// Sets the quota of one tenant, or of all others.
    fn limit_one(&self, name: &str, bytes: Option<u64>) {
        match name {
            OTHER_TENANTS => self.index().set_quota_of_others(bytes),
            name => {
                let tenant = self.tenants.id(name);
                self.index().set_quota(tenant, bytes);
            }
        }
    }
}

fn keys_of<O: Op>(ops: &[O]) -> Vec<Key> {
    ops.iter().map(|op| op.key().clone()).collect()
}

/// Sheds all saves of a batch.
fn shed_all<M: Mover>(
    shared: &Shared<M>,
    saves: impl ExactSizeIterator<Item = (Save, Slot<Save, Saved>)>,
    reason: ShedReason,
) {
    add(&shared.counters.shed, saves.len() as u64);
    saves.for_each(|(op, slot)| slot.finish(op, Ok(Saved::Shed(reason))));
}

impl<M: Mover> Tier for Disk<M> {
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
        if self.shared.gate.is_closed() {
            return Ticket::ready(Err(
                Error::new(ErrorKind::Closed, "the tier is closed").with_op("lookup")
            ));
        }
        if let Some(refused) = keys.iter().find_map(|key| self.refusal(key, "lookup")) {
            return Ticket::ready(Err(refused));
        }
        self.shared.tenants.note_all(&keys);
        let is_complete = self.shared.follow_few_changes();
        // Many new records are read first, on another thread.
        if (is_complete || self.shared.asks_names())
            && let Some(answer) =
                lookup::lookup(&self.shared, &keys, mode, hold, |_| is_complete.then_some(None))
        {
            return self.or_release(Ticket::ready(answer), hold);
        }
        let Ok(pass) = self.shared.gate.enter(0) else {
            return Ticket::ready(Err(
                Error::new(ErrorKind::Throttled, "too much in flight").with_op("lookup")
            ));
        };
        let (answer, ticket) = Reply::new_on(&self.shared.clock, "lookup", ctx.deadline);
        self.workers.clock.schedule(ctx.deadline, &answer.expiry());
        let shared = Arc::clone(&self.shared);
        self.workers.pool.push(Lane::Read, move || {
            lookup::look(&shared, &keys, (mode, hold), answer);
            drop(pass);
        });
        self.or_release(ticket, hold)
    }

    fn lookup_in_memory(&self, keys: &[Key]) -> Vec<Presence> {
        if self.shared.gate.is_closed() {
            return vec![Presence::Unknown; keys.len()];
        }
        let absent = match self.shared.follow_few_changes() {
            true => Presence::Miss,
            false => Presence::Unknown,
        };
        let presence = |key: &Key| {
            self.shared.known_len(key.digest()).map_or(absent, |len| Presence::Hit { len })
        };
        keys.iter().map(presence).collect()
    }

    fn touch(&self, keys: &[Digest], hint: &Hint) {
        self.shared.used(keys, hint);
    }

    fn load(&self, ctx: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
        let (batch, slots, ticket) = Batch::new_on(&self.shared.clock, ctx.deadline, keys_of(&ops));
        self.workers.clock.schedule(ctx.deadline, &batch.expiry());
        // All at once and before the answers, whose order varies: the head of a chain must stay
        // longer than its tail.
        self.shared.assign_tenants(ops.iter().map(|op| &op.key));
        let chain: Vec<Digest> = ops.iter().map(|op| *op.key.digest()).collect();
        self.shared.used(&chain, &eviction_hint(&ctx.hint));
        for (op, slot) in ops.into_iter().zip(slots) {
            let refusal = load::refusal(&op, &self.shared.mover, self.shared.bounce_bytes)
                .or_else(|| self.refusal(&op.key, "load"));
            let refusal = refusal.or_else(|| self.shared.misfit(&op.key, None));
            if let Some((op, slot)) = self.admit(op, slot, refusal, Loaded::Throttled) {
                let shared = Arc::clone(&self.shared);
                let workers = self.workers.clone();
                let load = load::LoadOp { shared, workers, op, slot };
                self.workers.pool.push(Lane::Read, move || load.begin(None));
            }
        }
        ticket
    }

    fn save(&self, ctx: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>> {
        let (batch, slots, ticket) = Batch::new_on(&self.shared.clock, ctx.deadline, keys_of(&ops));
        self.workers.clock.schedule(ctx.deadline, &batch.expiry());
        if self.shared.data_dir.is_read_only() && !self.shared.gate.is_closed() {
            shed_all(&self.shared, ops.into_iter().zip(slots), ShedReason::ReadOnly);
            return ticket;
        }
        let set = ctx.atomic_set_of(&ops);
        let keys = || ops.iter().map(|op| &op.key);
        let batch =
            SaveBatch::begin(&self.shared, keys(), set.as_deref(), eviction_hint(&ctx.hint));
        let Ok(batch) = batch else {
            shed_all(&self.shared, ops.into_iter().zip(slots), ShedReason::IncompleteSets);
            return ticket;
        };
        let first = ctx.chain.map(|chain| ChainPlace::after(chain.parent.as_ref(), chain.depth));
        let pending = batch.add_pending(first, keys());
        drop(batch);
        for ((op, slot), pending) in ops.into_iter().zip(slots).zip(pending) {
            let refusal =
                save::refusal(&op.key, &op.from, &self.shared.mover, self.shared.bounce_bytes);
            let refusal = refusal.or_else(|| self.refusal(&op.key, "save"));
            let refusal = refusal.or_else(|| self.shared.misfit(&op.key, Some(op.bytes())));
            if let Some((op, slot)) =
                self.admit(op, slot, refusal, Saved::Shed(ShedReason::Throttled))
            {
                let request = save::SaveRequest {
                    shared: Arc::clone(&self.shared),
                    workers: self.workers.clone(),
                    op,
                    slot,
                    pending,
                    shape: ctx.shape.clone(),
                };
                self.workers.pool.push(Lane::Write, move || request.begin());
            }
        }
        ticket
    }

    fn remove(&self, ctx: &Ctx, keys: Arc<[Key]>) -> Ticket<Result<Removed, Error>> {
        if let Some(refused) = keys.iter().find_map(|key| self.refusal(key, "remove")) {
            return Ticket::ready(Err(refused));
        }
        if self.shared.data_dir.is_read_only() {
            let what = format!(
                "{} is read-only: make its file system writable",
                self.shared.data_dir.root().display()
            );
            return Ticket::ready(Err(Error::new(ErrorKind::Denied, what).with_op("remove")));
        }
        let pass = match self.shared.gate.enter(0) {
            Ok(pass) => pass,
            Err(kind) => {
                return Ticket::ready(Err(
                    Error::new(kind, "the tier is closed or at its limit").with_op("remove")
                ));
            }
        };
        let (answer, ticket) = Reply::new_on(&self.shared.clock, "remove", ctx.deadline);
        self.workers.clock.schedule(ctx.deadline, &answer.expiry());
        let shared = Arc::clone(&self.shared);
        self.workers.pool.push(Lane::Write, move || {
            lookup::remove(&shared, &keys, answer);
            drop(pass);
        });
        ticket
    }

    fn release(&self, hold: HoldId) {
        self.shared.index().release(kvtier_index::HoldId::from_u64(hold.0));
    }

    fn release_keys(&self, hold: HoldId, keys: &[Digest]) {
        self.shared.index().release_keys(kvtier_index::HoldId::from_u64(hold.0), keys);
    }

    fn ready(&self, ctx: &Ctx) -> Ticket<Result<(), Error>> {
        let ticket = self.shared.gate.ready(ctx.deadline);
        self.workers.clock.schedule(ctx.deadline, &self.shared.gate.expiry());
        ticket
    }

    fn atomic_set_of(&self, key: &Key) -> Option<Arc<[Digest]>> {
        self.shared.index().set_of(key.digest())
    }

    fn set_quota(&self, tenant: &str, bytes: Option<u64>) -> bool {
        self.shared.limit_one(tenant, bytes);
        true
    }

    fn close(&self) -> Ticket<Result<(), Error>> {
        self.shared.gate.close()
    }
}

impl<M: Mover> Observe for Disk<M> {
    fn usage(&self) -> Usage {
        let index = self.shared.index();
        let all = index.usage();
        let mut usage = Usage::default();
        let quarantine_bytes = self.shared.quarantine_bytes.load(Ordering::Relaxed);
        let is_counted = self.shared.data_dir.foreign().is_none_or(Foreign::is_swept);
        usage.used_bytes = is_counted.then_some(all.used + quarantine_bytes);
        usage.capacity_bytes = Some(all.capacity);
        usage.chunks = all.entries as u64;
        usage.tenants = index
            .tenants()
            .map(|(id, u)| TenantUsage {
                tenant: self.shared.tenants.name(id),
                used_bytes: u.bytes,
                chunks: u.entries as u64,
            })
            .collect();
        usage
    }

    fn keys(&self, from: Cursor, max: usize) -> KeyPage {
        let page =
            self.shared.index().keys_page(kvtier_index::SlotCursor::from_u32(from.0 as u32), max);
        KeyPage {
            keys: page
                .chunks
                .iter()
                .map(|c| KeyInfo { key: c.digest, len: self.shared.reported_len(c) })
                .collect(),
            next: page.next.map(|cursor| Cursor(cursor.as_u32().into())),
        }
    }

    fn listen(&self, listener: Arc<dyn Listener>) {
        self.shared.listeners.add(listener);
    }

    fn status(&self) -> Status {
        let fault = self.shared.last_fault.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut reasons = vec![self.shared.mover.describe()];
        reasons.extend(fault.map(|f| format!("last fault: {f}")));
        let read_only = "read-only: the file system takes no writes; loads and lookups are served, saves are shed, nothing is evicted, \
                         until it can be written again";
        reasons.extend(self.shared.data_dir.is_read_only().then(|| read_only.to_owned()));
        reasons.extend(self.shared.restored_note());
        reasons.extend(self.shared.data_dir.damage());
        reasons.extend(self.shared.full_device.describe(&self.shared.clock));
        reasons.extend(self.shared.data_dir.foreign().map(Foreign::describe));
        reasons.extend(self.shared.geometry.describe());
        let mut counters = self.shared.counters.all();
        counters.extend(self.shared.mover.counters());
        let gate = self.shared.gate.stats();
        counters.extend([("queue_us", self.workers.pool.waited_us())]);
        counters.extend([("throttled", gate.throttled), ("stranded", gate.stranded_total)]);
        let healthy =
            !self.shared.gate.is_closed() && !self.shared.full_device.sheds(&self.shared.clock);
        Status::new(healthy, reasons, counters)
    }
}

impl<M: Mover> Drop for Disk<M> {
    /// Ends all operations: memory is returned, unfinished files are deleted, and callers get their
    /// results or `Closed`.
    fn drop(&mut self) {
        drop(self.shared.gate.close());
        self.shared.space_queue.close();
        self.shared.memory_queue.close();
        self.shared.mover.close();
        self.workers.pool.close();
        self.workers.syncer.close();
        if let Some(sweeper) = &self.sweeper {
            sweeper.close();
        }
        self.maintenance.close();
    }
}

#[cfg(test)]
mod tests;
