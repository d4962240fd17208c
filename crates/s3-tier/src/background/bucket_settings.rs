//! What about the bucket makes the cap a fiction.

use crate::state::shared::Shared;

/// Asks what the bucket is set to, and keeps what an operator should know for the status.
pub async fn check(shared: &Shared) -> kvtier_s3::Result<()> {
    let caveats = shared.client.settings().await?.caveats(shared.names.root());
    shared.cluster.notes().caveats = caveats;
    Ok(())
}
