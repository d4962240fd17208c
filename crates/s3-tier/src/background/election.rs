//! Takes part in the election of the evictor: runs the steps of the lease (`state::epoch_lease`) against
//! the bucket.
//!
//! The lease's state machine decides what to send and when; this module sends it and reports the
//! result. Two rules make that safe:
//!
//! - Every write of the lease's object holds `lease_write` and checks, inside it, that the tier is
//!   open. Shutdown takes the same lock to write `free`. So no renewal can follow the release, and
//!   the next node may take over at once.
//! - A time is taken before a request is sent, never after its answer. The lease counts from that
//!   time, so a slow answer shortens what this node may do and never extends it.
//!
//! A claim counts only if the store honours `If-None-Match`. Each claim is therefore sent twice: a
//! store that accepts the second one ignores the condition, and then no node may evict. An answer
//! that is lost makes the claim unclear: the object is read, and it is this node's if node and
//! number match.
//!
//! The result of one probe is not final, since a proxy may have answered. The candidate tries again
//! after two terms.

use std::sync::Arc;
use std::time::Duration;

use kvtier_s3::{Client, Entry, ErrorKind, Put, Stored};

use crate::background::epoch_object::{BYTES_MAX, FREE, encode, maker};
use crate::background::own_objects::{self, OwnListing};
use crate::background::plausible_epochs::{Epochs, Unchanged};
use crate::state::epoch_lease::{ClaimOutcome, EpochLease, LeaseStep, Unreleased};
use crate::state::shared::Shared;

/// Terms after which a store that did not honour conditions is tried again.
const AGAIN_TERMS: u32 = 2;

/// Competes for the lease until the tier is closed.
pub async fn compete(shared: Arc<Shared>) {
    let term = shared.node.config.lease_term;
    // A renewal must fail early enough for another attempt before the term ends.
    let client = shared.client.within(term / 4);
    let mut candidate = Candidate {
        client,
        shared: Arc::clone(&shared),
        claim: 0,
        read_epoch: None,
        unchanged: Unchanged::default(),
    };
    while !shared.gate.is_closed() {
        let now_ms = shared.now_ms();
        // Decided anew after each step, from what the state machine has recorded.
        let step = shared.node.lease().next(now_ms);
        let done = match step {
            LeaseStep::Wait { until_ms } => {
                tokio::time::sleep(Duration::from_millis(until_ms - now_ms)).await;
                continue;
            }
            LeaseStep::List => candidate.list().await.map(|()| ConditionSupport::Honoured),
            LeaseStep::Claim { epoch } => candidate.claim(epoch).await,
            LeaseStep::Read { epoch } => candidate.read(epoch).await,
            LeaseStep::Renew { epoch } => {
                candidate.renew(epoch).await.map(|()| ConditionSupport::Honoured)
            }
        };
        match done {
            Ok(ConditionSupport::Honoured) => {}
            // The store does not honour conditions, or a proxy answered in its place.
            Ok(ConditionSupport::Missing) => tokio::time::sleep(AGAIN_TERMS * term).await,
            Err(e) => {
                drop(shared.error("lease", None, e));
                // Unclear claims are read, and a holder that cannot renew stops evicting when its
                // term ends.
                shared.node.lease().failed(shared.now_ms());
                tokio::time::sleep(term / 16).await;
            }
        }
    }
}

/// At shutdown: marks as free what this node holds, or claimed without a confirmation. The next
/// node then need not wait for a term.
pub async fn give_up(shared: &Shared) -> kvtier_s3::Result<()> {
    let _writing = shared.node.lease_write.lock().await;
    let Some(Unreleased { epoch, is_ours }) = shared.node.lease().unreleased() else {
        return Ok(());
    };
    let name = shared.node.own_names.lease(epoch);
    shared.node.lease().give_up(shared.now_ms());
    if !is_ours {
        let bytes = own_objects::get(&shared.client, &name, BYTES_MAX).await?;
        if bytes.as_deref().and_then(maker).is_none_or(|maker| maker != shared.node.name) {
            return Ok(());
        }
    }
    own_objects::put(&shared.client, &name, FREE.to_vec(), &Put::default()).await.map(drop)
}

/// Whether the store honours conditions, which the lease needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ConditionSupport {
    Honoured,
    Missing,
}

/// What a PUT under the name of this node's lease did that must not overwrite it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SecondPut {
    Refused,
    /// The store overwrites in spite of the condition.
    Stored,
    /// It was stored since the lease was gone: the holder of a later one deletes older ones.
    LeaseWasGone,
}

struct Candidate {
    shared: Arc<Shared>,
    client: Client,
    claim: u64,
    /// The epoch of another node whose object was read last.
    read_epoch: Option<u64>,
    unchanged: Unchanged,
}

impl Candidate {
    fn lease<T>(&self, work: impl FnOnce(&mut EpochLease, u64) -> T) -> T {
        work(&mut self.shared.node.lease(), self.shared.now_ms())
    }

    fn object(&self) -> Vec<u8> {
        encode(&self.shared.node.name, self.claim)
    }

    async fn list(&mut self) -> kvtier_s3::Result<()> {
        let shared = Arc::clone(&self.shared);
        let paths = &shared.node.own_names;
        let OwnListing { entries, date, .. } =
            own_objects::list(&self.client, &paths.leases()).await?;
        let epochs = Epochs::new(&entries, |name| paths.epoch(name));
        shared.node.notes().foreign_leases = epochs.advice();
        let found = self.unchanged.top(epochs.top, date);
        let before = self.lease(|lease, now_ms| lease.held(now_ms));
        self.lease(|lease, now_ms| lease.listed(now_ms, found));
        let held = self.lease(|lease, now_ms| lease.held(now_ms));
        if let Some(epoch) = held.filter(|_| before.is_none()) {
            self.took_over(epoch, &entries).await;
        } else if let Some(top) =
            found.filter(|top| held.is_none() && self.read_epoch != Some(top.epoch))
        {
            let bytes = own_objects::get(&self.client, &paths.lease(top.epoch), BYTES_MAX).await?;
            self.shared.node.notes().holder = bytes.as_deref().and_then(maker);
            // Set only after the read: a read that failed is repeated after the next listing.
            self.read_epoch = Some(top.epoch);
        }
        Ok(())
    }

    /// This node holds the lease now: older epochs are obsolete, and waiting saves are served.
    async fn took_over(&self, epoch: u64, entries: &[Entry]) {
        self.shared.node.notes().holder = Some(self.shared.node.name.clone());
        self.shared.node.took_over.notify_one();
        let paths = &self.shared.node.own_names;
        let older = |entry: &&Entry| paths.epoch(&entry.key).is_some_and(|other| other < epoch);
        let older: Vec<&str> =
            entries.iter().filter(older).map(|entry| entry.key.as_str()).collect();
        for some in older.chunks(1000) {
            // An object that stays costs one line of a listing, and the next holder deletes it.
            drop(self.client.delete_many(some).await);
        }
        self.shared.eviction_queue.notify();
        self.shared.freed.notify_waiters();
    }

    async fn claim(&mut self, epoch: u64) -> kvtier_s3::Result<ConditionSupport> {
        let shared = Arc::clone(&self.shared);
        let _writing = shared.node.lease_write.lock().await;
        if shared.gate.is_closed() {
            return Ok(ConditionSupport::Honoured);
        }
        // A new number for each claim, or an old object of this node would look like the answer to
        // a new claim.
        self.claim += 1;
        let name = shared.node.own_names.lease(epoch);
        // The term counts from here: the object cannot have been written before.
        let sent_ms = shared.now_ms();
        let answer =
            match own_objects::put(&self.client, &name, self.object(), &Put::if_absent()).await {
                Ok(Stored::New { .. }) => match self.put_again(&name).await {
                    Ok(SecondPut::Stored) => {
                        return Ok(self.report_missing("ignores If-None-Match on a PUT"));
                    }
                    Ok(SecondPut::Refused) => {
                        shared.node.notes().lease = None;
                        ClaimOutcome::Ours
                    }
                    Ok(SecondPut::LeaseWasGone) => ClaimOutcome::Lost,
                    // The object exists in any case; the next step reads it.
                    Err(e) => {
                        drop(shared.error("lease", None, e));
                        ClaimOutcome::Unclear
                    }
                },
                Err(e) if matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::Invalid) => {
                    return Ok(self.report_missing("refuses If-None-Match on a PUT"));
                }
                Err(e) if e.kind() == ErrorKind::Denied => return Err(e),
                Ok(_) | Err(_) => ClaimOutcome::Unclear,
            };
        self.lease(|lease, _| lease.claimed(sent_ms, answer));
        Ok(ConditionSupport::Honoured)
    }

    /// Tries whether the store overwrites an existing object in spite of the condition. The object is
    /// this node's own, and its bytes stay the same.
    async fn put_again(&self, name: &str) -> kvtier_s3::Result<SecondPut> {
        let put =
            async || own_objects::put(&self.client, name, self.object(), &Put::if_absent()).await;
        if put().await? == Stored::Present {
            return Ok(SecondPut::Refused);
        }
        // Twice within a moment no other node deletes it.
        Ok(match put().await? {
            Stored::Present => SecondPut::LeaseWasGone,
            _ => SecondPut::Stored,
        })
    }

    fn report_missing(&self, what: &str) -> ConditionSupport {
        self.shared.node.notes().lease = Some(format!(
            "the store {what}, so the nodes cannot elect an evictor and no node evicts; set evictor to single on one of them"
        ));
        ConditionSupport::Missing
    }

    /// Reads the object of a claim whose result is unknown.
    async fn read(&self, epoch: u64) -> kvtier_s3::Result<ConditionSupport> {
        let name = self.shared.node.own_names.lease(epoch);
        let bytes = own_objects::get(&self.client, &name, BYTES_MAX).await?;
        // Node and number match only if the last claim of this process wrote it.
        let mut ours = bytes.is_some_and(|bytes| bytes == self.object());
        if ours {
            let _writing = self.shared.node.lease_write.lock().await;
            if self.shared.gate.is_closed() {
                return Ok(ConditionSupport::Honoured);
            }
            // The answer to the claim, which would have shown it, was lost.
            match self.put_again(&name).await? {
                SecondPut::Refused => {}
                SecondPut::LeaseWasGone => ours = false,
                SecondPut::Stored => {
                    return Ok(self.report_missing("ignores If-None-Match on a PUT"));
                }
            }
        }
        self.lease(|lease, now_ms| lease.read(now_ms, ours));
        Ok(ConditionSupport::Honoured)
    }

    async fn renew(&self, epoch: u64) -> kvtier_s3::Result<()> {
        let _writing = self.shared.node.lease_write.lock().await;
        if self.shared.gate.is_closed() {
            return Ok(());
        }
        let sent_ms = self.shared.now_ms();
        own_objects::put(
            &self.client,
            &self.shared.node.own_names.lease(epoch),
            self.object(),
            &Put::default(),
        )
        .await?;
        self.lease(|lease, now_ms| lease.renewed(sent_ms, now_ms));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kvtier_testkit::s3::{Fault, Rule, Server};

    use super::*;
    use crate::test_shared::shared_at;

    /// A node that may claim the first epoch.
    fn candidate(server: &Server) -> Candidate {
        let shared = Arc::new(shared_at(server, |config| config.capacity_bytes = Some(1000)));
        shared.node.lease().listed(0, None);
        Candidate {
            client: shared.client.clone(),
            shared,
            claim: 0,
            read_epoch: None,
            unchanged: Unchanged::default(),
        }
    }

    fn put_rule(fault: Fault) -> Rule {
        Rule::next(fault).method("PUT")
    }

    /// Deletes the first epoch's object, as the holder of a later one does, before the last of this
    /// many stalled requests is carried out.
    async fn delete_lease(server: &Server, stalled: usize) {
        let begins = async {
            while server.stalled() < stalled {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(180), begins).await.unwrap();
        assert!(server.remove_object(&server.keys(".kvtier/lease/")[0]));
        server.release();
    }

    fn assert_is_lost(candidate: &Candidate, support: kvtier_s3::Result<ConditionSupport>) {
        assert_eq!(support.unwrap(), ConditionSupport::Honoured);
        assert_eq!(candidate.shared.node.notes().lease, None);
        assert_eq!(candidate.shared.node.lease().unreleased(), None, "another node evicts");
    }

    /// The node reported for minutes that no node can evict.
    #[tokio::test]
    async fn a_store_has_conditions_though_a_claim_was_deleted_before_its_second_put() {
        let server = Server::start(Default::default()).unwrap();
        let mut candidate = candidate(&server);
        // The PUT that creates the object is answered at once.
        server.script(put_rule(Fault::Stall(Duration::ZERO))).script(put_rule(Fault::Hang));
        let (support, ()) = tokio::join!(candidate.claim(1), delete_lease(&server, 2));
        assert_is_lost(&candidate, support);
    }

    #[tokio::test]
    async fn a_store_has_conditions_though_an_unclear_claim_was_deleted_after_it_was_read() {
        let server = Server::start(Default::default()).unwrap();
        let candidate = candidate(&server);
        candidate.lease(|lease, now_ms| lease.claimed(now_ms, ClaimOutcome::Unclear));
        server.put_object(&candidate.shared.node.own_names.lease(1), candidate.object());
        server.script(put_rule(Fault::Hang));
        let (support, ()) = tokio::join!(candidate.read(1), delete_lease(&server, 1));
        assert_is_lost(&candidate, support);
    }
}
