//! Chunks out of a bucket, by the client alone: no tier is opened.

use std::sync::Arc;

use anyhow::{Context, Result};
use kvtier::codec::TierEncoding;
use kvtier::core::{Key, Namespace};
use kvtier::key::{Facts, KeyId};
use kvtier::mem::Lease;
use kvtier::s3::Get;
use kvtier::s3_tier::{Layout, inspect};

use super::chunk::{ChunkIdentity, ChunkRead, Location, SourceChunk};
use super::report::Tally;
use super::unverified::UnverifiedChoice;
use crate::bucket::{Bucket, HEADS};
use crate::bucket_args::failed;

/// The chunks whose key is in their name or facts.
pub fn chunks(
    bucket: &Bucket,
    trust: &UnverifiedChoice,
    tally: &mut Tally,
) -> Result<Vec<SourceChunk>> {
    let mut found = Vec::new();
    // A HEAD for each chunk, some at a time: a listing has neither keys nor checksums.
    for some in bucket.chunks()?.chunks(HEADS) {
        let names = some.iter().map(|chunk| chunk.name.clone());
        for (chunk, head) in some.iter().zip(bucket.heads(names)?) {
            let Some(head) = head else {
                tally.gone += 1;
                continue;
            };
            let rest = chunk.name.strip_prefix(bucket.root()).unwrap_or(&chunk.name);
            let stored = match inspect::facts_of(&head) {
                Some(Ok(facts)) => identity(rest, &facts, inspect::canonical_of(&head))
                    .map(|identity| (identity, facts.raw_len, true)),
                Some(Err(_)) => None,
                // In our own layout that is damage.
                None if inspect::ids_of(rest).is_empty() => None,
                None => match trust.payload(chunk.bytes) {
                    Some(len) => Some((unproven(rest, trust), len, false)),
                    None => {
                        tally.leave_behind();
                        continue;
                    }
                },
            };
            match stored {
                Some((identity, len, proven)) => {
                    let at = Location::Object(chunk.name.clone(), chunk.bytes);
                    found.push(SourceChunk {
                        label: chunk.label.clone(),
                        at,
                        identity,
                        len,
                        proven,
                    });
                }
                None => tally.damaged += 1,
            }
        }
    }
    Ok(found)
}

/// The identity of an object with facts; `None` if the facts belong to another object.
fn identity(rest: &str, facts: &Facts, canonical: Option<Vec<u8>>) -> Option<ChunkIdentity> {
    let digest = facts.key;
    let namespace = facts.namespace;
    // The name is the key in LMCache's layouts and a digest in kvtier's.
    let ids = inspect::ids_of(rest);
    if ids.is_empty() {
        let reason = "the bucket has only the digest of its key: a build before the header x-amz-meta-kvtier-key wrote it, or the key did not fit";
        return rest
            .ends_with(&digest.to_hex())
            .then(|| ChunkIdentity::of(facts, canonical, reason));
    }
    let ns = Arc::new(Namespace::known_by(namespace));
    let key =
        // A name can often be read in several ways. The digest in the facts says which reading is
        // right.
        ids.into_iter().map(|id| Key::new(Arc::clone(&ns), id)).find(|key| *key.digest() == digest);
    match (key, inspect::layout_of(rest)) {
        (Some(key), _) => Some(key.into()),
        // Its model may have had more slashes than one.
        (None, Some(Layout::Lmcache)) => {
            let key =
                Err("how its model is spelled is not known: its name has `_` for `/`".to_owned());
            Some(ChunkIdentity { digest, namespace, key, canonical: None })
        }
        (None, _) => None,
    }
}

/// The identity of an object by its name alone; the arguments spell the models.
fn unproven(rest: &str, trust: &UnverifiedChoice) -> ChunkIdentity {
    let ids = inspect::ids_of(rest);
    let spelled = ids
        .iter()
        .find(|id| model(id).is_some_and(|model| trust.models.iter().any(|named| named == model)));
    let id =
        spelled.or_else(|| ids.first()).cloned().expect("called only for names that encode a key");
    Key::new(Arc::clone(&trust.namespace), id).into()
}

fn model(id: &KeyId) -> Option<&str> {
    match id {
        KeyId::Object(id) => Some(&id.model),
        KeyId::Engine(id) => Some(&id.model),
        KeyId::Layer(id) => Some(&id.key.model),
        _ => None,
    }
}

/// Reads an object of `len` bytes whole, checks it and decodes it.
pub fn read(bucket: &Bucket, encoding: &TierEncoding, name: &str, len: u64) -> Result<ChunkRead> {
    let (client, runtime) = bucket.client();
    // Where a chunk without facts is cut, its object is longer by zeros.
    let padded = usize::try_from(len.next_multiple_of(4096))?;
    let mut lease = Lease::from_owner(vec![0u8; padded]);
    let got = match runtime.block_on(client.get(name, &mut lease, &Get::at_most())) {
        Ok(Some(object)) => object,
        Ok(None) => return Ok(ChunkRead::Gone),
        Err(e) if e.kind() == kvtier::s3::ErrorKind::Corrupt && !e.is_retryable() => {
            return Ok(ChunkRead::Damaged);
        }
        Err(e) => return Err(failed(e)).with_context(|| format!("cannot read {name}")),
    };
    let mut bytes = lease.as_host().context("memory of the host")?.to_vec();
    // The object may have changed since the listing.
    bytes.truncate(usize::try_from(got.len())?);
    let rest = name.strip_prefix(bucket.root()).unwrap_or(name);
    match inspect::decode(rest, &got, &bytes, encoding) {
        Ok(Ok(raw)) => Ok(ChunkRead::Payload(raw, true)),
        Ok(Err(why)) => Ok(ChunkRead::undecoded(why)),
        Err(inspect::Damage::Unverified) if !inspect::ids_of(rest).is_empty() => {
            Ok(ChunkRead::Payload(bytes, false))
        }
        Err(_) => Ok(ChunkRead::Damaged),
    }
}
