//! The key that makes tenants of names, in the bucket at `.kvtier/tenant-key`: the node that needs
//! it first writes it, so that a name is the same tenant to all nodes. A key that is lost or
//! damaged is replaced: whose chunks are whose is unknown then until they are used again.

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::random_bytes;
use kvtier_index::TenantKey;
use kvtier_s3::Put;

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
pub async fn run(shared: Arc<Shared>) {
    if !shared.cluster.capped {
        // Nothing of any tenant is written, and nobody has a limit.
        return set_key(&shared, TenantKey::new(random_bytes()));
    }
    let wanted = shared.catalog().tenants.key_wanted();
    wanted.notified().await;
    let (mut pause, mut again) = (PAUSE, shared.cluster.config.journal_every);
    while !shared.gate.is_closed() {
        match tokio::time::timeout(WAIT_MAX, agree_on_key(&shared)).await {
            Ok(Ok(key)) => {
                set_key(&shared, key);
                tokio::time::sleep(again).await;
                (pause, again) = (PAUSE, shared.cluster.config.sweep_every);
            }
            failed => {
                if let Ok(Err(e)) = failed {
                    drop(shared.error("tenants", None, e));
                }
                if shared.catalog().tenants.key().is_none() {
                    set_key(&shared, TenantKey::new(random_bytes()));
                }
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(PAUSE_MAX);
            }
        }
    }
}

fn set_key(shared: &Shared, key: TenantKey) {
    shared.catalog().set_tenant_key(key);
    shared.cluster.key_known.notify_waiters();
    shared.freed.notify_waiters();
}

/// The bucket's key. Where there is none, or a damaged one, it is written.
async fn agree_on_key(shared: &Shared) -> kvtier_s3::Result<TenantKey> {
    let path = shared.cluster.paths.tenant_key();
    let found = read(shared, &path).await?;
    if let Some(Some(key)) = found {
        return Ok(key);
    }
    // The key that this process has been using goes on.
    let ours =
        shared.catalog().tenants.key().cloned().unwrap_or_else(|| TenantKey::new(random_bytes()));
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
    let (entries, _) = objects::list(&shared.client, &shared.cluster.paths.tenant_names()).await?;
    let names: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
    for some in names.chunks(1000) {
        shared.client.delete_many(some).await?;
    }
    Ok(())
}
