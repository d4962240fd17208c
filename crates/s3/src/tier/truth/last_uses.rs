use kvtier_index::{LastUses, journal, snapshot as format};

use super::bytes;
use super::journal::OBJECT_BYTES_MAX;
use super::manifest::{self, Manifest};
use super::paths::Paths;
use super::snapshot::PART_BYTES_MAX;
use crate::Client;

/// When the chunks under `root` (empty, or ending in a slash) were used last, as far as snapshot and journals in the bucket say. Nodes write
/// their journals every few seconds.
///
/// # Errors
/// An object below `.kvtier/` cannot be read. What is damaged, or deleted meanwhile, is left out.
pub async fn last_uses(client: &Client, root: &str) -> crate::Result<LastUses> {
    let (paths, mut uses) = (Paths::under(root), LastUses::default());
    let manifest = bytes::get(client, &paths.snapshot(), manifest::BYTES_MAX).await?;
    let manifest = manifest.and_then(|bytes| Manifest::decode(&bytes).ok()).unwrap_or_default();
    for (part, _) in &manifest.parts {
        let part = bytes::get(client, &paths.part(part), PART_BYTES_MAX).await?;
        format::decode(&part.unwrap_or_default()).for_each(|chunks| uses.add_snapshot(manifest.at_ms, &chunks));
    }
    for entry in bytes::list(client, &paths.journals()).await?.0 {
        let journal = bytes::get(client, &entry.key, OBJECT_BYTES_MAX).await?;
        journal::decode(&journal.unwrap_or_default()).for_each(|batch| uses.add_batch(&batch));
    }
    Ok(uses)
}
