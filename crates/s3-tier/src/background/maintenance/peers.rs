//! What a round reads of other nodes: their journals, or what the evictor counts for all.

use super::{JOURNALS_STAY, Maintenance, is_refused};
use crate::background::fleet_totals::{self, DIRECT_NODES_MAX, FleetTotals};
use crate::sync_config::Evictor;

/// Ages and intervals are truncated to seconds.
pub(super) const AGE_CUT_S: i64 = 2;

/// What became of reading journals.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Look {
    /// The listing succeeded, and not all that is new in it was unreadable.
    pub succeeded: bool,
    /// All that it shows are read.
    pub has_all: bool,
    /// Listings are not allowed: this node never sees others, and goes by its own count.
    pub is_refused: bool,
}

impl Maintenance {
    /// What the evictor counts for all, in a large fleet. Early, this node may know of others that it has
    /// not counted yet.
    pub(super) async fn read_totals(&mut self, is_early: bool) -> Option<FleetTotals> {
        if self.nodes <= DIRECT_NODES_MAX {
            return None;
        }
        match fleet_totals::read(&self.shared).await {
            Ok(totals) => {
                if let Some(FleetTotals { nodes, .. }) = totals {
                    self.nodes = if is_early { self.nodes.max(nodes) } else { nodes };
                }
                totals
            }
            // As if there were none.
            Err(e) => {
                drop(self.shared.error("totals", None, e));
                None
            }
        }
    }

    /// Counts the nodes by a listing of all journals, without reading them. Whether that succeeded.
    pub(super) async fn count_nodes(&mut self) -> bool {
        match self.merger.count_nodes(&self.shared, self.node_age_s()).await {
            Ok(nodes) => {
                self.nodes = nodes;
                self.lag.listed(|name| self.merger.lists(name));
                true
            }
            Err(e) => {
                let is_refused = is_refused(&e);
                drop(self.shared.error("journal", None, e));
                is_refused
            }
        }
    }

    /// A node that wrote no journal object for longer is gone.
    pub(super) fn node_age_s(&self) -> i64 {
        AGE_CUT_S + 3 * self.shared.node.config.journal_every.as_secs().cast_signed()
    }

    /// After a time without a look, journals of that time may be deleted: the snapshot has them. Call it
    /// after those that are there were read. `false`: try again later.
    pub(super) async fn read_what_was_missed(&mut self) -> bool {
        let stay = JOURNALS_STAY * self.shared.node.config.journal_every;
        // In a large fleet all would read it after an outage, for budgets that are small parts.
        let is_large = self.nodes > DIRECT_NODES_MAX;
        is_large || self.last_look.elapsed() <= stay || self.read_again_or_give_up().await
    }

    /// The directory of the journals that a round reads; `None` where it is unknown which.
    pub(super) fn journals_to_read(
        &self,
        reads_all: bool,
        totals: Option<&FleetTotals>,
    ) -> Option<String> {
        let shared = &self.shared;
        let cap = shared.catalog().index.usage().capacity;
        // The writes of all others count while much space is free.
        let reads_all = reads_all || shared.node.budget.is_filling(cap)
            // It was alone, and does not evict any more: another node may.
            || self.nodes == 1
            // Without totals again: this node has not read what others saved meanwhile.
            || (self.totals.is_some() && totals.is_none());
        let names = &shared.node.own_names;
        let votes = shared.node.config.evictor != Evictor::Never;
        match (totals, shared.node.holder()) {
            (Some(totals), _) => Some(names.journals_of(&totals.node)),
            (None, Some(holder)) if !reads_all => Some(names.journals_of(&holder)),
            // Not all nodes of a large fleet read the journals of all.
            (None, None) if !reads_all && votes && self.nodes > DIRECT_NODES_MAX => None,
            _ => Some(names.journals()),
        }
    }

    /// Reads the last journal objects of the evictor before: the new one does not repeat them. They are
    /// among those of all, and the listing of all stays the last one: a snapshot deletes what it shows.
    pub(super) async fn follow_previous(&mut self, has_read_all: bool) {
        let holder = self.shared.node.holder();
        if self.follows != holder {
            // It may still have written while its lease ended.
            let before = std::mem::replace(&mut self.follows, holder);
            self.followed = before.map(|node| (node, JOURNALS_STAY));
        }
        if let Some((node, looks)) = self.followed.take_if(|(_, looks)| *looks > 0) {
            if !has_read_all {
                self.merge(&self.shared.node.own_names.journals_of(&node)).await;
            }
            self.followed = Some((node, looks - 1));
        }
    }

    /// Reads the new journals of the directory, and applies them.
    pub(super) async fn merge(&mut self, directory: &str) -> Look {
        match self.merger.merge(&self.shared, directory).await {
            Ok(merged) => {
                self.merged += merged.records as u64;
                self.shared.eviction_queue.notify();
                // Only a listing of all journals shows how many nodes there are.
                if directory == self.shared.node.own_names.journals() {
                    self.nodes = self.merger.nodes(&self.shared, self.node_age_s());
                    self.lag.listed(|name| self.merger.lists(name));
                }
                // It may stay unreadable for long, and keeps no other work from its result.
                merged.failed.into_iter().for_each(|e| drop(self.shared.error("journal", None, e)));
                Look { succeeded: merged.is_readable, has_all: merged.is_whole, is_refused: false }
            }
            Err(e) => {
                let is_refused = is_refused(&e);
                drop(self.shared.error("journal", None, e));
                Look { is_refused, ..Look::default() }
            }
        }
    }
}
