//! Aborts unfinished multipart uploads: listings do not show them, and they are billed.

use crate::background::own_objects;
use crate::state::counters::add;
use crate::state::shared::Shared;

/// A younger upload may still be running.
const AGE_S: i64 = 3600;

/// Aborts unfinished uploads under the prefix that are at least an hour old by the store's clock
/// and have a name of this tier.
pub async fn abort(shared: &Shared) -> kvtier_s3::Result<()> {
    let mut next = None;
    for _ in 0..own_objects::PAGES_MAX {
        let page = shared.client.list_uploads(shared.names.root(), next.as_ref()).await?;
        // Without the store's time no upload is known to be old.
        let Some(date) = page.date else { return Ok(()) };
        for upload in page.uploads {
            let ours = shared.names.parse_digest(&upload.key).is_some()
                || shared.node.own_names.is_own(&upload.key);
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
