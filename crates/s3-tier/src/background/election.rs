//! Plays the lease's game against the bucket.

use std::sync::Arc;
use std::time::Duration;

use kvtier_s3::{Client, Entry, ErrorKind, Put, Stored};

use crate::background::epochs::{Epochs, FREE, Unchanged};
use crate::background::objects;
use crate::state::lease::{Claimed, Lease, Step, Unreleased};
use crate::state::shared::Shared;

const OBJECT_BYTES_MAX: usize = 4096;

/// So many terms after the store seemed not to honour conditions it is tried again.
const AGAIN_TERMS: u32 = 2;

/// What a claim's object says: whose it is, and which of its claims.
fn object(node: &str, claim: u64) -> Vec<u8> {
    format!("kvtier lease\nformat: 1\nnode: {node}\nclaim: {claim}\n").into_bytes()
}

/// Whose object it is, for people to read.
fn node(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?.strip_prefix("kvtier lease\n")?;
    text.lines().find_map(|line| line.strip_prefix("node: ")).map(str::to_owned)
}

/// Competes for the lease until the tier is closed.
pub async fn compete(shared: Arc<Shared>) {
    let term = shared.truth.config.lease_term;
    let client = shared.client.within(term / 4);
    let mut player = Player {
        client,
        shared: Arc::clone(&shared),
        claim: 0,
        heard: None,
        unchanged: Unchanged::default(),
    };
    while !shared.gate.is_closed() {
        let now_ms = shared.now_ms();
        let step = shared.truth.lease().next(now_ms);
        let done = match step {
            Step::Wait { until_ms } => {
                tokio::time::sleep(Duration::from_millis(until_ms - now_ms)).await;
                continue;
            }
            Step::Look => player.look().await.map(|()| Usable::Yes),
            Step::Claim { epoch } => player.claim(epoch).await,
            Step::Read { epoch } => player.read(epoch).await,
            Step::Renew { epoch } => player.renew(epoch).await.map(|()| Usable::Yes),
        };
        match done {
            Ok(Usable::Yes) => {}
            // The store does not honour conditions, or something before it answered once in its
            // place.
            Ok(Usable::No) => tokio::time::sleep(AGAIN_TERMS * term).await,
            Err(e) => {
                drop(shared.error("lease", None, e));
                shared.truth.lease().failed(shared.now_ms());
                tokio::time::sleep(term / 16).await;
            }
        }
    }
}

/// At the end of a node: marks as free what it holds, or claimed without having seen the result, so
/// that the next node need not wait a term.
pub async fn give_up(shared: &Shared) -> kvtier_s3::Result<()> {
    let _writing = shared.truth.writing.lock().await;
    let Some(Unreleased { epoch, is_ours }) = shared.truth.lease().unreleased() else {
        return Ok(());
    };
    let name = shared.truth.paths.lease(epoch);
    shared.truth.lease().give_up(shared.now_ms());
    if !is_ours {
        let bytes = objects::get(&shared.client, &name, OBJECT_BYTES_MAX).await?;
        if bytes.as_deref().and_then(node).is_none_or(|maker| maker != shared.truth.node) {
            return Ok(());
        }
    }
    objects::put(&shared.client, &name, FREE.to_vec(), &Put::default()).await.map(drop)
}

/// Whether the store honours conditions, as a lease needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Usable {
    Yes,
    No,
}

struct Player {
    shared: Arc<Shared>,
    client: Client,
    claim: u64,
    /// The epoch of others whose object was read last.
    heard: Option<u64>,
    unchanged: Unchanged,
}

impl Player {
    fn lease<T>(&self, work: impl FnOnce(&mut Lease, u64) -> T) -> T {
        work(&mut self.shared.truth.lease(), self.shared.now_ms())
    }

    fn object(&self) -> Vec<u8> {
        object(&self.shared.truth.node, self.claim)
    }

    async fn look(&mut self) -> kvtier_s3::Result<()> {
        let shared = Arc::clone(&self.shared);
        let paths = &shared.truth.paths;
        let (entries, date) = objects::list(&self.client, &paths.leases()).await?;
        let epochs = Epochs::of(&entries, |name| paths.epoch(name));
        shared.truth.told().foreign_leases = epochs.advice();
        let found = self.unchanged.top(epochs.top, date);
        let before = self.lease(|lease, now_ms| lease.held(now_ms));
        self.lease(|lease, now_ms| lease.looked(now_ms, found));
        let held = self.lease(|lease, now_ms| lease.held(now_ms));
        if let Some(epoch) = held.filter(|_| before.is_none()) {
            self.took_over(epoch, &entries).await;
        } else if let Some(top) =
            found.filter(|top| held.is_none() && self.heard != Some(top.epoch))
        {
            let bytes =
                objects::get(&self.client, &paths.lease(top.epoch), OBJECT_BYTES_MAX).await?;
            self.shared.truth.told().holder = bytes.as_deref().and_then(node);
            // Only now: what could not be read is read at the next look.
            self.heard = Some(top.epoch);
        }
        Ok(())
    }

    /// We hold it: older epochs mean nothing any more, and what waits for room is looked after.
    async fn took_over(&self, epoch: u64, entries: &[Entry]) {
        self.shared.truth.told().holder = Some(self.shared.truth.node.clone());
        self.shared.truth.took_over.notify_one();
        let paths = &self.shared.truth.paths;
        let older = |entry: &&Entry| paths.epoch(&entry.key).is_some_and(|other| other < epoch);
        let older: Vec<&str> =
            entries.iter().filter(older).map(|entry| entry.key.as_str()).collect();
        for some in older.chunks(1000) {
            // They cost nothing but a line in a listing: what stays is deleted by the next.
            drop(self.client.delete_many(some).await);
        }
        self.shared.outbox.ring();
        self.shared.freed.notify_waiters();
    }

    async fn claim(&mut self, epoch: u64) -> kvtier_s3::Result<Usable> {
        let shared = Arc::clone(&self.shared);
        let _writing = shared.truth.writing.lock().await;
        if shared.gate.is_closed() {
            return Ok(Usable::Yes);
        }
        self.claim += 1;
        let (name, sent_ms) = (shared.truth.paths.lease(epoch), shared.now_ms());
        let answer = match objects::put(&self.client, &name, self.object(), &Put::if_absent()).await
        {
            Ok(Stored::New { .. }) => match self.overwrites(&name).await {
                Ok(true) => return Ok(self.unusable("ignores If-None-Match on a PUT")),
                Ok(false) => {
                    shared.truth.told().lease = None;
                    Claimed::Ours
                }
                // The object is there all the same: reading it comes next.
                Err(e) => {
                    drop(shared.error("lease", None, e));
                    Claimed::Unclear
                }
            },
            Err(e) if matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::Invalid) => {
                return Ok(self.unusable("refuses If-None-Match on a PUT"));
            }
            Err(e) if e.kind() == ErrorKind::Denied => return Err(e),
            Ok(_) | Err(_) => Claimed::Unclear,
        };
        self.lease(|lease, _| lease.claimed(sent_ms, answer));
        Ok(Usable::Yes)
    }

    /// Whether the store writes over an object that is there although it is told not to. It is our
    /// own, with the same bytes.
    async fn overwrites(&self, name: &str) -> kvtier_s3::Result<bool> {
        let again = objects::put(&self.client, name, self.object(), &Put::if_absent()).await?;
        Ok(!matches!(again, Stored::Present))
    }

    fn unusable(&self, what: &str) -> Usable {
        self.shared.truth.told().lease = Some(format!(
            "the store {what}, so that nodes cannot agree on who evicts: nobody does; set evictor to single on one of them"
        ));
        Usable::No
    }

    /// Reads the object of a claim whose result is unknown.
    async fn read(&self, epoch: u64) -> kvtier_s3::Result<Usable> {
        let name = self.shared.truth.paths.lease(epoch);
        let bytes = objects::get(&self.client, &name, OBJECT_BYTES_MAX).await?;
        let ours = bytes.is_some_and(|bytes| bytes == self.object());
        if ours {
            let _writing = self.shared.truth.writing.lock().await;
            if self.shared.gate.is_closed() {
                return Ok(Usable::Yes);
            }
            // The claim itself did not tell.
            if self.overwrites(&name).await? {
                return Ok(self.unusable("ignores If-None-Match on a PUT"));
            }
        }
        self.lease(|lease, now_ms| lease.read(now_ms, ours));
        Ok(Usable::Yes)
    }

    async fn renew(&self, epoch: u64) -> kvtier_s3::Result<()> {
        let _writing = self.shared.truth.writing.lock().await;
        if self.shared.gate.is_closed() {
            return Ok(());
        }
        let sent_ms = self.shared.now_ms();
        objects::put(
            &self.client,
            &self.shared.truth.paths.lease(epoch),
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
    use super::*;

    #[test]
    fn version_one_is_this() {
        let golden = include_bytes!("golden/lease-v1.txt");
        assert_eq!(object("host.12.1763726400000.0.1a2b3c4d", 3), golden);
        assert_eq!(node(golden).as_deref(), Some("host.12.1763726400000.0.1a2b3c4d"));
        assert_eq!((node(b"free\n"), node(b"\xff"), node(b"")), (None, None, None));
        assert!(
            object("", 0).len() > FREE.len(),
            "a held lease is never as short as one that is free"
        );
    }
}
