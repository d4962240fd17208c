//! Uploads in parts that nobody finished: they are listed nowhere among the objects, and paid for.

use crate::background::objects;
use crate::state::counters::add;
use crate::state::shared::Shared;

/// One that is younger may be somebody's who is at it.
const AGE_S: i64 = 3600;

/// Gives up what was left unfinished under our prefix, an hour ago or longer by the store's clock,
/// if it is for a name of ours.
pub async fn abort(shared: &Shared) -> kvtier_s3::Result<()> {
    let mut next = None;
    for _ in 0..objects::PAGES_MAX {
        let page = shared.client.list_uploads(shared.names.root(), next.as_ref()).await?;
        // A store that does not tell the time leaves no way to tell an old one.
        let Some(date) = page.date else { return Ok(()) };
        for upload in page.uploads {
            let ours = shared.names.parse_digest(&upload.key).is_some()
                || shared.cluster.paths.is_own(&upload.key);
            if ours && upload.begun > 0 && date - upload.begun >= AGE_S {
                shared.client.abort_upload(&upload.key, &upload.id).await?;
                add(&shared.counters.uploads_aborted, 1);
            }
        }
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    Ok(())
}
