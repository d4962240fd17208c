//! Chunks into a bucket, by the client alone: no tier is opened, and tiers that are open find what
//! comes by listing.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use kvtier::codec::TierEncoding;
use kvtier::core::Key;
use kvtier::key::Facts;
use kvtier::mem::View;
use kvtier::s3::{Client, Object};
use kvtier::s3_tier::{Layout, inspect};

use super::chunk::{ChunkIdentity, SourceChunk};
use super::encode::encode;
use super::report::Tally;
use super::{CopyArgs, CopyOutcome, Sink};
use crate::BadInput;
use crate::bucket::{Bucket, HEADS};
use crate::bucket_args::failed;

/// What is longer goes in parts.
const PARTS_ABOVE_BYTES: usize = 64 << 20;
/// The size of a part, and how many go at a time.
const PARTS: kvtier::s3::Multipart = kvtier::s3::Multipart::new(16 << 20, 4);
/// S3 takes no longer names.
const NAME_BYTES_MAX: usize = 1024;

/// A bucket that chunks go to.
pub struct Objects {
    bucket: Bucket,
    layout: Layout,
    encoding: Arc<TierEncoding>,
}

impl Objects {
    pub fn of(bucket: Bucket, args: &CopyArgs) -> Result<Self> {
        if args.target.bytes.is_some() {
            let what = "--bytes is for directories; a bucket is capped by the configuration of the tier over it";
            return Err(BadInput(what.into()).into());
        }
        let layout = bucket.layout().unwrap_or_default();
        let encoding = args.how.keys.encoding(&args.target.encodings)?;
        if encoding.is_on() && layout != Layout::Kvtier {
            let what = format!(
                "--encode: objects of layout {layout} hold chunks as they are; leave --encode out"
            );
            return Err(BadInput(what).into());
        }
        Ok(Objects { bucket, layout, encoding })
    }

    pub fn layout(&self) -> &'static str {
        self.layout.name()
    }

    fn name_of(&self, identity: &ChunkIdentity) -> Result<String, String> {
        let id = identity.key.as_ref().ok().map(Key::id);
        let rest = inspect::name_of(self.layout, &identity.digest, id).map_err(|e| {
            match (&identity.key, self.layout) {
                (Err(why), _) => why.clone(),
                _ => format!("{:#}", anyhow!(e)),
            }
        })?;
        let name = format!("{}{rest}", self.bucket.root());
        // S3's own limit. The request would fail with an error that names no chunk.
        if name.len() > NAME_BYTES_MAX {
            return Err(format!("its name has {} bytes, S3 takes {NAME_BYTES_MAX}", name.len()));
        }
        Ok(name)
    }

    /// Whether names there spell keys; why there is none for this chunk.
    pub fn names(&self, one: &SourceChunk) -> Result<bool, String> {
        self.name_of(&one.identity).map(|_| self.layout != Layout::Kvtier)
    }

    /// Leaves out what is there.
    pub fn without_present(
        &self,
        wanted: Vec<SourceChunk>,
        tally: &mut Tally,
    ) -> Result<(Vec<SourceChunk>, Option<Box<dyn Sink + '_>>)> {
        // One listing instead of a HEAD for each chunk. A chunk of another length is written anew.
        let there: HashMap<String, u64> =
            self.bucket.chunks()?.into_iter().map(|chunk| (chunk.name, chunk.bytes)).collect();
        let (mut missing, mut unclear) = (Vec::new(), Vec::new());
        for one in wanted {
            let name = self.name_of(&one.identity).ok();
            match name.and_then(|name| there.get_key_value(&name)) {
                None => missing.push(one),
                // The listing shows the stored length, which is the raw one of a chunk in clear.
                Some((_, bytes)) if *bytes == one.len && !self.encoding.encrypts() => {
                    tally.present += 1;
                }
                Some((name, _)) => unclear.push((one, name)),
            }
        }
        while !unclear.is_empty() {
            let some: Vec<_> = unclear.drain(..unclear.len().min(HEADS)).collect();
            let heads = self.bucket.heads(some.iter().map(|(_, name)| (*name).clone()))?;
            for ((one, _), head) in some.into_iter().zip(heads) {
                let is_present = head.is_some_and(|head| self.is_present(&one, &head));
                if is_present { tally.present += 1 } else { missing.push(one) }
            }
        }
        Ok((missing, Some(Box::new(OpenBucket(self)))))
    }
}

impl Objects {
    /// Whether an object is this chunk, in clear only where copies are not encrypted.
    fn is_present(&self, one: &SourceChunk, head: &Object) -> bool {
        let Some(Ok(facts)) = inspect::facts_of(head) else { return false };
        facts.key == one.identity.digest
            && facts.raw_len == one.len
            && facts.stored_len() == head.total()
            && (facts.key_id != 0 || !self.encoding.encrypts())
    }
}

struct OpenBucket<'a>(&'a Objects);

impl OpenBucket<'_> {
    async fn store(
        client: &Client,
        name: &str,
        view: View,
        facts: &Facts,
        canonical: Option<&[u8]>,
    ) -> kvtier::s3::Result<()> {
        let mut how = inspect::put_of(facts, canonical, client.endpoint().provider());
        // The sum of the bytes as they were read: the store refuses what changed on its way.
        how.crc32c = Some(facts.sums.whole());
        match view.len() > PARTS_ABOVE_BYTES {
            true => client.put_multipart(name, &view, &how, PARTS).await.map(drop),
            false => client.put(name, &view, &how).await.map(drop),
        }
    }
}

impl Sink for OpenBucket<'_> {
    fn put(&self, one: &SourceChunk, payload: Vec<u8>) -> Result<CopyOutcome> {
        let name = match self.0.name_of(&one.identity) {
            Ok(name) => name,
            Err(why) => return Ok(CopyOutcome::Unsupported(why)),
        };
        let (facts, stored) = encode(&self.0.encoding, &one.identity, payload)?;
        let (client, runtime) = self.0.bucket.client();
        let canonical =
            // Names of the other layouts spell the key already.
            one.identity.canonical.as_deref().filter(|_| self.0.layout == Layout::Kvtier);
        let stored = runtime.block_on(OpenBucket::store(
            client,
            &name,
            View::from_owner(stored),
            &facts,
            canonical,
        ));
        stored.map_err(failed).with_context(|| format!("cannot write {}", one.label))?;
        Ok(CopyOutcome::Stored)
    }

    fn finish(&self) -> Result<()> {
        Ok(())
    }
}
