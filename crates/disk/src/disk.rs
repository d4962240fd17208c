mod observe;
mod start;

use std::sync::Arc;

use kvtier_core::{
    Admission, Caps, Ctx, Digest, Done, Error, ErrorKind, GateLimits, Hint, Hold, HoldId, Key,
    Load, Loaded, LookedUp, Mode, OTHER_TENANTS, Op, Presence, Removed, Save, Saved, ShedReason,
    Slot, Ticket, Tier, Timekeeper,
};
use kvtier_index::{ChainPlace, Index, IndexConfig, Quotas};
use kvtier_mem::{Arena, ArenaConfig};

use crate::corrupt_chunks::suspects_max;
use crate::counters::add;
use crate::data_dir::DataDir;
use crate::direct_io::PAGE;
use crate::layout::{self, ForeignScanner};
use crate::maintenance::{Maintenance, MaintenanceTasks};
use crate::mover::Mover;
use crate::op_threads::OpThreads;
use crate::save_batch::{SaveBatch, eviction_hint};
use crate::shared::Shared;
use crate::syncfs_thread::Syncer;
use crate::thread_pool::{Lane, ThreadPool};
use crate::transfer_memory::TransferMemory;
use crate::{DiskConfig, load, lookup, remove, save};
use start::{
    foreign_of, free_min, list_known, measure_cap, open_dir_state, refuse_reserve,
    refuse_without_facts,
};

/// A tier in a directory, over a [`Mover`].
#[derive(Debug)]
pub struct Disk<M: Mover> {
    shared: Arc<Shared<M>>,
    admission: Admission,
    threads: OpThreads,
    maintenance: Maintenance,
    scanner: Option<ForeignScanner<M>>,
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
        if let Some(run_config) = &config.vllm_run_config {
            layout::find_run_config(&config.path, run_config)?;
        }
        // Refuses another layout or format before anything is measured or listed.
        let data_dir = DataDir::open(&config.path, foreign_of(&config))?;
        if let Some(run_config) = &config.vllm_run_config {
            layout::agree_on_run_config(&data_dir, run_config)?;
        }
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
        let index = Index::new(index_config.with_suspects_max(suspects_max()), policy);
        let index = index
            .map_err(|e| Error::new(ErrorKind::Invalid, "capacity out of range").with_source(e))?;
        // Lists the chunks of layout `kvtier`. Those of a foreign layout follow below, when their
        // namespace is known.
        let (dir_state, reader) = open_dir_state(data_dir, &config, index)?;
        let limits = GateLimits::new(config.ops_max, config.inflight_bytes_max);
        let mut caps = Caps::new(config.name.as_str(), config.ops_max, config.inflight_bytes_max);
        caps.align = PAGE as usize;
        caps.bounce = config.bounce_bytes > 0;
        let clock = Timekeeper::of_process(config.clock.clone(), &config.name)
            .map_err(failed("cannot start a thread"))?;
        let admission = Admission::new(Arc::clone(&caps.name), limits, clock);
        // Twice: an operation past its deadline may hold its pair while the next one is admitted.
        let tails = memory(2 * config.ops_max as usize * 2 * PAGE as usize)?;
        let bounce = memory(config.bounce_bytes)?;
        let memory = TransferMemory::new(tails, bounce, config.bounce_bytes, config.encode_bytes);
        let quotas = config.quotas.clone();
        let compat = config.compat;
        let shared = Arc::new(Shared::new(caps, &config, mover, dir_state, memory));
        shared.limit(&quotas);
        shared.index().set_compat(compat);
        let listed = list_known(&shared)?;
        shared.evict_to_cap();
        let threads = start_threads(&config, &shared, Arc::clone(admission.timers()))
            .map_err(failed("cannot start a thread"))?;
        let scanner =
            // Other programs write into a foreign layout, and no change log says so: a thread looks
            // at the files.
            shared.data_dir.foreign().map(|_| ForeignScanner::start(&shared, config.sweep_every, listed));
        let scanner = scanner.transpose().map_err(failed("cannot start a thread"))?;
        let free_min_bytes = config.free_min_bytes.map_or_else(|| free_min(&config.path), Ok);
        let tasks = free_min_bytes
            .and_then(|free| MaintenanceTasks::new(&shared, reader, config.flush_every, free));
        let maintenance =
            tasks.and_then(Maintenance::start).map_err(failed("cannot keep the directory"))?;
        Ok(Disk { shared, admission, threads, maintenance, scanner })
    }

    /// The mover.
    pub fn mover(&self) -> &M {
        &self.shared.mover
    }

    #[cfg(feature = "simulate")]
    pub(crate) fn shared(&self) -> &Shared<M> {
        &self.shared
    }

    #[cfg(feature = "simulate")]
    pub(crate) fn gate_stats(&self) -> kvtier_core::GateStats {
        self.admission.gate().stats()
    }

    /// Why no operation on this key can succeed in a foreign layout.
    fn refusal(&self, key: &Key, op: &'static str) -> Option<Error> {
        let refused = self.shared.data_dir.foreign()?.refusal(key)?;
        Some(refused.with_op(op).with_tier(self.shared.caps.name.clone()))
    }
}

/// Starts the threads on which operations continue.
fn start_threads<M: Mover>(
    config: &DiskConfig,
    shared: &Arc<Shared<M>>,
    clock: Arc<Timekeeper>,
) -> std::io::Result<OpThreads> {
    let pool = Arc::new(ThreadPool::start(&config.name, config.threads)?);
    let theirs = Arc::clone(shared);
    let syncer = Arc::new(Syncer::start(&config.name, move || theirs.data_dir.sync_file_system())?);
    Ok(OpThreads { pool, syncer, clock })
}

impl<M: Mover> Shared<M> {
    /// Releases a hold.
    pub fn release(&self, hold: HoldId) {
        self.index().release(kvtier_index::IndexHoldId::from_u64(hold.0));
    }

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
        if let Some(closed) = self.admission.closed("lookup") {
            return Ticket::ready(Err(closed));
        }
        if let Some(refused) = keys.iter().find_map(|key| self.refusal(key, "lookup")) {
            return Ticket::ready(Err(refused));
        }
        // Hits that the listing entered have no tenant yet. Their keys show it.
        self.shared.tenants.note_all(&keys);
        let is_complete = self.shared.follow_few_changes();
        // Many new records are read first, on another thread.
        if (is_complete || self.shared.asks_names())
            && let Some(answer) =
                lookup::lookup(&self.shared, &keys, mode, hold, |_| is_complete.then_some(None))
        {
            return Ticket::ready(answer).release_if_dropped(hold, &self.shared, Shared::release);
        }
        // Reads of the medium block, so they run on the pool, and the ticket ends by itself at the
        // deadline.
        let (reply, ticket) = self.admission.begin("lookup", ctx.deadline);
        if let Some(reply) = reply {
            let shared = Arc::clone(&self.shared);
            let look = move || lookup::look(&shared, &keys, mode, hold, reply);
            self.threads.pool.push(Lane::Read, look);
        }
        // A caller that drops its ticket never learns the hold's id, so nothing else could release
        // it.
        ticket.release_if_dropped(hold, &self.shared, Shared::release)
    }

    fn lookup_in_memory(&self, keys: &[Key]) -> Vec<Presence> {
        if self.admission.gate().is_closed() {
            return vec![Presence::Unknown; keys.len()];
        }
        let foreign = self.shared.data_dir.foreign();
        let known =
            |key: &Key| self.shared.known_len(key.digest()).map(|len| Presence::Hit { len });
        // The change log is not read here: that may wait for the file system, or for a thread that
        // reads it. Another thread follows it, so that chunks of peers are found a little later.
        self.shared.index_age.want();
        let is_complete =
            !self.shared.asks_names() && self.shared.index_age.is_recent(self.shared.now_ms());
        let presence = |key: &Key| {
            if let Some(hit) = known(key) {
                return hit;
            }
            // The layout can hold no such key. A caller that asked the medium for it, together with
            // other keys, would get an error for all of them.
            if foreign.is_some_and(|foreign| foreign.refusal(key).is_some()) {
                return Presence::Miss;
            }
            if is_complete { Presence::Miss } else { Presence::Unknown }
        };
        keys.iter().map(presence).collect()
    }

    fn touch(&self, keys: &[Digest], hint: &Hint) {
        self.shared.used(keys, &eviction_hint(hint));
    }

    fn load(&self, ctx: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
        let (slots, ticket) = self.admission.batch(ctx.deadline, &ops);
        // All at once and before the answers, whose order varies: the head of a chain must stay
        // longer than its tail.
        self.shared.assign_tenants(ops.iter().map(|op| &op.key));
        let chain: Vec<Digest> = ops.iter().map(|op| *op.key.digest()).collect();
        self.shared.used(&chain, &eviction_hint(&ctx.hint));
        for (op, slot) in ops.into_iter().zip(slots) {
            let refusal = load::refusal(&op, &self.shared.mover, self.shared.memory.bounce_bytes)
                .or_else(|| self.refusal(&op.key, "load"));
            let refusal = refusal.or_else(|| self.shared.misfit(&op.key, None));
            // Each operation is admitted by itself: one that is refused or throttled does not end
            // the others.
            let admitted = self.admission.admit(op, slot, refusal, Loaded::Throttled);
            if let Some((op, slot)) = admitted {
                let shared = Arc::clone(&self.shared);
                let threads = self.threads.clone();
                let load = load::LoadOp { shared, threads, op, slot };
                self.threads.pool.push(Lane::Read, move || load.begin(None));
            }
        }
        ticket
    }

    fn save(&self, ctx: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>> {
        let (slots, ticket) = self.admission.batch(ctx.deadline, &ops);
        if self.shared.data_dir.is_read_only() && !self.admission.gate().is_closed() {
            shed_all(&self.shared, ops.into_iter().zip(slots), ShedReason::ReadOnly);
            return ticket;
        }
        // An atomic set is noted before its first chunk is written, so that no lookup sees a part
        // of it as hits.
        let set = ctx.atomic_set_of(&ops);
        let keys = || ops.iter().map(|op| &op.key);
        let batch =
            SaveBatch::begin(&self.shared, keys(), set.as_deref(), eviction_hint(&ctx.hint));
        let Ok(batch) = batch else {
            shed_all(&self.shared, ops.into_iter().zip(slots), ShedReason::IncompleteSets);
            return ticket;
        };
        let first = ctx.chain.map(|chain| ChainPlace::after(chain.parent.as_ref(), chain.depth));
        // All chunks of the batch get their places in the chain before any of them is written: a
        // child may be published before its parent.
        let pending = batch.add_pending(first, keys());
        drop(batch);
        for ((op, slot), pending) in ops.into_iter().zip(slots).zip(pending) {
            let refusal = save::refusal(
                &op.key,
                &op.from,
                &self.shared.mover,
                self.shared.memory.bounce_bytes,
            );
            let refusal = refusal.or_else(|| self.refusal(&op.key, "save"));
            let refusal = refusal.or_else(|| self.shared.misfit(&op.key, Some(op.bytes())));
            // Refusals are answered here, on the caller's thread, and take no place in the queue.
            let throttled = Saved::Shed(ShedReason::Throttled);
            if let Some((op, slot)) = self.admission.admit(op, slot, refusal, throttled) {
                let request = save::SaveRequest {
                    shared: Arc::clone(&self.shared),
                    threads: self.threads.clone(),
                    op,
                    slot,
                    pending,
                    shape: ctx.shape.clone(),
                };
                self.threads.pool.push(Lane::Write, move || request.begin());
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
        let (reply, ticket) = self.admission.begin("remove", ctx.deadline);
        if let Some(reply) = reply {
            let shared = Arc::clone(&self.shared);
            self.threads.pool.push(Lane::Write, move || remove::remove(&shared, &keys, reply));
        }
        ticket
    }

    fn release(&self, hold: HoldId) {
        self.shared.release(hold);
    }

    fn release_keys(&self, hold: HoldId, keys: &[Digest]) {
        self.shared.index().release_keys(kvtier_index::IndexHoldId::from_u64(hold.0), keys);
    }

    fn ready(&self, ctx: &Ctx) -> Ticket<Result<(), Error>> {
        self.admission.ready(ctx.deadline)
    }

    fn atomic_set_of(&self, key: &Key) -> Option<Arc<[Digest]>> {
        self.shared.index().set_of(key.digest())
    }

    fn set_quota(&self, tenant: &str, bytes: Option<u64>) -> bool {
        self.shared.limit_one(tenant, bytes);
        true
    }

    fn close(&self) -> Ticket<Result<(), Error>> {
        self.admission.gate().close()
    }
}

impl<M: Mover> Drop for Disk<M> {
    /// Ends all operations: memory is returned, unfinished files are deleted, and callers get their
    /// results or `Closed`.
    fn drop(&mut self) {
        // No operation begins after this. Those that wait in the queues are dropped next, which
        // answers `Closed`.
        drop(self.admission.gate().close());
        self.shared.space.queue.close();
        self.shared.memory.close();
        // The mover ends what it has in flight; its callbacks push their last jobs to the pool,
        // which is therefore closed after it.
        self.shared.mover.close();
        self.threads.pool.close();
        self.threads.syncer.close();
        if let Some(scanner) = &self.scanner {
            scanner.close();
        }
        // Last: its final round writes the journal and the snapshot of all that happened before.
        self.maintenance.close();
    }
}

#[cfg(test)]
mod above_cap_tests;
#[cfg(test)]
mod corrupt_file_tests;
#[cfg(test)]
mod cut_file_tests;
#[cfg(test)]
mod event_tests;
#[cfg(all(test, feature = "simulate"))]
mod fault_tests;
#[cfg(test)]
mod foreign_load_tests;
#[cfg(test)]
mod foreign_release_tests;
#[cfg(test)]
mod ledger_tests;
#[cfg(test)]
mod listing_tests;
#[cfg(test)]
mod load_tests;
#[cfg(test)]
mod missing_file_tests;
#[cfg(test)]
mod recreate_tests;
#[cfg(test)]
mod remove_tests;
#[cfg(test)]
mod space_tests;
#[cfg(test)]
pub(crate) mod tests;
