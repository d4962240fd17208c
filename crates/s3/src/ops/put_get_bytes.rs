//! Objects from and into memory of the client's own, for programs without leases.

use std::pin::pin;

use bytes::Bytes;
use kvtier_mem::View;

use super::get::{Get, fetch};
use super::put::{Put, Stored};
use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::http::BodyBuffer;
use crate::retry::RequestKind;

/// How often a read begins again because the object was replaced between its HEAD and its GET.
const REPLACED_MAX: usize = 8;

impl Client {
    /// Stores a `Vec<u8>`, `Bytes`, `&'static [u8]` or any other owner of bytes under `key`. Nothing
    /// is copied: the owner is dropped when the request is over.
    ///
    /// ```
    /// # let server = kvtier_testkit::s3::Server::start(Default::default())?;
    /// # use kvtier_s3::{BucketAddress, Client, Config, Credentials, Put};
    /// # let address = BucketAddress::new(server.url()).bucket("bucket").region("us-east-1");
    /// # let credentials = Credentials::new("AKIDTEST", "secret/test+key");
    /// # let client = Client::new(Config::new(address.resolve()?, credentials));
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// client.put_bytes("models/notes", vec![42; 100_000], &Put::default()).await?;
    /// let bytes = client.get_bytes("models/notes", 1 << 20).await?.expect("a hit");
    /// assert_eq!(bytes, vec![42; 100_000]);
    /// assert_eq!(client.get_bytes("models/other", 1 << 20).await?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::put`].
    pub async fn put_bytes(
        &self,
        key: &str,
        bytes: impl AsRef<[u8]> + Send + Sync + 'static,
        put: &Put,
    ) -> Result<Stored> {
        self.put(key, &View::from_owner(bytes), put).await
    }

    /// Gets a whole object of at most `bytes_max` bytes into new memory; `None` when the object does
    /// not exist. The body is received where it stays: a `Vec<u8>` made of the result is the same
    /// memory.
    ///
    /// The length comes from a HEAD, so this costs one request more than [`Client::get`] into a
    /// lease of a known length.
    ///
    /// # Errors
    /// - `Invalid`: the object is longer than `bytes_max`.
    /// - `Conflict`: the object was replaced again and again during the read.
    /// - Others as [`Client::get`].
    pub async fn get_bytes(&self, key: &str, bytes_max: usize) -> Result<Option<Bytes>> {
        // Both requests share one deadline.
        let client = self.with_fixed_deadline();
        let mut replaced = 0;
        loop {
            let Some(object) = client.head(key).await? else { return Ok(None) };
            let len = usize::try_from(object.len()).unwrap_or(usize::MAX);
            if len > bytes_max {
                let what = format!(
                    "the object {key:?} has {len} bytes, more than the limit of {bytes_max}: raise the limit, or read a range"
                );
                return Err(Error::new(ErrorKind::Invalid, what).with_op("get"));
            }
            // `If-Match` compares strongly: with a weak version it would never match.
            let version = object.etag().filter(|etag| !etag.starts_with("W/"));
            let get = Get { if_match: version.map(str::to_owned), ..Get::default() };
            let mut memory = vec![0; len];
            let result = {
                let mut buffer = BodyBuffer::new(&mut memory);
                let work = pin!(fetch(&client.inner, key, &mut buffer, &get));
                client.run(RequestKind::Read, "get", work).await
            };
            match result {
                Ok(Some(_)) => return Ok(Some(memory.into())),
                Ok(None) => return Ok(None),
                // The HEAD described another version: the length may differ too.
                Err(e) if e.kind() == ErrorKind::Conflict && replaced < REPLACED_MAX => {
                    replaced += 1;
                }
                Err(e) => return Err(e),
            }
        }
    }
}
