//! When the chunks of a bucket were used last, and how long they are, for tools: read from its
//! snapshot and journals.

use std::collections::HashMap;

use kvtier_index::journal::Record;
use kvtier_index::{Chunk, LastUses, ReadEnd, journal, snapshot as format};
use kvtier_key::Digest;
use kvtier_s3::{Client, ErrorKind};

use crate::background::snapshot::PART_BYTES_MAX;
use crate::background::snapshot_manifest::SnapshotManifest;
use crate::background::{own_objects, snapshot_manifest};
use crate::state::catalog::UNKNOWN_LEN;
use crate::state::own_journal::OBJECT_BYTES_MAX;
use crate::state::own_object_names::OwnObjectNames;

/// When the chunks of a bucket were used last, as far as snapshot and journals there say.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct BucketUses {
    /// The uses.
    pub uses: LastUses,
    /// The lengths of chunks, as far as known without a request for each. Where the stored length
    /// is not that of the object, it was written again since.
    pub lengths: HashMap<Digest, RawAndStored>,
    /// The objects that could not be read whole, by name, each with the reason. The uses that they
    /// hold are missing.
    pub unread: Vec<String>,
}

/// The lengths of a chunk, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RawAndStored {
    /// Of its raw bytes.
    pub raw: u64,
    /// Of its object.
    pub stored: u64,
}

/// Reads when the chunks under `root` (empty, or ending in a slash) were used last. Nodes write
/// their journals every few seconds. What is deleted meanwhile is left out.
///
/// # Errors
/// The bucket cannot be read. Objects that are damaged or too long are no error but
/// [`unread`](BucketUses::unread).
pub async fn last_uses(client: &Client, root: &str) -> kvtier_s3::Result<BucketUses> {
    let paths = OwnObjectNames::under(root);
    let mut found = BucketUses::default();
    let manifest = found.get(client, &paths.snapshot(), snapshot_manifest::BYTES_MAX).await?;
    let manifest = match manifest.as_deref().map(SnapshotManifest::decode) {
        Some(Ok(manifest)) => manifest,
        Some(Err(_)) => {
            found.unread.push(format!("{} is damaged, or of another build", paths.snapshot()));
            SnapshotManifest::default()
        }
        None => SnapshotManifest::default(),
    };
    for (part, _) in &manifest.parts {
        let name = paths.part(part);
        let Some(bytes) = found.get(client, &name, PART_BYTES_MAX).await? else { continue };
        let mut pieces = format::decode(&bytes);
        pieces.by_ref().for_each(|chunks| {
            found.uses.add_snapshot(manifest.at_ms, &chunks);
            chunks.iter().for_each(|chunk| found.note_lengths(chunk));
        });
        found.note_end(&name, pieces.end());
    }
    for entry in own_objects::list(client, &paths.journals()).await?.entries {
        let Some(bytes) = found.get(client, &entry.key, OBJECT_BYTES_MAX).await? else { continue };
        let mut batches = journal::decode(&bytes);
        batches.by_ref().for_each(|batch| {
            found.uses.add_batch(&batch);
            batch.records.iter().for_each(|record| {
                if let Record::Insert(chunk) = record {
                    found.note_lengths(chunk);
                }
            });
        });
        found.note_end(&entry.key, batches.end());
    }
    Ok(found)
}

impl BucketUses {
    fn note_lengths(&mut self, chunk: &Chunk) {
        if chunk.len != UNKNOWN_LEN {
            let lengths = RawAndStored { raw: chunk.len, stored: chunk.bytes };
            self.lengths.insert(chunk.digest, lengths);
        }
    }

    /// An object's bytes; `None` where it is not there, or cannot be read whole.
    async fn get(
        &mut self,
        client: &Client,
        name: &str,
        bytes_max: usize,
    ) -> kvtier_s3::Result<Option<Vec<u8>>> {
        match own_objects::get(client, name, bytes_max).await {
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                self.unread.push(format!("{name} cannot be read: {e}"));
                Ok(None)
            }
            other => other,
        }
    }

    fn note_end(&mut self, name: &str, end: Option<ReadEnd>) {
        match end {
            Some(ReadEnd::Torn { at }) => {
                self.unread.push(format!("{name} is damaged from byte {at} on"))
            }
            Some(ReadEnd::Version { version, .. }) => {
                self.unread.push(format!(
                    "{name} has version {version} of its format, which this build does not read"
                ));
            }
            _ => {}
        }
    }
}
