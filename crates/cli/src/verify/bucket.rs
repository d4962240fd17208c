use std::sync::Mutex;

use anyhow::{Context, Result};
use kvtier::mem::Lease;
use kvtier::s3::Get;
use kvtier::s3_tier::inspect::{self, Damage, Verified};
use kvtier::s3_tier::{Layout, TierEncoding};

use super::VerifyArgs;
use super::report::{Damaged, VerifyResults};
use crate::bucket::{Bucket, BucketChunk};
use crate::bucket_args::failed;
use crate::name_filter::Filter;

/// How many chunks are read at once where nothing else is said.
const WORKERS: usize = 8;

/// Reads chunks whole and checks every byte. Answers whether all are right.
pub fn verify(bucket: &Bucket, filter: &Filter, args: &VerifyArgs) -> Result<bool> {
    let pace = args.pace.checked(WORKERS)?;
    let encoding = args.keys.decoding()?;
    let mut chunks = bucket.chunks()?;
    chunks.retain(|chunk| filter.takes(&chunk.label));
    let found = Mutex::new(VerifyResults { chunks: chunks.len(), ..VerifyResults::default() });
    let check = |chunk: &BucketChunk| {
        let one = one(bucket, chunk, &encoding)?;
        let mut found = VerifyResults::lock(&found);
        match one {
            None => found.gone += 1,
            Some(Ok(Verified::Stored(why))) => found.not_checked(why),
            Some(Ok(_)) => {}
            Some(Err(Damage::Unverified)) if !is_own(bucket, chunk) => found.unverified += 1,
            Some(Err(damage)) => {
                let damage = format!("{damage:?}").to_lowercase();
                found.damaged.push(Damaged {
                    label: chunk.label.clone(),
                    bytes: chunk.bytes,
                    damage,
                });
            }
        }
        Ok(())
    };
    pace.each(&chunks, |chunk| chunk.bytes, check)?;
    let next = "; loads of the damaged are misses, and the next save writes over them";
    VerifyResults::finished(found).print(args.json, None, next)
}

fn is_own(bucket: &Bucket, chunk: &BucketChunk) -> bool {
    inspect::layout_of(rest(bucket, chunk)) == Some(Layout::Kvtier)
}

fn rest<'a>(bucket: &Bucket, chunk: &'a BucketChunk) -> &'a str {
    chunk.name.strip_prefix(&bucket.root).unwrap_or(&chunk.name)
}

/// One chunk; `None` where it is gone meanwhile.
fn one(
    bucket: &Bucket,
    chunk: &BucketChunk,
    encoding: &TierEncoding,
) -> Result<Option<Result<Verified, Damage>>> {
    let len = usize::try_from(chunk.bytes)?;
    // No chunk is empty, and a lease of no bytes cannot be read into.
    if len == 0 {
        return Ok(Some(Err(Damage::Length)));
    }
    let mut lease = Lease::from_owner(vec![0u8; len]);
    let got = bucket
        .runtime
        .block_on(bucket.client.get(&chunk.name, &mut lease, &Get::at_most()))
        .map_err(failed)?;
    let Some(object) = got else { return Ok(None) };
    let bytes = lease.as_host().context("memory of the host")?;
    let held = usize::try_from(object.len())?.min(bytes.len());
    Ok(Some(inspect::check(rest(bucket, chunk), &object, &bytes[..held], encoding)))
}
