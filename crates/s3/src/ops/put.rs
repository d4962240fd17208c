use std::pin::pin;

use kvtier_mem::View;

use crate::checksum::Checksum;
use crate::client::Client;
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::request::{Payload, Request};
use crate::response_check;
use crate::retry::RequestKind;

const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// The most metadata fields of one object.
const META_MAX: usize = 8;

/// How to store an object.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Put {
    /// Only if no object of that name exists. [`crate::Provider::conditional`] says how the store
    /// handles it.
    pub if_absent: bool,
    /// Metadata: names without `x-amz-meta-`, in lower case; values in printable ASCII. At most
    /// eight.
    pub meta: Vec<(String, String)>,
    /// The body's CRC-32C, if the caller has it: then it is not computed again.
    pub crc32c: Option<u32>,
    /// The storage class of this object, such as `INTELLIGENT_TIERING`; `None`: that of
    /// [`crate::Config::storage_class`].
    pub storage_class: Option<String>,
}

impl Put {
    /// Only if no object of that name exists.
    pub fn if_absent() -> Self {
        Put { if_absent: true, ..Put::default() }
    }

    /// With this metadata too.
    pub fn meta(mut self, name: &str, value: impl Into<String>) -> Self {
        self.meta.push((format!("x-amz-meta-{name}"), value.into()));
        self
    }

    /// In this storage class.
    pub fn storage_class(mut self, name: impl Into<String>) -> Self {
        self.storage_class = Some(name.into());
        self
    }

    /// The header that names the storage class, where one is set: of this upload, else of the
    /// client.
    pub(super) fn class_header<'a>(
        &'a self,
        config: &'a Config,
    ) -> Option<(&'static str, &'a str)> {
        let name = self.storage_class.as_deref().or(config.storage_class.as_deref());
        name.map(|name| ("x-amz-storage-class", name))
    }
}

/// The result of a PUT.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Stored {
    /// The object was stored.
    New {
        /// Its version, where the store names it.
        etag: Option<String>,
    },
    /// An object existed already. It may be from an earlier attempt of this call whose response was
    /// lost.
    Present,
}

impl Client {
    /// Stores the view's bytes under `key` with one request, straight from the view.
    ///
    /// ```
    /// # let server = kvtier_testkit::s3::Server::start(Default::default())?;
    /// # use kvtier_s3::{BucketAddress, Client, Config, Credentials};
    /// # let address = BucketAddress::new(server.url()).bucket("bucket").region("us-east-1");
    /// # let client = Client::new(Config::new(address.resolve()?, Credentials::new("AKIDTEST", "secret/test+key")));
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use kvtier_mem::View;
    /// use kvtier_s3::{Put, Stored};
    ///
    /// let body = View::from_owner(vec![42; 4096]); // or a frozen lease of an arena
    /// let put = Put::if_absent().meta("facts", "AbC1");
    /// let first = client.put("chunk", &body, &put).await?;
    /// assert!(matches!(first, Stored::New { .. }));
    /// assert_eq!(client.put("chunk", &body, &put).await?, Stored::Present);
    /// assert_eq!(client.head("chunk").await?.unwrap().meta("facts"), Some("AbC1"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// - `Invalid`: the view is device memory, or the key or metadata cannot be sent.
    /// - `Corrupt`: the store received other bytes than were sent, in every attempt.
    /// - `Unsupported`: the store has no conditional PUTs (see [`Put::if_absent`]).
    /// - `Denied`, `NotFound`, `Timeout`, `Io`, `Throttled`, `Unavailable`: the store did not do it
    ///   in time. The object may exist all the same.
    pub async fn put(&self, key: &str, body: &View, put: &Put) -> Result<Stored> {
        let bytes = host(body)?;
        let sum = self.inner.config.checksum;
        // The caller's checksum was computed before the bytes left its hands, and so also proves
        // the way to here.
        let value = match put.crc32c {
            Some(crc) if sum == Checksum::Crc32c => Some(sum.written(crc.into())),
            _ => sum.of(bytes),
        };
        let mut headers = PutHeaders::default();
        if put.if_absent {
            headers.push("if-none-match", "*")?;
        }
        if let (Some(name), Some(value)) = (sum.header(), &value) {
            headers.push(name, value)?;
        }
        if let Some((name, value)) = put.class_header(&self.inner.config) {
            headers.push(name, value)?;
        }
        for (name, value) in &put.meta {
            headers.push(name, value)?;
        }
        let headers = headers.as_slice();
        let request = Request {
            headers,
            body: bytes,
            payload: Payload::Bulk,
            ..Request::new("PUT", Some(key))
        };
        let asked = self.inner.ask_for(&request, ANSWER_BYTES_MAX, response_check::stored);
        match self.run(RequestKind::Write, "put", pin!(asked)).await {
            Ok(etag) => {
                self.inner.counters.bytes_out.add(bytes.len() as u64);
                Ok(Stored::New { etag: Some(etag) })
            }
            Err(e)
                if put.if_absent
                    && e.status() == Some(412)
                    && e.code() != Some("InvalidRequest") =>
            {
                Ok(Stored::Present)
            }
            Err(e) => Err(e),
        }
    }
}

/// The bytes of a view.
pub fn host(view: &View) -> Result<&[u8]> {
    let refusal =
        || Error::new(ErrorKind::Invalid, "a network cannot read device memory: give host memory");
    view.as_host().ok_or_else(refusal)
}

/// The few headers of an upload, on the stack.
#[derive(Default)]
struct PutHeaders<'a> {
    items: [(&'a str, &'a str); META_MAX + 3],
    len: usize,
}

impl<'a> PutHeaders<'a> {
    fn push(&mut self, name: &'a str, value: &'a str) -> Result<()> {
        let full = || {
            Error::new(
                ErrorKind::Invalid,
                format!("an object has at most {META_MAX} metadata fields"),
            )
        };
        *self.items.get_mut(self.len).ok_or_else(full)? = (name, value);
        self.len += 1;
        Ok(())
    }

    fn as_slice(&self) -> &[(&'a str, &'a str)] {
        &self.items[..self.len]
    }
}

/// The checksum header of one body, where one is configured.
pub fn sum_header(sum: Checksum, value: Option<&str>) -> Option<(&'static str, &str)> {
    sum.header().zip(value)
}
