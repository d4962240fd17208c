use std::sync::atomic::Ordering;

use crate::client::Client;
use crate::endpoint::{Endpoint, Provider};
use crate::error::{Error, ErrorKind, Result};
use crate::request::{Request, Signer};
use crate::retry::RequestKind;
use crate::xml;

const ANSWER_BYTES_MAX: usize = 64 * 1024;

impl Client {
    /// Whether the bucket exists and is accessible. Learns its region.
    ///
    /// # Errors
    /// `Denied` when the credentials may not access it; `Timeout`, `Io` or `Unavailable` when the
    /// store does not respond.
    pub async fn head_bucket(&self) -> Result<bool> {
        match self
            .run(
                RequestKind::Control,
                "head_bucket",
                self.inner.ask(&Request::new("HEAD", None), 0),
            )
            .await
        {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                // The response to a HEAD has no error code.
                self.inner.bucket_missing.store(true, Ordering::Relaxed);
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    /// Creates the bucket, for tests: a production bucket needs more settings. It is no error if
    /// the same account has the bucket already.
    ///
    /// # Errors
    /// `Conflict` when another account has a bucket of this name, `Denied` without the permission.
    pub async fn create_bucket(&self) -> Result<()> {
        let body = wanted(&self.inner.destination().endpoint)?;
        let request = Request { body: body.as_bytes(), ..self.of_bucket("PUT") };
        match self
            .run(RequestKind::Control, "create_bucket", self.inner.ask(&request, ANSWER_BYTES_MAX))
            .await
        {
            Err(e) if e.code() != Some("BucketAlreadyOwnedByYou") => Err(e),
            _ => Ok(()),
        }
    }

    /// Deletes the bucket, which must be empty. It is no error if the bucket does not exist.
    ///
    /// # Errors
    /// `Conflict` when the bucket is not empty.
    pub async fn delete_bucket(&self) -> Result<()> {
        let request = self.of_bucket("DELETE");
        match self
            .run(RequestKind::Control, "delete_bucket", self.inner.ask(&request, ANSWER_BYTES_MAX))
            .await
        {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// A request that creates or deletes the bucket. Those of S3 Express go to the control
    /// endpoint, without a session, since a session belongs to a bucket.
    fn of_bucket(&self, method: &'static str) -> Request<'static> {
        let to_control = self.inner.config.endpoint.provider() == Provider::Express;
        Request { signer: Signer::Base, to_control, ..Request::new(method, None) }
    }
}

/// The body of the request that creates a bucket at this endpoint.
fn wanted(place: &Endpoint) -> Result<String> {
    let mut inside = String::new();
    if place.provider() == Provider::Express {
        let what = "a directory bucket is called NAME--ZONE--x-s3, as in kv--use1-az4--x-s3";
        let zone = place
            .zone()
            .ok_or_else(|| Error::new(ErrorKind::Invalid, what).with_op("create_bucket"))?;
        // Zones of a region have two parts (use1-az4), local zones three (usw2-lax1-az1).
        let local = zone.split('-').count() > 2;
        let (kind, copies) = if local {
            ("LocalZone", "SingleLocalZone")
        } else {
            ("AvailabilityZone", "SingleAvailabilityZone")
        };
        inside = format!(
            "<Location><Type>{kind}</Type><Name>{zone}</Name></Location>\
             <Bucket><Type>Directory</Type><DataRedundancy>{copies}</DataRedundancy></Bucket>"
        );
    } else if place.provider() == Provider::Aws && place.region() != "us-east-1" {
        inside.push_str("<LocationConstraint>");
        xml::escape(&mut inside, place.region());
        inside.push_str("</LocationConstraint>");
    }
    Ok(match inside.is_empty() {
        true => inside,
        false => format!(
            "<CreateBucketConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{inside}</CreateBucketConfiguration>"
        ),
    })
}
