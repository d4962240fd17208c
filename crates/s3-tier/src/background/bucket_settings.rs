//! Checks for bucket settings that make the bucket larger than the cap.

use crate::state::shared::Shared;

/// Reads the bucket's settings, and keeps warnings for the status.
pub async fn check(shared: &Shared) -> kvtier_s3::Result<()> {
    let caveats = shared.client.settings().await?.caveats(shared.names.root());
    shared.cluster.notes().caveats = caveats;
    Ok(())
}
