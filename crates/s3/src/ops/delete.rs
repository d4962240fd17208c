use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use super::concurrent::try_for_each_concurrent;
use super::is_missing;
use crate::checksum::{Checksum, md5};
use crate::client::{Client, Inner};
use crate::error::{Error, ErrorKind, Result};
use crate::local_clock::Instant;
use crate::request::Request;
use crate::response_check;
use crate::retry::{AttemptError, RequestKind};
use crate::xml;

const ANSWER_BYTES_MAX: usize = 4 << 20;
/// The most keys that S3 accepts in one request.
pub const KEYS_MAX: usize = 1000;
/// The most requests in flight where each deletes one object.
const SINGLY_MAX: usize = 16;
/// How often an object is deleted that is still there after an answer that may not be the store's.
const UNCERTAIN_MAX: usize = 3;

/// A key that was not deleted, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeleteError {
    /// The key.
    pub key: String,
    /// S3's error code.
    pub code: String,
}

impl Client {
    /// Deletes an object. It is no error if the object does not exist.
    ///
    /// # Errors
    /// `Denied` without the permission, `NotFound` when the bucket does not exist, `Timeout`, `Io`,
    /// `Throttled` or `Unavailable` when the store does not do it in time.
    pub async fn delete(&self, key: &str) -> Result<()> {
        // Both requests have the one deadline of the operation.
        self.run(RequestKind::Delete, "delete", pin!(self.inner.delete(key))).await
    }

    /// Deletes up to 1000 objects with one request. Deletes them one by one where the store has no
    /// such request, and for keys that XML cannot express. Returns the keys that were not deleted.
    ///
    /// ```
    /// # let server = kvtier_testkit::s3::Server::start(Default::default())?;
    /// # use kvtier_s3::{BucketAddress, Client, Config, Credentials};
    /// # let address = BucketAddress::new(server.url()).bucket("bucket").region("us-east-1");
    /// # let client = Client::new(Config::new(address.resolve()?, Credentials::new("AKIDTEST", "secret/test+key")));
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use kvtier_s3::Put;
    ///
    /// for name in ["a", "b"] {
    ///     client.put_bytes(name, b"x", &Put::default()).await?;
    /// }
    /// let refused = client.delete_many(&["a", "b", "absent"]).await?;
    /// assert!(refused.is_empty(), "{refused:?}");
    /// assert!(client.head("a").await?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Invalid` for more than 1000 keys. For other errors, which keys were deleted is unknown: the
    /// call can be repeated.
    pub async fn delete_many<K: AsRef<str>>(&self, keys: &[K]) -> Result<Vec<DeleteError>> {
        if keys.len() > KEYS_MAX {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("at most {KEYS_MAX} keys can be deleted at once"),
            ));
        }
        let many = self.deletes_many();
        let began = Instant::now();
        // Without the bulk request all keys go to the second list.
        let (expressible, inexpressible): (Vec<&str>, Vec<&str>) =
            keys.iter().map(AsRef::as_ref).partition(|key| many && xml::is_expressible(key));
        let mut refused = Vec::new();
        if !expressible.is_empty() {
            let is_ours = |refused: &DeleteError| expressible.contains(&refused.key.as_str());
            match self
                .run(RequestKind::Delete, "delete_many", self.delete_batch(&expressible))
                .await
            {
                Ok(some) if some.iter().all(is_ours) => {
                    self.inner.bulk_delete.note_supported();
                    refused = some;
                }
                // The response names keys that were not in the request, so which of them remain is
                // unknown. Deletes them one by one.
                Ok(_) => refused = self.delete_each(&expressible).await?,
                // Without a status the fault is in the connection, or the response is not of the
                // store.
                Err(e)
                    if (e.kind() == ErrorKind::Unsupported && e.status().is_some())
                        || e.is_foreign() =>
                {
                    let bulk_delete = &self.inner.bulk_delete;
                    match e.code() {
                        Some("NotImplemented" | "MethodNotAllowed") => {
                            bulk_delete.note_refused(Instant::now())
                        }
                        _ => bulk_delete.note_unsupported(began, Instant::now()),
                    }
                    refused = self.delete_each(&expressible).await?;
                }
                Err(e) => return Err(e),
            }
        }
        // XML 1.0 has no way to write most control characters.
        refused.extend(self.delete_each(&inexpressible).await?);
        Ok(refused)
    }

    /// Whether the store deletes many objects with one request, by its profile and its recent
    /// responses.
    pub fn deletes_many(&self) -> bool {
        let Inner { config, bulk_delete, .. } = &*self.inner;
        config.endpoint.provider().deletes_many() && !bulk_delete.is_unsupported(Instant::now())
    }

    /// Deletes with one request, even if the provider's profile has none for many keys.
    pub async fn delete_batch(&self, keys: &[&str]) -> Result<Vec<DeleteError>> {
        let mut body = String::from(
            "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Quiet>true</Quiet>",
        );
        for key in keys {
            body.push_str("<Object><Key>");
            xml::escape(&mut body, key);
            body.push_str("</Key></Object>");
        }
        body.push_str("</Delete>");
        // S3 wants a checksum of this body, and not all stores take the same.
        let sum = if self.inner.config.endpoint.provider().refuses_md5() {
            ("x-amz-checksum-crc32c", Checksum::Crc32c.of(body.as_bytes()).unwrap_or_default())
        } else {
            ("content-md5", md5(body.as_bytes()))
        };
        let headers = [(sum.0, sum.1.as_str())];
        let request = Request {
            query: &[("delete", "")],
            headers: &headers,
            body: body.as_bytes(),
            ..Request::new("POST", None)
        };
        self.inner.ask_for(&request, ANSWER_BYTES_MAX, |_, body| refusals(body)).await
    }

    async fn delete_each(&self, keys: &[&str]) -> Result<Vec<DeleteError>> {
        let refused = Mutex::new(Vec::new());
        let one = |key: &str| {
            let refused = &refused;
            let key = key.to_owned();
            async move {
                match self.delete(&key).await {
                    // The store's answer for this key; the others are still deleted.
                    Err(e) if e.status().is_some() && !e.is_retryable() => {
                        let code = e.code().unwrap_or("Unknown").to_owned();
                        refused
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(DeleteError { key, code });
                        Ok(())
                    }
                    other => other,
                }
            }
        };
        try_for_each_concurrent(keys.iter().map(|key| one(key)), SINGLY_MAX).await?;
        Ok(refused.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Inner {
    /// Deletes an object, and asks whether it is gone where the answer may not be the store's.
    async fn delete(self: &Arc<Self>, key: &str) -> Result<()> {
        let (delete, head) = (Request::new("DELETE", Some(key)), Request::new("HEAD", Some(key)));
        for _ in 0..UNCERTAIN_MAX {
            match self.ask_for(&delete, ANSWER_BYTES_MAX, response_check::deleted).await {
                Ok(true) => return Ok(()),
                // Some stores answer so, and so does what stands before others.
                Ok(false) => {}
                // A repeated attempt finds nothing where the first one's answer was lost.
                Err(e) if is_missing(&e) => return Ok(()),
                Err(e) => return Err(e),
            }
            match self.ask(&head, 0).await {
                Ok(_) => {}
                Err(e) if is_missing(&e) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        Err(Error::foreign(
            "DELETE was answered 200 without an id of S3, and the object is still there: check what stands before the store",
        ))
    }
}

/// The errors in a `DeleteResult`, whose status is a success. In quiet mode a store lists only
/// errors.
pub(super) fn refusals(body: &[u8]) -> Result<Vec<DeleteError>, AttemptError> {
    let mut refused = Vec::new();
    let mut key = String::new();
    let mut code = String::new();
    let mut nameless = false;
    response_check::document(body, "DeleteResult", |path, text| match path {
        [_, error, field] if error == "Error" => match field.as_str() {
            "Key" => text.clone_into(&mut key),
            "Code" => text.clone_into(&mut code),
            _ => {}
        },
        [_, error] if error == "Error" => {
            let one =
                DeleteError { key: std::mem::take(&mut key), code: std::mem::take(&mut code) };
            nameless |= one.key.is_empty();
            // SeaweedFS gives no reason.
            let code = if one.code.is_empty() { "Unknown".into() } else { one.code };
            let one = DeleteError { code, ..one };
            // An absent object is the result that was asked for.
            if one.code != "NoSuchKey" {
                refused.push(one);
            }
        }
        _ => {}
    })?;
    // An error of no key may be any key's.
    if nameless { Err(response_check::foreign(xml::nonsense())) } else { Ok(refused) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_success_can_hold_refusals() {
        let body = b"<DeleteResult><Deleted><Key>a</Key></Deleted><Error><Key>b&amp;c</Key><Code>AccessDenied</Code><Message>m</Message></Error>\
            <Error><Code>NoSuchKey</Code><Key>d</Key></Error></DeleteResult>";
        let refused = refusals(body).unwrap();
        assert_eq!(refused, [DeleteError { key: "b&c".into(), code: "AccessDenied".into() }]);
        assert!(refusals(b"<DeleteResult/>").unwrap().is_empty());
        for reasonless in [
            &b"<DeleteResult><Error><Code></Code><Key>k</Key></Error></DeleteResult>"[..],
            b"<DeleteResult><Error><Key>k</Key><Code/></Error></DeleteResult>",
            b"<DeleteResult><Error><Key>k</Key></Error></DeleteResult>",
        ] {
            assert_eq!(
                refusals(reasonless).unwrap(),
                [DeleteError { key: "k".into(), code: "Unknown".into() }]
            );
        }
        for other in [
            &b"<DeleteResult><Error>"[..],
            b"<DeleteResult><Error><Code>AccessDenied</Code></Error></DeleteResult>",
            b"<Error><Code>InternalError</Code></Error>",
            b"<html></html>",
            b"",
        ] {
            assert!(refusals(other).is_err(), "{}", String::from_utf8_lossy(other));
        }
    }
}
