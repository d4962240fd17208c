//! The tenant key in the bucket, at `.kvtier/tenant-key`: a tenant's identity is a digest of its
//! name under this key.
//!
//! All nodes must use one key, or one tenant would have two identities and twice its quota. The
//! first node that needs the key writes it with `If-None-Match`, then reads it back and uses what
//! it read. Where the store ignores conditions two nodes may write; the last write wins, and each
//! node reads the key again after an interval and follows it.
//!
//! A lost or damaged key is replaced. The tenants of chunks are unknown then until their next use.
//!
//! Saves wait at most a second for the key. Then the process goes on with a key of its own until
//! the bucket's is known, so that an unreachable object never blocks saves.

use std::sync::Arc;
use std::time::Duration;

use kvtier_index::TenantKey;
use kvtier_s3::Put;

use crate::background::own_objects;
use crate::state::machine::random_bytes;
use crate::state::shared::Shared;

/// The longest wait of a save for the key.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// The first and the longest pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Reads or makes the key when it is first needed, and follows it.
pub async fn run(shared: Arc<Shared>) {
    if !shared.node.capped {
        // Without a cap no identity is written and no tenant has a limit.
        return set_key(&shared, TenantKey::new(random_bytes(&shared.client)));
    }
    let wanted = shared.catalog().tenants.key_wanted();
    wanted.notified().await;
    let mut pause = PAUSE;
    let mut again = shared.node.config.journal_every;
    while !shared.gate.is_closed() {
        match tokio::time::timeout(WAIT_MAX, agree_on_key(&shared)).await {
            Ok(Ok(key)) => {
                set_key(&shared, key);
                tokio::time::sleep(again).await;
                (pause, again) = (PAUSE, shared.node.config.sweep_every);
            }
            failed => {
                if let Ok(Err(e)) = failed {
                    drop(shared.error("tenants", None, e));
                }
                if shared.catalog().tenants.key().is_none() {
                    set_key(&shared, TenantKey::new(random_bytes(&shared.client)));
                }
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(PAUSE_MAX);
            }
        }
    }
}

fn set_key(shared: &Shared, key: TenantKey) {
    shared.catalog().set_tenant_key(key);
    shared.node.key_known.notify_waiters();
    shared.freed.notify_waiters();
}

/// The bucket's key. It is written where it is missing or damaged.
async fn agree_on_key(shared: &Shared) -> kvtier_s3::Result<TenantKey> {
    let path = shared.node.own_names.tenant_key();
    let found = read(shared, &path).await?;
    if let Some(Some(key)) = found {
        return Ok(key);
    }
    // The key that this process uses already is kept.
    let ours = shared
        .catalog()
        .tenants
        .key()
        .cloned()
        .unwrap_or_else(|| TenantKey::new(random_bytes(&shared.client)));
    // Without conditions, or over a damaged key, the last writer wins; all nodes read that.
    let how = if found.is_none() { Put::if_absent() } else { Put::default() };
    let put = own_objects::put(&shared.client, &path, ours.encode().into_bytes(), &how).await;
    match put {
        // The store rejects conditions.
        Err(e) if how.if_absent && !e.is_retryable() => {
            own_objects::put(&shared.client, &path, ours.encode().into_bytes(), &Put::default())
                .await?;
        }
        other => drop(other?),
    }
    Ok(read(shared, &path).await?.flatten().unwrap_or(ours))
}

/// The stored key: `None` without an object, `Some(None)` if it is damaged.
async fn read(shared: &Shared, path: &str) -> kvtier_s3::Result<Option<Option<TenantKey>>> {
    match own_objects::get(&shared.client, path, TenantKey::BYTES_MAX).await {
        Ok(found) => Ok(found.map(|bytes| TenantKey::decode(&bytes))),
        // Longer than any key.
        Err(e) if e.kind() == kvtier_s3::ErrorKind::Corrupt && !e.is_retryable() => Ok(Some(None)),
        Err(e) => Err(e),
    }
}

/// Deletes the names of tenants that earlier builds wrote in plain text.
pub async fn remove_names(shared: &Shared) -> kvtier_s3::Result<()> {
    let listing = own_objects::list(&shared.client, &shared.node.own_names.tenant_names()).await?;
    let names: Vec<&str> = listing.entries.iter().map(|entry| entry.key.as_str()).collect();
    for some in names.chunks(1000) {
        shared.client.delete_many(some).await?;
    }
    Ok(())
}
