use crate::client::Client;
use crate::endpoint::Provider;
use crate::error::{Error, ErrorKind, Result};
use crate::request::Request;
use crate::tries::Tries;
use crate::xml;

const ANSWER_BYTES_MAX: usize = 64 * 1024;

impl Client {
    /// Whether the bucket is there and open to us. Learns its region on the way.
    pub async fn head_bucket(&self) -> Result<bool> {
        match self.run("head_bucket", Tries::new(&self.inner).ask(&Request::new("HEAD", None), 0)).await {
            Ok(_) => Ok(true),
            Err(e) if e.status() == Some(404) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Makes the bucket; that it is ours already is fine. For tests: a bucket that matters wants more settings than this has.
    pub async fn create_bucket(&self) -> Result<()> {
        let site = self.inner.site();
        let place = &site.endpoint;
        if place.provider() == Provider::Express {
            let what = "directory buckets are made through another endpoint: use the provider's own tools";
            return Err(Error::new(ErrorKind::Unsupported, what).with_op("create_bucket"));
        }
        let mut body = String::new();
        if place.provider() == Provider::Aws && place.region() != "us-east-1" {
            body.push_str(
                "<CreateBucketConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><LocationConstraint>",
            );
            xml::escape(&mut body, place.region());
            body.push_str("</LocationConstraint></CreateBucketConfiguration>");
        }
        let request = Request { body: body.as_bytes(), ..Request::new("PUT", None) };
        match self.run("create_bucket", Tries::new(&self.inner).ask(&request, ANSWER_BYTES_MAX)).await {
            Err(e) if e.code() != Some("BucketAlreadyOwnedByYou") => Err(e),
            _ => Ok(()),
        }
    }

    /// Deletes the bucket, which must be empty; that there is none is fine.
    pub async fn delete_bucket(&self) -> Result<()> {
        match self
            .run("delete_bucket", Tries::new(&self.inner).ask(&Request::new("DELETE", None), ANSWER_BYTES_MAX))
            .await
        {
            Err(e) if e.status() != Some(404) => Err(e),
            _ => Ok(()),
        }
    }
}
