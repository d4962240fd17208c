//! Work that no caller waits for. The listing is the authority on what the bucket stores, a snapshot
//! of the index makes a start fast, journals of all nodes keep the order of use, and a lease decides
//! which node evicts. The bucket's settings (versions, rules, unfinished uploads) are checked too.

pub mod agree_on_tenant_key;
pub mod conditional_puts;
pub mod election;
pub mod epoch_object;
pub mod fleet_totals;
pub mod listing;
pub mod maintenance;
pub mod own_objects;
pub mod peer_journals;
pub mod plausible_epochs;
pub mod reconcile;
pub mod snapshot;
pub mod snapshot_manifest;
pub mod unfinished_uploads;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::Evictor;
use crate::state::machine::Executor;
use crate::state::shared::Shared;

/// Starts everything.
pub fn start(shared: &Arc<Shared>, executor: &Executor) {
    executor.spawn(maintenance::run(Arc::clone(shared)));
    executor.spawn(maintenance::rescan(Arc::clone(shared)));
    executor.spawn(agree_on_tenant_key::run(Arc::clone(shared)));
    if shared.node.capped && shared.node.config.evictor == Evictor::Lease {
        executor.spawn(election::compete(Arc::clone(shared)));
    }
}

/// Writes what is pending at an orderly shutdown: the next start finds it, and the next evictor
/// need not wait.
pub async fn shutdown(shared: &Arc<Shared>, time_max: Duration) {
    if shared.node.capped && !shared.node.is_shut_down.swap(true, Ordering::Relaxed) {
        drop(tokio::time::timeout(time_max, maintenance::shutdown(shared, time_max / 2)).await);
    }
}

/// A manifest that decodes is unchanged when it is encoded and decoded again.
#[cfg(any(fuzzing, clippy))]
pub fn fuzz_manifest(bytes: &[u8]) {
    if let Ok(manifest) = snapshot_manifest::SnapshotManifest::decode(bytes) {
        assert_eq!(snapshot_manifest::SnapshotManifest::decode(&manifest.encode()), Ok(manifest));
    }
}
