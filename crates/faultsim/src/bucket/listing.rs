//! Listings of the simulated bucket: ListObjectsV2.

use std::fmt::Write as _;
use std::ops::Bound;

use super::http::{Request, Response, encode, escape};
use super::{Bucket, calendar};

/// The most entries of a page.
const PAGE_MAX: usize = 1000;

impl Bucket {
    pub(super) fn list(&mut self, request: &Request, now_ms: u64) -> Response {
        let of = |name: &str| request.value(name).unwrap_or_default();
        let (prefix, delimiter) = (of("prefix"), of("delimiter"));
        let page_max = of("max-keys").parse().unwrap_or(PAGE_MAX).min(PAGE_MAX);
        let after = match of("continuation-token") {
            token if token.is_empty() => of("start-after"),
            token => token,
        };
        let from = if after >= prefix { Bound::Excluded(&after) } else { Bound::Included(&prefix) };
        let objects = match &mut self.lag {
            Some(lag) => lag.listed(now_ms),
            None => &self.objects,
        };
        let mut listed = objects
            .range::<String, _>((from, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(&prefix));
        let mut body = String::new();
        let mut folded: Vec<String> = Vec::new();
        let mut last = None;
        for (key, object) in listed.by_ref().take(page_max) {
            last = Some(key);
            let rest = &key[prefix.len()..];
            let head = rest.split_once(delimiter.as_str()).filter(|_| !delimiter.is_empty());
            if let Some((head, _)) = head {
                folded.push(format!("{prefix}{head}{delimiter}"));
                continue;
            }
            body.push_str(&object.entry);
        }
        folded.dedup();
        for prefix in folded {
            let prefix = encode(&prefix);
            let _ = write!(body, "<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>");
        }
        let more = listed.next().is_some();
        if let Some(last) = last.filter(|_| more) {
            let token = escape(last);
            let _ = write!(body, "<NextContinuationToken>{token}</NextContinuationToken>");
        }
        let head = format!("<EncodingType>url</EncodingType><IsTruncated>{more}</IsTruncated>");
        let body = format!("<ListBucketResult>{head}{body}</ListBucketResult>");
        Response::new(200, body.into_bytes())
    }
}

/// What a listing says of an object.
pub(super) fn entry(key: &str, modified_s: u64, etag: &str, bytes: usize) -> String {
    format!(
        "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>{}</ETag><Size>{bytes}</Size></Contents>",
        encode(key),
        calendar::iso(modified_s),
        escape(etag),
    )
}
