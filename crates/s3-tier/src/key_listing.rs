//! Lists the keys of a bucket whose object names encode them: those of LMCache's layouts.

use kvtier_core::{Ctx, Error, ErrorKind, Ticket};
use kvtier_key::KeyId;
use kvtier_s3::List;

use crate::S3Tier;

/// A page of a bucket's keys.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ListedKeys {
    /// The keys, with the lengths of their chunks in bytes; a page may have none and not be the
    /// last.
    pub keys: Vec<(KeyId, u64)>,
    /// Where the next page begins; `None` on the last.
    pub next: Option<String>,
}

impl S3Tier {
    /// Whether the names of this tier's objects encode their keys: those of LMCache's layouts do.
    /// Names of layout `kvtier` are digests.
    pub fn names_encode_keys(&self) -> bool {
        !self.shared.names.is_own()
    }

    /// Lists a page of the bucket's keys, with one request. `next` is that of the page before.
    /// Layout `lmcache` writes `_` for the `/` of a model: in the names of a model that this tier
    /// has not saved or loaded, it is read as `_`.
    ///
    /// # Errors
    /// `Unsupported` in layout `kvtier`, whose names are digests. Other errors are those of the
    /// request.
    pub fn list_keys(&self, ctx: &Ctx, next: Option<String>) -> Ticket<Result<ListedKeys, Error>> {
        if !self.names_encode_keys() {
            let what = "layout kvtier stores digests of keys and no keys; list keys of layout lmcache-mp or lmcache";
            return Ticket::ready(Err(Error::new(ErrorKind::Unsupported, what).with_op("list")));
        }
        let shared = self.shared.clone();
        let deadline = ctx.deadline;
        let work = async move {
            let page = shared
                .client
                .until(deadline)
                .list(&List::under(shared.names.root()), next.as_deref())
                .await;
            let page = page.map_err(|e| shared.error("list", None, e))?;
            // Neither kvtier nor LMCache stores empty chunks.
            let chunks = page.entries.iter().filter(|entry| entry.bytes > 0);
            let keys = chunks
                .filter_map(|entry| Some((shared.names.parse_id(&entry.key)?, entry.bytes)))
                .collect();
            Ok(ListedKeys { keys, next: page.next })
        };
        self.ask("list", ctx, work, |answer, page| {
            answer.complete(page);
        })
    }
}
