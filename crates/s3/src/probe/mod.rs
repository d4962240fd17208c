//! Probes what a store supports. A profile has the usual features of a provider; a probe tests
//! those of one store.

mod checksums;
mod listing;

use crate::attempt::CollectedResponse;
use crate::client::Client;
use crate::endpoint::Conditional;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::refusable_question::{ANSWER_BYTES_MAX, answered, is_refusal};
use crate::request::{Payload, Request};
use crate::retry::RequestKind;

pub use crate::http::{Connection, Secured};
pub use crate::ops::{Lifecycle, Rule, Setting, Settings};
pub use checksums::Sum;
pub use listing::Listing;

/// The length of a probe's objects in bytes.
const BYTES: usize = 4096;

/// What a store can do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Probe {
    /// Whether a part of an object comes as asked for.
    pub ranges: bool,
    /// Whether a GET that names another version is refused: only then can a broken body be
    /// continued.
    pub if_match: bool,
    /// What `If-None-Match: *` on a PUT comes to.
    pub conditional: Conditional,
    /// The checksums that the store supports.
    pub sums: Vec<Sum>,
    /// Whether it wants the body's SHA-256 signed.
    pub wants_signed_bodies: bool,
    /// How it lists.
    pub listing: Listing,
    /// Whether it takes a list of keys to delete.
    pub deletes_many: bool,
    /// What the bucket makes of deleted and old objects.
    pub settings: Settings,
}

impl Client {
    /// Opens a connection as every request does, but also offers HTTP/2, to report which protocol
    /// the server chooses. It sends no request.
    ///
    /// # Errors
    /// `Io` or `Timeout` when the endpoint cannot be reached, `Denied` when its certificate is not
    /// trusted.
    pub async fn survey(&self) -> Result<Connection> {
        let destination = self.inner.destination();
        self.run(RequestKind::Control, "survey", self.inner.pool.survey(&destination.target)).await
    }

    /// Tests what the store supports, with a few small objects under `prefix`, which ends in a
    /// slash and under which no other object may exist. The objects are removed.
    ///
    /// ```no_run
    /// # async fn example(client: &kvtier_s3::Client) -> kvtier_s3::Result<()> {
    /// let found = client.probe("kvtier-probe/").await?;
    /// println!("{found:?}"); // which checksums, conditions and ranges the store supports
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first failure of a plain PUT, GET or DELETE; `Unsupported` when the endpoint returns
    /// other bytes than were stored.
    pub async fn probe(&self, prefix: &str) -> Result<Probe> {
        let asked = Asker { client: self, prefix }.all().await;
        let keys = [&["a"][..], &listing::KEYS, &checksums::KEYS].concat();
        for key in keys {
            let gone = self.delete(&format!("{prefix}{key}")).await;
            if asked.is_ok() {
                gone?;
            }
        }
        asked
    }
}

/// What the questions share.
struct Asker<'c> {
    client: &'c Client,
    prefix: &'c str,
}

impl Asker<'_> {
    async fn all(&self) -> Result<Probe> {
        let key = format!("{}a", self.prefix);
        let bytes: Vec<u8> = (0..BYTES).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
        self.put(&key, &bytes, &[]).await?;
        let whole = self.get(&key, &[]).await?;
        if whole.body != bytes {
            let what = "what answers there gave back other bytes than it was given, so it is no S3 store: check the endpoint";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let part = self.get(&key, &[("range", "bytes=1000-1999")]).await;
        let other = self.get(&key, &[("if-match", "\"0123456789abcdef\"")]).await;
        Ok(Probe {
            ranges: part
                .is_ok_and(|part| part.body == bytes[1000..2000] && part.head.status == 206),
            if_match: other.is_err_and(|e| e.status() == Some(412)),
            conditional: self.conditional(&key, &bytes).await?,
            sums: self.sums(&bytes).await?,
            // One upload that was taken only with its hash signed is enough to say so.
            wants_signed_bodies: self.client.inner.signs_bodies()
                || self.client.inner.unsigned_bodies.last_unsupported(),
            listing: self.listing(&bytes).await?,
            deletes_many: self.deletes_many(&key).await?,
            settings: self.client.settings().await?,
        })
    }

    async fn put(
        &self,
        key: &str,
        body: &[u8],
        headers: &[(&str, &str)],
    ) -> Result<CollectedResponse> {
        let request =
            Request { headers, body, payload: Payload::Bulk, ..Request::new("PUT", Some(key)) };
        self.ask("put", &request).await
    }

    async fn get(&self, key: &str, headers: &[(&str, &str)]) -> Result<CollectedResponse> {
        self.ask("get", &Request { headers, ..Request::new("GET", Some(key)) }).await
    }

    /// Asks until there is an answer. Wrong checksums are asked about on purpose: that the store
    /// refuses them is one.
    async fn ask(&self, op: &'static str, request: &Request<'_>) -> Result<CollectedResponse> {
        self.client
            .run(request.kind(), op, answered(&self.client.inner, request, ANSWER_BYTES_MAX))
            .await
    }

    async fn conditional(&self, key: &str, bytes: &[u8]) -> Result<Conditional> {
        match self.put(key, bytes, &[("if-none-match", "*")]).await {
            Ok(_) => Ok(Conditional::Ignored),
            Err(e) if e.status() == Some(412) && e.code() != Some("InvalidRequest") => {
                Ok(Conditional::Honoured)
            }
            Err(e) if is_refusal(&e) => Ok(Conditional::Refused),
            Err(e) => Err(e),
        }
    }

    async fn deletes_many(&self, key: &str) -> Result<bool> {
        match self
            .client
            .run(RequestKind::Delete, "delete_many", self.client.delete_batch(&[key]))
            .await
        {
            Ok(refused) => Ok(refused.is_empty() && self.client.head(key).await?.is_none()),
            Err(e) if is_refusal(&e) => Ok(false),
            Err(e) => Err(e),
        }
    }
}
