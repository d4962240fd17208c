//! The lease of the evictor, as a state machine without I/O: the node with the highest epoch evicts
//! and merges.
//!
//! Each epoch is an object that only its maker writes. A node takes over by creating the object of
//! the next epoch (`If-None-Match: *`), and renews by writing its own object again.
//!
//! The argument why two nodes never act at once:
//!
//! - Only one node creates an epoch's object, since the store honours the condition (`election`
//!   checks it).
//! - A holder acts for less than half a term, by its own clock, after it *sent* its last renewal
//!   that was answered. It renews only during that time.
//! - Others take over only when the object is older than a whole term by the store's clock, which
//!   is the only clock that measures its age. A holder that may still act wrote it less than half a
//!   term ago.
//! - A holder lists the epochs after each renewal. If it finds a higher one, it stops.
//!
//! Listings of some stores lag. A claim that they do not show yet is looked for until it is too old. A
//! lag of up to a quarter of a term makes no object look old enough to be taken over.
//!
//! Clocks may be wrong by any amount, and requests may take any time; the argument needs only that
//! clocks run at about the same speed. Should it fail in spite of that, two evictors delete at most
//! one batch too many: evictions are checked before each batch.
//!
//! The tests run this machine against a simulated store with lost, delayed and late answers, and
//! with nodes that die.

#[cfg(test)]
mod tests;

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseStep {
    /// Nothing before this time.
    Wait { until_ms: u64 },
    /// List the epochs; report to [`EpochLease::listed`].
    List,
    /// Create this epoch's object if there is none; report to [`EpochLease::claimed`].
    Claim { epoch: u64 },
    /// Read this epoch's object: a claim may have succeeded without an answer. Report to
    /// [`EpochLease::read`].
    Read { epoch: u64 },
    /// Write this epoch's object again; report to [`EpochLease::renewed`].
    Renew { epoch: u64 },
}

/// The highest epoch in a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TopEpoch {
    pub epoch: u64,
    /// The age of its object by the store's clock; `None` if the store has no time.
    pub age_s: Option<i64>,
    /// How long its object has been unchanged, by this node's clock. A holder writes it every
    /// quarter of a term.
    pub unchanged_ms: u64,
    /// Its holder released it.
    pub free: bool,
}

/// What a node has to release at shutdown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unreleased {
    pub epoch: u64,
    /// Whether the object is known to be this node's; otherwise it has to be read first.
    pub is_ours: bool,
}

/// The outcome of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimOutcome {
    /// The object was created.
    Ours,
    /// It existed, perhaps from this node's own first attempt; or no answer came.
    Unclear,
    /// It was created, and deleted by the holder of a later epoch.
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Lists at this time.
    Following { list_ms: u64 },
    /// The epoch can be claimed.
    Free { epoch: u64 },
    /// A claim sent then may have succeeded.
    Unclear { epoch: u64, sent_ms: u64 },
    /// A claim sent then succeeded; another node may have claimed a higher one meanwhile. Lists at
    /// `list_ms`.
    Made { epoch: u64, sent_ms: u64, list_ms: u64 },
    /// This node holds it; the last renewal that was answered was sent then. `list`: check for a
    /// higher epoch.
    Holding { epoch: u64, sent_ms: u64, list: bool, next_ms: u64 },
}

/// One node's view of the lease. All times are milliseconds of one monotonic clock of this node.
#[derive(Debug)]
pub struct EpochLease {
    term_ms: u64,
    state: State,
}

impl EpochLease {
    /// Holds nothing yet.
    pub fn new(term_ms: u64) -> Self {
        EpochLease { term_ms, state: State::Following { list_ms: 0 } }
    }

    /// Whether this node may delete and merge now.
    pub fn may_act(&self, now_ms: u64) -> bool {
        matches!(self.state, State::Holding { sent_ms, .. } if self.is_fresh(sent_ms, now_ms))
    }

    /// This node's epoch, while it may act.
    pub fn held(&self, now_ms: u64) -> Option<u64> {
        match self.state {
            State::Holding { epoch, .. } if self.may_act(now_ms) => Some(epoch),
            _ => None,
        }
    }

    /// What this node holds, or has claimed without a confirmation.
    pub fn unreleased(&self) -> Option<Unreleased> {
        match self.state {
            State::Holding { epoch, .. } | State::Made { epoch, .. } => {
                Some(Unreleased { epoch, is_ours: true })
            }
            State::Unclear { epoch, .. } => Some(Unreleased { epoch, is_ours: false }),
            State::Following { .. } | State::Free { .. } => None,
        }
    }

    /// What to do now.
    pub fn next(&mut self, now_ms: u64) -> LeaseStep {
        self.lapse(now_ms);
        match self.state {
            State::Following { list_ms } if now_ms < list_ms => {
                LeaseStep::Wait { until_ms: list_ms }
            }
            State::Made { list_ms, .. } if now_ms < list_ms => {
                LeaseStep::Wait { until_ms: list_ms }
            }
            State::Following { .. } | State::Made { .. } => LeaseStep::List,
            State::Free { epoch } => LeaseStep::Claim { epoch },
            State::Unclear { epoch, .. } => LeaseStep::Read { epoch },
            State::Holding { list: true, .. } => LeaseStep::List,
            State::Holding { next_ms, .. } if now_ms < next_ms => {
                LeaseStep::Wait { until_ms: next_ms }
            }
            State::Holding { epoch, .. } => LeaseStep::Renew { epoch },
        }
    }

    /// The epochs were listed; `top` is the highest, `None` if there is none.
    pub fn listed(&mut self, now_ms: u64, top: Option<TopEpoch>) {
        self.lapse(now_ms);
        let highest = top.map_or(0, |top| top.epoch);
        self.state = match self.state {
            State::Made { epoch, sent_ms, .. } if epoch == highest => self.holding(epoch, sent_ms),
            // Listings that lag do not show it yet.
            State::Made { epoch, sent_ms, .. } if epoch > highest => {
                State::Made { epoch, sent_ms, list_ms: self.soon(now_ms) }
            }
            State::Holding { epoch, sent_ms, next_ms, .. } if epoch == highest => {
                State::Holding { epoch, sent_ms, list: false, next_ms }
            }
            // The object was removed by another program, so no other node can see that this one
            // holds it.
            State::Made { .. } | State::Holding { .. } => self.following(now_ms),
            _ => match top {
                None => State::Free { epoch: 1 },
                Some(top) if self.is_over(&top) => {
                    State::Free { epoch: top.epoch.saturating_add(1) }
                }
                Some(_) => self.following(now_ms),
            },
        };
    }

    /// A claim sent at `sent_ms` was answered.
    pub fn claimed(&mut self, sent_ms: u64, answer: ClaimOutcome) {
        if let State::Free { epoch } = self.state {
            self.state = match answer {
                ClaimOutcome::Ours => State::Made { epoch, sent_ms, list_ms: sent_ms },
                ClaimOutcome::Unclear => State::Unclear { epoch, sent_ms },
                ClaimOutcome::Lost => self.following(sent_ms),
            };
        }
    }

    /// The object of an unclear claim was read; `ours` if this node made it.
    pub fn read(&mut self, now_ms: u64, ours: bool) {
        if let State::Unclear { epoch, sent_ms } = self.state {
            self.state = match ours {
                true => State::Made { epoch, sent_ms, list_ms: now_ms },
                false => self.following(now_ms),
            };
        }
    }

    /// A renewal sent at `sent_ms` was answered.
    pub fn renewed(&mut self, sent_ms: u64, now_ms: u64) {
        self.lapse(now_ms);
        if let State::Holding { epoch, .. } = self.state {
            self.state = self.holding(epoch, sent_ms);
        }
    }

    /// A request failed: tries again soon, while that is useful.
    pub fn failed(&mut self, now_ms: u64) {
        self.lapse(now_ms);
        let soon = self.soon(now_ms);
        match &mut self.state {
            State::Following { list_ms } => *list_ms = soon,
            State::Holding { list, next_ms, .. } => (*list, *next_ms) = (false, soon),
            State::Free { .. } => self.state = self.following(now_ms),
            State::Unclear { .. } | State::Made { .. } => {}
        }
    }

    /// Gives up the lease; the caller writes that into the object.
    pub fn give_up(&mut self, now_ms: u64) {
        self.state = self.following(now_ms);
    }

    /// Ends a state that is too old.
    fn lapse(&mut self, now_ms: u64) {
        let sent = match self.state {
            State::Unclear { sent_ms, .. }
            | State::Made { sent_ms, .. }
            | State::Holding { sent_ms, .. } => sent_ms,
            _ => return,
        };
        if !self.is_fresh(sent, now_ms) {
            self.state = self.following(now_ms);
        }
    }

    fn is_fresh(&self, sent_ms: u64, now_ms: u64) -> bool {
        now_ms.saturating_sub(sent_ms) < self.term_ms / 2
    }

    /// Whether the holder may be replaced. Both times of an age are truncated to seconds, so it can
    /// be one second too high. An object with a future time or none is over after two terms without
    /// a change.
    fn is_over(&self, top: &TopEpoch) -> bool {
        top.free
            || top.unchanged_ms >= 2 * self.term_ms
            || top.age_s.is_some_and(|age| {
                age.saturating_sub(1).saturating_mul(1000) >= self.term_ms.cast_signed()
            })
    }

    fn soon(&self, now_ms: u64) -> u64 {
        now_ms + (self.term_ms / 16).max(1)
    }

    fn following(&self, now_ms: u64) -> State {
        State::Following { list_ms: now_ms + (self.term_ms / 4).max(1) }
    }

    fn holding(&self, epoch: u64, sent_ms: u64) -> State {
        State::Holding { epoch, sent_ms, list: true, next_ms: sent_ms + self.term_ms / 4 }
    }
}
