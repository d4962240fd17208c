use std::pin::pin;

use crate::checksum::Checksum;
use crate::client::Client;
use crate::error::Result;
use crate::http::ResponseHead;
use crate::request::Request;
use crate::retry::RequestClass;
use crate::time::http_date;

use super::is_missing;

/// The metadata of an object, from the response to a GET or HEAD.
#[derive(Clone, Debug)]
pub struct Object {
    pub(super) head: ResponseHead,
    pub(super) len: u64,
    pub(super) total: u64,
}

impl Object {
    /// Bytes received; of a HEAD, those that a GET would receive.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the whole object.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Its version, as the store names it; not a hash of its bytes.
    pub fn etag(&self) -> Option<&str> {
        self.head.etag()
    }

    /// When it was written, in seconds since 1970 by the store's clock.
    pub fn modified(&self) -> Option<i64> {
        self.head.header("last-modified").and_then(http_date)
    }

    /// The metadata of that name, which is without `x-amz-meta-`.
    pub fn meta(&self, name: &str) -> Option<&str> {
        self.header(&format!("x-amz-meta-{name}"))
    }

    /// Any header of the answer.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }
}

impl Client {
    /// The metadata of an object without its bytes; `None` when the object does not exist.
    ///
    /// # Errors
    /// `NotFound` when the bucket does not exist, if the store reports it; others as
    /// [`Client::get`].
    pub async fn head(&self, key: &str) -> Result<Option<Object>> {
        let mode = [("x-amz-checksum-mode", "ENABLED")];
        let headers = if self.inner.config.checksum == Checksum::None { &[][..] } else { &mode };
        let request = Request { headers, ..Request::new("HEAD", Some(key)) };
        let answer = self.run(RequestClass::Read, "head", pin!(self.inner.ask(&request, 0))).await;
        match answer {
            Ok(answer) => {
                let len = answer.head.length.unwrap_or(0);
                Ok(Some(Object { head: answer.head, len, total: len }))
            }
            Err(e) if is_missing(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }
}
