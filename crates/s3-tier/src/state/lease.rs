//! Who evicts and merges: the one whose epoch is the highest. A state machine without I/O.
//!
//! Each epoch is an object that only its maker writes. To take over is to make the next epoch's
//! object where there is none (`If-None-Match: *`); to go on is to write one's own again. Its age
//! is told by the store's clock alone. A holder acts only while less than half a term has passed,
//! by its own clock, since it *sent* its last renewal that was answered; it renews only while that
//! is so, and others take over only when the object is older than a whole term. So two never act at
//! once, however wrong their clocks are and however long a request takes, as long as clocks run at
//! the same speed; and if they should all the same, they delete at most one batch too many.

#[cfg(test)]
mod tests;

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseStep {
    /// Nothing before this time.
    Wait { until_ms: u64 },
    /// List the epochs; answer [`EpochLease::listed`].
    List,
    /// Make this epoch's object if there is none; answer [`EpochLease::claimed`].
    Claim { epoch: u64 },
    /// See whose object this epoch's is: a claim of ours may have arrived unheard. Answer
    /// [`EpochLease::read`].
    Read { epoch: u64 },
    /// Write this epoch's object again; answer [`EpochLease::renewed`].
    Renew { epoch: u64 },
}

/// The highest epoch in a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TopEpoch {
    pub epoch: u64,
    /// How old its object is by the store's clock; `None` when the store does not tell.
    pub age_s: Option<i64>,
    /// For how long this node has seen it unchanged, by its own clock. A holder writes it again
    /// every quarter of a term.
    pub unchanged_ms: u64,
    /// Its holder gave it up.
    pub free: bool,
}

/// What a node has to release when it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unreleased {
    pub epoch: u64,
    /// The epoch's object is known to be this node's; otherwise it has to be read first.
    pub is_ours: bool,
}

/// What became of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimOutcome {
    /// The object is made.
    Ours,
    /// There was one, perhaps made by our own first attempt; or no answer came.
    Unclear,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Looks at this time.
    Following { list_ms: u64 },
    /// The epoch is there to be taken.
    Free { epoch: u64 },
    /// A claim sent then may be ours.
    Unclear { epoch: u64, sent_ms: u64 },
    /// A claim sent then is ours; somebody may have gone on to a higher one meanwhile.
    Made { epoch: u64, sent_ms: u64 },
    /// We hold it; the last renewal that was answered was sent then. `look`: see whether somebody
    /// went on.
    Holding { epoch: u64, sent_ms: u64, list: bool, next_ms: u64 },
}

/// One node's part in the game. All times are milliseconds of one clock of this node that only goes
/// forward.
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

    /// The epoch that is ours, while we may act.
    pub fn held(&self, now_ms: u64) -> Option<u64> {
        match self.state {
            State::Holding { epoch, .. } if self.may_act(now_ms) => Some(epoch),
            _ => None,
        }
    }

    /// What this node holds, or has claimed without having seen the result.
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

    /// The epochs were listed; `top` is the highest, `None` when there is none.
    pub fn listed(&mut self, now_ms: u64, top: Option<TopEpoch>) {
        self.lapse(now_ms);
        let highest = top.map_or(0, |top| top.epoch);
        self.state = match self.state {
            State::Made { epoch, sent_ms } if epoch == highest => self.holding(epoch, sent_ms),
            State::Holding { epoch, sent_ms, next_ms, .. } if epoch == highest => {
                State::Holding { epoch, sent_ms, list: false, next_ms }
            }
            // It was there when it was made: somebody removed it, and nobody could tell that we
            // hold it.
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
                ClaimOutcome::Ours => State::Made { epoch, sent_ms },
                ClaimOutcome::Unclear => State::Unclear { epoch, sent_ms },
            };
        }
    }

    /// The object of an unclear claim was read: whether it is ours.
    pub fn read(&mut self, now_ms: u64, ours: bool) {
        if let State::Unclear { epoch, sent_ms } = self.state {
            self.state = if ours { State::Made { epoch, sent_ms } } else { self.following(now_ms) };
        }
    }

    /// A renewal sent at `sent_ms` was answered.
    pub fn renewed(&mut self, sent_ms: u64, now_ms: u64) {
        self.lapse(now_ms);
        if let State::Holding { epoch, .. } = self.state {
            self.state = self.holding(epoch, sent_ms);
        }
    }

    /// A request failed: again soon, as long as it makes sense.
    pub fn failed(&mut self, now_ms: u64) {
        self.lapse(now_ms);
        let soon = now_ms + (self.term_ms / 16).max(1);
        match &mut self.state {
            State::Following { list_ms } => *list_ms = soon,
            State::Holding { list, next_ms, .. } => (*list, *next_ms) = (false, soon),
            State::Free { .. } => self.state = self.following(now_ms),
            State::Unclear { .. } | State::Made { .. } => {}
        }
    }

    /// Gives up what is held; the holder says so in its object.
    pub fn give_up(&mut self, now_ms: u64) {
        self.state = self.following(now_ms);
    }

    /// Ends what too much time has passed for.
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

    /// Whether its holder may be replaced. Both ends of an age are cut to seconds, so it can be
    /// told a second too old. An object that was written in the future, by the store's clock,
    /// or without a time, is over when it has not changed for two terms.
    fn is_over(&self, top: &TopEpoch) -> bool {
        top.free
            || top.unchanged_ms >= 2 * self.term_ms
            || top.age_s.is_some_and(|age| {
                age.saturating_sub(1).saturating_mul(1000) >= self.term_ms.cast_signed()
            })
    }

    fn following(&self, now_ms: u64) -> State {
        State::Following { list_ms: now_ms + (self.term_ms / 4).max(1) }
    }

    fn holding(&self, epoch: u64, sent_ms: u64) -> State {
        State::Holding { epoch, sent_ms, list: true, next_ms: sent_ms + self.term_ms / 4 }
    }
}
