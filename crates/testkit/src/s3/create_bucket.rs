//! How buckets are made.

use super::object_store::ObjectStore;
use super::wire::Response;
use super::xml::texts;

/// Makes the bucket, where what is said of it is right. At AWS a region other than the first is to
/// be named.
pub fn bucket(store: &mut ObjectStore, name: &str, region: Option<&str>, body: &[u8]) -> Response {
    // Names of directory buckets end with their zone: `NAME--ZONE--x-s3`.
    let right = match name.strip_suffix("--x-s3").and_then(|rest| rest.rsplit_once("--")) {
        Some((_, zone)) => is_directory(zone, body),
        None => is_of(region, body),
    };
    match (right, store.bucket_exists) {
        (Err(code), _) => Response::error(400, code),
        (Ok(()), true) => Response::error(409, "BucketAlreadyOwnedByYou"),
        (Ok(()), false) => {
            store.bucket_exists = true;
            Response::new(200, "")
        }
    }
}

/// Whether the body describes a directory bucket in the zone of its name.
fn is_directory(zone: &str, body: &[u8]) -> Result<(), &'static str> {
    let of = |name: &str| texts(body, name);
    if of("Location").is_empty() || of("Bucket").is_empty() {
        return Err("MalformedXML");
    }
    match of("Type") == ["AvailabilityZone", "Directory"]
        && of("DataRedundancy") == ["SingleAvailabilityZone"]
    {
        true if of("Name") == [zone] => Ok(()),
        true => Err("InvalidBucketName"),
        false => Err("InvalidRequest"),
    }
}

fn is_of(region: Option<&str>, body: &[u8]) -> Result<(), &'static str> {
    let named = texts(body, "LocationConstraint");
    // us-east-1 is the one region that must not be named in the body.
    let usual = region.is_none_or(|region| region == "us-east-1");
    match (named.first(), region) {
        (None, _) if usual => Ok(()),
        (Some(named), Some(region)) if named == region && !usual => Ok(()),
        _ => Err("IllegalLocationConstraintException"),
    }
}
