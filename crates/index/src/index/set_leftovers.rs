//! Leftovers: present members of atomic sets that can no longer be complete. They are misses, so to
//! evict one costs no hit, and they are evicted before any other chunk.
//!
//! [`SetLeftovers`] is an ordered map by tenant, with a count of members already passed, so a search never
//! scans a member twice. It may name a set that has none any more. The search checks again, and drops
//! such entries, so an entry that is left behind costs one step and no wrong result. A missing entry
//! would matter: a leftover would stay until the policy finds it. So every event that can create one
//! adds an entry: a member leaves a complete set, a hold on a leftover ends, the saves of a set end.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use kvtier_key::Digest;

use crate::slab::SlotState;
use crate::{Index, TenantId};

/// The sets that may have leftovers, each with the tenant of those leftovers.
#[derive(Debug, Default)]
pub(crate) struct SetLeftovers {
    /// For each, how many of its members were passed. None of those is an idle chunk of this tenant,
    /// so a search need not scan them again.
    passed: BTreeMap<(TenantId, u64), usize>,
}

/// A set that may have leftovers of a tenant.
#[derive(Clone, Copy)]
struct Candidate {
    tenant: TenantId,
    set: u64,
    passed: usize,
}

impl SetLeftovers {
    /// A set has, or may have, leftovers of this tenant.
    pub fn add(&mut self, tenant: TenantId, set: u64) {
        self.passed.insert((tenant, set), 0);
    }

    /// A member was entered: it may be in front of the position that a search has reached.
    pub fn rewind(&mut self, tenant: TenantId, set: u64) {
        if let Some(passed) = self.passed.get_mut(&(tenant, set)) {
            *passed = 0;
        }
    }

    /// A set has no leftovers of this tenant.
    pub fn remove(&mut self, tenant: TenantId, set: u64) {
        self.passed.remove(&(tenant, set));
    }

    fn first(&self, range: impl RangeBounds<(TenantId, u64)>) -> Option<Candidate> {
        let (&(tenant, set), &passed) = self.passed.range(range).next()?;
        Some(Candidate { tenant, set, passed })
    }
}

impl Index {
    /// The next leftover of incomplete sets. It stays the next one until it is removed.
    pub(crate) fn leftover(&mut self) -> Option<u32> {
        self.leftover_in(..)
    }

    /// The next leftover of this tenant.
    pub(crate) fn leftover_of(&mut self, tenant: TenantId) -> Option<u32> {
        self.leftover_in((tenant, 0)..=(tenant, u64::MAX))
    }

    fn leftover_in(&mut self, range: impl RangeBounds<(TenantId, u64)> + Clone) -> Option<u32> {
        // Each pass either returns a chunk, advances the position in one set, or removes an entry.
        // So the search ends, and over its life it scans each member once per entry.
        'next: while let Some(candidate) = self.sets.leftovers.first(range.clone()) {
            let Candidate { tenant, set, passed } = candidate;
            let members = self.sets.leftover_members(set);
            for (at, member) in members.iter().enumerate().skip(passed) {
                let Some(slot) = self.idle(member) else { continue };
                let whose = self.slab.tenant(&self.slab[slot]);
                if whose == tenant {
                    self.sets.leftovers.passed.insert((tenant, set), at);
                    // A tenant that was passed may come first now. Return its chunk then, so that a
                    // second call returns the same.
                    let first = self.sets.leftovers.first(range.clone());
                    if first.is_some_and(|first| (first.tenant, first.set) == (tenant, set)) {
                        return Some(slot);
                    }
                    continue 'next;
                }
                // The set has chunks of another tenant too: they get an entry of their own.
                self.sets.leftovers.passed.entry((whose, set)).or_insert(at);
            }
            self.sets.leftovers.remove(tenant, set);
        }
        None
    }

    /// The slot of a chunk that is present and not held.
    fn idle(&self, digest: &Digest) -> Option<u32> {
        let is_idle = |slot: &u32| {
            self.slab[*slot].state == SlotState::Present && self.slab[*slot].holds == 0
        };
        self.find(digest).filter(is_idle)
    }
}
