//! The chunks of a bucket, listed page by page as they are read.

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Class, Ctx};
use kvtier_key::KeyId;
use kvtier_s3_tier::S3Tier;

use super::{KeySource, NextChunk};

/// A page that takes longer is an error.
const PAGE_MAX: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct BucketKeys {
    tier: Arc<S3Tier>,
    page: std::vec::IntoIter<(KeyId, u64)>,
    /// Where the next page begins; nothing behind the last.
    next: Option<NextPage>,
}

#[derive(Debug)]
enum NextPage {
    First,
    Token(String),
}

impl BucketKeys {
    pub(super) fn new(tier: &Arc<S3Tier>) -> Self {
        BucketKeys {
            tier: Arc::clone(tier),
            page: Vec::new().into_iter(),
            next: Some(NextPage::First),
        }
    }
}

impl KeySource for BucketKeys {
    fn next_chunk(&mut self) -> NextChunk {
        if let Some(chunk) = self.page.next() {
            return Ok(Some(Some(chunk)));
        }
        // A page that fails is asked for again by the next call.
        let token = match &self.next {
            None => return Ok(None),
            Some(NextPage::First) => None,
            Some(NextPage::Token(token)) => Some(token.clone()),
        };
        // A listing is long. It must not delay the loads of an engine.
        let ctx = Ctx::within(PAGE_MAX).with_class(Class::Background);
        let page = self.tier.list_keys(&ctx, token).wait()?;
        (self.page, self.next) = (page.keys.into_iter(), page.next.map(NextPage::Token));
        Ok(Some(None))
    }
}
