//! The key that makes tenants of names, in the bucket at `.kvtier/tenant-key`: the node that needs
//! it first writes it, so that a name is the same tenant to all nodes. A key that is lost or
//! damaged is replaced: whose chunks are whose is unknown then until they are used again.

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::random_bytes;
use kvtier_index::TenantKey;
use kvtier_s3::Put;
use tokio::time::Instant;

use crate::background::objects;
use crate::state::shared::Shared;

/// Saves of tenants wait so long for the key, and then go on with one of this process alone until
/// the bucket's is known.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How long to wait before what failed is tried again, at first and at most.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Learns the key once it is wanted, and follows it: where the store honours no conditions, two
/// nodes may have written one.
pub async fn keep(shared: Arc<Shared>) {
    if !shared.truth.capped {
        // Nothing of any tenant is written, and nobody has a limit.
        return set(&shared, TenantKey::new(random_bytes()));
    }
    let wanted = shared.books().tenants.key_wanted();
    wanted.notified().await;
    let (mut pause, mut again) = (PAUSE, shared.truth.config.journal_every);
    while !shared.gate.is_closed() {
        match tokio::time::timeout(WAIT_MAX, settle(&shared)).await {
            Ok(Ok(key)) => {
                set(&shared, key);
                tokio::time::sleep(again).await;
                (pause, again) = (PAUSE, shared.truth.config.sweep_every);
            }
            failed => {
                if let Ok(Err(e)) = failed {
                    drop(shared.error("tenants", None, e));
                }
                if shared.books().tenants.key().is_none() {
                    set(&shared, TenantKey::new(random_bytes()));
                }
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(PAUSE_MAX);
            }
        }
    }
}

fn set(shared: &Shared, key: TenantKey) {
    shared.books().set_tenant_key(key);
    shared.truth.key_known.notify_waiters();
    shared.freed.notify_waiters();
}

/// Waits until the identity of this tenant is known, but not beyond `until`.
pub async fn wait(shared: &Shared, tenant: &str, until: Instant) {
    loop {
        let known = shared.truth.key_known.notified();
        tokio::pin!(known);
        known.as_mut().enable();
        if !shared.books().tenants.lacks_key(tenant) {
            return;
        }
        shared.books().tenant(tenant);
        if tokio::time::timeout_at(until, known).await.is_err() {
            return;
        }
    }
}

/// The bucket's key. Where there is none, or a damaged one, it is written.
async fn settle(shared: &Shared) -> kvtier_s3::Result<TenantKey> {
    let path = shared.truth.paths.tenant_key();
    let found = read(shared, &path).await?;
    if let Some(Some(key)) = found {
        return Ok(key);
    }
    // The key that this process has been using goes on.
    let ours =
        shared.books().tenants.key().cloned().unwrap_or_else(|| TenantKey::new(random_bytes()));
    // Where conditions are not honoured, or the key was damaged, the last to write wins, and all
    // read that.
    let how = if found.is_none() { Put::if_absent() } else { Put::default() };
    let put = objects::put(&shared.client, &path, ours.encode().into_bytes(), &how).await;
    match put {
        // A store that takes no conditions.
        Err(e) if how.if_absent && !e.is_retryable() => {
            objects::put(&shared.client, &path, ours.encode().into_bytes(), &Put::default())
                .await?;
        }
        other => drop(other?),
    }
    Ok(read(shared, &path).await?.flatten().unwrap_or(ours))
}

/// The key that lies there: `None` where there is no object, `Some(None)` where it is no key.
async fn read(shared: &Shared, path: &str) -> kvtier_s3::Result<Option<Option<TenantKey>>> {
    match objects::get(&shared.client, path, TenantKey::BYTES_MAX).await {
        Ok(found) => Ok(found.map(|bytes| TenantKey::decode(&bytes))),
        // Longer than any key.
        Err(e) if e.kind() == kvtier_s3::ErrorKind::Corrupt && !e.is_retryable() => Ok(Some(None)),
        Err(e) => Err(e),
    }
}

/// Deletes the names of tenants that earlier builds wrote in plain text.
pub async fn remove_names(shared: &Shared) -> kvtier_s3::Result<()> {
    let (entries, _) = objects::list(&shared.client, &shared.truth.paths.tenant_names()).await?;
    let names: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
    for some in names.chunks(1000) {
        shared.client.delete_many(some).await?;
    }
    Ok(())
}
