//! The keys of the objects that lie in a bucket under LMCache's names, which spell them.

use kvtier_core::{Ctx, Error, ErrorKind, Ticket};
use kvtier_key::KeyId;
use kvtier_s3::List;

use crate::S3Tier;

/// A page of a bucket's keys.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SpelledPage {
    /// The keys, with the lengths of their chunks in bytes; a page may have none and not be the
    /// last.
    pub keys: Vec<(KeyId, u64)>,
    /// Where the next page begins; `None` on the last.
    pub next: Option<String>,
}

impl S3Tier {
    /// Whether the names of this tier's objects spell their keys: those of LMCache's layouts do,
    /// ours are digests.
    pub fn spells_keys(&self) -> bool {
        !self.shared.names.is_own()
    }

    /// Asks the bucket for a page of its keys, whoever stored them; `next` is that of the page
    /// before. Every page is one request. In layout `lmcache` a `_` of a model that this tier
    /// has not met is taken as it stands, though it may have been a `/`. Errors: `Unsupported`
    /// in our own layout, and what the store says.
    pub fn spelled_keys(
        &self,
        ctx: &Ctx,
        next: Option<String>,
    ) -> Ticket<Result<SpelledPage, Error>> {
        if !self.spells_keys() {
            let what = "in its own layout a bucket has its keys' digests alone";
            return Ticket::ready(Err(Error::new(ErrorKind::Unsupported, what).with_op("list")));
        }
        let (shared, deadline) = (self.shared.clone(), ctx.deadline);
        let work = async move {
            let page = shared
                .client
                .until(deadline)
                .list(&List::under(shared.names.root()), next.as_deref())
                .await;
            let page = page.map_err(|e| shared.error("list", None, e))?;
            // Nothing of ours or of LMCache's is empty.
            let chunks = page.entries.iter().filter(|entry| entry.bytes > 0);
            let keys = chunks
                .filter_map(|entry| Some((shared.names.id_of(&entry.key)?, entry.bytes)))
                .collect();
            Ok(SpelledPage { keys, next: page.next })
        };
        self.ask(("list", ctx), work, |answer, page| {
            answer.complete(page);
        })
    }
}
