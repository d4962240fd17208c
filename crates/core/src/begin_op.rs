//! Begins an operation, in the same way for all tiers that work behind a ticket.
//!
//! An operation passes the tier's [`Gate`], gets its deadline from the tier's [`Timekeeper`], and is
//! refused with an error that names the tier. A batch is admitted op by op: an op that the tier can
//! never serve gets its error, one above the limits gets the caller's own answer for it, and the
//! others hold their share of the gate until they are answered. A lookup or a remove is one
//! operation, whose share is in its [`Reply`].

use std::sync::Arc;
use std::time::Instant;

use crate::{Batch, Done, Error, ErrorKind, Gate, GateLimits, Op, Reply, Slot, Ticket, Timekeeper};

/// Admits the operations of one tier: its limits, its deadlines, its name.
///
/// ```
/// use std::sync::Arc;
/// use kvtier_core::{Admission, Ctx, Done, Error, GateLimits, Load, Loaded, Ticket, Timekeeper};
///
/// /// Loads from a tier that holds nothing.
/// fn load(admission: &Admission, ctx: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
///     let (slots, ticket) = admission.batch(ctx.deadline, &ops);
///     for (op, slot) in ops.into_iter().zip(slots) {
///         if let Some((op, slot)) = admission.admit(op, slot, None, Loaded::Throttled) {
///             slot.finish(op, Ok(Loaded::Miss(kvtier_core::MissReason::Absent)));
///         }
///     }
///     ticket
/// }
///
/// let timers = Arc::new(Timekeeper::start("nothing")?);
/// let admission = Admission::new("nothing".into(), GateLimits::new(8, 1 << 20), timers);
/// assert!(load(&admission, &Ctx::within(std::time::Duration::from_secs(1)), vec![]).wait().is_empty());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Admission {
    tier: Arc<str>,
    gate: Gate,
    timers: Arc<Timekeeper>,
}

impl Admission {
    /// The admission to the tier of this name, within these limits. Deadlines are on the clock of
    /// `timers`.
    pub fn new(tier: Arc<str>, limits: GateLimits, timers: Arc<Timekeeper>) -> Self {
        Admission { tier, gate: Gate::new(limits), timers }
    }

    /// The tier's gate.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The tier's timers.
    pub fn timers(&self) -> &Arc<Timekeeper> {
        &self.timers
    }

    /// Begins a batch, which ends at `deadline`: one slot per op, in order, and the ticket for all of
    /// them.
    pub fn batch<O: Op, T: Send + 'static>(
        &self,
        deadline: Instant,
        ops: &[O],
    ) -> (Vec<Slot<O, T>>, Ticket<Vec<Done<O, T>>>) {
        let keys = ops.iter().map(|op| op.key().clone()).collect();
        let (batch, slots, ticket) = Batch::new_on(self.timers.clock(), deadline, keys);
        // Before any op is admitted: an op that waits for the medium for ever is still answered in
        // time.
        self.timers.schedule(deadline, &batch.expiry());
        (slots, ticket)
    }

    /// Admits one op of a batch, or answers it at once: with `refusal`, which says why the tier can
    /// never serve it; with `throttled` where too much is in flight; with `Closed`.
    pub fn admit<O: Op, T: Send + 'static>(
        &self,
        op: O,
        slot: Slot<O, T>,
        refusal: Option<Error>,
        throttled: T,
    ) -> Option<(O, Slot<O, T>)> {
        if let Some(error) = refusal {
            // No capacity is asked for: an op that can never be served must not wait behind others.
            slot.finish(op, Err(error.with_tier(Arc::clone(&self.tier))));
            return None;
        }
        match self.gate.enter(op.bytes()) {
            Ok(pass) => {
                slot.attach(pass);
                return Some((op, slot));
            }
            Err(ErrorKind::Throttled) => slot.finish(op, Ok(throttled)),
            Err(kind) => slot.finish(op, Err(self.error(kind))),
        }
        None
    }

    /// Begins an operation that is no batch, which ends at `deadline`. The reply is `None`, and the
    /// ticket has the error, where too much is in flight or the tier is closed.
    pub fn begin<T: Send + 'static>(
        &self,
        op: &'static str,
        deadline: Instant,
    ) -> (Option<Reply<T>>, Ticket<Result<T, Error>>) {
        // Lookups and removes carry no memory, but count as ops.
        let pass = match self.gate.enter(0) {
            Ok(pass) => pass,
            Err(kind) => return (None, Ticket::ready(Err(self.error(kind).with_op(op)))),
        };
        let (mut reply, ticket) = Reply::new_on(self.timers.clock(), op, deadline);
        self.timers.schedule(deadline, &reply.expiry());
        reply.attach(pass);
        (Some(reply), ticket)
    }

    /// The error of an operation that needs no capacity, on a closed tier.
    pub fn closed(&self, op: &'static str) -> Option<Error> {
        self.gate.is_closed().then(|| self.error(ErrorKind::Closed).with_op(op))
    }

    /// Resolves when the tier may admit another op; see [`Gate::ready`].
    pub fn ready(&self, deadline: Instant) -> Ticket<Result<(), Error>> {
        // The waiter first, then its timer: the other way round, the timer could pass before there
        // is anything to expire.
        let ticket = self.gate.ready(deadline);
        self.timers.schedule(deadline, &self.gate.expiry());
        ticket
    }

    fn error(&self, kind: ErrorKind) -> Error {
        let what = match kind {
            ErrorKind::Closed => "the tier is closed",
            _ => "too much in flight; wait until the tier is ready, or lower the concurrency",
        };
        Error::new(kind, what).with_tier(Arc::clone(&self.tier))
    }
}
